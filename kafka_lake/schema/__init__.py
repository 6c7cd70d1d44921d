"""Column names and the rules of schema evolution. Pure."""
