"""What maintenance a table needs, by its settings and its metadata. Nothing is changed."""

from dataclasses import dataclass
from itertools import islice, takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.catalog.positions import (
    ADOPTED_AT,
    CREATED,
    RESUMED_FROM,
    ancestors,
    follows_another,
    head_of,
    summary_of,
)
from kafka_lake.spec.maintenance import Maintenance

COMPACTED = "kafka-lake.compacted"
"""A table property: the sequence number at its last compaction, even if that found nothing to do."""
MOST_SNAPSHOTS = 2000
"""Snapshots kept at most, however young: thousands of them make commits slow."""

# Compacting for a few rows costs more than reading them.
_FEW_COMMITS = 10
_DELETED_SHARE = 0.2
# Expiry reads the metadata of all snapshots that go, so it waits for many.
_MANY_SNAPSHOTS = 100
_FAR_TOO_MANY_SNAPSHOTS = 5000
_FAR_TOO_MANY_COMMITS = 500
_SMALL_FILE_BYTES = 8 << 20


@dataclass(frozen=True)
class TableHealth:
    """Figures from a table's newest snapshot and its metadata.

    Args:
        delete_files: Files of position deletes or deletion vectors.
        deleted_rows: Rows of the data files that they delete.
        commits: Since the last compaction.
        snapshots: In all branches.
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
    """Return a table's figures; those that its snapshot's summary lacks are 0."""
    head = table.current_snapshot()
    summary = summary_of(head) if head else {}

    def total(name: str) -> int:
        return int(summary.get(f"total-{name}", 0))

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
    """Return how many commits ``main`` has had since its last compaction, by any program.

    Snapshots expire, so this compares Iceberg's sequence numbers. If the whole history is there and has no compaction,
    or the table is of format version 1, which has no sequence numbers, it counts kafka_lake's commits.
    """
    if table is None or (head := head_of(table)) is None:
        return 0
    history = list(ancestors(table, head))
    compacted = next((snapshot.sequence_number or 0 for snapshot in history if compacts(snapshot)), 0)
    recorded = table.properties.get(COMPACTED, "")
    last, now = max(compacted, int(recorded) if recorded.isdigit() else 0), history[0].sequence_number or 0
    # A head that was rolled back to before it has no compaction.
    if 0 < last <= now or (now and not last and follows_another(history[-1])):
        return now - last
    return sum(
        bool(summary_of(snapshot).keys() & RESUMED_FROM)
        for snapshot in takewhile(lambda snapshot: not compacts(snapshot), history)
    )


def is_managed(table: Table) -> bool:
    """Return whether kafka_lake created a table, and didn't take it over from another writer."""
    return CREATED in table.properties and ADOPTED_AT not in table.properties


def compacts(snapshot: Snapshot) -> bool:
    """Return whether a snapshot replaced data files, and not only manifests or delete files."""
    replaces = snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
    return replaces and int(summary_of(snapshot).get("deleted-data-files", 0)) > 0


@dataclass(frozen=True)
class Limits:
    """Which snapshots a table keeps.

    Args:
        older_than_ms: Younger ones stay, up to ``most``; milliseconds since 1970.
        keep: How many of the newest stay at any age.
        most: How many stay at most, at any age, except those that the position needs; None for any number.
    """

    older_than_ms: int
    keep: int
    most: int | None


@dataclass(frozen=True)
class Expirable:
    """Which snapshots of a table may expire.

    Args:
        times: Their times, oldest first, in milliseconds since 1970.
        kept: How many of the newest snapshots stay regardless of their times: writers' clocks differ.
    """

    times: tuple[int, ...]
    kept: int


def expirable(table: Table, limits: Limits) -> Expirable:
    """Return which snapshots of ``main`` may expire.

    The newest one with a position stays, and all after it; snapshots of compactions have none. Snapshots of tags and
    other branches stay too.
    """
    history = list(ancestors(table, head_of(table)))
    needed = next(
        (i for i, snapshot in enumerate(history) if summary_of(snapshot).keys() & RESUMED_FROM), len(history) - 1
    )
    kept = max(needed + 1, limits.keep)
    beyond = len(history) if limits.most is None else max(kept, limits.most)
    old = (i for i, snapshot in enumerate(history) if i >= kept and snapshot.timestamp_ms < limits.older_than_ms)
    expiring = history[min(next(old, len(history)), beyond) :]
    youngest = min((snapshot.timestamp_ms for snapshot in history[:kept]), default=0)
    # Iceberg keeps as many snapshots of each branch.
    pinned = {
        snapshot.snapshot_id
        for name, ref in table.metadata.refs.items()
        if name != "main"
        for snapshot in islice(ancestors(table, ref.snapshot_id), 1 if ref.snapshot_ref_type == "tag" else kept)
    }
    times = (snapshot.timestamp_ms for snapshot in expiring if snapshot.snapshot_id not in pinned)
    return Expirable(tuple(sorted(moment for moment in times if moment < youngest)), kept)


@dataclass(frozen=True)
class Needs:
    """What a table needs; each reason is empty if there is none.

    Args:
        expiring: How many snapshots may expire.
    """

    health: TableHealth
    compaction: str = ""
    expiring: int = 0
    expiry: str = ""
    rows: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return all reasons."""
        return tuple(filter(None, (self.rows, self.compaction, self.expiry)))

    @property
    def overdue(self) -> str:
        """Return why the table should have been maintained long ago; empty if it needn't."""
        health = self.health
        if health.snapshots > _FAR_TOO_MANY_SNAPSHOTS:
            return f"{health.snapshots:,} snapshots make commits slow"
        if health.delete_files > _FAR_TOO_MANY_COMMITS:
            return f"{health.delete_files:,} delete files make reading slow"
        if health.commits > _FAR_TOO_MANY_COMMITS and health.average_size < _SMALL_FILE_BYTES:
            return f"{health.data_files:,} small files make reading slow; {health.commits:,} commits without compaction"
        return ""


def applies_to(policy: Maintenance, table: Table) -> bool:
    """Return whether the sensor maintains a table under a policy."""
    return is_managed(table) if policy.enabled is None else policy.enabled


def needs_of(table: Table, policy: Maintenance, now_ms: int) -> Needs:
    """Return what a table needs now, in milliseconds since 1970."""
    health = table_health(table)
    compaction = expiry = ""
    if policy.compact_every is not None:
        if health.commits >= policy.compact_every:
            compaction = f"{health.commits:,} commits since the last compaction"
        elif health.deleted_share >= _DELETED_SHARE and health.commits >= _FEW_COMMITS:
            compaction = f"{health.deleted_share:.0%} of the rows in its files are deleted"
    limits = limits_of(table, policy, now_ms)
    if limits is None:
        return Needs(health, compaction)
    times = expirable(table, limits).times
    # One that is a tenth older than it should be, or many at once.
    if len(times) >= _MANY_SNAPSHOTS or (times and times[0] < now_ms - 1.1 * (now_ms - limits.older_than_ms)):
        expiry = f"{len(times):,} old snapshots"
    return Needs(health, compaction, len(times), expiry)


def limits_of(table: Table, policy: Maintenance, now_ms: int) -> Limits | None:
    """Return which snapshots a table keeps; None if none may expire.

    Table properties that keep more than the policy win. Nothing expires if the table forbids it (``gc.enabled``), or
    if its main branch has its own rules.
    """
    age, main = policy.expire_after_seconds, table.metadata.refs.get("main")
    if age is None or main is None or table.properties.get("gc.enabled", "true").lower() == "false":
        return None
    if main.max_snapshot_age_ms is not None or main.min_snapshots_to_keep is not None:
        return None
    own = [table.properties.get(f"history.expire.{name}") for name in ("max-snapshot-age-ms", "min-snapshots-to-keep")]
    own_age, own_keep = (int(value) if value is not None and value.isdigit() else 0 for value in own)
    return Limits(
        older_than_ms=now_ms - max(int(age * 1000), own_age),
        keep=max(policy.keep_snapshots, own_keep),
        most=None if any(own) else MOST_SNAPSHOTS,
    )
