"""What every format's decoder can do, so that staging knows none of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode import NULL_IN_REQUIRED_COLUMN, TOO_LARGE
from kafka_lake.ingest.decode.target import Target

MESSAGE = 2000
"""Characters of an error message that are kept."""


class Decoder(Protocol):
    """How a topic's records become columns, as far as is known. Immutable: to learn is to make another."""

    @property
    def fixed(self) -> Target | None:
        """The columns, if they are settled whatever the table and the records look like."""

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what records look like, by each schema known: its label, and its fields."""

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add ``decoded``, ``error_class`` and ``error_message`` to records.

        Args:
            records: What `read` gave; null values (tombstones) get all three as null.
            target: The columns that ``decoded`` shall have.
            max_record_bytes: Longer values are ``too_large``, and not parsed; None for no limit.
            messages: Whether ``error_message`` says anything; for who doesn't select it, building it is time lost.

        Returns:
            The records with three more columns, one row for each, none lost.
        """

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any] | None:
        """Return what `record_decoder` makes a decoder of, which decodes in tasks; None if Spark's expressions decode.

        Args:
            target: The columns that rows shall have.
            max_record_bytes: Longer values are ``too_large``, and not parsed; None for no limit.
        """

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return aggregates over decoded records that tell what there is to learn, beside what tasks have observed."""

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> "Learned | None":
        """Return a decoder that knows what a pass has shown; None if there was nothing new.

        Args:
            counts: The metrics' results, and as ``observed`` what tasks have seen, see `executors.task.dumped`.
            records: The records of the pass, to be read again if need be.
            target: What they were decoded into.
        """

    def look(self, records: DataFrame) -> "Decoder":
        """Return a decoder that has looked at records before there is a table, in a pass of its own if need be."""

    def marks(self) -> Mapping[str, str]:
        """Return what the snapshot's summary shall say, so that the next run knows it from the start."""

    def seen(self, counts: Mapping[str, Any]) -> Mapping[str, int]:
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

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any] | None:
        """Return None."""
        return None

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return no aggregate."""
        return ()

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return None."""
        return None

    def look(self, records: DataFrame) -> Self:
        """Return itself."""
        return self

    def marks(self) -> Mapping[str, str]:
        """Return no mark."""
        return {}

    def seen(self, counts: Mapping[str, Any]) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def unkept(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}


def batch_metrics(decoder: Decoder, decoded: DataFrame, max_record_bytes: int | None = None) -> list[Column]:
    """Return the aggregates over decoded records that count them, and tell the decoder what there is to learn."""
    observed = [F.collect_list(OBSERVED).alias(OBSERVED)] if OBSERVED in decoded.columns else []
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
        *observed,
        *decoder.metrics(max_record_bytes),
    ]


def _bytes() -> Column:
    """Return the bytes of a record's key, value and headers."""

    def length(column: Column) -> Column:
        return F.coalesce(F.octet_length(column), F.lit(0)).cast("bigint")

    def added(total: Column, header: Column) -> Column:
        return total + length(header["key"]) + length(header["value"])

    headers = F.when(F.size("headers") > 0, F.aggregate("headers", F.lit(0).cast("bigint"), added)).otherwise(0)
    return length(F.col("key")) + length(F.col("value")) + headers


@dataclass(frozen=True)
class Verdict:
    """An error class and what to say, for the records that meet a condition."""

    when: Column
    error_class: Column
    message: Column


def judged(
    records: DataFrame,
    prepared: DataFrame,
    row: Column,
    verdicts: Sequence[Verdict],
    *,
    nulls: Column | None,
    max_record_bytes: int | None,
    messages: bool,
) -> DataFrame:
    """Return records with the three columns of a decoder's result.

    Args:
        records: Their columns are kept.
        prepared: The same records with whatever columns the expressions need; ``observed`` is kept if it is there.
        row: The decoded struct.
        verdicts: The first whose condition holds counts; none is asked of tombstones.
        nulls: Names of required columns that are null, as text; None if none is required.
        max_record_bytes: Longer values are ``too_large``.
        messages: Whether to build messages.
    """
    size = F.octet_length(F.col("value"))
    every = list(verdicts)
    if max_record_bytes is not None:
        every.insert(0, Verdict(size > max_record_bytes, F.lit(TOO_LARGE), too_large(size, max_record_bytes)))
    if nulls is not None:
        said = F.concat(F.lit("Required, but null or missing: "), nulls, F.lit("."))
        every.append(Verdict(nulls != "", F.lit(NULL_IN_REQUIRED_COLUMN), said))
    none = F.lit(None).cast("string")
    error_class = message = F.when(F.col("value").isNull(), none)
    for each in every:
        error_class = error_class.when(each.when, each.error_class)
        message = message.when(each.when, F.substring(each.message, 1, MESSAGE))
    observed = [OBSERVED] if OBSERVED in prepared.columns and OBSERVED not in records.columns else []
    return prepared.select(
        *records.columns,
        *observed,
        row.alias("decoded"),
        error_class.alias("error_class"),
        (message if messages else none).alias("error_message"),
    )


def too_large(size: Column, limit: int) -> Column:
    """Return the message for a value of more bytes than the topic's limit."""
    return F.concat(F.lit("The value has "), size.cast("string"), F.lit(f" bytes, the limit is {limit}."))
