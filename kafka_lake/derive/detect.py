"""What has happened to an upstream table since it was read: rows came, rows changed, or nobody can tell. Pure.

The snapshots in between tell. Where they have expired, the table's totals tell whether rows were added alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.schema import index_by_name
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.derive.record import APPEND, REWRITE, Read
from kafka_lake.lake.author import EXPIRE_ROWS, KIND, OFFSETS, REMOVES, offsets_of
from kafka_lake.lake.positions import POSITION, ancestors, summary_of


@dataclass(frozen=True)
class Changes:
    """What has happened to an upstream table between two snapshots.

    Args:
        news: Whether its rows are others than before.
        since: By partition, from which offset on rows are new.
        ranges: Offsets before that whose rows may be others.
        added: Pairs of snapshots between which rows of other offsets were added: they tell them.
        unknown: Why nobody can tell which rows are others; empty if somebody can.
    """

    news: bool
    since: Mapping[int, int] = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()
    added: tuple[tuple[int, int], ...] = ()
    unknown: str = ""

    @property
    def new_since(self) -> dict[int, int]:
        """Return from which offset on rows are new, for all partitions up to the greatest that had some.

        Statistics of files can tell that no row has a greater partition, but not that none has another one.
        """
        return {partition: self.since.get(partition, 0) for partition in range(max(self.since, default=-1) + 1)}


def changes_since(before: Read, now: Read, table: Table, whole: bool = False) -> Changes:
    """Return what has happened to an upstream table since it was read."""
    if before.uuid != now.uuid:
        return _unknown(before, "it was dropped and created again")
    if before.snapshot == now.snapshot:
        return Changes(False, dict(before.position.offsets) if before.position else {})
    if before.snapshot is None or now.snapshot is None:
        return Changes(True) if before.snapshot is None and not before.rows else _unknown(before, "it has no snapshot")
    if before.position and now.position and not before.position.identity.same_as(now.position.identity):
        return _unknown(before, f"its topic {now.position.identity.topic} is another one than it was")
    if column := _another_column(before, now, table):
        return _unknown(before, f"its column {column} is another one than it was, renamed or dropped and added again")
    between = _between(table, before.snapshot, now.snapshot)
    if between is None and whole:
        return Changes(True)
    if between is None:
        return _by_totals(before, now)
    return _told(before, between)


def _another_column(before: Read, now: Read, table: Table) -> str:
    """Return a column that has the name of another one that was there before; empty if there is none."""
    names = {each.schema_id: index_by_name(each) for each in table.metadata.schemas}
    # Who removes old schemas has them only kept from being compared.
    old, new = (names.get(-1 if each.schema is None else each.schema, {}) for each in (before, now))
    return next((name for name, number in old.items() if new.get(name, number) != number), "")


def _between(table: Table, before: int, now: int) -> list[Snapshot] | None:
    """Return the snapshots after one up to another, newest first; None if they don't lead there."""
    found: list[Snapshot] = []
    for snapshot in ancestors(table, now):
        if snapshot.snapshot_id == before:
            return found
        found.append(snapshot)
    return None


def _by_totals(before: Read, now: Read) -> Changes:
    """Compare the numbers of rows: what was added by commits that add alone is all that there is more."""
    since = dict(before.position.offsets) if before.position else {}
    if now.rewrites != before.rewrites:
        return _unknown(before, "rows of it were replaced, moved or reset, and the snapshots that tell which are gone")
    expected = now.added - before.added - (now.expired - before.expired)
    if now.rows - before.rows != expected or now.deleted != before.deleted or now.added < before.added:
        return _unknown(before, f"it has {now.rows} rows where {before.rows + expected} are expected")
    if before.position and now.position:
        offsets = now.position.offsets
        if any(offsets.get(partition, 0) < offset for partition, offset in since.items()):
            return _unknown(before, "its position was set back")
    return Changes(now.added != before.added, since)


def _told(before: Read, between: Iterable[Snapshot]) -> Changes:
    """Return what snapshots tell that lead from one to another, newest first."""
    since = dict(before.position.offsets) if before.position else {}
    ranges: list[OffsetRange] = []
    expiries = set[int | None]()
    added: list[tuple[int, int]] = []
    news, removes_for_it = False, set[str]()
    for snapshot in between:
        summary = summary_of(snapshot)
        operation = snapshot.summary.operation if snapshot.summary else None
        kind = summary.get(KIND)
        adds, removes = _count(summary, "added-records"), _count(summary, "deleted-records")
        removes += _count(summary, "added-position-deletes") + _count(summary, "added-equality-deletes")
        if operation == Operation.REPLACE or (not adds and not removes and kind not in ("reset", REWRITE)):
            # Compaction; or a commit that holds a position, as the one behind rows that have expired.
            expiries |= {snapshot.parent_snapshot_id} if kind == EXPIRE_ROWS else set()
            continue
        if kind == EXPIRE_ROWS or snapshot.snapshot_id in expiries:
            # What was made of them stays.
            continue
        news = True
        if kind == APPEND and operation == Operation.APPEND:
            continue
        if kind == REWRITE and OFFSETS in summary:
            ranges += offsets_of(summary[OFFSETS])
            removes_for_it.add(summary.get(REMOVES, ""))
        elif kind == "reset":
            ranges += _set_back(since, summary)
            removes_for_it.add(summary.get(REMOVES, ""))
        elif operation == Operation.APPEND and snapshot.parent_snapshot_id is not None:
            # Rows of dead letters, rows that a replay keeps, and rows of others: they tell their offsets.
            added.append((snapshot.parent_snapshot_id, snapshot.snapshot_id))
        elif str(snapshot.snapshot_id) not in removes_for_it:
            what = "replaced as a whole" if adds else "deleted"
            return _unknown(before, f"rows of it were {what} by snapshot {snapshot.snapshot_id}")
    return Changes(news, since, tuple(dict.fromkeys(ranges)), tuple(added))


def _set_back(since: Mapping[int, int], summary: Mapping[str, str]) -> list[OffsetRange]:
    """Return the offsets before the position that a reset has taken the rows of."""
    offsets = Position.from_json(summary[POSITION]).offsets if POSITION in summary else {}
    return [
        OffsetRange(partition, offsets.get(partition, offset), offset)
        for partition, offset in since.items()
        if offsets.get(partition, offset) < offset
    ]


def _count(summary: Mapping[str, str], name: str) -> int:
    return int(summary.get(name, 0))


def _unknown(before: Read, why: str) -> Changes:
    return Changes(True, unknown=f"table {before.table}: {why}")
