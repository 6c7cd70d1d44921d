"""The part of `kafka_lake.cdc` that runs in tasks."""
