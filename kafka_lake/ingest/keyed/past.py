"""Past: what doesn't count since it is older than a truncate, or than a snapshot of the source that has ended."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.keyed.keys import Keys
from kafka_lake.ingest.keyed.refusals import ChangeRefusedError, refuse_several_partitions
from kafka_lake.ingest.keyed.source_snapshots import READING, Ended, Walk, marks_of, remembered_reading, walk
from kafka_lake.ingest.keyed.truncates import TRUNCATED, Emptied, newer_of, newest_truncate, remembered_truncate
from kafka_lake.ingest.topic_table import TopicTable, limit_of
from kafka_lake.lake.positions import POSITION, TableState


@dataclass(frozen=True)
class Past:
    """What a batch knows of what doesn't count any more.

    Args:
        emptied: What is older than that is gone; None if there is nothing of the kind.
        marks: What the snapshot's summary says of it.
    """

    emptied: Emptied | None
    marks: dict[str, str]


def past_of(
    context: Context,
    state: TableState,
    changes: DataFrame,
    keys: Keys,
    *,
    figures: Any,
    summary: dict[str, str],
    failed: Callable[[], int],
) -> Past:
    """Return what a batch knows of what doesn't count any more.

    Args:
        context: Of the run.
        state: The table as the plan saw it.
        changes: All of the batch's.
        keys: Tell the order.
        figures: How many ``truncates`` and ``reads`` they have.
        summary: Of the snapshot.
        failed: Tells how many records became dead letters.

    Raises:
        ChangeRefusedError: If nothing tells which changes are older, or when a snapshot has arrived as a whole.
    """
    spec, position = context.spec, Position.from_json(summary[POSITION])
    new: Emptied | None = None
    if spec.on_truncate == "apply" and figures["truncates"]:
        at = newest_truncate(changes, keys)
        if at is not None and not keys.has_order:
            refuse_several_partitions(spec, at, position)
        new = newer_of(at, None, keys)
    marks = {}
    if spec.snapshot == "reconcile":
        if len(position.offsets) > 1:
            raise several_partitions(spec, len(position.offsets))
        found = _walked(state, changes, keys, figures=figures, summary=summary, failed=failed)
        marks[READING] = found.reading.to_json()
        if found.unknown_at is not None:
            context.observer.warn(
                f"Topic {spec.topic}: a snapshot of the source ended in partition 0 at offset {found.unknown_at}, and "
                "its beginning isn't known. Rows that it lacks stay in the table."
            )
        new = _newer(new, found.ended, keys)
    if spec.on_truncate != "apply" and spec.snapshot != "reconcile":
        return Past(None, {})
    known = remembered_truncate(state)
    emptied = newer_of(new.at if new else None, known, keys)
    if emptied is None:
        return Past(None, marks)
    if emptied.is_new and new is not None:
        emptied = new
    return Past(emptied, {**marks, TRUNCATED: emptied.at.to_json()})


def _walked(
    state: TableState,
    changes: DataFrame,
    keys: Keys,
    *,
    figures: Any,
    summary: dict[str, str],
    failed: Callable[[], int],
) -> Walk:
    before = remembered_reading(state, summary)
    if state.position is not None and state.position.to_json() == summary[POSITION]:
        # What is read again has been looked at.
        return Walk(before)
    if before.is_known and before.begin is None and not figures["reads"]:
        return Walk(before)
    found = walk(before, *marks_of(changes, keys))
    count = failed()
    reading, ended = found.reading, found.ended
    if reading.begin is not None:
        reading = replace(reading, dead_letters=reading.dead_letters + count)
    return replace(found, reading=reading, ended=ended and replace(ended, dead_letters=ended.dead_letters + count))


def _newer(truncate: Emptied | None, ended: Ended | None, keys: Keys) -> Emptied | None:
    """Return the newer of a batch's truncate and of the beginning of a snapshot that has ended in it."""
    if ended is None:
        return truncate
    snapshot = Emptied(ended.begin, is_new=True, dead_letters=ended.dead_letters)
    if truncate is None:
        return snapshot
    newer = newer_of(ended.begin, truncate.at, keys)
    return snapshot if newer is not None and newer.is_new else truncate


def refuse_to_remove(spec: TopicTable, emptied: Emptied, rows: int, older: int) -> None:
    """Stop before rows are removed that a snapshot may merely seem to lack.

    Args:
        spec: The settings.
        emptied: The snapshot.
        rows: How many rows there are.
        older: How many of them it lacks.

    Raises:
        ChangeRefusedError: If they are too many, or its records have become dead letters.
    """
    if emptied.dead_letters is None or not older:
        return
    began = f"the snapshot of the source that began in partition {emptied.at.partition} at offset {emptied.at.offset}"
    if emptied.dead_letters:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {began} lacks {older} of {rows} rows, and {emptied.dead_letters} records since then "
            "are dead letters, whose keys may be among them.",
            "main is as it was. Fix the cause, and let this run go on with snapshot: upsert; a new snapshot removes "
            "the rows.",
        )
    limit = limit_of(spec.max_removed, "max_removed")
    if limit is not None and older > (limit * rows if isinstance(limit, float) else limit):
        raise ChangeRefusedError(
            f"Topic {spec.topic}: {began} lacks {older} of {rows} rows, the limit is max_removed: {spec.max_removed}.",
            "main is as it was. If the source has lost them, raise max_removed: for this run. If the snapshot was of a "
            "part of the table, set snapshot: upsert, and the rows stay.",
        )


def several_partitions(spec: TopicTable, count: int) -> ChangeRefusedError:
    """Return the refusal of a topic in which nothing tells when a snapshot has arrived as a whole."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: snapshot: reconcile needs a topic with one partition, and it has {count}. The last "
        "record of a snapshot is in one of them, and nothing tells when those of the others have arrived.",
        "main is as it was. Let the connector write to a topic with one partition, or set snapshot: upsert.",
    )
