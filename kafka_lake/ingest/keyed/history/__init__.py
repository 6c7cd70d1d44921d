"""Histories (SCD 2): a table with a row for each change of a key, and from when until when it counts."""
