"""A table's rows at a snapshot, and its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from kafka_lake.catalog.positions import TableState, read_state
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def at_version(spark: Any, name: str, snapshot: int) -> DataFrame:
    """Return a table as of a snapshot, by its quoted Spark name."""
    frame: DataFrame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")
    return frame


def added_between(spark: Any, name: str, before: int, snapshot: int) -> DataFrame:
    """Return the rows that were appended after a snapshot, up to another one, by the table's quoted Spark name."""
    reader = spark.read.format("iceberg").option("start-snapshot-id", str(before))
    frame: DataFrame = reader.option("end-snapshot-id", str(snapshot)).load(name)
    return frame


def state_of(spec: TopicTable, table: Table) -> TableState:
    """Return the head and the position of a loaded table."""
    return read_state(table, spec.topic, spec.topics)
