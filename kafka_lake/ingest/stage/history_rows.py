"""The way of histories: a batch's changes, and what the history has of their keys, become rows of the run's branch."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.keyed.bounds import Bounds, bounds
from kafka_lake.ingest.keyed.folded import FoldedBatch
from kafka_lake.ingest.keyed.history.check import check_history, counts_of
from kafka_lake.ingest.keyed.history.closings import (
    CLOSINGS,
    closed,
    closings_as_json,
    closings_of,
    is_one_of,
    remembered_closings,
)
from kafka_lake.ingest.keyed.history.events import events_of, joined, seeds_of, stored_of
from kafka_lake.ingest.keyed.history.figures import NOTHING_NEW, HistoryBatch
from kafka_lake.ingest.keyed.history.intervals import with_intervals
from kafka_lake.ingest.keyed.history.merge import is_changed, merge_events
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import quoted
from kafka_lake.ingest.keyed.truncates import Truncate
from kafka_lake.ingest.record_keys import at_version
from kafka_lake.ingest.stage.history_table import ensure_history_table, refuse_columns, refuse_gap, refuse_ignored
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append
from kafka_lake.ingest.stage.staged import StagedTable, side_summary, staged_table
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import POSITION, TableState, head_of, read_state, row_count
from kafka_lake.spark.kept import kept


@dataclass(frozen=True)
class EventsToStage:
    """A batch's changes, and what they became in the topic's table.

    Args:
        changes: All of them, as their records tell them, in the table's types.
        folded: One of each key.
        current: The topic's table as it is staged.
        branch: Name of the branch to write to.
        summary: Of the topic's table's snapshot.
        closings: What took many rows of the table away at once: now, and the newest one that it remembers.
        older: How many changes are older than the newest one; None if that isn't known.
    """

    changes: DataFrame
    folded: FoldedBatch
    current: StagedTable
    branch: str
    summary: Mapping[str, str]
    closings: tuple[Truncate, ...] = ()
    older: int | None = None


@dataclass(frozen=True)
class StagedHistory:
    """What changes became in the history.

    Args:
        table: The history's table.
        batch: What became of the batch.
    """

    table: StagedTable
    batch: HistoryBatch


def write_history(
    context: Context, shape: Shape, events: EventsToStage, before: TableState, *, held: ExitStack, undo: ExitStack
) -> StagedHistory:
    """Stage a batch's changes in the history.

    Args:
        context: Of the run.
        shape: Of the history; its field ids are looked up here.
        events: The changes.
        before: The topic's table as the plan saw it.
        held: Lets go of what Spark keeps.
        undo: Gets what takes all of it away again.

    Raises:
        TableError: If the history was written with other settings, or lacks changes. Nothing is staged then.
    """
    refuse_columns(context.spec, shape)
    table = ensure_history_table(context, shape.columns, shape.keys.columns)
    state = read_state(table)
    refuse_gap(context.spec, state, before)
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    shape = replace(shape, ids={field.name: field.field_id for field in table.schema().fields})
    branch = StagingBranch(
        spark=context.connections.spark(),
        catalog=context.connections.catalog,
        identifier=context.spec.history_table,
        name=events.branch,
        head=state.head,
        table=table,
    )
    branch.create()
    undo.callback(branch.discard)
    seeds = None if row_count(table) else _seeds(context, shape, before)
    known = remembered_closings(state)
    closings = closings_of(known, events.closings, shape.keys)
    refuse_ignored(context.spec, closings, events.closings, Position.from_json(events.summary[POSITION]))
    events = replace(events, summary=_summary(events.summary, closings))
    is_new = bool({each.place for each in closings} - {each.place for each in known})
    if seeds is None and not is_new and not _may_be_older(events, closings):
        # What the history has of them is all that they do.
        closings = []
    if seeds is None and not events.folded.count and not closings:
        return StagedHistory(_nothing(context, branch, state, events.summary), NOTHING_NEW)
    base = state.head
    head = table.metadata.snapshot_by_id(base)
    if head is None or head.schema_id != table.metadata.current_schema_id:
        # A snapshot is read with the columns that it was written with, by the names that they had.
        base = _nothing(context, branch, state, {}).snapshot
    told = shaped(events_of(events.changes, shape), shape.columns)
    of_keys = _OfKeys(events.folded.one_each, events.folded.within)
    if seeds is not None or is_new:
        of_keys = _OfKeys(told, None)
    elif closings:
        # What is older than one of them is an event of the history, though no change of the table.
        of_keys = _OfKeys(told, bounds(told, shape.keys)[0])
    merge = _Merge(
        context=context, shape=shape, state=state, branch=branch, base=base, events=events, seeds=seeds, told=told,
        closings=closings, keys=of_keys,
    )  # fmt: skip
    return _merged(merge, held)


def _may_be_older(events: EventsToStage, closings: Sequence[Truncate]) -> bool:
    """Return whether a change may be older than one of the closings."""
    if not closings:
        return False
    places = [each.place for each in events.closings]
    return events.older != 0 or closings[-1].place not in places


def _summary(summary: Mapping[str, str], closings: Sequence[Truncate]) -> dict[str, str]:
    told = side_summary(summary)
    return {**told, CLOSINGS: closings_as_json(closings)} if closings else told


@dataclass(frozen=True)
class _OfKeys:
    """The keys whose events are looked at.

    Args:
        rows: Have them.
        within: Between which values they lie; None for all keys of the history.
    """

    rows: DataFrame
    within: Bounds | None


@dataclass(frozen=True)
class _Merge:
    """Events on their way into a branch; of the whole table, if its history begins."""

    context: Context
    shape: Shape
    state: TableState
    branch: StagingBranch
    base: int
    events: EventsToStage
    seeds: DataFrame | None
    told: DataFrame
    closings: Sequence[Truncate]
    keys: _OfKeys

    def rows(self, table: tuple[str, str], snapshot: int) -> DataFrame:
        connections = self.context.connections
        return at_version(connections.spark(), connections.catalog.spark_name(table), snapshot)

    def of_keys(self, snapshot: int) -> DataFrame:
        """Return the history's rows of the keys of the events."""
        rows = shaped(self.rows(self.context.spec.history_table, snapshot), self.shape.columns)
        within = self.keys.within
        return rows if within is None else stored_of(rows, self.keys.rows, self.shape, within)

    def events_with(self, known: DataFrame) -> DataFrame:
        """Return all events of the keys, given those that the history has."""
        told, shape = self.told, self.shape
        if self.closings:
            others = [known, *([self.seeds] if self.seeds is not None else [])]
            all_events = reduce(
                DataFrame.unionByName, (each.select(*map(quoted, shape.columns.names)) for each in others), told
            )
            made = shaped(closed(all_events, self.closings, shape), shape.columns)
            # What the table hasn't come to isn't compared with its rows: a run that died has published it.
            ahead = is_one_of(self.ahead, shape)
            told = told.unionByName(made.filter(~ahead))
            seeds = made.filter(ahead) if self.seeds is None else self.seeds.unionByName(made.filter(ahead))
            return joined(known, seeds, told, shape)
        return joined(known, self.seeds, told, shape)

    @property
    def ahead(self) -> list[Truncate]:
        """The closings that the history knows and the table has not come to."""
        keys = self.shape.keys
        newest = max((each.sorted_by(keys) for each in self.events.closings), default=None)
        return [each for each in self.closings if newest is None or each.sorted_by(keys) > newest]


def _merged(merge: _Merge, held: ExitStack) -> StagedHistory:
    context, shape, branch, events = merge.context, merge.shape, merge.branch, merge.events
    made = kept(with_intervals(merge.events_with(merge.of_keys(merge.base)), shape), held)
    counts = counts_of(made, shape)
    if counts["changed"]:
        spark, there = context.connections.spark(), merge.rows(context.spec.history_table, merge.base).schema
        # Columns that the topic's table has no more keep what they have.
        columns = T.StructType([each for each in there if each.name in shape.columns.names])
        changed = shaped(made.filter(is_changed(shape)).select(*map(quoted, shape.columns.names)), columns)
        merge_events(spark, branch, changed, shape, within=merge.keys.within, summary=events.summary)
        staged = staged_table(branch, merge.base, merge.state)
    else:
        staged = _nothing(context, branch, merge.state, events.summary)
    current = merge.rows(context.spec.identifier, events.current.snapshot)
    check = check_history(
        merge.of_keys(staged.snapshot), made, current, shape, count=counts["rows"], within=merge.keys.within
    )
    figures = {each: counts[each] for each in ("events", "versions", "closed", "rewritten")}
    return StagedHistory(staged, HistoryBatch(**figures, check=check))


def _nothing(context: Context, branch: StagingBranch, state: TableState, summary: Mapping[str, str]) -> StagedTable:
    """Stage a snapshot without rows: the position of the history goes on nevertheless, so that a gap shows."""
    spark, catalog = context.connections.spark(), context.connections.catalog
    rows = spark.table(catalog.spark_name(context.spec.history_table)).limit(0)
    return append(branch, state, rows, summary)


def _seeds(context: Context, shape: Shape, before: TableState) -> DataFrame | None:
    """Return what a table that has rows tells of the time before its history; None if there is nothing."""
    spark, catalog = context.connections.spark(), context.connections.catalog
    deletes = catalog.table(context.spec.deletes_table)
    head = head_of(deletes) if deletes else None
    if not row_count(before.table) and not row_count(deletes):
        return None
    # As it is published, with the columns that this run has given it. If others publish meanwhile, this run doesn't.
    rows = shaped(spark.sql(f"SELECT * FROM {catalog.spark_name(context.spec.identifier)}"), shape.table)
    gone = at_version(spark, catalog.spark_name(context.spec.deletes_table), head) if head is not None else None
    return shaped(seeds_of(rows, gone, shape), shape.columns)
