"""Which dead letters are to be reconciled, by the metadata of the two tables alone. Pure: no engine, no catalog.

`kafka_lake.dead_letters.reconcile` says what that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table.snapshots import Snapshot

from kafka_lake.catalog.positions import TableState, ancestors, follows_another, summary_of

UNRECONCILED = "kafka-lake.unsettled"
RECONCILED = "kafka-lake.settled"
RECONCILED_FROM = "kafka-lake.settled-from"
"""In the summary of a reconciling snapshot: the dead-letter table's snapshot as it was before."""
STAGED_WITH = "kafka-lake.staged-with"
"""In the summary of a dead-letter snapshot: the table's snapshot that was staged together with it."""

_ROLLED_BACK, _STALE = "rolled back:", "published without its rows"
_NEVER = (-1, 0)


@dataclass(frozen=True)
class Pending:
    """What is to be reconciled.

    Args:
        mark: What the reconciling snapshot will carry.
        restore: Snapshot of the dead-letter table whose letters come back first, since the rows they became are gone
            again with a rollback of the table; None if there is nothing to bring back.
        commits: Snapshots of the table that may have made letters obsolete and are not reconciled yet.
        stale: Snapshots of the dead-letter table that were published for a commit that never was.
    """

    mark: str
    restore: int | None = None
    commits: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()

    @property
    def rolled_back(self) -> bool:
        """Whether the table was rolled back behind a commit that was reconciled."""
        return self.mark.startswith(_ROLLED_BACK)


def pending_reconciliation(table: TableState, dead_letters: TableState) -> Pending | None:
    """Return what is to be reconciled, by metadata alone; None if nothing is."""
    history = list(ancestors(table.table, table.head))
    numbers = _numbers(history)
    marks = {f"{mark}@{_text(numbers[s.snapshot_id])}": s for s in history if (mark := summary_of(s).get(UNRECONCILED))}
    now = _text(numbers[history[0].snapshot_id]) if history else "0"
    # What is older than all that is known of the table was published with a snapshot that has expired since.
    known_since = history[-1].timestamp_ms if history and follows_another(history[-1]) else 0
    reconciled, stale, restore = _NEVER, list[int](), None
    undone = ""
    for snapshot in ancestors(dead_letters.table, dead_letters.head):
        summary = summary_of(snapshot)
        mark = summary.get(RECONCILED)
        if mark is None:
            # Published for a commit that never was: others may have made rows of these records meanwhile.
            unknown = STAGED_WITH in summary and int(summary[STAGED_WITH]) not in numbers
            if reconciled == _NEVER and unknown and snapshot.timestamp_ms >= known_since:
                stale.append(snapshot.snapshot_id)
            continue
        reconciled = max(reconciled, _number(mark))
        if mark.startswith(_ROLLED_BACK):
            break
        older = any(number < _number(mark) for number in numbers.values())
        if not mark.startswith(_STALE) and mark not in marks and older:
            # The history goes back beyond the reconciled commit and doesn't have it: main was rolled back.
            undone = f"{_ROLLED_BACK} {mark.rpartition('@')[0]}@{now}"
            # Letters were taken out and added in one snapshot, before there was this property.
            before = summary.get(RECONCILED_FROM)
            restore = int(before) if before else snapshot.parent_snapshot_id
    open_marks = [mark for mark in marks if _number(mark) > reconciled]
    commits = tuple(marks[mark].snapshot_id for mark in open_marks)
    if undone:
        return Pending(undone, restore, commits, tuple(stale))
    if open_marks:
        return Pending(max(open_marks, key=_number), None, commits, tuple(stale))
    return Pending(f"{_STALE}@{now}", None, (), tuple(stale)) if stale else None


def _numbers(history: Sequence[Snapshot]) -> dict[int, tuple[int, int]]:
    """Return, by snapshot id, a number of each snapshot that is greater than those of the snapshots before it.

    It is the sequence number and 0. Snapshots of format v1 have no sequence number: theirs is 0 and the time. A table
    that was made one of format v2 goes on with greater ones.
    """
    found: dict[int, tuple[int, int]] = {}
    latest = 0
    for snapshot in reversed(history):
        sequence = snapshot.sequence_number or 0
        if not sequence:
            # Clocks of writers differ.
            latest = max(snapshot.timestamp_ms, latest + 1)
        found[snapshot.snapshot_id] = (sequence, 0 if sequence else latest)
    return found


def _text(number: tuple[int, int]) -> str:
    sequence, time = number
    return f"{sequence}.{time}" if time else f"{sequence}"


def _number(mark: str) -> tuple[int, int]:
    sequence, _, time = mark.rpartition("@")[2].partition(".")
    return int(sequence), int(time or 0)
