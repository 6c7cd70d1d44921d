"""Which upstream snapshots a derived table was made of, and what has changed since. Pure.

Later upstream snapshots show what changed. If they have expired, the table's totals show whether rows were only added.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, TypeAdapter
from pyiceberg.schema import index_by_name
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.catalog.positions import (
    DERIVED,
    EXPIRE_ROWS,
    KIND,
    OFFSETS,
    POSITION,
    REMOVES,
    ancestors,
    head_of,
    offsets_of,
    read_state,
    summary_of,
)
from kafka_lake.catalog.tables import Totals, totals_of
from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.errors import TableError

REBUILD = "rebuild"
"""Kind of a commit that replaces all rows."""
REWRITE = "replace"
"""Kind of a commit that replaces the rows of offsets, as in `Plan.kind`."""
APPEND = "append"
"""Kind of a commit that adds rows after the position."""
MERGE = "derive"
"""Kind of a commit that replaces rows of keys."""
_COUNTS = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
_Position = Annotated[Position, PlainSerializer(Position.to_json), PlainValidator(Position.from_json)]


@dataclass(frozen=True)
class Read:
    """An upstream table as it was read.

    Args:
        uuid: Changes if the table is created again.
        rows: Rows in data files, deleted ones included.
        deleted: Rows in delete files.
        added: Rows that all commits have added.
        rewrites: Commits that did more than add rows after the position.
    """

    table: str
    uuid: str
    snapshot: int | None
    position: _Position | None
    rows: int
    deleted: int
    added: int
    rewrites: int
    expired: int = 0
    schema: int | None = None

    @property
    def offsets(self) -> dict[int, int]:
        """Return the next offset by partition."""
        return dict(self.position.offsets) if self.position else {}


@dataclass(frozen=True)
class Record:
    """What a derived table was made of: the fingerprint of the query, and tables by their names in it.

    Args:
        zone: Spark's session time zone; empty if Spark wasn't started.
    """

    query: str
    upstream: Mapping[str, Read]
    joined: Mapping[str, Read]
    zone: str = ""

    def to_json(self) -> str:
        """Return the text for a snapshot's summary."""
        return _AS_JSON.dump_json(self).decode()


_AS_JSON = TypeAdapter(Record)


def read_of(table: Table) -> Read:
    """Return an upstream table as it is loaded."""
    state = read_state(table)
    head = table.metadata.snapshot_by_id(state.head) if state.head is not None else None
    summary, totals = summary_of(head) if head else {}, totals_of(table) or Totals()
    return Read(
        table=".".join(table.name()),
        uuid=str(table.metadata.table_uuid),
        snapshot=state.head,
        position=state.position,
        rows=int(summary.get("total-records", 0)),
        deleted=int(summary.get("total-position-deletes", 0)) + int(summary.get("total-equality-deletes", 0)),
        added=totals.rows,
        rewrites=totals.rewrites,
        expired=totals.expired,
        schema=head.schema_id if head else None,
    )


def record_of(table: Table) -> Record | None:
    """Return what a derived table was made of, by the newest snapshot of ``main`` that has it."""
    for snapshot in ancestors(table, head_of(table)):
        if text := summary_of(snapshot).get(DERIVED):
            try:
                return _AS_JSON.validate_json(text)
            except ValueError as error:
                raise TableError(
                    f"Table {'.'.join(table.name())}: snapshot {snapshot.snapshot_id} has an invalid {DERIVED}.",
                    "Drop the table and run it again.",
                ) from error
    return None


@dataclass(frozen=True)
class Changes:
    """Changes of an upstream table between two snapshots.

    Args:
        ranges: Earlier offsets whose rows may have changed.
        added: Pairs of snapshots between which rows of earlier offsets were added.
        unknown: The reason if the snapshots don't show which rows have changed.
    """

    news: bool
    since: Mapping[int, int] = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()
    added: tuple[tuple[int, int], ...] = ()
    unknown: str = ""

    @property
    def new_since(self) -> dict[int, int]:
        """Return the first new offset of all partitions up to the greatest, so that file statistics can be used."""
        return {partition: self.since.get(partition, 0) for partition in range(max(self.since, default=-1) + 1)}


def changes_since(before: Read, now: Read, table: Table, whole: bool = False) -> Changes:
    """Return what has happened to an upstream table since it was read."""
    if before.uuid != now.uuid:
        return _unknown(before, "it was dropped and created again")
    if before.snapshot == now.snapshot:
        return Changes(False, before.offsets)
    if before.snapshot is None or now.snapshot is None:
        return Changes(True) if before.snapshot is None and not before.rows else _unknown(before, "it has no snapshot")
    if before.position and now.position and not before.position.identity.same_as(now.position.identity):
        return _unknown(before, f"its topic {now.position.identity.topic} was created again")
    if column := _another_column(before, now, table):
        return _unknown(before, f"its column {column} was renamed, or dropped and added again")
    between = _between(table, before.snapshot, now.snapshot)
    if between is None and whole:
        return Changes(True)
    if between is None:
        return _by_totals(before, now)
    return _by_snapshots(before, between)


def _another_column(before: Read, now: Read, table: Table) -> str:
    """Return a column whose name another column had before; empty if there is none."""
    names = {schema.schema_id: index_by_name(schema) for schema in table.metadata.schemas}
    # Columns of schemas that have been removed can't be compared.
    old, new = (names.get(-1 if read.schema is None else read.schema, {}) for read in (before, now))
    return next((name for name, number in old.items() if new.get(name, number) != number), "")


def _between(table: Table, before: int, now: int) -> list[Snapshot] | None:
    """Return the snapshots after ``before`` up to ``now``, newest first; None if ``before`` isn't an ancestor."""
    between: list[Snapshot] = []
    for snapshot in ancestors(table, now):
        if snapshot.snapshot_id == before:
            return between
        between.append(snapshot)
    return None


def _by_totals(before: Read, now: Read) -> Changes:
    """Return the changes by totals: without rewrites, the table has grown by the rows that were added."""
    since = before.offsets
    if now.rewrites != before.rewrites:
        return _unknown(
            before, "rows of it were replaced, moved or reset, and the snapshots that show which have expired"
        )
    expected = now.added - before.added - (now.expired - before.expired)
    if now.rows - before.rows != expected or now.deleted != before.deleted or now.added < before.added:
        return _unknown(before, f"it has {now.rows} rows where {before.rows + expected} are expected")
    if before.position and now.position:
        offsets = now.position.offsets
        if any(offsets.get(partition, 0) < offset for partition, offset in since.items()):
            return _unknown(before, "its position was set back")
    return Changes(now.added != before.added, since)


def _by_snapshots(before: Read, between: Iterable[Snapshot]) -> Changes:
    """Return the changes by the snapshots since, newest first."""
    since, ranges, added = before.offsets, list[OffsetRange](), list[tuple[int, int]]()
    news, known_removals, expiries = False, set[str](), set[int | None]()
    for snapshot in between:
        summary = summary_of(snapshot)
        operation, kind = snapshot.summary.operation if snapshot.summary else None, summary.get(KIND)
        adds, *deletes = (int(summary.get(name, 0)) for name in _COUNTS)
        if operation == Operation.REPLACE or (not adds and not any(deletes) and kind not in ("reset", REWRITE)):
            # Compaction, or a commit of a position only, as after an expiry of rows.
            expiries |= {snapshot.parent_snapshot_id} if kind == EXPIRE_ROWS else set()
            continue
        if kind == EXPIRE_ROWS or snapshot.snapshot_id in expiries:
            # What was derived from expired rows stays.
            continue
        news = True
        if kind == APPEND and operation == Operation.APPEND:
            continue
        if kind == "reset" or (kind == REWRITE and OFFSETS in summary):
            ranges += _set_back(since, summary) if kind == "reset" else offsets_of(summary[OFFSETS])
            known_removals.add(summary.get(REMOVES, ""))
        elif operation == Operation.APPEND and snapshot.parent_snapshot_id is not None:
            # Replayed dead letters, and rows that a replay keeps, have older offsets.
            added.append((snapshot.parent_snapshot_id, snapshot.snapshot_id))
        elif str(snapshot.snapshot_id) not in known_removals:
            what = "replaced as a whole" if adds else "deleted"
            return _unknown(before, f"rows of it were {what} by snapshot {snapshot.snapshot_id}")
    return Changes(news, since, tuple(dict.fromkeys(ranges)), tuple(added))


def _set_back(since: Mapping[int, int], summary: Mapping[str, str]) -> list[OffsetRange]:
    """Return the offsets before the position whose rows a reset has removed."""
    offsets = Position.from_json(summary[POSITION]).offsets if POSITION in summary else {}
    return [
        OffsetRange(partition, offsets.get(partition, offset), offset)
        for partition, offset in since.items()
        if offsets.get(partition, offset) < offset
    ]


def _unknown(before: Read, why: str) -> Changes:
    return Changes(True, unknown=f"table {before.table}: {why}")
