"""Reconcile: a dead letter whose record is in the table by now is taken out of the dead-letter table.

A record is in one of the two tables at every moment: letters are added before the table is published, and taken out
here, after it was. A commit that may have made letters obsolete says so in its summary (`UNRECONCILED`), and the
commit that took them out repeats the mark (`RECONCILED`). So a run that dies in between is made good by the next,
whatever that does, and metadata alone tell that there is nothing to reconcile.

It costs what has changed, however many letters there are: only those are read whose offsets are near what the commits
in question wrote, only the files are written again that have some of them, and the letters that are left are counted
before they are visible.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.sql import DataFrame

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.positions import POSITION, RECONCILE, TableState, author_summary, read_state, summary_of
from kafka_lake.common.offsets import OffsetRange, joined_ranges, positions_to_json
from kafka_lake.dead_letters.pending import RECONCILED, RECONCILED_FROM, Pending, pending_reconciliation
from kafka_lake.engine.frames import RECORD, Frames, cached
from kafka_lake.errors import AuditFailedError
from kafka_lake.runtime.context import Connections, Context
from kafka_lake.runtime.record_keys import added_between, at_version

# Offsets that are far apart are looked for apart from each other, in so many places at the most.
_PLACES = 200


def added_keys(context: Context, identifier: tuple[str, str], table: Table, snapshot: int) -> DataFrame | None:
    """Return what names the records of the rows, or letters, that a snapshot added; None if only all can tell."""
    spec, connections = context.spec, context.connections
    known = table.metadata.snapshot_by_id(snapshot)
    parent = known.parent_snapshot_id if known else None
    appends = known is not None and known.summary is not None and known.summary.operation is Operation.APPEND
    if not appends or parent is None or table.metadata.snapshot_by_id(parent) is None:
        return None
    rows = added_between(connections.spark(), connections.catalog.spark_name(identifier), parent, snapshot)
    return connections.frames.keys(rows, column=spec.metadata_column if identifier == spec.identifier else None)


def near(connections: Connections, keys: DataFrame | None) -> list[OffsetRange] | None:
    """Return where the offsets of records are; None if that can't be told."""
    return None if keys is None else connections.frames.places(keys)


def joined(places: Iterable[list[OffsetRange] | None], apart: int) -> list[OffsetRange] | None:
    """Return ranges as few enough for a condition, by partition and offset; None if one of them can't be told."""
    known: list[OffsetRange] = []
    for each in places:
        if each is None:
            return None
        known += each
    found = joined_ranges(known, apart)
    return found if len(found) <= _PLACES else joined_ranges(known, None)


_LETTERS_WORTH_A_TASK = 250_000
_MOST_PLACES = 20


def reconcile(
    context: Context,
    *,
    forced: bool = False,
    among: DataFrame | None = None,
    relabelled: DataFrame | None = None,
    merged: DataFrame | None = None,
) -> int:
    """Take dead letters out of the dead-letter table whose records are in the table."""
    spec, connections = context.spec, context.connections
    loaded = [connections.catalog.table(name) for name in (spec.identifier, spec.dead_letter_table)]
    if loaded[0] is None or loaded[1] is None or spec.metadata_column is None:
        return 0
    table, dead_letters = read_state(loaded[0]), read_state(loaded[1])
    found = pending_reconciliation(table, dead_letters)
    if (
        dead_letters.head is None
        or table.head is None
        or not (found or forced or relabelled is not None or merged is not None)
    ):
        return 0
    with ExitStack() as undo:
        if relabelled is not None:
            relabelled = cached(relabelled, undo)
        change = _change(
            _Case(
                context=context,
                table=table,
                dead_letters=dead_letters,
                found=found,
                forced=forced,
                among=among,
                relabelled=relabelled,
                merged=merged,
            )
        )
        leaving = cached(change.leaving, undo)
        taken: int = leaving.count()
        given: int = change.coming.count() if change.coming is not None else 0
        if not found and not taken and not given:
            return 0
        summary = {**author_summary(context.run_id, RECONCILE), RECONCILED_FROM: str(dead_letters.head)}
        if dead_letters.positions:
            summary[POSITION] = positions_to_json(dead_letters.positions.values())
        if found:
            summary[RECONCILED] = found.mark
        name = branch_name(context.run_id, dead_letters.head, "settle")
        branch = StagingBranch(
            spark=connections.spark(),
            catalog=connections.catalog,
            identifier=spec.dead_letter_table,
            name=name,
            head=dead_letters.head,
        )
        branch.create()
        undo.callback(branch.discard)
        base = dead_letters.head
        if taken:
            _take_out(connections, branch, leaving, change.ranges)
            base = branch.written(base).snapshot_id
        coming = change.coming if change.coming is not None else leaving.limit(0)
        writer: Any = coming.coalesce(-(-given // _LETTERS_WORTH_A_TASK) or 1).writeTo(branch.write_name)
        for key, value in summary.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()
        context.observer.step_done("dead letters reconciled")
        staged = branch.written(base).snapshot_id
        _audit(context, (dead_letters.head, staged), taken, given)
        branch.publish(staged)
    context.observer.step_done("reconciled dead letters published")
    return taken - given


@dataclass(frozen=True)
class _Case:
    """What is to be reconciled, and where. The last four are `reconcile`'s arguments.

    Args:
        found: What metadata say is to be reconciled.
    """

    context: Context
    table: TableState
    dead_letters: TableState
    found: Pending | None
    forced: bool
    among: DataFrame | None
    relabelled: DataFrame | None
    merged: DataFrame | None = None


@dataclass(frozen=True)
class _Change:
    """What reconciling does to the dead-letter table.

    Args:
        ranges: Where the offsets are that it is about.
        leaving: Letters that are taken out.
        coming: Letters that are added; None for none.
    """

    ranges: Sequence[OffsetRange]
    leaving: DataFrame
    coming: DataFrame | None


def _change(case: _Case) -> _Change:
    context, table, dead_letters, found = case.context, case.table, case.dead_letters, case.found
    spec, connections = context.spec, context.connections
    assert table.head is not None, "the caller has looked"
    assert dead_letters.head is not None, "the caller has looked"
    spark, name = connections.spark(), connections.catalog.spark_name(spec.dead_letter_table)
    frames, before = connections.frames, None
    held = at_version(spark, name, dead_letters.head)
    if found and found.restore is not None and dead_letters.table.metadata.snapshot_by_id(found.restore):
        before = at_version(spark, name, found.restore)
    ranges = joined(_places(case), frames.apart)
    if ranges is None:
        everywhere = held if before is None else held.unionByName(before, allowMissingColumns=True)
        ranges = joined([near(connections, everywhere)], frames.apart) or []
    nearby, obsolete = frames.within(held, ranges), published_keys(context, table.head, ranges)
    coming = None if before is None else frames.without(frames.within(before, ranges), nearby)
    others = obsolete
    if case.relabelled is not None:
        coming = case.relabelled if coming is None else _instead(frames, coming, case.relabelled)
        others = obsolete.unionByName(case.relabelled.select(*RECORD))
    if case.merged is not None:
        others = others.unionByName(case.merged.select(*RECORD))
    return _Change(ranges, frames.among(nearby, others), None if coming is None else frames.without(coming, obsolete))


def _places(case: _Case) -> Iterator[list[OffsetRange] | None]:
    """Give where to look, place by place; None for everywhere."""
    spec, connections, found = case.context.spec, case.context.connections, case.found
    if found:
        snapshots = [(spec.identifier, case.table, each) for each in found.commits]
        snapshots += [(spec.dead_letter_table, case.dead_letters, each) for each in found.stale]
        # After a rollback no mark tells of all that others may have published since; and many queries cost more than
        # one.
        if found.rolled_back or len(snapshots) > _MOST_PLACES:
            yield None
            return
        for identifier, state, snapshot in snapshots:
            yield near(connections, added_keys(case.context, identifier, state.table, snapshot))
    if case.merged is not None:
        yield near(connections, case.merged)
    elif case.relabelled is not None:
        yield near(connections, case.relabelled)
    elif case.forced:
        yield near(connections, case.among)


def _instead(frames: Frames, dead_letters: DataFrame, others: DataFrame) -> DataFrame:
    return frames.without(dead_letters, others).unionByName(others, allowMissingColumns=True)


def _take_out(
    connections: Connections, branch: StagingBranch, leaving: DataFrame, ranges: Sequence[OffsetRange]
) -> None:
    """Delete letters from a branch. Files that have none of them stay as they are."""
    spark, view = connections.spark(), f"kafka_lake_leaving_{uuid4().hex}"
    connections.frames.named(leaving).createOrReplaceTempView(view)
    places = " OR ".join(
        f"(l.partition = {r.partition} AND l.offset BETWEEN {r.start} AND {r.end - 1})" for r in ranges
    )
    same = " AND ".join(f"g.their_{key} <=> l.{key}" for key in RECORD)
    try:
        spark.sql(
            f"DELETE FROM {branch.write_name} AS l WHERE ({places}) AND EXISTS (SELECT 1 FROM {view} AS g WHERE {same})"
        )
    finally:
        with suppress(Exception):
            spark.catalog.dropTempView(view)


def _audit(context: Context, snapshots: tuple[int, int], taken: int, given: int) -> None:
    """Refuse a change that leaves other dead letters than were counted."""
    spec, connections = context.spec, context.connections
    table = connections.catalog.table(spec.dead_letter_table)
    name = connections.catalog.spark_name(spec.dead_letter_table)
    known = [dead_letters_in(table, each) for each in snapshots]
    before, after = (
        at_version(connections.spark(), name, snapshot).count() if told is None else told
        for told, snapshot in zip(known, snapshots, strict=True)
    )
    if after != before - taken + given:
        raise AuditFailedError(
            f"Dead-letter table {'.'.join(spec.dead_letter_table)}: {before} letters without {taken} that are rows by "
            f"now, and with {given} others, are not the {after} that were staged.",
            "The table is as it was, and nothing was published. That is a defect of kafka_lake: please report it.",
        )


def dead_letters_in(table: Table | None, snapshot: int) -> int | None:
    """Return how many letters a snapshot has, by its summary; None if that doesn't say.

    Where rows are deleted by files of their own, these may be about data files that are gone: counts don't tell then.
    """
    found = table.metadata.snapshot_by_id(snapshot) if table else None
    summary = summary_of(found) if found else {}
    if "total-records" not in summary or summary.get("total-delete-files", "0") != "0":
        return None
    return int(summary["total-records"])


def published_keys(context: Context, snapshot: int, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return what names the records of the table's rows at some offsets; files of others are skipped."""
    spec, connections = context.spec, context.connections
    frames, column = connections.frames, spec.metadata_column
    rows = at_version(connections.spark(), connections.catalog.spark_name(spec.identifier), snapshot)
    return frames.keys(frames.within(rows, ranges, column), column=column)
