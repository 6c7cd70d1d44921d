"""Derived tables: results of queries over other tables, updated exactly once."""
