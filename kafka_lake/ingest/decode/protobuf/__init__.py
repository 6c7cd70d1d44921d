"""Protobuf messages, decoded in Python beside Spark by the schema that they were written with."""
