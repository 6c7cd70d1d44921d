"""Health: what a table's metadata tell of its files, deletes and snapshots. No file of its data is opened."""

from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.lake.maintenance.leftovers import holders
from kafka_lake.lake.positions import ADOPTED_AT, RESUMED_FROM, ancestors, follows_another, head_of, summary_of
from kafka_lake.lake.tables.properties import LAYOUT

COMPACTED = "kafka-lake.compacted"
"""A property of a table: the sequence number at its last compaction, be it that there was nothing to do."""


@dataclass(frozen=True)
class TableHealth:
    """How a table fares, as its newest snapshot and its metadata tell it.

    Args:
        rows: Rows in its data files, deleted ones included.
        data_files: How many.
        size: Of all its files, in bytes.
        delete_files: How many files of position deletes or deletion vectors it has.
        deleted_rows: How many rows of the data files they delete.
        commits: Since the last compaction, whether it found something to do or not.
        snapshots: How many the metadata have, in whatever branch.
        held_by: Who keeps files of older snapshots from being removed, the oldest first, as people read it.
    """

    rows: int
    data_files: int
    size: int
    delete_files: int
    deleted_rows: int
    commits: int
    snapshots: int
    held_by: str = ""

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
        held_by=holders(table),
    )


def commits_since_compaction(table: Table | None) -> int:
    """Return how many commits ``main`` has had since its last compaction, ours or another's.

    Snapshots expire: so Iceberg's sequence numbers count, unless the whole history is there and has no compaction, or
    the table is of format version 1, which has none. Then commits of ours count.
    """
    if table is None or (head := head_of(table)) is None:
        return 0
    history = list(ancestors(table, head))
    by_others = next((each.sequence_number or 0 for each in history if compacts(each)), 0)
    ours = table.properties.get(COMPACTED, "")
    last, now = max(by_others, int(ours) if ours.isdigit() else 0), history[0].sequence_number or 0
    # A head that was rolled back to before it has no compaction.
    if 0 < last <= now or (now and not last and follows_another(history[-1])):
        return now - last
    return sum(
        bool(summary_of(each).keys() & RESUMED_FROM) for each in takewhile(lambda each: not compacts(each), history)
    )


def is_ours(table: Table) -> bool:
    """Return whether kafka_lake has created a table; one that was taken over is its former writer's."""
    return LAYOUT in table.properties and ADOPTED_AT not in table.properties


def compacts(snapshot: Snapshot) -> bool:
    """Return whether data files were replaced: manifests, or delete files, are replaced by such snapshots too."""
    replaces = snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
    return replaces and int(summary_of(snapshot).get("deleted-data-files", 0)) > 0
