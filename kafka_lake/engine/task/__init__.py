"""Runs in Spark's Python workers, where it is sent by value. Imports only other packages named ``task``."""

METADATA_COLUMN = "_kafka"
"""Struct with the Kafka record of a row."""
