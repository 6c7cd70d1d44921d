"""Keyed tables: a row for each key, as its newest change left it."""
