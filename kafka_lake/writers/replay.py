"""Rows that a replay replaces: taken out, kept if Kafka no longer has their records, left out if they have expired."""

import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import KEEPS, author_summary, positions_summary, removes_property
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.engine.frames import OFFSET
from kafka_lake.maintenance.maintain import old_rows
from kafka_lake.maintenance.policy import applies_to
from kafka_lake.maintenance.row_retention import condition_of
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import at_version, metadata_column_of
from kafka_lake.writers.frames import append
from kafka_lake.writers.staged import StagedTable, Vanished


def delete_replaced(context: Context, branch: StagingBranch, plan: Plan) -> int | None:
    """Delete from a branch the rows that the plan replaces."""
    return branch.delete(of_ranges(plan, plan.deletes, metadata_column_of(context.spec)))


def of_ranges(plan: Plan, ranges: Sequence[OffsetRange], column: str | None) -> str:
    """Return the condition, as SQL, that a row is of some offsets of the plan's topic."""
    of, topic_id = f"`{column}`." if column else "", plan.after.identity.topic_id.replace("'", "")
    offsets = " OR ".join(
        f"({of}partition = {r.partition} AND {of}offset >= {r.start} AND {of}offset < {r.end})" for r in ranges
    )
    same_topic = f"{of}topic_id = '{topic_id}'" if topic_id else f"{of}topic_id IS NULL"
    return f"{same_topic} AND ({offsets})"


def keep_what_vanished(
    context: Context, plan: Plan, primary: StagedTable, elsewhere: Sequence[DataFrame]
) -> tuple[StagedTable, tuple[Vanished, ...]]:
    """Find the rows that a replacement deletes and doesn't replace; put them back if the plan says so."""
    connections = context.connections
    frames, column, topic_id = connections.frames, metadata_column_of(context.spec), plan.after.identity.topic_id

    def rows_at(snapshot: int) -> DataFrame:
        rows = at_version(connections.spark(), connections.catalog.spark_name(context.spec.identifier), snapshot)
        return frames.within_topic(rows, plan.deletes, topic_id, column)

    before, after = rows_at(primary.branch.head), rows_at(primary.appended)
    gone = frames.without(frames.keys(before, OFFSET, column), frames.keys(after, OFFSET, column), OFFSET)
    for each in elsewhere:
        gone = frames.without(gone, each, OFFSET)
    counted = frames.counted(gone)
    if not counted:
        return primary, ()
    if not plan.keep_missing:
        return primary, tuple(sorted((Vanished(*row) for row in counted), key=lambda each: each.partition))
    kept = frames.rows_of(before, gone, column).coalesce(1).writeTo(primary.branch.write_name)
    kept.option(f"snapshot-property.{KEEPS}", str(primary.appended)).append()
    return replace(primary, snapshot=primary.branch.written(primary.appended).snapshot_id), ()


def leave_out_expired(context: Context, plan: Plan, staged: StagedTable) -> StagedTable:
    """Delete from a replay's branch the rows that it has read again and that maintenance would delete."""
    spec, branch = context.spec, staged.branch
    old = old_rows(spec, branch.identifier, int(time.time() * 1000))
    table = branch.staged or context.connections.catalog.table(branch.identifier)
    if old is None or table is None or not applies_to(spec.maintenance, table):
        return staged
    expired = condition_of(table, old).sql
    column = spec.metadata_column if branch.identifier == spec.identifier else None
    condition = f"{of_ranges(plan, plan.ranges, column)} AND {expired}"
    spark = context.connections.spark()
    found = spark.sql(f"SELECT count(*) AS found FROM {branch.write_name} WHERE {condition}").collect()[0]["found"]
    if not found:
        return staged
    branch.delete(condition)
    tip = branch.written(staged.snapshot).snapshot_id
    if branch.identifier == spec.identifier:
        # A statement sets no snapshot properties: a snapshot without rows has them. Derived tables would take the
        # deletion for another program's.
        summary = {
            **positions_summary(plan.after, staged.state.others),
            **author_summary(context.run_id, plan.kind, plan.ranges),
            **removes_property(tip),
        }
        tip = append(branch, staged.state, spark.table(branch.write_name).limit(0), summary).snapshot
    what = "rows" if branch.identifier == spec.identifier else "dead letters"
    context.observer.warn(
        f"Topic {spec.topic}: {found:,} of the {what} that are read again are older than maintenance: row_retention "
        "allows, and stay away."
    )
    return replace(staged, snapshot=tip)
