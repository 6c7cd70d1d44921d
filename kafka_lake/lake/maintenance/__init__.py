"""What keeps a table small and quick, whoever wrote it."""
