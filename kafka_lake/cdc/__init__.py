"""Change events of Debezium, Maxwell and Canal: decoded to rows, operations and their order."""
