"""Kafka client properties, in librdkafka's names, for both clients: librdkafka and Spark's Java client."""
