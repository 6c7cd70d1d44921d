"""Guesses the format and the columns of topics, and writes YAML documents for them."""
