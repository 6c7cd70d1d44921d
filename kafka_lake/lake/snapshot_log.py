"""A table's log for auditors: who committed what and when, from the table's snapshots alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from kafka_lake.common.offsets import Loss, Position, Positions, losses_from_json
from kafka_lake.lake.author import EXPIRE_ROWS, HOST, KEEPS, KIND, OFFSETS, RECONCILE, REMOVES, USER, offsets_of
from kafka_lake.lake.history import schema_history
from kafka_lake.lake.positions import (
    ADOPTED_FROM,
    LOSSES,
    POSITION,
    RESET,
    RUN_ID,
    TOPIC,
    ancestors,
    follows_another,
    head_of,
    positions_in,
    summary_of,
)
from kafka_lake.lake.schema import Change

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


@dataclass(frozen=True)
class Consumed:
    """Offsets of one Kafka partition that a commit is about.

    Args:
        start: The first; None if no older snapshot tells.
        end: Exclusive end. Before ``start`` where a reset went back.
    """

    partition: int
    start: int | None
    end: int


@dataclass(frozen=True)
class LoggedCommit:
    """One snapshot of ``main``.

    Args:
        committed_at: When, by the clock of who committed it.
        what: What it is for: append, replay, reset, dead-letter replay, dead letters reconciled, adopt, table created,
            compaction, rewrite; or the operation, as Iceberg has it, if others have written it.
        ours: Whether a run of kafka_lake has written it; None for maintenance, and for the first snapshot of a table,
            which tell nobody.
        run_id: Of the run; empty if it tells none.
        engine: What engine and application wrote it, as the snapshot has it.
        offsets: What it is about, by Kafka partition.
        rows_added: As the snapshot counts them; 0 where rows were only rewritten.
        schema_changes: What columns have become since the snapshot before.
        losses: What it gave up for lost.
        note: What one should know about this entry, empty for most.
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
    """A snapshot with its summary, the positions in it, and what is wrong with those."""

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
    """Return the commits of a table's ``main`` that its metadata still have, newest first."""
    history = [_entry(each) for each in ancestors(table, head_of(table))]
    columns = {each.snapshot_id: each.changes for each in schema_history(table)[1:]}
    parts = _parts(history)
    return [
        _logged(entry, before, columns.get(entry.snapshot.snapshot_id, ()), parts.get(number))
        for number, (entry, before) in enumerate(zip(history, _before(history), strict=True))
    ]


def oldest_are_gone(table: Table) -> bool:
    """Return whether ``main`` has had older snapshots, which have expired."""
    history = list(ancestors(table, head_of(table)))
    return bool(history) and follows_another(history[-1])


def _entry(snapshot: Snapshot) -> _Entry:
    summary = summary_of(snapshot)
    try:
        return _Entry(snapshot, summary, positions_in(summary))
    except ValueError:
        return _Entry(snapshot, summary, note="Its position can't be read.")


def _before(history: Sequence[_Entry]) -> list[Position | None]:
    """Return, for each snapshot, the position of the newest older one that has one, in the snapshot's topic.

    The first commit of a topic to a table that has others has none before it.
    """
    found: list[Position | None] = []
    older: Positions = {}
    for entry in reversed(history):
        only = next(iter(older.values())) if len(older) == len(entry.positions) == 1 else None
        found.append(older.get(entry.position.identity.topic, only) if entry.position else None)
        older = entry.positions or older
    return found[::-1]


def _parts(history: Sequence[_Entry]) -> dict[int, _Entry]:
    """Return, for snapshots that tell no author, the one beside them that is of the same commit.

    A commit that takes rows away has a snapshot for that before the one with its position, which names it, and one
    behind it, which names that, if rows that Kafka no longer has are kept.
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
    losses, notes = _losses(entry.summary)
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
    """Return whose commit it was, of a table with several topics."""
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


def _losses(summary: dict[str, str]) -> tuple[tuple[Loss, ...], list[str]]:
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
