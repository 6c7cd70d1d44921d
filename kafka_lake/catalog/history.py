"""A table's history from its snapshots: changes of its schema, a log of its commits, and recorded losses of data."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.catalog.positions import (
    ADOPTED_FROM,
    EXPIRE_ROWS,
    HOST,
    KEEPS,
    KIND,
    LOSSES,
    OFFSETS,
    POSITION,
    RECONCILE,
    REMOVES,
    RESET,
    RUN_ID,
    TOPIC,
    USER,
    ancestors,
    follows_another,
    head_of,
    offsets_of,
    positions_in,
    summary_of,
)
from kafka_lake.common.offsets import Loss, Position, Positions, losses_from_json, losses_to_json
from kafka_lake.schema.rules import Change, changes

_CUT_OFF = "Older snapshots have expired: what the schema was before is not known, nor when it became this."
_NOT_YET = "No snapshot has this schema yet: the next commit will."
_UNREADABLE = "The snapshot's position can't be read."
_KINDS = {
    "append": "append",
    "replace": "replay",
    "reset": "reset",
    "dead_letter_replay": "dead-letter replay",
    "adopt": "adopt",
    RECONCILE: "dead letters reconciled",
    EXPIRE_ROWS: "row expiry",
}
_APPLICATION = ("spark.app.id", "app-id")
_ROWS_ADDED = ("added-records",)
_ROWS_DELETED = ("deleted-records", "added-position-deletes", "added-equality-deletes")
_KEPT_LOSSES = 1000


@dataclass(frozen=True)
class SchemaVersion:
    """A schema that a table has, or had, from some snapshot on.

    Args:
        snapshot_id: The first snapshot with it that hasn't expired; None if no snapshot has it yet.
        committed_at: Time of that snapshot, or else of the table's newest metadata.
        changes: Since the version before; for the first version all columns, as added.
        positions: Of that snapshot.
        note: Empty for most.
    """

    schema_id: int
    snapshot_id: int | None
    committed_at: datetime
    changes: tuple[Change, ...]
    positions: Positions
    note: str = ""


def schema_history(table: Table) -> list[SchemaVersion]:
    """Return the versions of a table's schema along ``main``, oldest first."""
    schemas, before = table.schemas(), Schema()
    found: list[SchemaVersion] = []
    for snapshot in reversed([*ancestors(table, head_of(table))]):
        if snapshot.schema_id not in schemas:
            continue
        schema = schemas[snapshot.schema_id]
        notes = [_CUT_OFF] if not found and follows_another(snapshot) else []
        differences = _differences(before, schema)
        if not differences:
            continue
        positions, unread = _positions(snapshot)
        committed, note = _time(snapshot.timestamp_ms), " ".join([*notes, *unread])
        found.append(
            SchemaVersion(
                schema_id=schema.schema_id,
                snapshot_id=snapshot.snapshot_id,
                committed_at=committed,
                changes=differences,
                positions=positions,
                note=note,
            )
        )
        before = schema
    if pending := _differences(before, table.schema()):
        written = _time(table.metadata.last_updated_ms)
        found.append(
            SchemaVersion(
                schema_id=table.schema().schema_id,
                snapshot_id=None,
                committed_at=written,
                changes=pending,
                positions={},
                note=_NOT_YET,
            )
        )
    return found


def _differences(before: Schema, after: Schema) -> tuple[Change, ...]:
    found = changes(before, after)
    # In a new table required columns are no danger.
    return tuple(found if before.fields else (replace(change, kind="added") for change in found))


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _positions(snapshot: Snapshot) -> tuple[Positions, list[str]]:
    try:
        return positions_in(summary_of(snapshot)), []
    except ValueError:
        return {}, [_UNREADABLE]


@dataclass(frozen=True)
class Consumed:
    """Offsets of one Kafka partition in a commit.

    Args:
        start: None if no older snapshot has it.
        end: Exclusive; before ``start`` after a reset to earlier offsets.
    """

    partition: int
    start: int | None
    end: int


@dataclass(frozen=True)
class LoggedCommit:
    """One snapshot of ``main``.

    Args:
        committed_at: By the writer's clock.
        what: append, replay, reset, dead-letter replay, dead letters reconciled, adopt, table created, compaction,
            rewrite; or Iceberg's operation for commits of other programs.
        ours: Whether a run of kafka_lake wrote it; None for maintenance and for a table's first snapshot, which don't
            name their author.
        engine: Engine and application that wrote it.
        rows_added: 0 if rows were only rewritten.
        schema_changes: Since the snapshot before.
        losses: Offsets that were given up as lost.
        note: Empty for most.
    """

    snapshot_id: int
    committed_at: datetime
    what: str
    ours: bool | None
    run_id: str = ""
    host: str = ""
    user: str = ""
    engine: str = ""
    offsets: tuple[Consumed, ...] = ()
    rows_added: int = 0
    rows_deleted: int = 0
    schema_changes: tuple[Change, ...] = ()
    losses: tuple[Loss, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class _Entry:
    """A snapshot with its summary and positions; the note says if those can't be read."""

    snapshot: Snapshot
    summary: dict[str, str]
    positions: Positions = field(default_factory=dict)
    note: str = ""

    @property
    def position(self) -> Position | None:
        """Return the position in the topic whose commit it was, or in the only one."""
        only = next(iter(self.positions.values())) if len(self.positions) == 1 else None
        return self.positions.get(self.summary.get(TOPIC, ""), only)


def snapshot_log(table: Table) -> list[LoggedCommit]:
    """Return the commits of ``main`` whose snapshots haven't expired, newest first."""
    history = [_entry(each) for each in ancestors(table, head_of(table))]
    columns = {each.snapshot_id: each.changes for each in schema_history(table)[1:]}
    parts = _parts(history)
    return [
        _logged(entry, before, columns.get(entry.snapshot.snapshot_id, ()), parts.get(number))
        for number, (entry, before) in enumerate(zip(history, _before(history), strict=True))
    ]


def oldest_are_gone(table: Table) -> bool:
    """Return whether older snapshots of ``main`` have expired."""
    history = list(ancestors(table, head_of(table)))
    return bool(history) and follows_another(history[-1])


def _entry(snapshot: Snapshot) -> _Entry:
    summary = summary_of(snapshot)
    try:
        return _Entry(snapshot, summary, positions_in(summary))
    except ValueError:
        return _Entry(snapshot, summary, note="Its position can't be read.")


def _before(history: Sequence[_Entry]) -> list[Position | None]:
    """Return the position before each snapshot in its topic; None for a topic's first commit."""
    found: list[Position | None] = []
    older: Positions = {}
    for entry in reversed(history):
        only = next(iter(older.values())) if len(older) == len(entry.positions) == 1 else None
        found.append(older.get(entry.position.identity.topic, only) if entry.position else None)
        older = entry.positions or older
    return found[::-1]


def _parts(history: Sequence[_Entry]) -> dict[int, _Entry]:
    """Return the main snapshot of the same commit, for snapshots without an author.

    A commit that deletes rows has a snapshot for that before its main one, and another after it if it restores rows
    that Kafka no longer has.
    """
    found: dict[int, _Entry] = {}
    for number, (newer, older) in enumerate(pairwise(history)):
        before = str(older.snapshot.snapshot_id)
        if newer.summary.get(REMOVES) == before and RUN_ID not in older.summary:
            found[number + 1] = newer
        if newer.summary.get(KEEPS) == before:
            found[number] = older
    return found


def _operation(entry: _Entry) -> Operation | None:
    return entry.snapshot.summary.operation if entry.snapshot.summary else None


def _first(summary: dict[str, str], keys: Sequence[str]) -> str:
    return next((summary[key] for key in keys if summary.get(key)), "")


def _logged(entry: _Entry, before: Position | None, changes: tuple[Change, ...], whole: _Entry | None) -> LoggedCommit:
    told = (whole or entry).summary
    what, ours = _what(entry, before, whole)
    rewritten = ours is None
    losses, notes = _losses_in(entry.summary)
    offsets, unread = ((), []) if whole else _offsets(entry, before)
    return LoggedCommit(
        snapshot_id=entry.snapshot.snapshot_id,
        committed_at=datetime.fromtimestamp(entry.snapshot.timestamp_ms / 1000, UTC),
        what=what,
        ours=ours,
        run_id=told.get(RUN_ID, ""),
        host=told.get(HOST, ""),
        user=told.get(USER, ""),
        engine=_engine(entry.summary),
        offsets=offsets,
        rows_added=0 if rewritten else _total(entry.summary, _ROWS_ADDED),
        rows_deleted=0 if rewritten else _total(entry.summary, _ROWS_DELETED),
        schema_changes=changes,
        losses=losses,
        note=" ".join(filter(None, [entry.note, _topic(entry), *notes, *unread])),
    )


def _topic(entry: _Entry) -> str:
    """Return the topic of a commit as a note, if the table has several."""
    return f"Topic {entry.position.identity.topic}." if entry.position and len(entry.positions) > 1 else ""


def _what(entry: _Entry, before: Position | None, whole: _Entry | None) -> tuple[str, bool | None]:
    """Return what a snapshot is for, and whether it is ours."""
    if whole is not None:
        return f"part of the {_what(whole, before, None)[0]}", True
    summary = entry.summary
    operation = _operation(entry)
    if RUN_ID in summary or entry.position is not None or entry.note:
        if kind := summary.get(KIND):
            return _KINDS.get(kind, kind), True
        if RESET in summary:
            return "reset", True
        if ADOPTED_FROM in summary:
            return "adopt", True
        if POSITION not in summary:
            return _KINDS[RECONCILE], True
        same = entry.position is not None and before is not None and entry.position.offsets == before.offsets
        return ("replay, of records or of dead letters" if same else "append"), True
    if operation is Operation.REPLACE:
        return ("compaction" if int(summary.get("deleted-data-files", 0)) else "rewrite"), None
    if not follows_another(entry.snapshot) and not _total(summary, (*_ROWS_ADDED, *_ROWS_DELETED)):
        return "table created", None
    return (operation.value if operation else "unknown"), False


def _total(summary: dict[str, str], keys: Sequence[str]) -> int:
    return sum(int(summary.get(key, 0)) for key in keys)


def _engine(summary: dict[str, str]) -> str:
    engine = " ".join(filter(None, [summary.get("engine-name", ""), summary.get("engine-version", "")]))
    return ", ".join(filter(None, [engine, _first(summary, _APPLICATION)]))


def _losses_in(summary: dict[str, str]) -> tuple[tuple[Loss, ...], list[str]]:
    try:
        return tuple(losses_from_json(summary.get(LOSSES, "[]"))), []
    except ValueError:
        return (), ["What it gave up for lost can't be read."]


def _offsets(entry: _Entry, before: Position | None) -> tuple[tuple[Consumed, ...], list[str]]:
    if text := entry.summary.get(OFFSETS):
        try:
            return tuple(Consumed(each.partition, each.start, each.end) for each in offsets_of(text)), []
        except ValueError:
            return (), ["Its offsets can't be read."]
    if entry.position is None:
        return (), []
    same = before is not None and before.identity.same_as(entry.position.identity)
    known = before.offsets if before is not None and same else {}
    notes = ["The topic is another one than before."] if before is not None and not same else []
    found = (
        # A partition that the position before didn't have is new, so it began at its first offset.
        Consumed(partition, known.get(partition, 0 if known else None), end)
        for partition, end in sorted(entry.position.offsets.items())
    )
    return tuple(each for each in found if each.start != each.end), notes


def recorded_losses(table: Table) -> list[Loss]:
    """Return the offsets that commits of ``main`` gave up as lost, the newest first; expired commits included."""
    found = [
        loss
        for snapshot in ancestors(table, head_of(table))
        if (text := summary_of(snapshot).get(LOSSES))
        for loss in losses_from_json(text)
    ]
    kept = losses_from_json(table.properties.get(LOSSES, "[]"))
    return list(dict.fromkeys([*found, *kept]))


def keep_losses(table: Table, until_ms: int) -> None:
    """Copy the losses of snapshots that are about to expire to a table property."""
    going = [
        loss
        for snapshot in ancestors(table, head_of(table))
        if snapshot.timestamp_ms <= until_ms and (text := summary_of(snapshot).get(LOSSES))
        for loss in losses_from_json(text)
    ]
    if not going:
        return
    kept = losses_from_json(table.properties.get(LOSSES, "[]"))
    told = list(dict.fromkeys([*going, *kept]))[:_KEPT_LOSSES]
    with table.transaction() as transaction:
        transaction.set_properties({LOSSES: losses_to_json(told)})
