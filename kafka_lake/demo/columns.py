"""Which run of Dagster's a table's columns came with, from its snapshots."""

from dataclasses import dataclass

from pyiceberg.table import Table

from kafka_lake.components.table_page import readable
from kafka_lake.lake.history import schema_history
from kafka_lake.lake.positions import RUN_ID, summary_of


@dataclass(frozen=True)
class Column:
    """A column, and the snapshot and the run that it came with; no run if it is as old as the table."""

    name: str
    type: str
    snapshot_id: int
    run_id: str


def columns_of(table: Table) -> list[Column]:
    """Return a table's columns, and nested ones that came later, oldest first."""
    found = []
    for version in schema_history(table):
        snapshot = table.metadata.snapshot_by_id(version.snapshot_id) if version.snapshot_id is not None else None
        if snapshot is not None:
            run_id = summary_of(snapshot).get(RUN_ID, "")
            added = (change for change in version.changes if change.kind == "added")
            found += [Column(c.column, readable(c.after), snapshot.snapshot_id, run_id) for c in added]
    return found
