"""Values that were written by a schema, Avro, Protobuf or JSON Schema: its id before each value, or one in a file."""
