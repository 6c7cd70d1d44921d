"""A table's history from its snapshots: changes of its schema, a log of its commits, and recorded losses of data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.catalog.positions import (
    EXPIRE_ROWS,
    HOST,
    KEEPS,
    KIND,
    LOSSES,
    OFFSETS,
    RECONCILE,
    REMOVES,
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

_CUT_OFF = "Older snapshots have expired, so earlier schemas and the time of this change are unknown."
_NOT_YET = "No snapshot has this schema yet; the next commit will have it."
_UNREADABLE = "The snapshot's position can't be read."
_KIND_NAMES = {
    "replace": "replay",
    "dead_letter_replay": "dead-letter replay",
    RECONCILE: "dead letters reconciled",
    EXPIRE_ROWS: "row expiry",
}
_ROWS_ADDED = ("added-records",)
_ROWS_DELETED = ("deleted-records", "added-position-deletes", "added-equality-deletes")
_KEPT_LOSSES = 1000


@dataclass(frozen=True)
class SchemaVersion:
    """A schema that a table has, or had, from some snapshot on.

    Args:
        snapshot_id: The first snapshot with it that hasn't expired; None if no snapshot has it yet.
        changes: Since the version before; for the first version all columns, as added.
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
    versions: list[SchemaVersion] = []
    for snapshot in reversed([*ancestors(table, head_of(table))]):
        schema = schemas.get(-1 if snapshot.schema_id is None else snapshot.schema_id)
        if schema is None or not (differences := _differences(before, schema)):
            continue
        entry = _entry(snapshot)
        notes = [_CUT_OFF if not versions and follows_another(snapshot) else "", entry.note]
        versions.append(
            SchemaVersion(
                schema_id=schema.schema_id,
                snapshot_id=snapshot.snapshot_id,
                committed_at=_time(snapshot.timestamp_ms),
                changes=differences,
                positions=entry.positions,
                note=" ".join(filter(None, notes)),
            )
        )
        before = schema
    if pending := _differences(before, table.schema()):
        versions.append(
            SchemaVersion(
                schema_id=table.schema().schema_id,
                snapshot_id=None,
                committed_at=_time(table.metadata.last_updated_ms),
                changes=pending,
                positions={},
                note=_NOT_YET,
            )
        )
    return versions


def _differences(before: Schema, after: Schema) -> tuple[Change, ...]:
    differences = changes(before, after)
    # In a new table required columns are safe.
    return tuple(differences if before.fields else (replace(change, kind="added") for change in differences))


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


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
        what: append, replay, reset, dead-letter replay, dead letters reconciled, adopt, row expiry, table created,
            compaction, rewrite; or Iceberg's operation for commits of other programs.
        managed: Whether a run of kafka_lake wrote it; None for maintenance and for a table's first snapshot, which
            don't name their author.
        rows_added: 0 if rows were only rewritten.
        note: Empty for most.
    """

    snapshot_id: int
    committed_at: datetime
    what: str
    managed: bool | None
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
        """Return the position in the topic of the commit, or in the only topic."""
        only = next(iter(self.positions.values())) if len(self.positions) == 1 else None
        return self.positions.get(self.summary.get(TOPIC, ""), only)


def snapshot_log(table: Table) -> list[LoggedCommit]:
    """Return the commits of ``main`` whose snapshots haven't expired, newest first."""
    history = [_entry(snapshot) for snapshot in ancestors(table, head_of(table))]
    schema_changes = {version.snapshot_id: version.changes for version in schema_history(table)[1:]}
    commits = _commits_of_parts(history)
    return [
        _logged(entry, before, schema_changes.get(entry.snapshot.snapshot_id, ()), commits.get(number))
        for number, (entry, before) in enumerate(zip(history, _positions_before(history), strict=True))
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
        return _Entry(snapshot, summary, note=_UNREADABLE)


def _positions_before(history: Sequence[_Entry]) -> list[Position | None]:
    """Return the position before each snapshot in its topic; None for a topic's first commit."""
    before: list[Position | None] = []
    older: Positions = {}
    for entry in reversed(history):
        only = next(iter(older.values())) if len(older) == len(entry.positions) == 1 else None
        before.append(older.get(entry.position.identity.topic, only) if entry.position else None)
        older = entry.positions or older
    return before[::-1]


def _commits_of_parts(history: Sequence[_Entry]) -> dict[int, _Entry]:
    """Return the main snapshot of the same commit, for snapshots without an author.

    A commit that deletes rows has a snapshot for that before its main one, and another after it if it restores rows
    that Kafka no longer has.
    """
    commits: dict[int, _Entry] = {}
    for number, (newer, older) in enumerate(pairwise(history)):
        parent = str(older.snapshot.snapshot_id)
        if newer.summary.get(REMOVES) == parent and RUN_ID not in older.summary:
            commits[number + 1] = newer
        if newer.summary.get(KEEPS) == parent:
            commits[number] = older
    return commits


def _logged(entry: _Entry, before: Position | None, changes: tuple[Change, ...], commit: _Entry | None) -> LoggedCommit:
    author = (commit or entry).summary
    what, managed = _what(entry, commit)
    notes = [entry.note]
    if entry.position and len(entry.positions) > 1:
        notes.append(f"Topic {entry.position.identity.topic}.")
    try:
        losses = tuple(losses_from_json(entry.summary.get(LOSSES, "[]")))
    except ValueError:
        losses, notes = (), [*notes, "Its lost offsets can't be read."]
    offsets, note = ((), "") if commit else _offsets(entry, before)
    return LoggedCommit(
        snapshot_id=entry.snapshot.snapshot_id,
        committed_at=_time(entry.snapshot.timestamp_ms),
        what=what,
        managed=managed,
        run_id=author.get(RUN_ID, ""),
        host=author.get(HOST, ""),
        user=author.get(USER, ""),
        engine=_engine(entry.summary),
        offsets=offsets,
        rows_added=0 if managed is None else _total(entry.summary, _ROWS_ADDED),
        rows_deleted=0 if managed is None else _total(entry.summary, _ROWS_DELETED),
        schema_changes=changes,
        losses=losses,
        note=" ".join(filter(None, [*notes, note])),
    )


def _what(entry: _Entry, commit: _Entry | None) -> tuple[str, bool | None]:
    """Return the purpose of a snapshot, and whether kafka_lake wrote it."""
    if commit is not None:
        return f"part of the {_what(commit, None)[0]}", True
    summary = entry.summary
    if kind := summary.get(KIND):
        return _KIND_NAMES.get(kind, kind), True
    operation = entry.snapshot.summary.operation if entry.snapshot.summary else None
    if operation is Operation.REPLACE:
        return ("compaction" if int(summary.get("deleted-data-files", 0)) else "rewrite"), None
    if not follows_another(entry.snapshot) and not _total(summary, (*_ROWS_ADDED, *_ROWS_DELETED)):
        return "table created", None
    return (operation.value if operation else "unknown"), False


def _total(summary: dict[str, str], keys: Sequence[str]) -> int:
    return sum(int(summary.get(key, 0)) for key in keys)


def _engine(summary: dict[str, str]) -> str:
    engine = " ".join(filter(None, [summary.get("engine-name", ""), summary.get("engine-version", "")]))
    return ", ".join(filter(None, [engine, summary.get("spark.app.id", "") or summary.get("app-id", "")]))


def _offsets(entry: _Entry, before: Position | None) -> tuple[tuple[Consumed, ...], str]:
    """Return the offsets of a commit, and a note if there is something to say."""
    if text := entry.summary.get(OFFSETS):
        try:
            return tuple(Consumed(r.partition, r.start, r.end) for r in offsets_of(text)), ""
        except ValueError:
            return (), "Its offsets can't be read."
    if entry.position is None:
        return (), ""
    same_topic = before is not None and before.identity.same_as(entry.position.identity)
    starts = before.offsets if before is not None and same_topic else {}
    consumed = (
        # A partition that the position before didn't have is new, so it began at its first offset.
        Consumed(partition, starts.get(partition, 0 if starts else None), end)
        for partition, end in sorted(entry.position.offsets.items())
    )
    note = "" if before is None or same_topic else "The topic was deleted and created again before."
    return tuple(offsets for offsets in consumed if offsets.start != offsets.end), note


def recorded_losses(table: Table) -> list[Loss]:
    """Return the offsets that commits of ``main`` gave up as lost, the newest first; expired commits included."""
    kept = losses_from_json(table.properties.get(LOSSES, "[]"))
    return list(dict.fromkeys([*_losses(ancestors(table, head_of(table))), *kept]))


def keep_losses(table: Table, until_ms: int) -> None:
    """Copy the losses of snapshots that are about to expire to a table property."""
    history = ancestors(table, head_of(table))
    expiring = _losses(snapshot for snapshot in history if snapshot.timestamp_ms <= until_ms)
    if expiring:
        kept = losses_from_json(table.properties.get(LOSSES, "[]"))
        with table.transaction() as transaction:
            losses = list(dict.fromkeys([*expiring, *kept]))[:_KEPT_LOSSES]
            transaction.set_properties({LOSSES: losses_to_json(losses)})


def _losses(snapshots: Iterable[Snapshot]) -> list[Loss]:
    return [
        loss for snapshot in snapshots if (text := summary_of(snapshot).get(LOSSES)) for loss in losses_from_json(text)
    ]
