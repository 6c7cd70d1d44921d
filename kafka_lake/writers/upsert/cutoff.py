"""Cutoffs: after a truncate, or a source snapshot, older rows and events no longer count.

The newest cutoff is in the summary of each snapshot, so that late events stay out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import TableState, ancestors, summary_of
from kafka_lake.cdc.task.change import TRUNCATE
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.rows import CHANGE
from kafka_lake.writers.upsert.keys import OPERATION, Keys

CUTOFF = "kafka-lake.truncated"
"""Snapshot property: the newest cutoff."""
_PLACE = ("topic_id", "partition", "offset")


@dataclass(frozen=True)
class Cutoff:
    """A place in the order of events.

    Args:
        order: The source's order; empty if only Kafka's offset orders events.
        topic_id: None for brokers without topic ids.
        is_snapshot: Whether it is a row of a source snapshot; events with the same order belong to the snapshot.
    """

    order: tuple[int, ...]
    topic_id: str | None
    partition: int
    offset: int
    is_snapshot: bool = False

    def sort_key(self, keys: Keys) -> tuple[object, ...]:
        """Return the sort key, the oldest cutoff first."""
        return (self.order, not self.is_snapshot, (self.topic_id or "") == keys.topic_id, self.partition, self.offset)

    def to_json(self) -> str:
        """Return the text for a snapshot's summary."""
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Cutoff":
        """Parse the text in a snapshot's summary."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Cutoff":
        """Return the cutoff with values of JSON."""
        return cls(**{**values, "order": tuple(values["order"])})

    def is_older(self, keys: Keys, alias: str) -> str:
        """Return the condition that an event or a row is older than the cutoff. It is never null.

        Deletes without an order aren't older: they are newer than the row that they delete.
        """
        topic, partition, offset = keys.kafka_order(alias)
        is_todays = (self.topic_id or "") == keys.topic_id
        if not keys.has_envelope:
            same_topic = f"{alias}.{quoted(METADATA_COLUMN)}.`topic_id` <=> {_literal(self.topic_id)}"
            before = f"({same_topic} AND {partition} = {self.partition} AND {offset} < {self.offset})"
            # All events of a deleted topic are older than today's topic.
            return f"({before} OR NOT {topic})" if is_todays else before
        change = f"{alias}.{CHANGE}"
        order = f"CAST(array({', '.join(map(str, self.order))}) AS ARRAY<BIGINT>)"
        if self.is_snapshot:
            return f"coalesce({change}.`order` < {order}, false)"
        event = [*keys.source_order(alias), topic, partition, offset]
        cutoff = [order, "true", str(is_todays).lower(), str(self.partition), f"{self.offset}L"]
        return f"coalesce({change}.`order` IS NOT NULL AND {_less(event, cutoff)}, false)"


@dataclass(frozen=True)
class AppliedCutoff:
    """A cutoff, and what was removed by it.

    Args:
        is_new: Whether the cutoff is in this batch.
        changes: Older events of the batch.
        rows: Older rows of the table.
        left: Older rows that are still there.
        lost: Newer rows that are gone.
    """

    cutoff: Cutoff
    is_new: bool
    changes: int = 0
    rows: int = 0
    left: int = 0
    lost: int = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong."""
        what = "the snapshot" if self.cutoff.is_snapshot else "the truncate"
        counts = {f"are older than {what}": self.left, f"that are newer than {what} are gone": self.lost}
        return tuple(f"{count} rows {problem}" for problem, count in counts.items() if count)

    @property
    def facts(self) -> dict[str, int]:
        """Return the figures for the check's metadata."""
        is_snapshot = self.cutoff.is_snapshot
        rows, what = ("rows_not_in_snapshot", "snapshot") if is_snapshot else ("rows_truncated", "truncate")
        return {rows: self.rows, f"changes_before_{what}": self.changes}


def newest_truncate(events: DataFrame, keys: Keys) -> Cutoff:
    """Return the newest truncate of a batch, which must have one."""
    order = F.col(f"c.{CHANGE}.order") if keys.has_envelope else F.array().cast("array<bigint>")
    newest = events.filter(F.col(OPERATION) == TRUNCATE).alias("c").orderBy(F.expr(keys.order("c")).desc()).limit(1)
    rows = newest.select(order.alias("order"), *place_columns(F.col(f"c.{quoted(METADATA_COLUMN)}"))).collect()
    return cutoff_of(rows[0])


def place_columns(metadata: Column) -> list[Column]:
    """Return the columns that `cutoff_of` reads, beside ``order``."""
    return [metadata[name].alias(name) for name in _PLACE]


def cutoff_of(row: Row, is_snapshot: bool = False) -> Cutoff:
    """Return the cutoff at an event."""
    return Cutoff(tuple(row["order"]), is_snapshot=is_snapshot, **{name: row[name] for name in _PLACE})


def remembered_cutoff(state: TableState) -> Cutoff | None:
    """Return the newest cutoff that the table has applied."""
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    return next((Cutoff.from_json(summary[CUTOFF]) for summary in summaries if CUTOFF in summary), None)


def newer_cutoff(new: Cutoff | None, known: Cutoff | None, keys: Keys) -> AppliedCutoff | None:
    """Return the newer of a batch's cutoff and the table's; None without both."""
    if new is None:
        return None if known is None else AppliedCutoff(known, is_new=False)
    is_new = known is None or new.sort_key(keys) > known.sort_key(keys)
    return AppliedCutoff(new if is_new or known is None else known, is_new=is_new)


def without_older(events: DataFrame, applied: AppliedCutoff, keys: Keys) -> tuple[DataFrame, AppliedCutoff]:
    """Return the events that aren't older than a cutoff; and the cutoff with the number of older ones."""
    is_older = F.expr(applied.cutoff.is_older(keys, "c"))
    older = events.alias("c").filter(is_older).count()
    return (events.alias("c").filter(~is_older) if older else events), replace(applied, changes=older)


def count_older(spark: Any, branch: StagingBranch, cutoff: Cutoff, keys: Keys) -> tuple[int, int]:
    """Return the number of rows of a branch, and of those that are older than a cutoff."""
    is_older = F.expr(cutoff.is_older(keys, "t"))
    counts = F.count(F.lit(1)).alias("all"), F.count_if(is_older).alias("older")
    row = spark.table(branch.write_name).alias("t").agg(*counts).collect()[0]
    return row["all"], row["older"]


def delete_older(
    spark: Any, branch: StagingBranch, base: int, applied: AppliedCutoff, *, keys: Keys, counts: tuple[int, int]
) -> tuple[int, AppliedCutoff]:
    """Delete the older rows from a branch at snapshot ``base``, and count what is left."""
    before, older = counts
    if not older:
        return base, applied
    spark.sql(f"DELETE FROM {branch.write_name} AS t WHERE {applied.cutoff.is_older(keys, 't')}").collect()
    snapshot = branch.written(base).snapshot_id
    after, left = count_older(spark, branch, applied.cutoff, keys)
    return snapshot, replace(applied, rows=older, left=left, lost=max(before - older - (after - left), 0))


def _less(ones: Sequence[str], others: Sequence[str]) -> str:
    """Return the condition that values are less than others, compared from left to right."""
    (one, *more), (other, *more_others) = ones, others
    return f"({one} < {other}" + (f" OR ({one} = {other} AND {_less(more, more_others)})" if more else "") + ")"


def _literal(text: str | None) -> str:
    return "CAST(NULL AS STRING)" if text is None else f"'{text.replace(chr(39), '')}'"
