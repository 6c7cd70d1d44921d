"""Settle: a dead letter whose record is in the table by now is taken out of the dead-letter table.

A record is in one of the two tables at every moment: letters are added before the table is published, and taken out
here, after it was. A commit that may have made letters obsolete says so in its summary (`UNSETTLED`), and the commit
that took them out repeats the mark (`SETTLED`). So a run that dies in between is made good by the next, whatever that
does, and metadata alone tell that there is nothing to settle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.positions import (
    POSITION,
    RUN_ID,
    TableState,
    ancestors,
    read_state,
    row_count,
    summary_of,
)

UNSETTLED = "kafka-lake.unsettled"
SETTLED = "kafka-lake.settled"

# In the summary of a dead-letter snapshot: the table's snapshot that was staged together with it.
STAGED_WITH = "kafka-lake.staged-with"
_ROLLED_BACK, _STALE = "rolled back:", "published without its rows"
_NEVER = (-1, 0)
_KEYS = ("topic_id", "partition", "offset")


@dataclass(frozen=True)
class Due:
    """What is to be settled.

    Args:
        mark: What the settling snapshot will carry.
        restore: Snapshot of the dead-letter table whose letters come back first, since the rows they became are gone
            again with a rollback of the table; None if there is nothing to bring back.
    """

    mark: str
    restore: int | None = None


def due(table: TableState, letters: TableState) -> Due | None:
    """Return what is to be settled, by metadata alone; None if nothing is.

    Args:
        table: The topic's table.
        letters: Its dead-letter table.
    """
    history = list(ancestors(table.table, table.head))
    numbers = _numbers(history)
    marks = {f"{mark}@{_text(numbers[s.snapshot_id])}" for s in history if (mark := summary_of(s).get(UNSETTLED))}
    now = _text(numbers[history[0].snapshot_id]) if history else "0"
    settled, stale, undone = _NEVER, False, None
    for snapshot in ancestors(letters.table, letters.head):
        summary = summary_of(snapshot)
        mark = summary.get(SETTLED)
        if mark is None:
            # Published for a commit that never was: others may have made rows of these records meanwhile.
            stale = stale or (settled == _NEVER and STAGED_WITH in summary and int(summary[STAGED_WITH]) not in numbers)
            continue
        settled = max(settled, _number(mark))
        if mark.startswith(_ROLLED_BACK):
            break
        older = any(number < _number(mark) for number in numbers.values())
        if not mark.startswith(_STALE) and mark not in marks and older:
            # The history goes back beyond the settled commit and doesn't have it: main was rolled back.
            undone = Due(f"{_ROLLED_BACK} {mark.rpartition('@')[0]}@{now}", snapshot.parent_snapshot_id)
    if undone:
        return undone
    if open_marks := [mark for mark in marks if _number(mark) > settled]:
        return Due(max(open_marks, key=_number))
    return Due(f"{_STALE}@{now}") if stale else None


def _numbers(history: Sequence[Snapshot]) -> dict[int, tuple[int, int]]:
    """Return, by snapshot id, a number of each snapshot that is greater than those of the snapshots before it.

    It is the sequence number and 0. Snapshots of format v1 have no sequence number: theirs is 0 and the time. A table
    that was made one of format v2 goes on with greater ones.

    Args:
        history: Snapshots, the newest first, each the child of the next.
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


def settle(
    spec: TopicTable,
    systems: Systems,
    run_id: str,
    forced: bool = False,
    relabelled: DataFrame | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> int:
    """Take letters out of the dead-letter table whose records are in the table.

    Args:
        spec: The topic's settings; without a metadata column nothing is ever settled.
        systems: Spark is touched only if something is due.
        run_id: Goes into the branch's name and the summary.
        forced: Look at the data even if metadata say that nothing is due.
        relabelled: Letters that take the place of those with the same topic id, partition and offset.
        on_step: Called with the name of each step that has been done.

    Returns:
        How many letters the table lost by it; negative if letters came back.

    Raises:
        PublishRefusedError: If somebody else changed the dead-letter table meanwhile; asking again is safe.
    """
    loaded = [systems.catalog.table(name) for name in (spec.identifier, spec.dead_letter_table)]
    if loaded[0] is None or loaded[1] is None or spec.metadata_column is None:
        return 0
    table, letters = read_state(loaded[0]), read_state(loaded[1])
    found = due(table, letters)
    if letters.head is None or table.head is None or not (found or forced):
        return 0
    before = row_count(letters.table)
    spark = systems.spark()
    name = systems.catalog.spark_name(spec.dead_letter_table)
    kept = at_version(spark, name, letters.head)
    if found and found.restore is not None and letters.table.metadata.snapshot_by_id(found.restore):
        kept = kept.unionByName(without(at_version(spark, name, found.restore), kept), allowMissingColumns=True)
    if relabelled is not None:
        kept = without(kept, relabelled).unionByName(relabelled, allowMissingColumns=True)
    obsolete = published_keys(spec, systems, table.head, kept)
    if not found and relabelled is None and not _among(kept, obsolete).limit(1).count():
        return 0
    kept = without(kept, obsolete)
    branch = StagingBranch(
        spark, systems.catalog, spec.dead_letter_table, branch_name(run_id, letters.head, "settle"), letters.head
    )
    branch.create()
    try:
        writer: Any = kept.coalesce(1).writeTo(branch.write_name).option(f"snapshot-property.{RUN_ID}", run_id)
        if letters.position is not None:
            writer = writer.option(f"snapshot-property.{POSITION}", letters.position.to_json())
        if found:
            writer = writer.option(f"snapshot-property.{SETTLED}", found.mark)
        writer.overwrite(F.lit(True))
        on_step("letters settled")
        branch.publish(branch.written(letters.head).snapshot_id)
    finally:
        branch.discard()
    on_step("settled letters published")
    return before - row_count(systems.catalog.table(spec.dead_letter_table))


def at_version(spark: Any, name: str, snapshot: int) -> DataFrame:
    """Return a table as of a snapshot, by its quoted Spark name."""
    frame: DataFrame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")
    return frame


def without(letters: DataFrame, others: DataFrame) -> DataFrame:
    """Return the letters that have no twin among the others by topic id, partition and offset."""
    return letters.join(_keys(others), _same(letters, "their"), "left_anti")


def _among(letters: DataFrame, others: DataFrame) -> DataFrame:
    return letters.join(_keys(others), _same(letters, "their"), "left_semi")


def _keys(frame: DataFrame) -> DataFrame:
    return frame.select(*[F.col(key).alias(f"their_{key}") for key in _KEYS])


def _same(letters: DataFrame, prefix: str) -> Any:
    # Clusters older than Kafka 2.8 have no topic ids: null is then the same as null.
    return (
        letters["topic_id"].eqNullSafe(F.col(f"{prefix}_topic_id"))
        & (letters["partition"] == F.col(f"{prefix}_partition"))
        & (letters["offset"] == F.col(f"{prefix}_offset"))
    )


def published_keys(spec: TopicTable, systems: Systems, snapshot: int, letters: DataFrame) -> DataFrame:
    """Return topic id, partition and offset of the table's rows that letters could be about.

    Args:
        spec: Its metadata column is read, and nothing else of the table.
        systems: Catalog and Spark.
        snapshot: The table's snapshot to look at.
        letters: Bound the offsets, so that files of others are skipped.
    """
    bounds = letters.agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()[0]
    first, last = (0, -1) if bounds["first"] is None else (bounds["first"], bounds["last"])
    origin = f"`{spec.metadata_column}`"
    rows = at_version(systems.spark(), systems.catalog.spark_name(spec.identifier), snapshot)
    return rows.filter(F.col(f"{origin}.offset").between(first, last)).select(
        *[F.col(f"{origin}.{key}").alias(key) for key in _KEYS]
    )
