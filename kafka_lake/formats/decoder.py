"""What every format's decoder can do, and how records are decoded in Spark's tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.task_frames import told
from kafka_lake.formats.columns import Target, columns_of, nullable_all, travelling
from kafka_lake.formats.task import batches as task
from kafka_lake.formats.task.batches import CHANGE, DECODED, ERROR_CLASS, ERROR_MESSAGE, OBSERVED, loaded
from kafka_lake.formats.task.decoded import Observed
from kafka_lake.formats.task.error_classes import UNDECODABLE

_HEADERS = "headers"


def decoded_in_tasks(
    records: DataFrame, columns: T.StructType, work: Mapping[str, Any], change: T.StructType | None = None
) -> DataFrame:
    """Return the records with ``decoded``, ``error_class``, ``error_message`` and ``observed``."""
    text = T.StringType()
    fields = [
        *records.schema.fields,
        T.StructField(DECODED, travelling(nullable_all(columns))),
        *(T.StructField(name, text) for name in (ERROR_CLASS, ERROR_MESSAGE, OBSERVED)),
        *([] if change is None else [T.StructField(CHANGE, change)]),
    ]
    given = records
    if _HEADERS in records.columns:
        # Null lists one after the other cost Spark's Arrow writer the square of their number.
        given = records.withColumn(_HEADERS, F.coalesce(_HEADERS, F.array().cast(records.schema[_HEADERS].dataType)))
    made = given.mapInArrow(told(task.decode, work), T.StructType(fields))
    if _HEADERS in records.columns:
        made = made.withColumn(_HEADERS, F.when(F.size(_HEADERS) > 0, F.col(_HEADERS)))
    return made


def observed_in_tasks(records: DataFrame, work: Mapping[str, Any], max_columns: int) -> Observed:
    """Return what records have that no column takes, in a pass of its own."""
    asked = records.select("key", "value", "partition", "offset")
    frame = asked.mapInArrow(told(task.observe, work), T.StructType([T.StructField(OBSERVED, T.StringType())]))
    return loaded((row[OBSERVED] for row in frame.collect()), max_columns)


MESSAGE = 2000
"""Characters of an error message that are kept."""


class Decoder(Protocol):
    """How a topic's records become columns, as far as is known. Immutable: to learn is to make another."""

    @property
    def fixed(self) -> Target | None:
        """The columns, if they are settled whatever the table and the records look like."""

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what records look like, by each schema known: its label, and its fields."""

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what `record_decoder` makes a decoder of, in tasks.

        Args:
            target: The columns that rows shall have.
            max_record_bytes: Longer values are ``too_large``, and not parsed; None for no limit.
        """

    def change(self, target: Target) -> T.StructType | None:
        """Return the type of what records do to rows of a table; None if they are no changes."""

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> "Learned | None":
        """Return a decoder that knows what a pass has shown; None if there was nothing new.

        Args:
            seen: What its tasks observed.
            records: The records of the pass, to be read again if need be.
            target: What they were decoded into.
        """

    def look(self, records: DataFrame) -> "Decoder":
        """Return a decoder that has looked at records before there is a table, in a pass of its own if need be."""

    def marks(self) -> Mapping[str, str]:
        """Return what the snapshot's summary shall say, so that the next run knows it from the start."""

    def seen(self, seen: Observed) -> Mapping[str, int]:
        """Return how many records were written with which schema, by its label; empty if no schema tells."""

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records of the last pass and is in no column: path → what is said of it."""


@dataclass(frozen=True)
class Learned:
    """What a pass taught.

    Args:
        decoder: It knows more than the one before.
        again: Whether records were left undecoded for want of it, so that the pass must be repeated.
    """

    decoder: Decoder
    again: bool


class Nothing:
    """The share of decoders whose columns are settled: there is nothing to observe, to learn or to remember."""

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return no schema."""
        return ()

    def change(self, target: Target) -> T.StructType | None:
        """Return None."""
        return None

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return None."""
        return None

    def look(self, records: DataFrame) -> Self:
        """Return itself."""
        return self

    def marks(self) -> Mapping[str, str]:
        """Return no mark."""
        return {}

    def seen(self, seen: Observed) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def unkept(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}


def decoded(records: DataFrame, decoder: Decoder, target: Target, max_record_bytes: int | None = None) -> DataFrame:
    """Return records with the columns that `decoded_in_tasks` adds."""
    work = decoder.work(target, max_record_bytes)
    return decoded_in_tasks(records, target.columns, work, decoder.change(target))


def batch_metrics() -> list[Column]:
    """Return the aggregates over decoded records that count them, and tell the decoder what there is to learn."""
    failed = F.col("error_class")
    # Kafka writes -1 where a record has no time.
    timed = F.when(F.col("timestamp") >= F.timestamp_millis(F.lit(0)), F.col("timestamp"))
    return [
        F.count(F.lit(1)).alias("records"),
        F.coalesce(F.sum(_bytes()), F.lit(0)).alias("bytes_read"),
        F.count_if(F.col("value").isNull()).alias("tombstones"),
        F.count_if(failed.isNotNull()).alias("failed"),
        F.count_if(F.col("timestamp").isNull()).alias("untimed"),
        F.unix_millis(F.min(timed)).alias("oldest_ms"),
        F.unix_millis(F.max(timed)).alias("newest_ms"),
        F.collect_list(OBSERVED).alias(OBSERVED),
    ]


def _bytes() -> Column:
    """Return the bytes of a record's key, value and headers."""

    def length(column: Column) -> Column:
        return F.coalesce(F.octet_length(column), F.lit(0)).cast("bigint")

    def added(total: Column, header: Column) -> Column:
        return total + length(header["key"]) + length(header["value"])

    headers = F.when(F.size("headers") > 0, F.aggregate("headers", F.lit(0).cast("bigint"), added)).otherwise(0)
    return length(F.col("key")) + length(F.col("value")) + headers


COLUMN = "value"
_KINDS: dict[str, T.DataType] = {"string": T.StringType(), "bytes": T.BinaryType()}


@dataclass(frozen=True)
class Plain(Nothing):
    """Decodes nothing: the value is the column."""

    kind: Literal["string", "bytes"]

    @property
    def fixed(self) -> Target:
        """The one column."""
        return Target(T.StructType([T.StructField(COLUMN, _KINDS[self.kind])]))

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        return {"decoder": "plain", "kind": self.kind, "max_bytes": max_record_bytes}


@dataclass(frozen=True)
class Unreadable(Nothing):
    """Makes a dead letter of every value, whatever it is.

    Args:
        also_none: Whether a record without a value becomes one, too: in a keyed table it deletes a row.
    """

    message: str
    error_class: str = UNDECODABLE
    also_none: bool = False
    fixed: Target | None = None

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told."""
        told = {"error_class": self.error_class, "message": self.message[:MESSAGE], "also_none": self.also_none}
        return {"decoder": "refusing", "columns": columns_of(target.columns, target), **told}
