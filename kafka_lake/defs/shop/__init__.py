"""The demo's tables of a database, by the changes that Debezium reads from it."""
