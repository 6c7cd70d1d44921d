"""Change events of Debezium, Maxwell and Canal: decoded to rows and operations."""
