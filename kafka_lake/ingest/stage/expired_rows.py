"""Rows that a replay reads again though they are so old that they expire: they don't come back."""

import time
from dataclasses import replace

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.maintenance.needed import old_rows
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.replaced_rows import of_ranges
from kafka_lake.ingest.stage.staged import StagedTable
from kafka_lake.lake.maintenance.policy import applies_to
from kafka_lake.lake.maintenance.row_age import row_limit


def leave_out_expired(context: Context, plan: Plan, primary: StagedTable) -> StagedTable:
    """Take the rows off a replay's branch, within what it read, that maintenance would delete.

    Args:
        context: Of the run.
        plan: What was read again.
        primary: The topic's table, staged.

    Returns:
        What is staged now; the same if there are no such rows, or the topic's rows don't expire.

    Raises:
        TableError: If the column that tells how old a row is isn't there, or tells no time.
    """
    spec, branch = context.spec, primary.branch
    old = old_rows(spec, spec.identifier, int(time.time() * 1000))
    table = branch.staged or context.connections.catalog.table(spec.identifier)
    if old is None or table is None or not applies_to(spec.maintenance, table):
        return primary
    limit = row_limit(table, old.by, old.before_ms)
    condition = f"{of_ranges(context, plan, plan.ranges)} AND {limit.sql}"
    spark = context.connections.spark()
    found = spark.sql(f"SELECT count(*) AS found FROM {branch.write_name} WHERE {condition}").collect()[0]["found"]
    if not found:
        return primary
    spark.sql(f"DELETE FROM {branch.write_name} WHERE {condition}")
    context.observer.warn(
        f"Topic {spec.topic}: {found:,} of the rows that are read again are older than {spec.maintenance.keep_rows} "
        "(maintenance: keep_rows), and stay out of the table."
    )
    return replace(primary, snapshot=branch.written(primary.snapshot).snapshot_id)
