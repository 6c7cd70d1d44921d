"""Truncates: the source's table was emptied, so what is older goes, from a batch and from the table, and stays gone.

Unlike deleted keys, which their own table remembers for a while, the newest truncate is remembered in the summary of
each snapshot: it goes with the rows, whether a commit is published, repeated, or rolled back.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import TRUNCATE
from kafka_lake.ingest.decode.rows import CHANGE
from kafka_lake.ingest.keyed.keys import DOES, Keys, quoted
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import TableState, ancestors, summary_of

_PLACE = ("topic_id", "partition", "offset")
TRUNCATED = "kafka-lake.truncated"
"""In a snapshot's summary: the newest truncate, before which no change of a later batch counts."""


@dataclass(frozen=True)
class Truncate:
    """Where a truncate is in the order of changes.

    Args:
        order: In its source's; empty if only Kafka's offset tells.
        topic_id: The id of its topic, None if the brokers have none.
        is_read: Whether it is a row of a snapshot of the source, which has all that was made before its position. What
            has that very position is of the snapshot itself.
    """

    order: tuple[int, ...]
    topic_id: str | None
    partition: int
    offset: int
    is_read: bool = False

    def sorted_by(self, keys: Keys) -> tuple[object, ...]:
        """Return what truncates are sorted by, the oldest one first."""
        return (self.order, not self.is_read, (self.topic_id or "") == keys.topic_id, self.partition, self.offset)

    def to_json(self) -> str:
        """Return the text that a snapshot's summary carries."""
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Truncate":
        """Parse what `to_json` wrote."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Truncate":
        """Return the truncate that has these values, as JSON has them."""
        return cls(**{**told, "order": tuple(told["order"])})

    def is_behind(self, keys: Keys, alias: str) -> str:
        """Return the condition that a change or a row of an alias is older. It is never null.

        Deletes without an order aren't: what they delete is older than they are anyway.

        Args:
            alias: Of the frame or table, which has the metadata column.
        """
        topic, partition, offset = keys.place(alias)
        is_todays = (self.topic_id or "") == keys.topic_id
        if not keys.has_envelope:
            of_topic = f"{alias}.{quoted(keys.metadata)}.`topic_id` <=> {_text(self.topic_id)}"
            before = f"({of_topic} AND {partition} = {self.partition} AND {offset} < {self.offset})"
            # Of a topic that was deleted since, all is older than what today's has.
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
    """That rows are gone since a truncate or a snapshot of the source is newer, and what the audit found of it.

    Args:
        at: The newest truncate; or a row of the newest snapshot of the source that has ended.
        is_new: Whether the batch has it; if not, the table has no row that is older.
        changes: Changes of the batch that are older.
        rows: Rows of the table that were older.
        left: Rows that are older and still there.
        lost: Rows that aren't older and have gone with the others.
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
        return tuple(f"{count} rows {what}" for what, count in said.items() if count)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures."""
        rows, what = ("rows_not_in_snapshot", "snapshot") if self.at.is_read else ("rows_truncated", "truncate")
        return {rows: self.rows, f"changes_before_{what}": self.changes}


def newest_truncate(changes: DataFrame, keys: Keys) -> Truncate:
    """Return the newest truncate of a batch that has some.

    Args:
        changes: What `changes_of` gave, in the table's types.
    """
    order = F.col(f"c.{CHANGE}.order") if keys.has_envelope else F.array().cast("array<bigint>")
    newest = changes.filter(F.col(DOES) == TRUNCATE).alias("c").orderBy(F.expr(keys.order("c")).desc()).limit(1)
    rows = newest.select(order.alias("order"), *place_of(F.col(f"c.{quoted(keys.metadata)}"))).collect()
    return truncate_of(rows[0])


def place_of(metadata: Column) -> list[Column]:
    """Return where a record is, as `truncate_of` takes it."""
    return [metadata[name].alias(name) for name in _PLACE]


def truncate_of(row: Row, is_read: bool = False) -> Truncate:
    """Return what a row of ``order`` and `place_of` stands for."""
    return Truncate(tuple(row["order"]), is_read=is_read, **{name: row[name] for name in _PLACE})


def remembered_truncate(state: TableState) -> Truncate | None:
    """Return the newest truncate that the table has applied; None if there is none."""
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    return next((Truncate.from_json(found[TRUNCATED]) for found in summaries if TRUNCATED in found), None)


def newer_of(new: Truncate | None, known: Truncate | None, keys: Keys) -> Emptied | None:
    """Return the newer of two truncates; None if there is none.

    Args:
        known: The one that the table remembers.
    """
    if new is None or known is None:
        at = new or known
        return None if at is None else Emptied(at, is_new=new is not None)
    is_newer = new.sorted_by(keys) > known.sorted_by(keys)
    return Emptied(new if is_newer else known, is_new=is_newer)


def without_older(changes: DataFrame, emptied: Emptied, keys: Keys) -> tuple[DataFrame, Emptied]:
    """Return changes without those that are older than a truncate, and how many those are."""
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
    """Delete from a branch the rows that are older than a truncate, and look at what is left.

    Args:
        branch: Of the table, with the batch's changes merged.
        base: The snapshot that it points to.

    Returns:
        The snapshot that it points to then, and the truncate with the rows that went, and those that should not have,
        or should have.

    Raises:
        PublishRefusedError: If others took the branch away meanwhile.
    """
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
