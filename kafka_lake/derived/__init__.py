"""Derived tables: results of queries over other tables, updated exactly once by what is new in those."""
