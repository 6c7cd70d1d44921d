"""Reconcile: remove dead letters whose records are rows of the table by now.

A record is in at least one of the two tables at every moment: dead letters are added before the table is published, and
removed after it. A commit that may have made dead letters obsolete says so in its summary (`UNRECONCILED`), and the
snapshot that removes them repeats the mark (`RECONCILED`). So the next run completes what a killed run has begun.

Only offsets near those of the commits in question are read, only files with obsolete dead letters are rewritten, and
the dead letters that stay are counted before they are visible.
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
from kafka_lake.engine.frames import RECORD, added_between, at_version, cached
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AuditFailedError
from kafka_lake.runtime.context import Connections, Context

_MAX_RANGES = 200
_MAX_SNAPSHOTS = 20
_ROWS_PER_TASK = 250_000


@dataclass(frozen=True)
class _Tables:
    """The two tables, what is pending, and the arguments of `reconcile`."""

    context: Context
    table: TableState
    dead_letters: TableState
    pending: Pending | None
    forced: bool
    among: DataFrame | None
    relabelled: DataFrame | None
    merged: DataFrame | None


@dataclass(frozen=True)
class _Change:
    """A change of the dead-letter table."""

    ranges: Sequence[OffsetRange]
    removed: DataFrame
    added: DataFrame | None


def reconcile(
    context: Context,
    *,
    forced: bool = False,
    among: DataFrame | None = None,
    relabelled: DataFrame | None = None,
    merged: DataFrame | None = None,
) -> None:
    """Remove dead letters whose records are in the table.

    Args:
        forced: Whether to look for them although the snapshots say that nothing is pending.
        among: Dead letters among which to look, if forced; None for all.
        relabelled: Dead letters that replace those of the same records.
        merged: Dead letters that became events of an upsert table or a history.
    """
    spec, connections = context.spec, context.connections
    loaded = [connections.catalog.table(name) for name in (spec.identifier, spec.dead_letter_table)]
    if loaded[0] is None or loaded[1] is None:
        return
    table, dead_letters = read_state(loaded[0]), read_state(loaded[1])
    pending = pending_reconciliation(table, dead_letters)
    if dead_letters.head is None or table.head is None:
        return
    if not pending and not forced and relabelled is None and merged is None:
        return
    with ExitStack() as undo:
        if relabelled is not None:
            relabelled = cached(relabelled, undo)
        tables = _Tables(
            context,
            table,
            dead_letters,
            pending,
            forced=forced,
            among=among,
            relabelled=relabelled,
            merged=merged,
        )
        change = _change(tables)
        removed = cached(change.removed, undo)
        removed_count: int = removed.count()
        added_count: int = change.added.count() if change.added is not None else 0
        if not pending and not removed_count and not added_count:
            return
        summary = {**author_summary(context.run_id, RECONCILE), RECONCILED_FROM: str(dead_letters.head)}
        if dead_letters.positions:
            summary[POSITION] = positions_to_json(dead_letters.positions.values())
        if pending:
            summary[RECONCILED] = pending.mark
        spark, head = connections.spark(), dead_letters.head
        branch = StagingBranch(
            spark, connections.catalog, spec.dead_letter_table, branch_name(context.run_id, head, "settle"), head=head
        )
        branch.create()
        undo.callback(branch.discard)
        base = dead_letters.head
        if removed_count:
            _delete(connections, branch, removed, change.ranges)
            base = branch.written(base).snapshot_id
        added = change.added if change.added is not None else removed.limit(0)
        writer: Any = added.coalesce(-(-added_count // _ROWS_PER_TASK) or 1).writeTo(branch.write_name)
        for key, value in summary.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()
        context.observer.step_done("dead letters reconciled")
        staged = branch.written(base).snapshot_id
        check_counts(context, (dead_letters.head, staged), removed_count, added_count)
        branch.publish(staged)
    context.observer.step_done("reconciled dead letters published")


def _change(tables: _Tables) -> _Change:
    context, table, dead_letters, pending = tables.context, tables.table, tables.dead_letters, tables.pending
    spec, connections = context.spec, context.connections
    assert table.head is not None
    assert dead_letters.head is not None
    spark, frames = connections.spark(), connections.frames
    name, before = connections.catalog.spark_name(spec.dead_letter_table), None
    current = at_version(spark, name, dead_letters.head)
    if pending and pending.restore is not None and dead_letters.table.metadata.snapshot_by_id(pending.restore):
        before = at_version(spark, name, pending.restore)
    ranges = joined(_ranges(tables), frames.apart)
    if ranges is None:
        everything = current if before is None else current.unionByName(before, allowMissingColumns=True)
        ranges = joined([frames.places(everything)], frames.apart) or []
    nearby = frames.within(current, ranges)
    rows = at_version(spark, connections.catalog.spark_name(spec.identifier), table.head)
    published = frames.keys(frames.within(rows, ranges, METADATA_COLUMN), column=METADATA_COLUMN)
    added = None if before is None else frames.without(frames.within(before, ranges), nearby)
    obsolete = published
    if (relabelled := tables.relabelled) is not None:
        if added is None:
            added = relabelled
        else:
            added = frames.without(added, relabelled).unionByName(relabelled, allowMissingColumns=True)
        obsolete = obsolete.unionByName(relabelled.select(*RECORD))
    if tables.merged is not None:
        obsolete = obsolete.unionByName(tables.merged.select(*RECORD))
    added = None if added is None else frames.without(added, published)
    return _Change(ranges, frames.among(nearby, obsolete), added)


def _ranges(tables: _Tables) -> Iterator[list[OffsetRange] | None]:
    """Yield offsets at which to look; None for all."""
    context, pending = tables.context, tables.pending
    spec, frames = context.spec, context.connections.frames
    if pending:
        snapshots = [(spec.identifier, tables.table, snapshot) for snapshot in pending.commits]
        snapshots += [(spec.dead_letter_table, tables.dead_letters, snapshot) for snapshot in pending.stale]
        # After a rollback, other writers may have published snapshots without a mark.
        if pending.rolled_back or len(snapshots) > _MAX_SNAPSHOTS:
            yield None
            return
        for identifier, state, snapshot in snapshots:
            ids = added_keys(context, identifier, state.table, snapshot)
            yield None if ids is None else frames.places(ids)
    if tables.merged is not None:
        yield frames.places(tables.merged)
    elif tables.relabelled is not None:
        yield frames.places(tables.relabelled)
    elif tables.forced:
        yield None if tables.among is None else frames.places(tables.among)


def added_keys(context: Context, identifier: tuple[str, str], table: Table, snapshot: int) -> DataFrame | None:
    """Return the record ids of rows that a snapshot added; None if its metadata lacks them."""
    spec, connections = context.spec, context.connections
    known = table.metadata.snapshot_by_id(snapshot)
    parent = known.parent_snapshot_id if known else None
    is_append = known is not None and known.summary is not None and known.summary.operation is Operation.APPEND
    if not is_append or parent is None or table.metadata.snapshot_by_id(parent) is None:
        return None
    rows = added_between(connections.spark(), connections.catalog.spark_name(identifier), parent, snapshot)
    return connections.frames.keys(rows, column=METADATA_COLUMN if identifier == spec.identifier else None)


def joined(parts: Iterable[list[OffsetRange] | None], apart: int) -> list[OffsetRange] | None:
    """Return few enough ranges for a condition, by partition and offset; None if a part is None."""
    ranges: list[OffsetRange] = []
    for part in parts:
        if part is None:
            return None
        ranges += part
    joined_parts = joined_ranges(ranges, apart)
    return joined_parts if len(joined_parts) <= _MAX_RANGES else joined_ranges(ranges, None)


def _delete(connections: Connections, branch: StagingBranch, removed: DataFrame, ranges: Sequence[OffsetRange]) -> None:
    """Delete dead letters from a branch. Other files stay as they are."""
    spark, view = connections.spark(), f"kafka_lake_obsolete_{uuid4().hex}"
    connections.frames.named(removed).createOrReplaceTempView(view)
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


def check_counts(context: Context, snapshots: tuple[int, int], removed: int, added: int) -> None:
    """Refuse a change after which the table has another number of dead letters than expected."""
    spec, connections = context.spec, context.connections
    table = connections.catalog.table(spec.dead_letter_table)
    name = connections.catalog.spark_name(spec.dead_letter_table)
    counts = []
    for snapshot in snapshots:
        count = dead_letters_in(table, snapshot)
        counts.append(at_version(connections.spark(), name, snapshot).count() if count is None else count)
    before, after = counts
    if after != before - removed + added:
        raise AuditFailedError(
            f"Dead-letter table {'.'.join(spec.dead_letter_table)}: it has {before} rows, {removed} are removed and "
            f"{added} added, but {after} were staged.",
            "The table is unchanged, and nothing was published. This is a bug in kafka_lake: please report it.",
        )


def dead_letters_in(table: Table | None, snapshot: int) -> int | None:
    """Return the number of dead letters of a snapshot by its summary; None if the summary lacks it.

    Delete files may refer to data files that are gone, so the summary's count isn't exact with them.
    """
    known = table.metadata.snapshot_by_id(snapshot) if table else None
    summary = summary_of(known) if known else {}
    if "total-records" not in summary or summary.get("total-delete-files", "0") != "0":
        return None
    return int(summary["total-records"])
