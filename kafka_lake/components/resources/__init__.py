"""Dagster's resources: Kafka, the schema registry, the Iceberg catalog, Spark."""
