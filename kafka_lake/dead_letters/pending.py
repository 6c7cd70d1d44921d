"""Which dead letters may be obsolete, from the snapshots of the two tables alone. Pure.

`kafka_lake.dead_letters.reconcile` removes them.
"""

from dataclasses import dataclass
from math import inf

from kafka_lake.catalog.positions import TableState, ancestors, follows_another, summary_of

UNRECONCILED = "kafka-lake.unreconciled"
"""Snapshot property of the table: the commit may have made dead letters obsolete."""
RECONCILED = "kafka-lake.reconciled"
"""Snapshot property of the dead-letter table: all commits up to this mark are reconciled."""
RECONCILED_FROM = "kafka-lake.reconciled-from"
"""Snapshot property of the dead-letter table: its snapshot before it was reconciled."""
STAGED_WITH = "kafka-lake.staged-with"
"""Snapshot property of the dead-letter table: the table's snapshot that was staged together with it."""

_ROLLED_BACK, _STALE = "rolled back:", "published without its rows"
_NONE = -1


@dataclass(frozen=True)
class Pending:
    """A reconciliation that is due.

    Args:
        mark: Value of `RECONCILED` for the reconciling snapshot. It ends with ``@`` and a snapshot's number.
        restore: Snapshot of the dead-letter table whose dead letters come back, since a rollback of the table removed
            the rows that they became; None if none come back.
        commits: Snapshots of the table that may have made dead letters obsolete.
        stale: Snapshots of the dead-letter table whose commit was never published.
    """

    mark: str
    restore: int | None = None
    commits: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()

    @property
    def rolled_back(self) -> bool:
        """Return whether the table was rolled back behind a reconciled commit."""
        return self.mark.startswith(_ROLLED_BACK)


def pending_reconciliation(table: TableState, dead_letters: TableState) -> Pending | None:
    """Return the reconciliation that is due; None if there is none."""
    history = list(ancestors(table.table, table.head))
    numbers = {snapshot.snapshot_id: snapshot.sequence_number or 0 for snapshot in history}
    snapshots_by_mark = {
        f"{mark}@{numbers[s.snapshot_id]}": s for s in history if (mark := summary_of(s).get(UNRECONCILED))
    }
    now = numbers[history[0].snapshot_id] if history else 0
    known, oldest = set(numbers.values()), min(numbers.values(), default=inf)
    # Older dead letters were published with a snapshot that has expired.
    known_since = history[-1].timestamp_ms if history and follows_another(history[-1]) else 0
    reconciled, stale, restore, rolled_back = _NONE, list[int](), None, ""
    for snapshot in ancestors(dead_letters.table, dead_letters.head):
        summary = summary_of(snapshot)
        mark = summary.get(RECONCILED)
        if mark is None:
            # If the commit was never published, another run may have made rows of these records.
            is_unknown = STAGED_WITH in summary and int(summary[STAGED_WITH]) not in numbers
            if reconciled == _NONE and is_unknown and snapshot.timestamp_ms >= known_since:
                stale.append(snapshot.snapshot_id)
            continue
        reconciled = max(reconciled, _number(mark))
        has_older = oldest < _number(mark)
        if mark.startswith(_ROLLED_BACK):
            if has_older and _number(mark) not in known:
                # Main was rolled back once more, behind where it was then.
                continue
            break
        if not mark.startswith(_STALE) and mark not in snapshots_by_mark and has_older:
            # The history begins before the reconciled commit and lacks it: main was rolled back.
            rolled_back = f"{_ROLLED_BACK} {mark.rpartition('@')[0]}@{now}"
            before = int(summary[RECONCILED_FROM])
            # The oldest that hasn't expired.
            if restore is None or dead_letters.table.metadata.snapshot_by_id(before) is not None:
                restore = before
    open_marks = [mark for mark in snapshots_by_mark if _number(mark) > reconciled]
    commits = tuple(snapshots_by_mark[mark].snapshot_id for mark in open_marks)
    if rolled_back:
        return Pending(rolled_back, restore, commits, tuple(stale))
    if open_marks:
        return Pending(max(open_marks, key=_number), None, commits, tuple(stale))
    return Pending(f"{_STALE}@{now}", None, (), tuple(stale)) if stale else None


def _number(mark: str) -> int:
    return int(mark.rpartition("@")[2])
