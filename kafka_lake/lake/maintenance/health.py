"""Health: what a table's metadata tell of its files, deletes and snapshots. No file of its data is opened."""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.lake.layout import LAYOUT
from kafka_lake.lake.positions import ADOPTED_AT, RESUMED_FROM, ancestors, follows_another, head_of, summary_of

COMPACTED = "kafka-lake.compacted"
"""A property of a table: the sequence number at its last compaction, be it that there was nothing to do."""


@dataclass(frozen=True)
class TableHealth:
    """How a table fares, as its newest snapshot and its metadata tell it.

    Args:
        rows: Rows in its data files, deleted ones included.
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


def dangling_deletes(table: Table) -> int | None:
    """Return how many delete files of a table have no data file left that they could be about. Manifests are read.

    A compaction takes them away. A delete that may be about any file of a partition counts while there is one.
    """
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    deletes = [each for each in manifests if each.content is not ManifestContent.DATA]
    if not deletes:
        return 0
    if table.format_version > 2:
        return None
    entries = (entry for each in deletes for entry in each.fetch_manifest_entry(table.io, discard_deleted=True))
    found = {entry.data_file.file_path for entry in entries}
    try:
        needed = {each.file_path for task in table.scan().plan_files() for each in task.delete_files}
    except ValueError:
        return None
    return len(found - needed)


def holders(table: Table) -> str:
    """Return who keeps old files of a table from being removed, the oldest first; from its metadata alone.

    Files go when no snapshot has them any more: so they are held by the oldest snapshot of ``main`` that is kept, by
    tags, and by other branches. As ``tag year_end (2025-12-31 23:00), main (its oldest of 100 snapshots is of
    2026-11-21 09:00)``; empty if a table has but one snapshot.
    """
    found: list[tuple[int, str]] = []
    for name, ref in table.metadata.refs.items():
        is_tag = ref.snapshot_ref_type == "tag"
        history = list(ancestors(table, ref.snapshot_id))[: 1 if is_tag else None]
        if not history or (name == "main" and len(history) == 1):
            continue
        oldest = history[-1].timestamp_ms
        if is_tag:
            found.append((oldest, f"tag {name} ({_moment(oldest)})"))
            continue
        if name != "main" and ref.snapshot_id == head_of(table):
            continue
        kind = "main" if name == "main" else f"branch {name}"
        found.append((oldest, f"{kind} (its oldest of {len(history):,} snapshots is of {_moment(oldest)})"))
    return ", ".join(text for _, text in sorted(found))


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
