"""Frames of records, rows and dead letters: what Spark computes of them by what names a record, and which it keeps.

Code that plans, stages and reconciles commits asks `Frames`, so that it can be tested without an engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.records import LAST_MS
from kafka_lake.engine.task import METADATA_COLUMN

OFFSET = ("topic_id", "partition", "offset")
"""What names a record, as long as its log isn't cut off and written again."""
RECORD = (*OFFSET, "timestamp")
"""What names a record even after its log was cut off and written again."""

_KEPT = "kafka_lake_kept_"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Frames:
    """What Spark computes of frames. Methods that return frames are lazy; the others read.

    The partition, offset and so on of a row's record are fields of its metadata column. Dead letters and keys have them
    in columns of their own: there, ``column`` is None. Tests have another implementation.

    Args:
        apart: How far apart offsets must be to be looked for in two places.
    """

    apart: int = 100_000

    def from_kafka(self, spark: Any, options: Mapping[str, str]) -> DataFrame:
        """Return the records that Spark's Kafka source gives for options; invalid timestamps are null."""
        frame: DataFrame = spark.read.format("kafka").options(**options).load()
        is_time = F.unix_micros("timestamp").between(0, LAST_MS * 1000)
        return frame.withColumn("timestamp", F.when(is_time, F.col("timestamp")))

    def from_arrow(self, spark: Any, records: pa.Table) -> DataFrame:
        """Return records that were read without Spark, in the same columns."""
        frame: DataFrame = spark.createDataFrame(records)
        return frame

    def keys(self, rows: DataFrame, names: Sequence[str] = RECORD, column: str | None = None) -> DataFrame:
        """Return what names the records of rows or dead letters."""
        return rows.select(*[_origin(name, column).alias(name) for name in names])

    def named(self, keys: DataFrame, names: Sequence[str] = RECORD) -> DataFrame:
        """Return keys under names of their own, ``their_offset`` for ``offset``, to be joined with others."""
        return keys.select(*[F.col(name).alias(f"their_{name}") for name in names])

    def within(self, rows: DataFrame, ranges: Sequence[OffsetRange], column: str | None = None) -> DataFrame:
        """Return the rows or dead letters of some offsets, of any topic."""
        partition, offset = _origin("partition", column), _origin("offset", column)
        return rows.filter(any_of([(partition == r.partition) & offset.between(r.start, r.end - 1) for r in ranges]))

    def within_topic(
        self, rows: DataFrame, ranges: Sequence[OffsetRange], topic_id: str, column: str | None = None
    ) -> DataFrame:
        """Return the rows or dead letters of some offsets of this very topic."""
        partition, offset = _origin("partition", column), _origin("offset", column)
        same_topic = _origin("topic_id", column).eqNullSafe(F.lit(topic_id or None))
        there = [(partition == r.partition) & (offset >= r.start) & (offset < r.end) for r in ranges]
        return rows.filter(same_topic & any_of(there))

    def of_topic(self, rows: DataFrame, topic: str, column: str | None = None) -> DataFrame:
        """Return the rows or dead letters of topics of this name, with any id."""
        return rows.filter(_origin("topic", column) == topic)

    def without(self, rows: DataFrame, others: DataFrame, names: Sequence[str] = RECORD) -> DataFrame:
        """Return the rows whose records are not among those of the others."""
        return rows.join(self.named(others, names), _same(rows, names), "left_anti")

    def among(self, rows: DataFrame, others: DataFrame) -> DataFrame:
        """Return the rows whose records are among those of the others."""
        return rows.join(self.named(others), _same(rows, RECORD), "left_semi")

    def rows_of(self, rows: DataFrame, keys: DataFrame) -> DataFrame:
        """Return the rows of one topic's records, by partition and offset."""
        place = "partition", "offset"
        same = reduce(and_, [_origin(name, METADATA_COLUMN) == F.col(f"their_{name}") for name in place])
        return rows.join(self.named(keys, OFFSET), same, "left_semi")

    def places(self, keys: DataFrame) -> list[OffsetRange]:
        """Return where the offsets are, in ranges that are `apart`; keys without an offset are nowhere."""
        place = F.floor(F.col("offset") / self.apart).alias("place")
        grouped = keys.groupBy("partition", place).agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        # Rows of another writer have no offset.
        return [
            OffsetRange(row["partition"], row["first"], row["last"] + 1)
            for row in grouped.collect()
            if row["first"] is not None
        ]

    def counted(self, keys: DataFrame) -> list[Row]:
        """Return how many there are and the first offset: ``partition``, ``rows``, ``first``, for each partition."""
        grouped = keys.groupBy("partition")
        return _rows(grouped.agg(F.count(F.lit(1)).alias("rows"), F.min("offset").alias("first")))

    def partitions(self, rows: DataFrame) -> list[Row]:
        """Return ``rows``, ``first``, ``last`` and ``distinct`` offsets for each ``partition`` and ``topic_id``."""
        offset = _origin("offset", METADATA_COLUMN)
        grouped = rows.groupBy(*[_origin(name, METADATA_COLUMN).alias(name) for name in ("partition", "topic_id")])
        return _rows(
            grouped.agg(
                F.count(F.lit(1)).alias("rows"),
                F.min(offset).alias("first"),
                F.max(offset).alias("last"),
                F.count_distinct(offset).alias("distinct"),
            )
        )

    def furthest(self, rows: DataFrame, column: str | None = METADATA_COLUMN) -> list[Row]:
        """Return the ``last`` offset for each ``topic``, ``topic_id`` and ``partition``."""
        keys = self.keys(rows, ("topic", *OFFSET), column)
        return _rows(keys.groupBy("topic", "topic_id", "partition").agg(F.max("offset").alias("last")))

    def before(self, rows: DataFrame, offsets: Mapping[int, int], since_ms: int) -> list[Row]:
        """Return which rows of a time and later lie before an offset: ``first`` and ``last`` for each ``partition``."""
        partition, offset = _origin("partition", METADATA_COLUMN), _origin("offset", METADATA_COLUMN)
        there = any_of([(partition == p) & (offset < end) for p, end in offsets.items()])
        earlier = rows.filter(there & (_origin("timestamp", METADATA_COLUMN) >= F.timestamp_millis(F.lit(since_ms))))
        grouped = earlier.groupBy(partition.alias("partition"))
        return _rows(grouped.agg(F.min(offset).alias("first"), F.max(offset).alias("last")))


def at_version(spark: Any, name: str, snapshot: int) -> DataFrame:
    """Return a table as of a snapshot, by its quoted Spark name."""
    frame: DataFrame = spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot}")
    return frame


def added_between(spark: Any, name: str, before: int, snapshot: int) -> DataFrame:
    """Return the rows that were appended after a snapshot, up to another one, by the table's quoted Spark name."""
    reader = spark.read.format("iceberg").option("start-snapshot-id", str(before))
    frame: DataFrame = reader.option("end-snapshot-id", str(snapshot)).load(name)
    return frame


def any_of(conditions: Sequence[Column]) -> Column:
    """Return the disjunction as a balanced tree: a chain of a thousand is deeper than the optimizer's stack."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else F.lit(False)
    half = len(conditions) // 2
    return any_of(conditions[:half]) | any_of(conditions[half:])


def _rows(frame: DataFrame) -> list[Row]:
    rows: list[Row] = frame.collect()
    return rows


def _origin(name: str, column: str | None) -> Column:
    return F.col(name if column is None else f"`{column}`.`{name}`")


def _same(rows: DataFrame, names: Sequence[str]) -> Column:
    # Clusters older than Kafka 2.8 have no topic ids: null is then the same as null.
    return reduce(and_, [rows[name].eqNullSafe(F.col(f"their_{name}")) for name in names])


def cached(frame: DataFrame, stack: ExitStack, level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> DataFrame:
    """Let Spark keep a frame when it is computed, until ``held`` is left.

    Kept frames are in the memory that all sessions of a server share: only forgetting them frees it, not the end of
    their session. Spark finds what it keeps by the plan, and a Connect server plans a frame anew at each use: no two
    plans that read Kafka are the same. So the frame gets a name first, by which its plan stays what it was.
    """
    spark, name = frame.sparkSession, f"{_KEPT}{uuid4().hex}"
    frame.createOrReplaceTempView(name)
    stack.callback(_forget, spark, name)
    return spark.table(name).persist(level)


def _forget(spark: Any, name: str) -> None:
    # A server that is gone has forgotten it.
    with suppress(Exception):
        # What is kept of a view goes with it.
        spark.catalog.dropTempView(name)


@contextmanager
def shuffles(spark: Any, partitions: int, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Let shuffles of the block have so many partitions: two hundred, Spark's own, cost seconds for a few rows."""
    values = {_SHUFFLE_PARTITIONS: str(partitions), **settings}
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
