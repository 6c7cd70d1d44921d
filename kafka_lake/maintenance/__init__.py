"""Compaction, expiry of snapshots and rows, removal of unused files."""
