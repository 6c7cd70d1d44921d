"""Rows that a replacement takes out of the topic's table, and those of them that Kafka can't give again."""

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.record_keys import OFFSET, at_version, origin_of, within_topic, without
from kafka_lake.ingest.stage.staged import StagedTable, Vanished
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch


def delete_replaced(spec: TopicTable, spark: Any, branch: StagingBranch, plan: Plan) -> None:
    """Delete from a branch the rows that the plan replaces.

    Raises:
        ConfigurationError: If the topic's table has no metadata column.
    """
    origin_of(spec)
    column, topic_id = f"`{spec.metadata_column}`", plan.after.identity.topic_id.replace("'", "")
    offsets = " OR ".join(
        f"({column}.partition = {r.partition} AND {column}.offset >= {r.start} AND {column}.offset < {r.end})"
        for r in plan.deletes
    )
    same_topic = f"{column}.topic_id = '{topic_id}'" if topic_id else f"{column}.topic_id IS NULL"
    spark.sql(f"DELETE FROM {branch.write_name} WHERE {same_topic} AND ({offsets})")


def keep_what_vanished(
    spec: TopicTable, connections: Connections, plan: Plan, primary: StagedTable, failed: DataFrame | None
) -> tuple[StagedTable, tuple[Vanished, ...]]:
    """Find the rows that a replacement takes away without giving any; put them back if the plan says so."""
    origin, topic_id = origin_of(spec), plan.after.identity.topic_id

    def rows_at(snapshot: int) -> DataFrame:
        frame = at_version(connections.spark(), connections.catalog.spark_name(spec.identifier), snapshot)
        return frame.filter(within_topic(plan.deletes, topic_id, origin))

    def keys_of(rows: DataFrame) -> DataFrame:
        return rows.select(*[origin(key).alias(key) for key in OFFSET])

    before = rows_at(primary.branch.head)
    gone = without(keys_of(before), keys_of(rows_at(primary.appended)), OFFSET)
    if failed is not None:
        gone = without(gone, failed, OFFSET)
    counted = gone.groupBy("partition").agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("first")).collect()
    if not counted:
        return primary, ()
    if not plan.keep_missing:
        return primary, tuple(sorted((Vanished(*row) for row in counted), key=lambda each: each.partition))
    missing = gone.select(*[F.col(key).alias(f"their_{key}") for key in gone.columns])
    same = (origin("partition") == F.col("their_partition")) & (origin("offset") == F.col("their_offset"))
    before.join(missing, same, "left_semi").coalesce(1).writeTo(primary.branch.write_name).append()
    return replace(primary, snapshot=primary.branch.written(primary.appended).snapshot_id), ()
