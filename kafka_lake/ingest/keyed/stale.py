"""Stale keys: the newest change of a key was refused by a rule, and its row says so until a newer change counts.

The mark is a struct column of the table. It names the refused record and has its order, by which it is compared with
changes that come later, in whatever commit. So a mark is never newer or older than it should be because of how
records are cut into commits.
"""

from pyspark.sql import types as T

from kafka_lake.ingest.decode.rows import STALE, STALE_RULE
from kafka_lake.ingest.keyed.keys import Keys

MARK = "mark"
"""What a row of a merge does that brings nothing but the mark of its key."""


def has_marks(columns: T.StructType, keys: Keys) -> bool:
    """Return whether a table has our column for marks; another one of that name is the source's."""
    kind = next((field.dataType for field in columns if field.name == STALE), None)
    return isinstance(kind, T.StructType) and {STALE_RULE, keys.metadata} <= set(kind.names)


def keeps_mark(keys: Keys) -> str:
    """Return the mark of a row once a change has come that is newer than the row: none if it is newer than the mark."""
    of_batch, of_row = f"s.{STALE}", f"t.{STALE}"
    return (
        f"CASE WHEN {_is_newest(keys)} AND NOT {keys.is_newer('s', of_batch)} THEN {of_batch} "
        f"WHEN {of_row} IS NOT NULL AND NOT {keys.is_newer('s', of_row)} THEN {of_row} END"
    )


def mark_of_new_row(keys: Keys) -> str:
    """Return the mark of a row that a change brings."""
    mark = f"s.{STALE}"
    return f"CASE WHEN {mark} IS NOT NULL AND NOT {keys.is_newer('s', mark)} THEN {mark} END"


def marks_row(keys: Keys) -> str:
    """Return the condition that a row gets the mark of the batch, although no change of the batch is newer than it."""
    return f"{_is_newest(keys)} AND {keys.order(f's.{STALE}')} >= {keys.order('t')}"


def _is_newest(keys: Keys) -> str:
    of_batch, of_row = f"s.{STALE}", f"t.{STALE}"
    newer = f"{of_row} IS NULL OR {keys.order(of_batch)} >= {keys.order(of_row)}"
    return f"{of_batch} IS NOT NULL AND ({newer})"


def checks(keys: Keys) -> dict[str, str]:
    """Return what the audit counts of marks, as conditions on a change `s` and its key's row `t`."""
    of_batch, of_row = f"s.{STALE}", f"t.{STALE}"
    same = f"{of_batch} IS NOT NULL AND {of_row} IS NOT NULL AND {keys.order(of_batch)} = {keys.order(of_row)}"
    is_due = f"{of_batch} IS NOT NULL AND {keys.order(of_batch)} >= {keys.order('t')}"
    has_it = f"{of_row} IS NOT NULL AND {keys.order(of_row)} >= {keys.order(of_batch)}"
    # A tombstone that only marks its row as deleted has the order of the row before it.
    left = "false" if keys.is_soft else f"{of_row} IS NOT NULL AND {keys.order(of_row)} < {keys.order('t')}"
    return {
        "marked": same,
        "stale": f"{of_row} IS NOT NULL",
        "unmarked": f"(({is_due}) AND NOT ({has_it})) OR ({left})",
    }
