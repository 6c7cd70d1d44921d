"""What tells the rows of a keyed table apart, and which of two changes of a row is the newer one.

One order for all: for changes of a batch among themselves, for a batch against the table, and for the audit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from kafka_lake.executors.changes.change import READ
from kafka_lake.ingest.decode.rows import CHANGE
from kafka_lake.ingest.topic_table import TopicTable

OURS = "__kafka_lake_"
"""How the names of columns begin that go with changes and are none of the table's."""
DOES, KEPT = f"{OURS}does", f"{OURS}kept"
AT = "__kafka_lake_at"
"""When a change happened, if its envelope tells."""
READS = "__kafka_lake_reads"
"""Of a row that a snapshot of the source has read: which of them it is, as the envelope calls it."""
MOVES = "__kafka_lake_moves"
"""Whether a delete is the part of an update that takes away the row of the key before."""
SOURCE = "__kafka_lake_source"
"""The source's table that a change is about, if that is of interest and its envelope tells."""
OTHER_PARTITION = "KAFKA_LAKE_OTHER_PARTITION"
"""Likewise: a key's row came from another Kafka partition, and only offsets tell which change is newer."""


@dataclass(frozen=True)
class Keys:
    """Key and order of a topic's changes, as SQL expressions.

    Args:
        metadata: The metadata column, which tells a change's place in Kafka.
        columns: Those of the key; empty if it is the record's own.
        has_envelope: Whether an envelope tells the order.
        topic_id: Changes of the topic with another id are older, whatever their offset.
        is_soft: Whether rows that are deleted stay, marked.
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
        """Return those of a topic.

        Args:
            columns: Of the key, as settings or table have them.
            topic_id: The topic's id; empty if the brokers have none.
        """
        texts = frozenset(f.name for f in table if isinstance(f.dataType, T.StringType) and f.name in spec.order_by)
        assert spec.metadata_column is not None, "a keyed table is refused at load without one"
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
        """Return whether changes tell their order themselves."""
        return self.has_envelope or bool(self.order_by)

    def key(self, alias: str) -> list[str]:
        """Return the key's expressions, those of a table or a frame of this alias."""
        if not self.columns:
            return [f"{alias}.{quoted(self.metadata)}.`key`"]
        return [f"{alias}.{quoted(each)}" for each in self.columns]

    def same(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key."""
        return " AND ".join(f"{a} = {b}" for a, b in zip(self.key(one), self.key(other), strict=True))

    def own_order(self, alias: str) -> list[str]:
        """Return what changes themselves tell of their order."""
        # A row that a snapshot has read never beats a change of the same position.
        read = [f"({alias}.{CHANGE}.`op` <> '{READ}')"] if self.has_envelope else []
        return [*(each for one in self.told(alias) for each in self._compared(one)), *read]

    def place(self, alias: str) -> list[str]:
        """Return what Kafka tells: whether it is today's topic, then partition and offset."""
        column = f"{alias}.{quoted(self.metadata)}"
        return [f"({column}.`topic_id` <=> {self._id()})", f"{column}.`partition`", f"{column}.`offset`"]

    def order(self, alias: str) -> str:
        """Return the order as one value: of two changes the greater one is the newer one."""
        return f"struct({', '.join([*self.own_order(alias), *self.place(alias)])})"

    def is_newer(self, change: str, row: str) -> str:
        """Return the condition that a change is newer than what there is, or the very change that made it.

        A tombstone has no order of its own: it is newer than what came before it in its Kafka partition.
        """
        newer = f"{self.order(change)} >= {self.order(row)}"
        if not self.has_order:
            return newer
        return f"(CASE WHEN {self.is_untold(change)} THEN {self.is_behind(change, row)} ELSE {newer} END)"

    def is_behind(self, one: str, other: str) -> str:
        """Return the condition that Kafka alone tells that one is newer than another, or that they are the same."""
        (topic, partition, offset), (its_topic, its_partition, its_offset) = self.place(one), self.place(other)
        behind = f"({topic} AND NOT {its_topic}) OR ({partition} = {its_partition} AND {offset} >= {its_offset})"
        return f"(({topic} = {its_topic} OR {topic}) AND ({behind}))"

    def is_untold(self, change: str) -> str:
        """Return the condition that a change has no order of its own, though others have."""
        return " AND ".join(f"{each} IS NULL" for each in self.told(change))

    def other_partition(self, change: str, row: str) -> str:
        """Return the condition that only Kafka's offset tells the order, and those aren't comparable."""
        (topic, partition, _), (its_topic, its_partition, _) = self.place(change), self.place(row)
        return f"({topic} AND {its_topic} AND {partition} <> {its_partition})"

    def told(self, alias: str) -> list[str]:
        """Return what changes tell of their order by values: the columns of `order_by`, then the envelope's."""
        order = [f"{alias}.{CHANGE}.`order`"] if self.has_envelope else []
        return [*(f"{alias}.{quoted(each)}" for each in self.order_by), *order]

    def _compared(self, expression: str) -> list[str]:
        """Return what a value of the order is compared by: text that begins as a time does by that time first."""
        if not any(expression.endswith(f".{quoted(each)}") for each in self.texts):
            return [expression]
        time = f"try_cast({expression} AS timestamp)"
        return [f"CASE WHEN {expression} RLIKE '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}' THEN {time} END", expression]

    def _id(self) -> str:
        return f"'{self.topic_id.replace(chr(39), '')}'" if self.topic_id else "CAST(NULL AS STRING)"


def quoted(name: str) -> str:
    """Return a column's name as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def stop(marker: str, keys: Keys, change: str, row: str) -> str:
    """Return the boolean that fails a query with the place of a change and the partition of the other row."""
    column = quoted(keys.metadata)
    place = f"{change}.{column}.`partition`, ' ', {change}.{column}.`offset`, ' ', {row}.{column}.`partition`"
    return f"CAST(raise_error(concat('{marker} ', {place})) AS BOOLEAN)"
