"""Decodes Avro values to Arrow columns, by the schema that they were written with."""
