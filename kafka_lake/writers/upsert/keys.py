"""Key and order of changes as SQL, used alike for a batch in itself, against the table, and for deleted keys."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.cdc.task.change import READ
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.formats.rows import CHANGE
from kafka_lake.spec.topic_table import TopicTable

INTERNAL = "__kafka_lake_"
"""Prefix of columns that travel with changes and aren't the table's."""
OPERATION, UNCHANGED = f"{INTERNAL}does", f"{INTERNAL}kept"
"""What a change does, and the columns that it leaves as they are."""
EVENT_TIME = f"{INTERNAL}at"
"""When a change happened, if the envelope has that."""
SNAPSHOT_MARKER = f"{INTERNAL}reads"
"""The envelope's name for a row of a source snapshot, such as ``first`` and ``last``."""
KEY_CHANGED = f"{INTERNAL}moves"
"""Whether a delete is the first half of an update that changes the key."""
SOURCE_TABLE = f"{INTERNAL}source"
"""The source's table, where that matters."""
WITHOUT_ORDER = f"{INTERNAL}untold"
"""Whether a delete has no order of its own: it is newer than everything before it in its Kafka partition."""
OTHER_PARTITION = "KAFKA_LAKE_OTHER_PARTITION"
TOMBSTONE_ELSEWHERE = "KAFKA_LAKE_TOMBSTONE_ELSEWHERE"
_SOURCE = "s"
_FEW = 1_000
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType)


@dataclass(frozen=True)
class Keys:
    """Key and order of a table's changes, as SQL expressions.

    Args:
        metadata: The metadata column, with a change's place in Kafka.
        columns: The key's columns; empty if it is the record's key.
        has_envelope: Whether an envelope has the order.
        topic_id: Changes with another topic id are older.
        is_soft: Whether deletes only mark rows.
        texts: Columns of the order that are text.
    """

    metadata: str
    columns: tuple[str, ...]
    order_by: tuple[str, ...]
    has_envelope: bool
    topic_id: str
    is_soft: bool = False
    texts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: TopicTable, columns: Sequence[str], topic_id: str, table: T.StructType) -> "Keys":
        """Return those of a topic; the topic id is empty for brokers without ids."""
        texts = frozenset(f.name for f in table if isinstance(f.dataType, T.StringType) and f.name in spec.order_by)
        assert spec.metadata_column is not None, "an upsert table without one is refused at load"
        return cls(
            metadata=spec.metadata_column,
            columns=tuple(columns),
            order_by=spec.order_by,
            has_envelope=spec.has_source_order,
            topic_id=topic_id,
            is_soft=spec.deletes == "soft",
            texts=texts,
        )

    @property
    def has_order(self) -> bool:
        """Return whether changes have an order of their own."""
        return self.has_envelope or bool(self.order_by)

    def key(self, alias: str) -> list[str]:
        """Return the key's expressions for a table or a frame with this alias."""
        if not self.columns:
            return [f"{alias}.{quoted(self.metadata)}.`key`"]
        return [f"{alias}.{quoted(name)}" for name in self.columns]

    def same(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key."""
        return " AND ".join(f"{a} = {b}" for a, b in zip(self.key(one), self.key(other), strict=True))

    def own_order(self, alias: str) -> list[str]:
        """Return the order of the changes themselves, without Kafka's."""
        # A row of a source snapshot never beats a change with the same position.
        read = [f"({alias}.{CHANGE}.`op` <> '{READ}')"] if self.has_envelope else []
        return [*(part for value in self.told(alias) for part in self._compared(value)), *read]

    def place(self, alias: str) -> list[str]:
        """Return Kafka's order: whether it is today's topic, partition, offset."""
        column = f"{alias}.{quoted(self.metadata)}"
        topic_id = f"'{self.topic_id.replace(chr(39), '')}'" if self.topic_id else "CAST(NULL AS STRING)"
        return [f"({column}.`topic_id` <=> {topic_id})", f"{column}.`partition`", f"{column}.`offset`"]

    def order(self, alias: str) -> str:
        """Return the order as one value; the newer change has the greater one."""
        return f"struct({', '.join([*self.own_order(alias), *self.place(alias)])})"

    def is_newer(self, change: str, row: str) -> str:
        """Return the condition that a change is newer than a row, or the very change that wrote it.

        A tombstone without an order is newer than everything before it in its Kafka partition.
        """
        newer = f"{self.order(change)} >= {self.order(row)}"
        if not self.has_order:
            return newer
        return f"(CASE WHEN {self.is_untold(change)} THEN {self.is_behind(change, row)} ELSE {newer} END)"

    def is_behind(self, one: str, other: str) -> str:
        """Return the condition that one is newer than another, or the same, by Kafka's order alone."""
        (topic, partition, offset), (its_topic, its_partition, its_offset) = self.place(one), self.place(other)
        behind = f"({topic} AND NOT {its_topic}) OR ({partition} = {its_partition} AND {offset} >= {its_offset})"
        return f"(({topic} = {its_topic} OR {topic}) AND ({behind}))"

    def is_untold(self, change: str) -> str:
        """Return the condition that a change has no order of its own, though other changes have."""
        return " AND ".join(f"{value} IS NULL" for value in self.told(change))

    def other_partition(self, change: str, row: str) -> str:
        """Return the condition that two offsets aren't comparable."""
        (topic, partition, _), (its_topic, its_partition, _) = self.place(change), self.place(row)
        return f"({topic} AND {its_topic} AND {partition} <> {its_partition})"

    def told(self, alias: str) -> list[str]:
        """Return the values that a change's own order consists of: the columns of `order_by`, then the envelope's."""
        order = [f"{alias}.{CHANGE}.`order`"] if self.has_envelope else []
        return [*(f"{alias}.{quoted(name)}" for name in self.order_by), *order]

    def _compared(self, expression: str) -> list[str]:
        """Return what a value is compared by; text that begins as a time is first compared by that time."""
        if not any(expression.endswith(f".{quoted(name)}") for name in self.texts):
            return [expression]
        time = f"try_cast({expression} AS timestamp)"
        return [f"CASE WHEN {expression} RLIKE '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}' THEN {time} END", expression]


def quoted(name: str) -> str:
    """Return a column's name as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def stop(marker: str, keys: Keys, change: str, row: str) -> str:
    """Return a boolean that fails the query with both places; `refusal_of` reads its message."""
    column = quoted(keys.metadata)
    place = f"{change}.{column}.`partition`, ' ', {change}.{column}.`offset`, ' ', {row}.{column}.`partition`"
    return f"CAST(raise_error(concat('{marker} ', {place})) AS BOOLEAN)"


def refusal_of(spec: TopicTable, error: Exception) -> ChangeRefusedError | None:
    """Return the error that the message of `stop` stands for; None for any other error."""
    text = str(error)
    if found := re.search(rf"{OTHER_PARTITION} (\d+) (\d+) (\d+)", text):
        return not_comparable(
            spec, f"in partition {found[1]} at offset {found[2]}; its row came from partition {found[3]}"
        )
    if found := re.search(rf"{TOMBSTONE_ELSEWHERE} (\d+) (\d+) (\d+)", text):
        return tombstone_elsewhere(spec, *found.groups())
    return None


def not_comparable(spec: TopicTable, where: str) -> ChangeRefusedError:
    """Return the refusal of a key's changes that nothing orders."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: a key has changes from several Kafka partitions ({where}), and offsets of different "
        "partitions can't be compared.",
        "main is as it was. Name the column that orders changes with order_by:, for instance a time of change.",
    )


def tombstone_elsewhere(spec: TopicTable, partition: object, offset: object, other: object) -> ChangeRefusedError:
    """Return the refusal of a delete without an order whose key has a row from another Kafka partition."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: the record in partition {partition} at offset {offset} deletes a key and has no "
        f"value, so no order; the key's row came from partition {other}. Which is newer isn't known.",
        "main is as it was. Let a value mark deletes, with delete_when:; or skip the record with kafka-lake reset.",
    )


@dataclass(frozen=True)
class Bounds:
    """Bounds of a batch's keys, by which files and rows of the table are skipped.

    Args:
        found: Key columns of the changes, each with its least and greatest value as SQL literals.
        listed: All values of each column, if there are few.
    """

    found: tuple[tuple[str, str, str], ...]
    listed: tuple[tuple[str, ...], ...] = ()

    def hold_for(self, alias: str) -> list[str]:
        """Return conditions that the rows of all keys meet, for a table or a frame with an alias."""
        columns = [f"{alias}.{name.removeprefix(f'{_SOURCE}.')}" for name, _, _ in self.found]
        between = [
            f"{column} BETWEEN {least} AND {greatest}"
            for column, (_, least, greatest) in zip(columns, self.found, strict=True)
        ]
        listed = zip(columns, self.listed, strict=False)
        return [*between, *(f"{column} IN ({', '.join(values)})" for column, values in listed)]


def are_few(changes: int) -> bool:
    """Return whether keys are listed: planning a query with more of them costs more than it saves."""
    return changes <= _FEW


def bounds(changes: DataFrame, keys: Keys, *others: Column, few: bool = False) -> tuple[Bounds, Row]:
    """Return the bounds of changes' keys, listed if there are few, and other aggregates of the same pass."""
    expressions = keys.key(_SOURCE)
    named = changes.alias(_SOURCE)
    types = named.select(*[F.expr(each) for each in expressions]).schema
    usable = {each: field.dataType for each, field in zip(expressions, types, strict=True) if _as_text(field.dataType)}
    looked = []
    for number, (each, kind) in enumerate(usable.items()):
        text = _as_text(kind) or ""
        looked += [F.expr(text.format(f"{f}({each})")).alias(f"{f}_{number}") for f in ("min", "max")]
        looked += [F.expr(f"collect_set({text.format(each)})").alias(f"all_{number}")] if few else []
    row = named.agg(*others, *looked).collect()[0]
    found, listed = [], []
    for number, (each, kind) in enumerate(usable.items()):
        if row[f"min_{number}"] is not None:
            found.append((each, _literal(row[f"min_{number}"], kind), _literal(row[f"max_{number}"], kind)))
            listed += [tuple(_literal(value, kind) for value in sorted(row[f"all_{number}"]))] if few else []
    # A plan may not know how many records it reads.
    return Bounds(tuple(found), tuple(listed) if all(map(are_few, map(len, listed))) else ()), row


def _as_text(kind: T.DataType) -> str | None:
    """Return the expression that writes a value as digits, so that it is read back exactly. Sessions are in UTC."""
    if isinstance(kind, T.StringType | T.BinaryType):
        return "hex({})"
    if isinstance(kind, T.DateType):
        return "CAST(unix_date({}) AS STRING)"
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return "CAST(unix_micros(CAST({} AS TIMESTAMP)) AS STRING)"
    return "CAST({} AS STRING)" if isinstance(kind, _NUMBERS) else None


def _literal(text: str, kind: T.DataType) -> str:
    if isinstance(kind, T.BinaryType):
        return f"X'{text}'"
    if isinstance(kind, T.StringType):
        return f"CAST(X'{text}' AS STRING)"
    if isinstance(kind, T.DateType):
        return f"date_from_unix_date({text})"
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return f"CAST(timestamp_micros({text}) AS {kind.simpleString()})"
    return f"CAST('{text}' AS {kind.simpleString()})"
