"""Brokers and schema registry: connection, authentication, topics, offsets, records."""
