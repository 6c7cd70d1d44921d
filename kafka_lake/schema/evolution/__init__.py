"""The rules of schema evolution: pure, without an engine and without a network."""
