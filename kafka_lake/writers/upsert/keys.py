"""Key and order of change events, as SQL expressions.

Deduplication, MERGE and the table of deleted keys compare events with the same expressions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.task.change import READ
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.formats.rows import CHANGE
from kafka_lake.spec.topic_table import TopicTable

INTERNAL = "__kafka_lake_"
"""Prefix of columns that describe a change event and aren't columns of the table."""
OPERATION = f"{INTERNAL}operation"
UNCHANGED = f"{INTERNAL}unchanged"
"""Columns that an event leaves unchanged: TOAST values, or nulls that the settings ignore."""
EVENT_TIME = f"{INTERNAL}event_time"
"""Time of the change in the source, if the envelope has it."""
SNAPSHOT_MARKER = f"{INTERNAL}snapshot_marker"
"""Debezium's `source.snapshot`, such as ``first`` and ``last``."""
KEY_CHANGED = f"{INTERNAL}key_changed"
"""Whether a delete is the first half of an update that changes the key."""
SOURCE_TABLE = f"{INTERNAL}source_table"
WITHOUT_ORDER = f"{INTERNAL}without_order"
"""Whether a delete is a tombstone without an order: it is newer than all earlier events of its Kafka partition."""

_OTHER_PARTITION = "KAFKA_LAKE_OTHER_PARTITION"
_TOMBSTONE = "KAFKA_LAKE_TOMBSTONE_OF_OTHER_PARTITION"
_SOURCE = "s"
_MOST_LISTED_VALUES = 200
"""Of one column. Iceberg compares no more with the bounds of files (``InclusiveMetricsEvaluator``)."""
_LONGEST_LISTS = 100_000
"""Characters of all literals in the lists, together."""
_MOST_RECORDS_LISTED = 1_000
_MOST_WORDS = 65_536
_MOST_RECORDS_FILTERED = 500_000
_ROWS_OF_A_RECORD = 2
"""In a table of fewer rows for each record, a filter hardly skips any."""
_WORD_BITS = 64


@dataclass(frozen=True)
class Keys:
    """Key and order of a table's change events.

    Args:
        columns: Key columns; empty if the key is the record's key.
        has_envelope: Whether an envelope provides the order.
        topic_id: Events with another topic id are older.
        is_soft: Whether a delete only marks the row.
    """

    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    has_envelope: bool
    topic_id: str
    is_soft: bool = False

    @classmethod
    def of(cls, spec: TopicTable, columns: Sequence[str], topic_id: str) -> "Keys":
        """Return key and order of a table; the topic id is empty for brokers without topic ids."""
        return cls(
            columns=tuple(columns),
            order_by=spec.order_by,
            has_envelope=spec.has_source_order,
            topic_id=topic_id,
            is_soft=spec.marks_deletes,
        )

    @property
    def has_order(self) -> bool:
        """Return whether events have an order of their own, beside Kafka's."""
        return self.has_envelope or bool(self.order_by)

    def key(self, alias: str) -> list[str]:
        """Return the key's expressions."""
        if not self.columns:
            return [f"{alias}.{quoted(METADATA_COLUMN)}.`key`"]
        return [f"{alias}.{quoted(name)}" for name in self.columns]

    def same_key(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key."""
        return " AND ".join(f"{a} = {b}" for a, b in zip(self.key(one), self.key(other), strict=True))

    def order_values(self, alias: str) -> list[str]:
        """Return the columns of the events' own order: those of `order_by`, then the envelope's."""
        envelope = [f"{alias}.{CHANGE}.`order`"] if self.has_envelope else []
        return [*(f"{alias}.{quoted(name)}" for name in self.order_by), *envelope]

    def source_order(self, alias: str) -> list[str]:
        """Return the events' own order."""
        # A row of a source snapshot is older than a change with the same log position.
        read = [f"({alias}.{CHANGE}.`op` <> '{READ}')"] if self.has_envelope else []
        return [*self.order_values(alias), *read]

    def kafka_order(self, alias: str) -> list[str]:
        """Return Kafka's order: whether the event is of today's topic, partition, offset."""
        column = f"{alias}.{quoted(METADATA_COLUMN)}"
        topic_id = f"'{self.topic_id.replace(chr(39), '')}'" if self.topic_id else "CAST(NULL AS STRING)"
        return [f"({column}.`topic_id` <=> {topic_id})", f"{column}.`partition`", f"{column}.`offset`"]

    def order(self, alias: str) -> str:
        """Return the whole order as one value; the newer event has the greater one."""
        return f"struct({', '.join([*self.source_order(alias), *self.kafka_order(alias)])})"

    def is_newer(self, event: str, row: str) -> str:
        """Return the condition that an event is newer than a row, or wrote it."""
        newer = f"{self.order(event)} >= {self.order(row)}"
        if not self.has_order:
            return newer
        return f"(CASE WHEN {self.has_no_order(event)} THEN {self.is_later_in_kafka(event, row)} ELSE {newer} END)"

    def is_later_in_kafka(self, one: str, other: str) -> str:
        """Return the condition that an event is newer than another, or the same, by Kafka's order alone."""
        topic, partition, offset = self.kafka_order(one)
        other_topic, other_partition, other_offset = self.kafka_order(other)
        same_partition = f"({partition} = {other_partition} AND {offset} >= {other_offset})"
        return f"(({topic} = {other_topic} OR {topic}) AND (({topic} AND NOT {other_topic}) OR {same_partition}))"

    def has_no_order(self, event: str) -> str:
        """Return the condition that an event lacks an order, though other events have one."""
        return " AND ".join(f"{value} IS NULL" for value in self.order_values(event))

    def other_partition(self, event: str, row: str) -> str:
        """Return the condition that two offsets aren't comparable."""
        (topic, partition, _), (row_topic, row_partition, _) = self.kafka_order(event), self.kafka_order(row)
        return f"({topic} AND {row_topic} AND {partition} <> {row_partition})"

    def raise_other_partition(self, event: str, row: str) -> str:
        """Return a boolean that fails the query; `ordering_error` reads its message."""
        return self._raise(_OTHER_PARTITION, event, row)

    def raise_tombstone(self, event: str, row: str) -> str:
        """Return a boolean that fails the query; `ordering_error` reads its message."""
        return self._raise(_TOMBSTONE, event, row)

    def _raise(self, marker: str, event: str, row: str) -> str:
        column = quoted(METADATA_COLUMN)
        place = f"{event}.{column}.`partition`, ' ', {event}.{column}.`offset`, ' ', {row}.{column}.`partition`"
        return f"CAST(raise_error(concat('{marker} ', {place})) AS BOOLEAN)"


def ordering_error(spec: TopicTable, error: Exception) -> ChangeRefusedError | None:
    """Return the error for a query that `Keys.raise_other_partition` or `raise_tombstone` failed; None otherwise."""
    text = str(error)
    if match := re.search(rf"{_OTHER_PARTITION} (\d+) (\d+) (\d+)", text):
        return partitions_error(spec, *match.groups())
    if match := re.search(rf"{_TOMBSTONE} (\d+) (\d+) (\d+)", text):
        return tombstone_error(spec, *match.groups())
    return None


def partitions_error(spec: TopicTable, partition: object, offset: object, other: object) -> ChangeRefusedError:
    """Return the error for a key with events from several Kafka partitions and no order."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: a key has changes from several Kafka partitions (in partition {partition} at offset "
        f"{offset}; another change came from partition {other}), and offsets of different partitions can't be "
        "compared.",
        "main is unchanged. Name the column that orders changes with order_by:, for instance a time of change.",
    )


def tombstone_error(spec: TopicTable, partition: object, offset: object, other: object) -> ChangeRefusedError:
    """Return the error for a tombstone whose key has a change from another Kafka partition."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: the record in partition {partition} at offset {offset} is a tombstone, which has no "
        f"order; another change of its key came from partition {other}. It is unknown which change is newer.",
        "main is unchanged. Mark deletes in values with delete_when:, or skip the record with `kafka-lake reset`.",
    )


@dataclass(frozen=True)
class KeyBounds:
    """Conditions of a batch's keys, by which Spark skips files and rows of the table.

    Args:
        ranges: Key columns, each with its least and greatest value as SQL literals.
        values: All values of each column, if they are few.
        filter_words: A Bloom filter of the keys with one hash function, see `_words_of`; empty without one.
        types: Types of the columns in ``ranges``: equal values of different types may have different hashes.
    """

    ranges: tuple[tuple[str, str, str], ...]
    values: tuple[tuple[str, ...], ...] = ()
    filter_words: tuple[int, ...] = ()
    types: tuple[str, ...] = ()

    def conditions(self, alias: str) -> list[str]:
        """Return conditions that the rows of all keys meet."""
        columns = [f"{alias}.{name.removeprefix(f'{_SOURCE}.')}" for name, _, _ in self.ranges]
        between = [
            f"{column} BETWEEN {least} AND {greatest}"
            for column, (_, least, greatest) in zip(columns, self.ranges, strict=True)
        ]
        listed = zip(columns, self.values, strict=False)
        return [
            *between,
            *(f"{column} IN ({', '.join(values)})" for column, values in listed),
            *([self._may_contain(columns)] if self.filter_words else []),
        ]

    def _may_contain(self, columns: Sequence[str]) -> str:
        # Spark computes the array once, when it plans the query; a list of literals would be planned one by one.
        words = f"CAST(split('{','.join(map(str, self.filter_words))}', ',') AS ARRAY<BIGINT>)"
        hashed = _hash(columns, self.types)
        return (
            f"getbit({words}[CAST(pmod({hashed}, {len(self.filter_words)}) AS INT)], "
            f"CAST(shiftrightunsigned({hashed}, {_WORD_BITS - 6}) AS INT)) = 1"
        )


def _hash(columns: Sequence[str], types: Sequence[str]) -> str:
    values = (f"CAST({column} AS {kind})" for column, kind in zip(columns, types, strict=True))
    return f"xxhash64({', '.join(values)})"


def _words_of(hashes: Iterable[int]) -> tuple[int, ...]:
    """Return a Bloom filter as words of 64 bits: more words than keys, up to `_MOST_WORDS`.

    The remainder of a hash by the number of words chooses the word, its first six bits choose the bit.

    >>> _words_of([0, 1, -1])
    (1, 1, 0, -9223372036854775808)
    >>> len(_words_of(range(500_000)))
    65536
    """
    signed = np.fromiter(hashes, np.int64)
    count = 1 << min(len(signed), _MOST_WORDS - 1).bit_length()
    words = np.zeros(count, np.uint64)
    bits = np.left_shift(np.uint64(1), signed.view(np.uint64) >> np.uint64(_WORD_BITS - 6))
    np.bitwise_or.at(words, signed & (count - 1), bits)
    return tuple(words.view(np.int64).tolist())


def key_bounds(events: DataFrame, keys: Keys, *aggregates: Column, records: int = 0) -> tuple[KeyBounds, Row]:
    """Return the bounds of the events' keys, and further aggregates of the same pass.

    Args:
        records: Maximum number of the batch's records; 0 for neither lists nor a filter.
    """
    expressions = keys.key(_SOURCE)
    named = events.alias(_SOURCE)
    types = named.select(*map(F.expr, expressions)).schema
    usable = {key: field.dataType for key, field in zip(expressions, types, strict=True) if _as_text(field.dataType)}
    collects_values = 0 < records <= _MOST_RECORDS_LISTED
    bounds = []
    for number, (key, kind) in enumerate(usable.items()):
        text = _as_text(kind) or ""
        bounds += [F.expr(text.format(f"{f}({key})")).alias(f"{f}_{number}") for f in ("min", "max")]
        bounds += [F.expr(f"collect_set({text.format(key)})").alias(f"all_{number}")] if collects_values else []
    if records and usable:
        hashed = _hash(list(usable), [kind.simpleString() for kind in usable.values()])
        bounds.append(F.collect_set(F.expr(hashed)).alias("hashes"))
    row = named.agg(*aggregates, *bounds).collect()[0]
    return _bounds_of(usable, row, lists=collects_values, filters=records > 0), row


def _bounds_of(usable: Mapping[str, T.DataType], row: Row, *, lists: bool, filters: bool) -> KeyBounds:
    if not usable or any(row[f"min_{number}"] is None for number in range(len(usable))):
        return KeyBounds(())
    ranges, values = [], []
    for number, (key, kind) in enumerate(usable.items()):
        ranges.append((key, _literal(row[f"min_{number}"], kind), _literal(row[f"max_{number}"], kind)))
        values.append(tuple(_literal(value, kind) for value in sorted(row[f"all_{number}"])) if lists else ())
    is_short = sum(len(value) for column in values for value in column) <= _LONGEST_LISTS
    if not (lists and is_short and max(map(len, values)) <= _MOST_LISTED_VALUES):
        values = []
    # Lists of several columns keep the rows of all combinations, so they get the filter too.
    words = _words_of(row["hashes"]) if filters and (len(usable) > 1 or not values) else ()
    types = tuple(kind.simpleString() for kind in usable.values())
    return KeyBounds(tuple(ranges), tuple(values), filter_words=words, types=types)


def filtered_records(records: int, rows: int, key: Sequence[T.DataType]) -> int:
    """Return the number of a batch's records, or 0 if its keys can't filter a table of so many rows.

    >>> filtered_records(500_000, 1_000_000, [T.LongType(), T.StringType()])
    500000
    >>> filtered_records(500_001, 9_000_000, [T.LongType()]), filtered_records(10, 19, [T.LongType()])
    (0, 0)
    >>> filtered_records(10, 20, [T.LongType(), T.DoubleType()]), filtered_records(10, 20, [T.BooleanType()])
    (0, 0)
    """
    is_few = records <= _MOST_RECORDS_FILTERED and records * _ROWS_OF_A_RECORD <= rows
    return records if is_few and all(_as_text(kind) is not None for kind in key) else 0


def _as_text(kind: T.DataType) -> str | None:
    """Return the expression that writes a value as exact text; None for types without one."""
    if isinstance(kind, T.StringType | T.BinaryType):
        return "hex({})"
    if isinstance(kind, T.DateType):
        return "CAST(unix_date({}) AS STRING)"
    if isinstance(kind, T.TimestampType):
        return "CAST(unix_micros({}) AS STRING)"
    exact = (T.IntegralType, T.DecimalType, T.TimestampNTZType)
    return "CAST({} AS STRING)" if isinstance(kind, exact) else None


def _literal(text: str, kind: T.DataType) -> str:
    if isinstance(kind, T.BinaryType):
        return f"X'{text}'"
    if isinstance(kind, T.StringType):
        return f"CAST(X'{text}' AS STRING)"
    if isinstance(kind, T.DateType):
        return f"date_from_unix_date({text})"
    if isinstance(kind, T.TimestampType):
        return f"timestamp_micros({text})"
    return f"CAST('{text}' AS {kind.simpleString()})"
