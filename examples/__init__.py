"""Projects that show what kafka_lake does."""
