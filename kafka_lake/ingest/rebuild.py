"""Rebuild: the position of a table whose snapshots no longer carry it, from its rows.

Dead letters don't count: a run that died before its rows were published has left letters of offsets whose rows are
still missing. What is read again of them is recognised by the letters themselves.
"""

from pyspark.sql import functions as F

from kafka_lake.errors import TableError
from kafka_lake.ingest.plan import start_offsets
from kafka_lake.ingest.settle import at_version
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import Position, Watermarks
from kafka_lake.lake.positions import TableState


def rebuilt_position(spec: TopicTable, systems: Systems, state: TableState, now: Watermarks) -> Position:
    """Return the position that the rows prove: commits are whole, so all before the last offset is there.

    Partitions without a row begin where a new table would begin.

    Args:
        spec: The topic's settings.
        systems: Spark reads where the rows came from, and nothing else.
        state: The table, which has rows and no position.
        now: The topic's watermarks.

    Raises:
        TableError: If it can't be certain: there is no metadata column, rows are of another topic, or the table began
            at the latest offset and a partition has no row.
    """
    where = f"Table {'.'.join(spec.identifier)} has rows, but no snapshot in the history of main carries a position"
    way_on = f"Set the position with `kafka-lake reset {spec.topic} --to …`, or choose another table."
    columns = {field.name for field in state.table.schema().fields}
    if spec.metadata_column is None or spec.metadata_column not in columns or state.head is None:
        raise TableError(
            f"{where} in topic {spec.topic}, and without a metadata column the rows don't tell how far they reach.",
            f"Nothing was read, since rows could double. {way_on}",
        )
    origin = f"`{spec.metadata_column}`"
    rows = at_version(systems.spark(), systems.catalog.spark_name(spec.identifier), state.head)
    keys = [F.col(f"{origin}.{key}").alias(key) for key in ("topic", "topic_id", "partition", "offset")]
    grouped = rows.select(*keys).groupBy("topic", "topic_id", "partition").agg(F.max("offset").alias("last"))
    reached = {r["partition"]: r["last"] + 1 for r in grouped.collect() if _same_topic(r["topic"], r["topic_id"], now)}
    if not reached:
        raise TableError(
            f"{where}, and none of the rows is of topic {spec.topic} as it is now "
            f"(id {now.identity.topic_id or 'unknown'}).",
            f"Nothing was read. {way_on}",
        )
    missing = [p for p in now.partitions if p not in reached]
    if missing and spec.start == "latest":
        raise TableError(
            f"{where} in topic {spec.topic}, and of partitions {missing} there are no rows that would tell it.",
            f"Nothing was read, since start is latest and records could be missed. {way_on}",
        )
    starts = start_offsets(spec, systems.cluster, now) if missing else {}
    return Position(now.identity, {**{p: starts[p] for p in missing}, **reached})


def _same_topic(topic: str | None, topic_id: str | None, now: Watermarks) -> bool:
    same_id = not topic_id or not now.identity.topic_id or topic_id == now.identity.topic_id
    return topic == now.identity.topic and same_id
