"""Health: what a table's metadata tell of its files, deletes and snapshots. No file of its data is opened."""

from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.lake.positions import ADOPTED_AT, POSITION, ancestors, head_of, summary_of
from kafka_lake.lake.tables.properties import LAYOUT


@dataclass(frozen=True)
class TableHealth:
    """How a table fares, as its newest snapshot and its metadata tell it.

    Args:
        rows: Rows in its data files, deleted ones included.
        data_files: How many.
        size: Of all its files, in bytes.
        delete_files: How many files of position deletes or deletion vectors it has.
        deleted_rows: How many rows of the data files they delete.
        commits: Of ours since the last compaction, as far as they have not expired.
        snapshots: How many the metadata have, in whatever branch.
    """

    rows: int
    data_files: int
    size: int
    delete_files: int
    deleted_rows: int
    commits: int
    snapshots: int

    @property
    def average_size(self) -> int:
        """Return the average size of a data file, in bytes."""
        return self.size // max(1, self.data_files + self.delete_files)

    @property
    def deleted_share(self) -> float:
        """Return which share of the rows in the data files is deleted, from 0 to 1."""
        return self.deleted_rows / self.rows if self.rows else 0.0


def table_health(table: Table) -> TableHealth:
    """Return how a table fares; what a snapshot's summary leaves out counts as 0."""
    head = table.current_snapshot()
    told = summary_of(head) if head else {}

    def total(name: str) -> int:
        return int(told.get(f"total-{name}", 0))

    return TableHealth(
        rows=total("records"),
        data_files=total("data-files"),
        size=total("files-size"),
        delete_files=total("delete-files"),
        deleted_rows=total("position-deletes"),
        commits=commits_since_compaction(table),
        snapshots=len(table.metadata.snapshots),
    )


def commits_since_compaction(table: Table | None) -> int:
    """Return how many commits of ours ``main`` has since its last compaction, as far as they have not expired."""
    history = ancestors(table, head_of(table)) if table else iter(())
    return sum(POSITION in summary_of(each) for each in takewhile(lambda each: not _compacts(each), history))


def is_ours(table: Table) -> bool:
    """Return whether kafka_lake has created a table; one that was taken over is its former writer's."""
    return LAYOUT in table.properties and ADOPTED_AT not in table.properties


def _compacts(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
