"""Rows that a replay replaces: delete them, and keep those whose records Kafka no longer has."""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import KEEPS
from kafka_lake.engine.frames import OFFSET, at_version
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.staged import StagedTable, Vanished


def delete_replaced(context: Context, branch: StagingBranch, plan: Plan) -> int | None:
    """Delete from a branch the rows that the plan replaces."""
    column, topic_id = METADATA_COLUMN, plan.after.identity.topic_id.replace("'", "")
    offsets = " OR ".join(
        f"(`{column}`.partition = {r.partition} AND `{column}`.offset >= {r.start} AND `{column}`.offset < {r.end})"
        for r in plan.deletes
    )
    same_topic = f"`{column}`.topic_id = '{topic_id}'" if topic_id else f"`{column}`.topic_id IS NULL"
    return branch.delete(f"{same_topic} AND ({offsets})")


def keep_missing_rows(
    context: Context, plan: Plan, primary: StagedTable, elsewhere: Sequence[DataFrame]
) -> tuple[StagedTable, tuple[Vanished, ...]]:
    """Find the rows that a replay deletes and doesn't replace; put them back if the plan says so."""
    connections = context.connections
    frames, column, topic_id = connections.frames, METADATA_COLUMN, plan.after.identity.topic_id

    def rows_at(snapshot: int) -> DataFrame:
        rows = at_version(connections.spark(), connections.catalog.spark_name(context.spec.identifier), snapshot)
        return frames.within_topic(rows, plan.deletes, topic_id, column)

    before, after = rows_at(primary.branch.head), rows_at(primary.appended)
    missing = frames.without(frames.keys(before, OFFSET, column), frames.keys(after, OFFSET, column), OFFSET)
    for ids in elsewhere:
        missing = frames.without(missing, ids, OFFSET)
    counted = frames.counted(missing)
    if not counted:
        return primary, ()
    if not plan.keep_missing:
        return primary, tuple(sorted((Vanished(*row) for row in counted), key=lambda vanished: vanished.partition))
    rows = frames.rows_of(before, missing).coalesce(1).writeTo(primary.branch.write_name)
    rows.option(f"snapshot-property.{KEEPS}", str(primary.appended)).append()
    return replace(primary, snapshot=primary.branch.written(primary.appended).snapshot_id), ()
