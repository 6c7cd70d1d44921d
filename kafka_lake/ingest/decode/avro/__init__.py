"""Avro values, decoded in the JVM by the schema that they were written with."""
