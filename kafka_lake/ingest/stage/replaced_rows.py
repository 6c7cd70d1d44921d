"""Rows that a replacement takes out of the topic's table, and those of them that Kafka can't give again."""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.record_keys import at_version, metadata_column_of
from kafka_lake.ingest.stage.staged import StagedTable, Vanished
from kafka_lake.lake.author import KEEPS
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.spark.frames import OFFSET


def delete_replaced(context: Context, branch: StagingBranch, plan: Plan) -> int | None:
    """Delete from a branch the rows that the plan replaces.

    Returns:
        The snapshot that deletes them; None if there are none.

    Raises:
        ConfigurationError: If the topic's table has no metadata column.
    """
    return branch.delete(of_ranges(plan, plan.deletes, metadata_column_of(context.spec)))


def of_ranges(plan: Plan, ranges: Sequence[OffsetRange], column: str | None) -> str:
    """Return the condition, as SQL, that a row is of some offsets of the plan's topic.

    Args:
        plan: Its position tells the topic.
        column: The metadata column; None for dead letters, which have no other columns.
    """
    of, topic_id = f"`{column}`." if column else "", plan.after.identity.topic_id.replace("'", "")
    offsets = " OR ".join(
        f"({of}partition = {r.partition} AND {of}offset >= {r.start} AND {of}offset < {r.end})" for r in ranges
    )
    same_topic = f"{of}topic_id = '{topic_id}'" if topic_id else f"{of}topic_id IS NULL"
    return f"{same_topic} AND ({offsets})"


def keep_what_vanished(
    context: Context, plan: Plan, primary: StagedTable, elsewhere: Sequence[DataFrame]
) -> tuple[StagedTable, tuple[Vanished, ...]]:
    """Find the rows that a replacement takes away without giving any; put them back if the plan says so.

    Args:
        primary: The table, as it is staged.
        elsewhere: What names the records that Kafka has and that became no row of this table.
    """
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
