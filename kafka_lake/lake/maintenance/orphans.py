"""When files that belong to no snapshot are removed: a question of time alone. Pure."""

from pyiceberg.table import Table

from kafka_lake.lake.maintenance.settings import Maintenance

ORPHANS_REMOVED = "kafka-lake.orphans-removed"
"""A property of a table: when its orphan files were removed last, in milliseconds since 1970."""
ORPHAN_AGE_SECONDS = 3 * 86_400.0
"""Younger files may be those of a job that is still in progress; it is what Iceberg's own procedure takes."""
_PAUSE_MS = 86_400_000


def why_remove(table: Table, policy: Maintenance, now_ms: int) -> str:
    """Return why a table's orphan files shall be removed; empty if they needn't yet.

    Args:
        table: As it was loaded.
        policy: What is asked for.
        now_ms: The time, in milliseconds since 1970.
    """
    if not policy.orphan_files or table.properties.get("gc.enabled", "true").lower() == "false":
        return ""
    last = table.properties.get(ORPHANS_REMOVED, "")
    # A clock that was ahead is no reason to wait for it.
    if last.isdigit() and 0 <= now_ms - int(last) < _PAUSE_MS:
        return ""
    return "a look for orphan files"
