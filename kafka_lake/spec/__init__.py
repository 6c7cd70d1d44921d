"""What a project's documents say, as plain frozen data."""
