"""Settle: a dead letter whose record is in the table by now is taken out of the dead-letter table.

A record is in one of the two tables at every moment: letters are added before the table is published, and taken out
here, after it was. A commit that may have made letters obsolete says so in its summary (`UNSETTLED`), and the commit
that took them out repeats the mark (`SETTLED`). So a run that dies in between is made good by the next, whatever that
does, and metadata alone tell that there is nothing to settle.

It costs what has changed, however many letters there are: only those are read whose offsets are near what the commits
in question wrote, only the files are written again that have some of them, and the letters that are left are counted
before they are visible.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.ingest.connections import Systems
from kafka_lake.ingest.decode.fit_columns import any_of
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.positions import (
    POSITION,
    RUN_ID,
    TableState,
    ancestors,
    read_state,
    summary_of,
)

UNSETTLED = "kafka-lake.unsettled"
SETTLED = "kafka-lake.settled"
SETTLED_FROM = "kafka-lake.settled-from"
"""In the summary of a settling snapshot: the dead-letter table's snapshot as it was before."""

# In the summary of a dead-letter snapshot: the table's snapshot that was staged together with it.
STAGED_WITH = "kafka-lake.staged-with"
_ROLLED_BACK, _STALE = "rolled back:", "published without its rows"
_NEVER = (-1, 0)
OFFSET = ("topic_id", "partition", "offset")
"""What names a record, as long as its log isn't cut off and written anew."""
# A letter is of the very record of a row: after a cut that a run was told to go on at, offsets mean other records.
_KEYS = (*OFFSET, "timestamp")
# Offsets as far apart as this are looked for apart from each other, in so many places at the most.
_APART, _PLACES = 100_000, 200
_LETTERS_WORTH_A_TASK = 250_000
_LOOKS = 20


@dataclass(frozen=True)
class Due:
    """What is to be settled.

    Args:
        mark: What the settling snapshot will carry.
        restore: Snapshot of the dead-letter table whose letters come back first, since the rows they became are gone
            again with a rollback of the table; None if there is nothing to bring back.
        commits: Snapshots of the table that may have made letters obsolete and are not settled yet.
        stale: Snapshots of the dead-letter table that were published for a commit that never was.
    """

    mark: str
    restore: int | None = None
    commits: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()


def due(table: TableState, letters: TableState) -> Due | None:
    """Return what is to be settled, by metadata alone; None if nothing is.

    Args:
        table: The topic's table.
        letters: Its dead-letter table.
    """
    history = list(ancestors(table.table, table.head))
    numbers = _numbers(history)
    marks = {f"{mark}@{_text(numbers[s.snapshot_id])}": s for s in history if (mark := summary_of(s).get(UNSETTLED))}
    now = _text(numbers[history[0].snapshot_id]) if history else "0"
    settled, stale, restore = _NEVER, list[int](), None
    undone = ""
    for snapshot in ancestors(letters.table, letters.head):
        summary = summary_of(snapshot)
        mark = summary.get(SETTLED)
        if mark is None:
            # Published for a commit that never was: others may have made rows of these records meanwhile.
            if settled == _NEVER and STAGED_WITH in summary and int(summary[STAGED_WITH]) not in numbers:
                stale.append(snapshot.snapshot_id)
            continue
        settled = max(settled, _number(mark))
        if mark.startswith(_ROLLED_BACK):
            break
        older = any(number < _number(mark) for number in numbers.values())
        if not mark.startswith(_STALE) and mark not in marks and older:
            # The history goes back beyond the settled commit and doesn't have it: main was rolled back.
            undone = f"{_ROLLED_BACK} {mark.rpartition('@')[0]}@{now}"
            # Letters were taken out and added in one snapshot, before there was this property.
            before = summary.get(SETTLED_FROM)
            restore = int(before) if before else snapshot.parent_snapshot_id
    open_marks = [mark for mark in marks if _number(mark) > settled]
    commits = tuple(marks[mark].snapshot_id for mark in open_marks)
    if undone:
        return Due(undone, restore, commits, tuple(stale))
    if open_marks:
        return Due(max(open_marks, key=_number), None, commits, tuple(stale))
    return Due(f"{_STALE}@{now}", None, (), tuple(stale)) if stale else None


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
    among: DataFrame | None = None,
    relabelled: DataFrame | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> int:
    """Take letters out of the dead-letter table whose records are in the table.

    Args:
        spec: The topic's settings; without a metadata column nothing is ever settled.
        systems: Spark is touched only if something is due.
        run_id: Goes into the branch's name and the summary.
        forced: Look at the data even if metadata say that nothing is due.
        among: Where to look then: near these letters; None for all.
        relabelled: Letters that take the place of those of the same records.
        on_step: Called with the name of each step that has been done.

    Returns:
        How many letters the table lost by it; negative if letters came back.

    Raises:
        PublishRefusedError: If somebody else changed the dead-letter table meanwhile; asking again is safe.
        AuditFailedError: If other letters would be left than were counted. The table is as it was.
    """
    loaded = [systems.catalog.table(name) for name in (spec.identifier, spec.dead_letter_table)]
    if loaded[0] is None or loaded[1] is None or spec.metadata_column is None:
        return 0
    table, letters = read_state(loaded[0]), read_state(loaded[1])
    found = due(table, letters)
    if letters.head is None or table.head is None or not (found or forced or relabelled is not None):
        return 0
    with ExitStack() as undo:
        if relabelled is not None:
            relabelled = _kept(relabelled, undo)
        change = _change(_Case(spec, systems, table, letters, found, forced, among, relabelled))
        leaving = _kept(change.leaving, undo)
        taken: int = leaving.count()
        given: int = change.coming.count() if change.coming is not None else 0
        if not found and not taken and not given:
            return 0
        summary = {RUN_ID: run_id, SETTLED_FROM: str(letters.head)}
        if letters.position is not None:
            summary[POSITION] = letters.position.to_json()
        if found:
            summary[SETTLED] = found.mark
        name = branch_name(run_id, letters.head, "settle")
        branch = StagingBranch(systems.spark(), systems.catalog, spec.dead_letter_table, name, letters.head)
        branch.create()
        undo.callback(branch.discard)
        base = letters.head
        if taken:
            _take_out(systems.spark(), branch, leaving, change.ranges)
            base = branch.written(base).snapshot_id
        coming = change.coming if change.coming is not None else leaving.limit(0)
        writer: Any = coming.coalesce(-(-given // _LETTERS_WORTH_A_TASK) or 1).writeTo(branch.write_name)
        for key, value in summary.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()
        on_step("letters settled")
        staged = branch.written(base).snapshot_id
        _audit(spec, systems, (letters.head, staged), taken, given)
        branch.publish(staged)
    on_step("settled letters published")
    return taken - given


@dataclass(frozen=True)
class _Case:
    """What is to be settled, and where. The last three are `settle`'s arguments.

    Args:
        spec: The topic's settings.
        systems: Catalog and Spark.
        table: The topic's table.
        letters: Its dead-letter table.
        found: What metadata say is due.
    """

    spec: TopicTable
    systems: Systems
    table: TableState
    letters: TableState
    found: Due | None
    forced: bool
    among: DataFrame | None
    relabelled: DataFrame | None


@dataclass(frozen=True)
class _Change:
    """What settling does to the dead-letter table.

    Args:
        ranges: Where the offsets are that it is about.
        leaving: Letters that are taken out.
        coming: Letters that are added; None for none.
    """

    ranges: Sequence[OffsetRange]
    leaving: DataFrame
    coming: DataFrame | None


def _change(case: _Case) -> _Change:
    spec, systems, table, letters, found = case.spec, case.systems, case.table, case.letters, case.found
    assert table.head is not None, "the caller has looked"
    assert letters.head is not None, "the caller has looked"
    spark, name = systems.spark(), systems.catalog.spark_name(spec.dead_letter_table)
    held, before = at_version(spark, name, letters.head), None
    if found and found.restore is not None and letters.table.metadata.snapshot_by_id(found.restore):
        before = at_version(spark, name, found.restore)
    ranges = _joined(_places(case))
    if ranges is None:
        everywhere = held if before is None else held.unionByName(before, allowMissingColumns=True)
        ranges = _joined([_near(everywhere)]) or []
    near, obsolete = held.filter(_within(ranges, F.col)), published_keys(spec, systems, table.head, ranges)
    coming = None if before is None else without(before.filter(_within(ranges, F.col)), near)
    others = obsolete
    if case.relabelled is not None:
        coming = case.relabelled if coming is None else _instead(coming, case.relabelled)
        others = obsolete.unionByName(case.relabelled.select(*_KEYS))
    return _Change(ranges, _among(near, others), None if coming is None else without(coming, obsolete))


def _places(case: _Case) -> Iterator[list[OffsetRange] | None]:
    """Give where to look, place by place; None for everywhere."""
    spec, found = case.spec, case.found
    if found:
        snapshots = [(spec.identifier, case.table, each) for each in found.commits]
        snapshots += [(spec.dead_letter_table, case.letters, each) for each in found.stale]
        # After a rollback no mark tells of all that others may have published since; and many looks cost more than one.
        if found.mark.startswith(_ROLLED_BACK) or len(snapshots) > _LOOKS:
            yield None
            return
        for identifier, state, snapshot in snapshots:
            yield _near(added_keys(spec, case.systems, identifier, state.table, snapshot))
    if case.relabelled is not None:
        yield _near(case.relabelled)
    elif case.forced:
        yield _near(case.among)


def _instead(letters: DataFrame, others: DataFrame) -> DataFrame:
    return without(letters, others).unionByName(others, allowMissingColumns=True)


def _kept(frame: DataFrame, undo: ExitStack) -> DataFrame:
    """Return a frame that Spark computes once, until the end."""
    kept = frame.persist()

    def forget() -> None:
        # A server that is gone has forgotten it, and must not hide what went wrong by that.
        with suppress(Exception):
            kept.unpersist()

    undo.callback(forget)
    return kept


def added_keys(
    spec: TopicTable, systems: Systems, identifier: tuple[str, str], table: Table, snapshot: int
) -> DataFrame | None:
    """Return what names the records of the rows, or letters, that a snapshot added; None if only all can tell.

    Args:
        spec: The topic.
        systems: Spark reads the files that the snapshot added, and nothing else.
        identifier: The topic's table, or its dead-letter table.
        table: The same, loaded.
        snapshot: The snapshot.
    """
    known = table.metadata.snapshot_by_id(snapshot)
    parent = known.parent_snapshot_id if known else None
    appends = known is not None and known.summary is not None and known.summary.operation is Operation.APPEND
    if not appends or parent is None or table.metadata.snapshot_by_id(parent) is None:
        return None
    reader = systems.spark().read.format("iceberg").option("start-snapshot-id", str(parent))
    rows = reader.option("end-snapshot-id", str(snapshot)).load(systems.catalog.spark_name(identifier))
    prefix = f"`{spec.metadata_column}`." if identifier == spec.identifier else ""
    keys: DataFrame = rows.select(*[F.col(f"{prefix}{key}").alias(key) for key in _KEYS])
    return keys


def _near(keys: DataFrame | None) -> list[OffsetRange] | None:
    """Return where the offsets of records are; None if that can't be told."""
    if keys is None:
        return None
    place = F.floor(F.col("offset") / _APART).alias("place")
    found = keys.groupBy("partition", place).agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    # Rows of others name no record.
    return [
        OffsetRange(row["partition"], row["first"], row["last"] + 1)
        for row in found.collect()
        if row["first"] is not None
    ]


def _joined(places: Iterable[list[OffsetRange] | None]) -> list[OffsetRange] | None:
    """Return ranges as few enough for a condition, by partition and offset; None if one of them can't be told."""
    known: list[OffsetRange] = []
    for each in places:
        if each is None:
            return None
        known += each
    apart = joined_ranges(known, _APART)
    return apart if len(apart) <= _PLACES else joined_ranges(known, None)


def joined_ranges(ranges: Iterable[OffsetRange], apart: int | None) -> list[OffsetRange]:
    """Return ranges with those of a partition that are less than so many offsets apart as one; None for all of them.

    >>> [(r.partition, r.start, r.end) for r in joined_ranges([OffsetRange(0, 9, 10), OffsetRange(0, 1, 2)], 7)]
    [(0, 1, 2), (0, 9, 10)]
    >>> [(r.partition, r.start, r.end) for r in joined_ranges([OffsetRange(0, 9, 10), OffsetRange(0, 1, 2)], None)]
    [(0, 1, 10)]
    """
    found: list[OffsetRange] = []
    for each in sorted(ranges, key=lambda r: (r.partition, r.start)):
        last = found[-1] if found else None
        if last and last.partition == each.partition and (apart is None or each.start - last.end < apart):
            found[-1] = OffsetRange(last.partition, last.start, max(last.end, each.end))
        else:
            found.append(each)
    return found


def _take_out(spark: Any, branch: StagingBranch, leaving: DataFrame, ranges: Sequence[OffsetRange]) -> None:
    """Delete letters from a branch. Files that have none of them stay as they are."""
    view = f"kafka_lake_leaving_{uuid4().hex}"
    _keys(leaving, _KEYS).createOrReplaceTempView(view)
    places = " OR ".join(
        f"(l.partition = {r.partition} AND l.offset BETWEEN {r.start} AND {r.end - 1})" for r in ranges
    )
    same = " AND ".join(f"g.their_{key} <=> l.{key}" for key in _KEYS)
    try:
        spark.sql(
            f"DELETE FROM {branch.write_name} AS l WHERE ({places}) AND EXISTS (SELECT 1 FROM {view} AS g WHERE {same})"
        )
    finally:
        with suppress(Exception):
            spark.catalog.dropTempView(view)


def _audit(spec: TopicTable, systems: Systems, snapshots: tuple[int, int], taken: int, given: int) -> None:
    """Refuse a settlement that leaves other letters than were counted."""
    table = systems.catalog.table(spec.dead_letter_table)
    name = systems.catalog.spark_name(spec.dead_letter_table)
    known = [letters_in(table, each) for each in snapshots]
    before, after = (
        at_version(systems.spark(), name, snapshot).count() if told is None else told
        for told, snapshot in zip(known, snapshots, strict=True)
    )
    if after != before - taken + given:
        raise AuditFailedError(
            f"Dead-letter table {'.'.join(spec.dead_letter_table)}: {before} letters without {taken} that are rows by "
            f"now, and with {given} others, are not the {after} that were staged.",
            "The table is as it was, and nothing was published. That is a defect of kafka_lake: please report it.",
        )


def letters_in(table: Table | None, snapshot: int) -> int | None:
    """Return how many letters a snapshot has, by its summary; None if that doesn't say.

    Where rows are deleted by files of their own, these may be about data files that are gone: counts don't tell then.
    """
    found = table.metadata.snapshot_by_id(snapshot) if table else None
    summary = summary_of(found) if found else {}
    if "total-records" not in summary or summary.get("total-delete-files", "0") != "0":
        return None
    return int(summary["total-records"])


def at_version(spark: Any, name: str, snapshot: int) -> DataFrame:
    """Return a table as of a snapshot, by its quoted Spark name."""
    frame: DataFrame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")
    return frame


def without(letters: DataFrame, others: DataFrame, keys: Sequence[str] = _KEYS) -> DataFrame:
    """Return the letters that have no twin among the others, by what names a record."""
    return letters.join(_keys(others, keys), _same(letters, keys), "left_anti")


def _among(letters: DataFrame, others: DataFrame) -> DataFrame:
    return letters.join(_keys(others, _KEYS), _same(letters, _KEYS), "left_semi")


def _keys(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    return frame.select(*[F.col(key).alias(f"their_{key}") for key in keys])


def _same(letters: DataFrame, keys: Sequence[str]) -> Any:
    # Clusters older than Kafka 2.8 have no topic ids: null is then the same as null.
    return reduce(and_, [letters[key].eqNullSafe(F.col(f"their_{key}")) for key in keys])


def _within(ranges: Sequence[OffsetRange], column: Callable[[str], Any]) -> Any:
    return any_of([(column("partition") == r.partition) & column("offset").between(r.start, r.end - 1) for r in ranges])


def published_keys(spec: TopicTable, systems: Systems, snapshot: int, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return what names the records of the table's rows at some offsets; files of others are skipped.

    Args:
        spec: Its metadata column is read, and nothing else of the table.
        systems: Catalog and Spark.
        snapshot: The table's snapshot to look at.
        ranges: Where the offsets are.
    """
    origin = f"`{spec.metadata_column}`"
    rows = at_version(systems.spark(), systems.catalog.spark_name(spec.identifier), snapshot)
    near = rows.filter(_within(ranges, lambda name: F.col(f"{origin}.{name}")))
    return near.select(*[F.col(f"{origin}.{key}").alias(key) for key in _KEYS])
