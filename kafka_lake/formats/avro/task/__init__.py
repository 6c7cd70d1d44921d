"""Avro datums become Arrow columns, by the schema that they were written with."""
