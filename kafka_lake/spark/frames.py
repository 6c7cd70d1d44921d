"""Frames of records, rows and dead letters: what Spark computes of them by what names a record.

`Frames` is a port: whoever plans, stages and reconciles commits asks it, so that they can be tested without an engine.
It knows no topic, no table and no plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.record_times import LAST_MS

OFFSET = ("topic_id", "partition", "offset")
"""What names a record, as long as its log isn't cut off and written again."""
RECORD = (*OFFSET, "timestamp")
"""What names the very record of a row: after a cut that a run was told to go on at, offsets mean other records."""


class Frames(Protocol):
    """What is computed of frames. What gives frames is lazy; the others read.

    The partition, offset and so on of a row's record are fields of its metadata column, whose name is ``column``. Dead
    letters and keys have them in columns of their own, and ``column`` is None.
    """

    @property
    def apart(self) -> int:
        """Return how far apart offsets must be to be looked for in two places."""

    def from_kafka(self, spark: Any, options: Mapping[str, str]) -> DataFrame:
        """Return the records that Spark's Kafka source gives for options; timestamps that are no time are null."""

    def from_arrow(self, spark: Any, records: pa.Table) -> DataFrame:
        """Return records that were read without Spark, in the same columns."""

    def keys(self, rows: DataFrame, names: Sequence[str] = RECORD, column: str | None = None) -> DataFrame:
        """Return what names the records of rows or dead letters."""

    def named(self, keys: DataFrame, names: Sequence[str] = RECORD) -> DataFrame:
        """Return keys under names of their own, ``their_offset`` for ``offset``, to be joined with others."""

    def within(self, rows: DataFrame, ranges: Sequence[OffsetRange], column: str | None = None) -> DataFrame:
        """Return the rows or dead letters of some offsets, of whatever topic."""

    def within_topic(
        self, rows: DataFrame, ranges: Sequence[OffsetRange], topic_id: str, column: str | None = None
    ) -> DataFrame:
        """Return the rows or dead letters of some offsets of this very topic."""

    def of_topic(self, rows: DataFrame, topic: str, column: str | None = None) -> DataFrame:
        """Return the rows or dead letters of topics of this name, whatever their ids."""

    def without(self, rows: DataFrame, others: DataFrame, names: Sequence[str] = RECORD) -> DataFrame:
        """Return the rows whose records are not among those of the others."""

    def among(self, rows: DataFrame, others: DataFrame) -> DataFrame:
        """Return the rows whose records are among those of the others."""

    def rows_of(self, rows: DataFrame, keys: DataFrame, column: str) -> DataFrame:
        """Return the rows of one topic's records, by partition and offset."""

    def places(self, keys: DataFrame) -> list[OffsetRange]:
        """Return where the offsets are, in ranges that are `apart`; keys without an offset are nowhere."""

    def counted(self, keys: DataFrame) -> list[Row]:
        """Return how many there are and the first offset: ``partition``, ``rows``, ``first``, for each partition."""

    def partitions(self, rows: DataFrame, column: str) -> list[Row]:
        """Return ``rows``, ``first``, ``last`` and ``distinct`` offsets for each ``partition`` and ``topic_id``."""

    def furthest(self, rows: DataFrame, column: str) -> list[Row]:
        """Return the ``last`` offset for each ``topic``, ``topic_id`` and ``partition``."""

    def before(self, rows: DataFrame, offsets: Mapping[int, int], since_ms: int, column: str) -> list[Row]:
        """Return which rows of a time and later lie before an offset: ``first`` and ``last`` for each ``partition``.

        Args:
            offsets: By partition; rows of others don't count.
            since_ms: Kafka timestamp of a record, milliseconds since the epoch.
        """


@dataclass(frozen=True)
class SparkFrames:
    """Spark computes; see `Frames`."""

    apart: int = 100_000

    def from_kafka(self, spark: Any, options: Mapping[str, str]) -> DataFrame:
        """Return records; evaluating them fails as the options say."""
        frame: DataFrame = spark.read.format("kafka").options(**options).load()
        is_time = F.unix_micros("timestamp").between(0, LAST_MS * 1000)
        return frame.withColumn("timestamp", F.when(is_time, F.col("timestamp")))

    def from_arrow(self, spark: Any, records: pa.Table) -> DataFrame:
        """Give them to Spark."""
        frame: DataFrame = spark.createDataFrame(records)
        return frame

    def keys(self, rows: DataFrame, names: Sequence[str] = RECORD, column: str | None = None) -> DataFrame:
        """Select the names."""
        return rows.select(*[_origin(name, column).alias(name) for name in names])

    def named(self, keys: DataFrame, names: Sequence[str] = RECORD) -> DataFrame:
        """Rename what names records."""
        return keys.select(*[F.col(name).alias(f"their_{name}") for name in names])

    def within(self, rows: DataFrame, ranges: Sequence[OffsetRange], column: str | None = None) -> DataFrame:
        """Filter in a way that files of other offsets are skipped."""
        partition, offset = _origin("partition", column), _origin("offset", column)
        return rows.filter(any_of([(partition == r.partition) & offset.between(r.start, r.end - 1) for r in ranges]))

    def within_topic(
        self, rows: DataFrame, ranges: Sequence[OffsetRange], topic_id: str, column: str | None = None
    ) -> DataFrame:
        """Filter likewise."""
        partition, offset = _origin("partition", column), _origin("offset", column)
        same_topic = _origin("topic_id", column).eqNullSafe(F.lit(topic_id or None))
        there = [(partition == r.partition) & (offset >= r.start) & (offset < r.end) for r in ranges]
        return rows.filter(same_topic & any_of(there))

    def of_topic(self, rows: DataFrame, topic: str, column: str | None = None) -> DataFrame:
        """Filter by the name."""
        return rows.filter(_origin("topic", column) == topic)

    def without(self, rows: DataFrame, others: DataFrame, names: Sequence[str] = RECORD) -> DataFrame:
        """Join by all names."""
        return rows.join(self.named(others, names), _same(rows, names), "left_anti")

    def among(self, rows: DataFrame, others: DataFrame) -> DataFrame:
        """Join by all names."""
        return rows.join(self.named(others), _same(rows, RECORD), "left_semi")

    def rows_of(self, rows: DataFrame, keys: DataFrame, column: str) -> DataFrame:
        """Join by partition and offset."""
        same = reduce(and_, [_origin(name, column) == F.col(f"their_{name}") for name in ("partition", "offset")])
        return rows.join(self.named(keys, OFFSET), same, "left_semi")

    def places(self, keys: DataFrame) -> list[OffsetRange]:
        """Ask for the first and last offset of each place."""
        place = F.floor(F.col("offset") / self.apart).alias("place")
        found = keys.groupBy("partition", place).agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        # Rows of others name no record.
        return [
            OffsetRange(row["partition"], row["first"], row["last"] + 1)
            for row in found.collect()
            if row["first"] is not None
        ]

    def counted(self, keys: DataFrame) -> list[Row]:
        """Group by partition."""
        grouped = keys.groupBy("partition")
        return _rows(grouped.agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("first")))

    def partitions(self, rows: DataFrame, column: str) -> list[Row]:
        """Group by partition and topic id."""
        offset = _origin("offset", column)
        grouped = rows.groupBy(*[_origin(name, column).alias(name) for name in ("partition", "topic_id")])
        return _rows(
            grouped.agg(
                F.count(F.lit(1)).alias("rows"),
                F.min(offset).alias("first"),
                F.max(offset).alias("last"),
                F.count_distinct(offset).alias("distinct"),
            )
        )

    def furthest(self, rows: DataFrame, column: str) -> list[Row]:
        """Group by topic, topic id and partition."""
        keys = self.keys(rows, ("topic", *OFFSET), column)
        return _rows(keys.groupBy("topic", "topic_id", "partition").agg(F.max("offset").alias("last")))

    def before(self, rows: DataFrame, offsets: Mapping[int, int], since_ms: int, column: str) -> list[Row]:
        """Filter by partition, offset and time, and group by partition."""
        partition, offset = _origin("partition", column), _origin("offset", column)
        there = any_of([(partition == p) & (offset < end) for p, end in offsets.items()])
        found = rows.filter(there & (_origin("timestamp", column) >= F.timestamp_millis(F.lit(since_ms))))
        grouped = found.groupBy(partition.alias("partition"))
        return _rows(grouped.agg(F.min(offset).alias("first"), F.max(offset).alias("last")))


def any_of(conditions: Sequence[Column]) -> Column:
    """Return the disjunction as a balanced tree: a chain of a thousand is deeper than the optimizer's stack."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else F.lit(False)
    half = len(conditions) // 2
    return any_of(conditions[:half]) | any_of(conditions[half:])


def _rows(frame: DataFrame) -> list[Row]:
    found: list[Row] = frame.collect()
    return found


def _origin(name: str, column: str | None) -> Column:
    return F.col(name if column is None else f"`{column}`.`{name}`")


def _same(rows: DataFrame, names: Sequence[str]) -> Column:
    # Clusters older than Kafka 2.8 have no topic ids: null is then the same as null.
    return reduce(and_, [rows[name].eqNullSafe(F.col(f"their_{name}")) for name in names])
