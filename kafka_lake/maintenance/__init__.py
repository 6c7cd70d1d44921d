"""Maintenance of tables: policy, compaction, expiry of snapshots and of rows."""
