"""A proof of exactly once: every record that Kafka still has, up to the table's position, is in the table once."""
