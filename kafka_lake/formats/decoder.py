"""The driver's side of decoding: what is known of a topic's records, and how Spark's tasks decode them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.task_frames import packed, task_function
from kafka_lake.formats.columns import Target, columns_of, nullable_all, travelling
from kafka_lake.formats.task import batches as task
from kafka_lake.formats.task.batches import CHANGE, DECODED, ERROR_CLASS, ERROR_MESSAGE, OBSERVED, loaded
from kafka_lake.formats.task.decoded import MESSAGE, Observed
from kafka_lake.formats.task.decoders import RejectAll
from kafka_lake.formats.task.error_classes import UNDECODABLE

COLUMN = "value"
"""The column of values that aren't records."""
_HEADERS = "headers"


class Decoder:
    """What is known of a topic's records. Immutable: `learn` and `inspect` return another decoder.

    A subclass says how tasks decode. By default the columns don't depend on the records.
    """

    @property
    def fixed(self) -> Target | None:
        """The columns; None if they depend on the table or the records."""
        return None

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of which `unpack_decoder` makes a decoder in a task.

        Args:
            target: The columns of the rows.
            max_record_bytes: Longer values are ``too_large``, and not parsed; None for no limit.
        """
        raise NotImplementedError

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas of the records: label and fields of each."""
        return ()

    def change_type(self, target: Target) -> T.StructType | None:
        """Return the type of changes of rows; None if records aren't changes."""
        return None

    def learn(self, observed: Observed, records: DataFrame, target: Target) -> "Learned | None":
        """Return what a pass over the records taught; None if nothing is new.

        Args:
            observed: What the tasks of the pass observed.
            records: The records of the pass, which may be read again.
            target: The columns that they were decoded into.
        """
        return None

    def inspect(self, records: DataFrame) -> "Decoder":
        """Return a decoder that knows the records of a table that is to be created, by a pass of its own if needed."""
        return self

    def snapshot_properties(self) -> Mapping[str, str]:
        """Return the snapshot properties by which the next run has the same knowledge."""
        return {}

    def schema_counts(self, observed: Observed) -> Mapping[str, int]:
        """Return how many records were written with each schema of a registry, by its label."""
        return {}

    def not_stored(self) -> Mapping[str, str]:
        """Return what the records of the last pass had that no column has: path → explanation."""
        return {}


@dataclass(frozen=True)
class Learned:
    """What a pass taught.

    Args:
        decoder: Knows more than the one before.
        again: Whether records couldn't be decoded without this knowledge, so that the pass must be repeated.
    """

    decoder: Decoder
    again: bool


@dataclass(frozen=True)
class Unreadable(Decoder):
    """Makes a dead letter of every value.

    Args:
        also_none: Whether a record without a value becomes a dead letter, too: in an upsert table it deletes a row.
    """

    message: str
    error_class: str = UNDECODABLE
    also_none: bool = False

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        return {
            "decoder": packed(RejectAll),
            "columns": columns_of(target.columns, target),
            "error_class": self.error_class,
            "message": self.message[:MESSAGE],
            "tombstones": self.also_none,
        }


def decoded(records: DataFrame, decoder: Decoder, target: Target, max_record_bytes: int | None = None) -> DataFrame:
    """Return records with ``decoded``, ``error_class``, ``error_message``, ``observed``, and perhaps `CHANGE`."""
    text = T.StringType()
    change = decoder.change_type(target)
    fields = [
        *records.schema.fields,
        T.StructField(DECODED, travelling(nullable_all(target.columns))),
        *(T.StructField(name, text) for name in (ERROR_CLASS, ERROR_MESSAGE, OBSERVED)),
        *([] if change is None else [T.StructField(CHANGE, change)]),
    ]
    given = records
    if _HEADERS in records.columns:
        # Null lists one after the other cost Spark's Arrow writer the square of their number.
        given = records.withColumn(_HEADERS, F.coalesce(_HEADERS, F.array().cast(records.schema[_HEADERS].dataType)))
    data = decoder.for_tasks(target, max_record_bytes)
    made = given.mapInArrow(task_function(task.decode, data), T.StructType(fields))
    if _HEADERS in records.columns:
        made = made.withColumn(_HEADERS, F.when(F.size(_HEADERS) > 0, F.col(_HEADERS)))
    return made


def observed_in_tasks(records: DataFrame, data: Mapping[str, Any], max_columns: int) -> Observed:
    """Return what records have that no column has, by a pass of its own.

    Args:
        data: What `Decoder.for_tasks` returned.
    """
    values = records.select("key", "value", "partition", "offset")
    frame = values.mapInArrow(
        task_function(task.observe, data), T.StructType([T.StructField(OBSERVED, T.StringType())])
    )
    return loaded((row[OBSERVED] for row in frame.collect()), max_columns)


def batch_metrics() -> list[Column]:
    """Return the aggregates over decoded records that count them and collect what tasks observed."""
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
