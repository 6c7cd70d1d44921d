"""Rows and dead letters that a replay reads again though they are so old that they expire: they don't come back."""

import time
from dataclasses import replace

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.maintenance.maintain import old_rows
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.replaced_rows import of_ranges
from kafka_lake.ingest.stage.spark_writer import append
from kafka_lake.ingest.stage.staged import StagedTable
from kafka_lake.lake.author import author_summary, removes_mark
from kafka_lake.lake.maintenance.old_rows import row_limit
from kafka_lake.lake.maintenance.policy import applies_to
from kafka_lake.lake.positions import positions_summary


def leave_out_expired(context: Context, plan: Plan, staged: StagedTable) -> StagedTable:
    """Take the rows off a replay's branch, within what it read, that maintenance would delete.

    Args:
        staged: The topic's table or its dead letters, staged.

    Returns:
        What is staged now; the same if there are no such rows, or the topic's rows don't expire.

    Raises:
        TableError: If the column that tells how old a row is isn't there, or tells no time.
    """
    spec, branch = context.spec, staged.branch
    old = old_rows(spec, branch.identifier, int(time.time() * 1000))
    table = branch.staged or context.connections.catalog.table(branch.identifier)
    if old is None or table is None or not applies_to(spec.maintenance, table):
        return staged
    limit = row_limit(table, old.by, old.before_ms)
    column = spec.metadata_column if branch.identifier == spec.identifier else None
    condition = f"{of_ranges(plan, plan.ranges, column)} AND {limit.sql}"
    spark = context.connections.spark()
    found = spark.sql(f"SELECT count(*) AS found FROM {branch.write_name} WHERE {condition}").collect()[0]["found"]
    if not found:
        return staged
    branch.delete(condition)
    tip = branch.written(staged.snapshot).snapshot_id
    if branch.identifier == spec.identifier:
        # A statement takes no properties of the snapshot: one without rows tells who has made it, and what for. Tables
        # that are made of this one would take it for another program's.
        told = {
            **positions_summary(plan.after, staged.state.others),
            **author_summary(context.run_id, plan.kind, plan.ranges),
            **removes_mark(tip),
        }
        tip = append(branch, staged.state, spark.table(branch.write_name).limit(0), told).snapshot
    what = "rows" if branch.identifier == spec.identifier else "dead letters"
    context.observer.warn(
        f"Topic {spec.topic}: {found:,} of the {what} that are read again are older than {spec.maintenance.keep_rows} "
        "(maintenance: row_retention), and stay away."
    )
    return replace(staged, snapshot=tip)
