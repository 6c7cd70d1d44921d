"""Avro values of types that contain themselves, which no column has."""
