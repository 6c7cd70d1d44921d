"""What leans on private parts of Dagster. Everything works without it, only slower."""
