"""Proof of exactly once: every record in Kafka before the table's position is in the table once."""
