"""Iceberg snapshots of decoded records on a branch: append, upsert, history."""
