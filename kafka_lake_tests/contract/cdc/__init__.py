"""A real PostgreSQL captured by a real Debezium: the table must be what the database is."""
