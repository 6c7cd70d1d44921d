"""The demo's topic in Avro."""
