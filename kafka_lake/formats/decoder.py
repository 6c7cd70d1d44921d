"""The driver's side of decoding: what is known of a topic's records, and how Spark's tasks decode them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.interop import packed, task_function
from kafka_lake.formats.columns import Target, columns_of, nullable_all, travelling
from kafka_lake.formats.task import batches as task
from kafka_lake.formats.task.batches import (
    CHANGE,
    DECODED,
    ERROR_CLASS,
    ERROR_MESSAGE,
    HEADER_KEYS,
    HEADER_VALUES,
    OBSERVED,
    loaded,
)
from kafka_lake.formats.task.decoded import MESSAGE, NOTHING, Observed
from kafka_lake.formats.task.decoders import RejectAll
from kafka_lake.formats.task.error_classes import UNDECODABLE
from kafka_lake.formats.task.key import KeyDecoder

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
        """Return the data of which `unpack_decoder` makes a decoder in a task."""
        raise NotImplementedError

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas of the records: label and fields of each."""
        return ()

    def incoming_values(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas of values alone."""
        return self.incoming()

    def incoming_keys(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas of keys, each as the one field of the key's column."""
        return ()

    @property
    def has_key_column(self) -> bool:
        """Whether the record's key is a column beside those of the value."""
        return False

    @property
    def of_rows(self) -> "Decoder":
        """The decoder of rows, within the one of change events."""
        return self

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify the rows of change events; empty if records aren't changes."""
        return ()

    def key_in(self, target: Target) -> tuple[str, ...]:
        """Return `row_key` by the names in the table."""
        return ()

    def of_partitions(self, count: int) -> "Decoder":
        """Return the decoder of the changes of a topic with so many partitions."""
        return self

    def change_type(self, target: Target) -> T.StructType | None:
        """Return the type of changes of rows; None if records aren't changes."""
        return None

    def key_task(self, target: Target, learns: bool) -> Mapping[str, Any] | None:
        """Return the data of the tasks' decoder of keys within change events; None if the format can't decode them.

        Args:
            learns: Whether the table lacks some of them. If not, other fields of a key don't matter.
        """
        return None

    def unreadable_schemas(self) -> Sequence[str]:
        """Return why schemas of the records can't be read."""
        return ()

    def learn(self, observed: Observed, records: DataFrame | None, target: Target) -> "Learned | None":
        """Return what a pass over the records taught; None if nothing is new.

        Args:
            records: The records of the pass, which may be read again; None if the caller decodes until the tasks'
                data stay the same.
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
    given = records.select(*task_columns(records.columns))
    data = decoder.for_tasks(target, max_record_bytes)
    made = given.mapInArrow(task_function(task.decode, data), T.StructType(fields))
    if _HEADERS in records.columns:
        made = made.withColumn(_HEADERS, F.when(F.size(_HEADERS) > 0, F.col(_HEADERS)))
    return made


def task_columns(names: Sequence[str]) -> list[Column]:
    """Return the columns of records that a task gets: ``headers`` as two, of which `with_headers` makes one again.

    After each record Spark asks for the size of what it has for the task. For a list of structs that takes longer than
    all other columns and the read. Null lists one after the other cost Spark's Arrow writer the square of their number.
    """
    parts = {"key": (HEADER_KEYS, "array<string>"), "value": (HEADER_VALUES, "array<binary>")}
    headers = [
        F.coalesce(F.col(f"{_HEADERS}.{part}"), F.array().cast(kind)).alias(name)
        for part, (name, kind) in parts.items()
    ]
    return [column for name in names for column in (headers if name == _HEADERS else [F.col(f"`{name}`")])]


def observed_in_tasks(records: DataFrame, data: Mapping[str, Any], max_columns: int) -> Observed:
    """Return what records have that no column has, by a pass of its own.

    Args:
        data: What `Decoder.for_tasks` returned.
    """
    columns = [name for name in ("key", "value", "partition", "offset", _HEADERS) if name in records.columns]
    frame = records.select(*task_columns(columns)).mapInArrow(
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


_VALUE, _KEY = "__kafka_lake_value", "__kafka_lake_key"


@dataclass(frozen=True)
class Keyed(Decoder):
    """Decodes value and key; the key is one column: a struct, or the value of a key that isn't a record.

    Args:
        of_tombstones: Whether the key of a record without a value is decoded too: it identifies the deleted row.
    """

    value: Decoder
    key: Decoder
    column: str
    of_tombstones: bool = False

    @property
    def fixed(self) -> Target | None:
        """The columns of both, if both are settled."""
        value, key = self.value.fixed, self.key.fixed
        if value is None or key is None:
            return None
        return replace(value, columns=T.StructType([*value.columns, self._field(key.columns)]))

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what values look like, then keys, each as the one field of the key's column."""
        return [*_known(self.value), *self.incoming_keys()]

    @property
    def has_key_column(self) -> bool:
        """Whether the record's key is a column: yes."""
        return True

    def key_task(self, target: Target, learns: bool) -> Mapping[str, Any] | None:
        """Return the data of the tasks' decoder of keys in the form of values."""
        return self.value.key_task(target, learns)

    def unreadable_schemas(self) -> Sequence[str]:
        """Return why schemas of values can't be read."""
        return self.value.unreadable_schemas()

    def incoming_values(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what values look like."""
        return _known(self.value)

    def incoming_keys(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what keys look like, as the one field of the key's column."""
        return [(f"{label} of the key", T.StructType([self._field(kind)])) for label, kind in _known(self.key)]

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        names = target.columns.fieldNames()
        value = self.value.for_tasks(target.without(self.column), max_record_bytes)
        key: Mapping[str, Any] | None = None
        whole = False
        if self.column in names:
            kind = target.columns[self.column].dataType
            whole = isinstance(kind, T.StructType)
            keys = target.part(self.column) if whole else Target(T.StructType([T.StructField(COLUMN, kind)]))
            key = self.key.for_tasks(keys, None)
        return {
            "decoder": packed(KeyDecoder),
            "values": value,
            "keys": key,
            "names": names,
            "column": self.column,
            "whole": whole,
            "of_tombstones": self.of_tombstones,
        }

    def learn(self, seen: Observed, records: DataFrame | None, target: Target) -> Learned | None:
        """Return what a pass taught about values, keys, or both."""
        value = self.value.learn(seen, records, target.without(self.column))
        key = self.key.learn(seen.key or NOTHING, records, target)
        if value is None and key is None:
            return None
        both = replace(self, value=value.decoder if value else self.value, key=key.decoder if key else self.key)
        return Learned(both, bool((value and value.again) or (key and key.again)))

    def inspect(self, records: DataFrame) -> "Keyed":
        """Return a decoder both of whose parts have looked at records."""
        return replace(self, value=self.value.inspect(records), key=self.key.inspect(records))

    def snapshot_properties(self) -> Mapping[str, str]:
        """Return the properties of both."""
        return {**self.value.snapshot_properties(), **self.key.snapshot_properties()}

    def schema_counts(self, seen: Observed) -> Mapping[str, int]:
        """Return the schemas of both."""
        return {
            **self.value.schema_counts(seen),
            **{f"{label} of the key": count for label, count in self.key.schema_counts(seen.key or NOTHING).items()},
        }

    def not_stored(self) -> Mapping[str, str]:
        """Return what of values and keys no column has."""
        return {
            **self.value.not_stored(),
            **{f"{self.column}.{path}": explanation for path, explanation in self.key.not_stored().items()},
        }

    def _field(self, columns: T.StructType) -> T.StructField:
        alone = columns.fieldNames() == [COLUMN]
        return T.StructField(self.column, columns[COLUMN].dataType if alone else columns)


def _known(decoder: Decoder) -> Sequence[tuple[str, T.StructType]]:
    return [("the settings", decoder.fixed.columns)] if decoder.fixed else decoder.incoming()
