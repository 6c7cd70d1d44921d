"""Truncates: what is older than a truncate goes, from the batch and from the table, and stays gone.

The newest truncate is in the summary of each snapshot: it goes with the rows, whatever becomes of a commit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import TableState, ancestors, summary_of
from kafka_lake.cdc.task.change import TRUNCATE
from kafka_lake.formats.rows import CHANGE
from kafka_lake.writers.upsert.keys import OPERATION, Keys, quoted

_PLACE = ("topic_id", "partition", "offset")
TRUNCATED = "kafka-lake.truncated"
"""Snapshot property: the newest truncate."""


@dataclass(frozen=True)
class Truncate:
    """The place of a truncate in the order of changes.

    Args:
        order: The source's order; empty if only Kafka's offset orders changes.
        topic_id: None for brokers without ids.
        is_read: Whether it is a row of a source snapshot: changes with that very position are in the snapshot.
    """

    order: tuple[int, ...]
    topic_id: str | None
    partition: int
    offset: int
    is_read: bool = False

    def sorted_by(self, keys: Keys) -> tuple[object, ...]:
        """Return the sort key, the oldest truncate first."""
        return (self.order, not self.is_read, (self.topic_id or "") == keys.topic_id, self.partition, self.offset)

    def to_json(self) -> str:
        """Return the text for a snapshot's summary."""
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Truncate":
        """Parse what `to_json` wrote."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Truncate":
        """Return the truncate with these values, as JSON has them."""
        return cls(**{**values, "order": tuple(values["order"])})

    def is_behind(self, keys: Keys, alias: str) -> str:
        """Return the condition that a change or a row with an alias is older. It is never null.

        Deletes without an order aren't older: they are newer than the row that they delete.
        """
        topic, partition, offset = keys.place(alias)
        is_todays = (self.topic_id or "") == keys.topic_id
        if not keys.has_envelope:
            of_topic = f"{alias}.{quoted(keys.metadata)}.`topic_id` <=> {_text(self.topic_id)}"
            before = f"({of_topic} AND {partition} = {self.partition} AND {offset} < {self.offset})"
            # Everything of a deleted topic is older than today's topic.
            return f"({before} OR NOT {topic})" if is_todays else before
        change = f"{alias}.{CHANGE}"
        order = f"CAST(array({', '.join(map(str, self.order))}) AS ARRAY<BIGINT>)"
        if self.is_read:
            return f"coalesce({change}.`order` < {order}, false)"
        there = [*keys.own_order(alias), topic, partition, offset]
        mine = [order, "true", str(is_todays).lower(), str(self.partition), f"{self.offset}L"]
        return f"coalesce({change}.`order` IS NOT NULL AND {_less(there, mine)}, false)"


@dataclass(frozen=True)
class Emptied:
    """What a truncate, or the end of a source snapshot, took away, and what the audit found.

    Args:
        at: The truncate, or a row of the snapshot.
        is_new: Whether it is in this batch.
        changes: Older changes of the batch.
        rows: Older rows of the table.
        left: Older rows that are still there.
        lost: Newer rows that are gone.
    """

    at: Truncate
    is_new: bool
    changes: int = 0
    rows: int = 0
    left: int = 0
    lost: int = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        what = "the snapshot" if self.at.is_read else "the truncate"
        said = {f"are older than {what}": self.left, f"that are newer than {what} are gone": self.lost}
        return tuple(f"{count} rows {problem}" for problem, count in said.items() if count)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures for the check's page."""
        rows, what = ("rows_not_in_snapshot", "snapshot") if self.at.is_read else ("rows_truncated", "truncate")
        return {rows: self.rows, f"changes_before_{what}": self.changes}


def newest_truncate(changes: DataFrame, keys: Keys) -> Truncate:
    """Return the newest truncate of a batch with at least one."""
    order = F.col(f"c.{CHANGE}.order") if keys.has_envelope else F.array().cast("array<bigint>")
    newest = changes.filter(F.col(OPERATION) == TRUNCATE).alias("c").orderBy(F.expr(keys.order("c")).desc()).limit(1)
    rows = newest.select(order.alias("order"), *place_of(F.col(f"c.{quoted(keys.metadata)}"))).collect()
    return truncate_of(rows[0])


def place_of(metadata: Column) -> list[Column]:
    """Return a record's place, as `truncate_of` reads it."""
    return [metadata[name].alias(name) for name in _PLACE]


def truncate_of(row: Row, is_read: bool = False) -> Truncate:
    """Return the truncate of a row with ``order`` and `place_of`."""
    return Truncate(tuple(row["order"]), is_read=is_read, **{name: row[name] for name in _PLACE})


def remembered_truncate(state: TableState) -> Truncate | None:
    """Return the newest truncate that the table has applied."""
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    return next((Truncate.from_json(found[TRUNCATED]) for found in summaries if TRUNCATED in found), None)


def newer_of(new: Truncate | None, known: Truncate | None, keys: Keys) -> Emptied | None:
    """Return the newer of a batch's truncate and the table's; None if there is neither."""
    if new is None or known is None:
        at = new or known
        return None if at is None else Emptied(at, is_new=new is not None)
    is_newer = new.sorted_by(keys) > known.sorted_by(keys)
    return Emptied(new if is_newer else known, is_new=is_newer)


def without_older(changes: DataFrame, emptied: Emptied, keys: Keys) -> tuple[DataFrame, Emptied]:
    """Return the changes that aren't older than a truncate, and the truncate with the number of older ones."""
    behind = F.expr(emptied.at.is_behind(keys, "c"))
    older = changes.alias("c").filter(behind).count()
    return (changes.alias("c").filter(~behind) if older else changes), replace(emptied, changes=older)


def rows_behind(spark: Any, branch: StagingBranch, emptied: Emptied, keys: Keys) -> tuple[int, int]:
    """Return how many rows a branch has, and how many of them are older than a truncate."""
    behind = F.expr(emptied.at.is_behind(keys, "t"))
    counts = F.count(F.lit(1)).alias("all"), F.count_if(behind).alias("older")
    found = spark.table(branch.write_name).alias("t").agg(*counts).collect()[0]
    return found["all"], found["older"]


def empty(
    spark: Any, branch: StagingBranch, base: int, emptied: Emptied, *, keys: Keys, counted: tuple[int, int]
) -> tuple[int, Emptied]:
    """Delete the older rows from a branch that points to ``base``, and count what is left."""
    there, older = counted
    if not older:
        return base, emptied
    spark.sql(f"DELETE FROM {branch.write_name} AS t WHERE {emptied.at.is_behind(keys, 't')}").collect()
    snapshot = branch.written(base).snapshot_id
    kept, left = rows_behind(spark, branch, emptied, keys)
    return snapshot, replace(emptied, rows=older, left=left, lost=max(there - older - (kept - left), 0))


def _less(those: Sequence[str], these: Sequence[str]) -> str:
    """Return the condition that values are before others, compared one by one."""
    (one, *others), (other, *more) = those, these
    return f"({one} < {other}" + (f" OR ({one} = {other} AND {_less(others, more)})" if others else "") + ")"


def _text(text: str | None) -> str:
    return "CAST(NULL AS STRING)" if text is None else f"'{text.replace(chr(39), '')}'"
