"""A batch's changes, folded to one for each key and looked at once: what a merge works with."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE, READ, UPSERT
from kafka_lake.ingest.keyed.bounds import Bounds, bounds
from kafka_lake.ingest.keyed.changes import counted
from kafka_lake.ingest.keyed.fold import SEVERAL_PARTITIONS, UNKNOWN, folded
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys
from kafka_lake.ingest.keyed.refusals import not_comparable
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.spark.frames import kept


@dataclass(frozen=True)
class FoldedBatch:
    """The changes of a batch, and the one of each key that counts.

    Args:
        one_each: One change for each key, as `folded` returns them.
        within: Bounds of the keys.
        count: Number of keys.
        deletes: Keys whose change is a delete.
        lacking: Keys whose change lacks a value.
    """

    changes: DataFrame
    one_each: DataFrame
    within: Bounds
    count: int
    deletes: int
    lacking: int


@dataclass(frozen=True)
class Figures:
    """What one pass over a batch's changes shows.

    Args:
        counts: ``changes``, ``deletes``, ``truncates``, ``reads`` and ``sources``, as `counted` defines them.
        keys: Number of keys.
        most: The most changes that a key has.
        within: Bounds of the keys.
    """

    counts: Row
    keys: int
    most: int
    within: Bounds


def look_at(spec: TopicTable, changes: DataFrame, keys: Keys, *, few: bool) -> Figures:
    """Count changes, in all and of each key, in one pass that moves nothing but keys between tasks.

    Args:
        changes: What `changes_of` returned, in the table's types.
        few: Whether the keys are listed, as `are_few` says.
    """
    key = [F.expr(each).alias(f"key_{number}") for number, each in enumerate(keys.key("c"))]
    parts, totals = counted(spec)
    changes_rows = [UPSERT, READ] if spec.deletes == "ignore" else [UPSERT, READ, DELETE]
    of_row = F.count_if(F.col(DOES).isin(*changes_rows)).alias("of_row")
    named = changes.alias("c").groupBy(*key).agg(of_row, *[each.alias(name) for name, each in parts.items()])
    if keys.columns:
        back = [F.col(f"key_{number}").alias(name) for number, name in enumerate(keys.columns)]
    else:
        back = [F.struct(F.col("key_0").alias("key")).alias(keys.metadata)]
    asked = (
        *[each.alias(name) for name, each in totals.items()],
        F.count_if(F.col("of_row") > 0).alias("keys"),
        F.coalesce(F.max("of_row"), F.lit(0)).alias("most"),
    )
    within, found = bounds(named.select(*back, "of_row", *parts), keys, *asked, few=few)
    return Figures(found, found["keys"], found["most"], within)


def already_folded(spec: TopicTable, changes: DataFrame, seen: Figures) -> FoldedBatch:
    """Return changes of which each is of another key as folded: nothing is sorted or moved."""
    deletes = 0 if spec.deletes == "ignore" else seen.counts["deletes"]
    one_each = changes.withColumns({SEVERAL_PARTITIONS: F.lit(False), UNKNOWN: F.array().cast("array<string>")})
    return FoldedBatch(changes, one_each, seen.within, count=seen.keys, deletes=deletes, lacking=0)


def fold_batch(
    spec: TopicTable, changes: DataFrame, keys: Keys, may_lack: Sequence[str], *, held: ExitStack, few: bool
) -> FoldedBatch:
    """Fold changes to one for each key, and look at those: at their bounds, their count, and how many lack a value.

    Args:
        changes: What `changes_of` gave, in the table's types; deletes have an order, if the key's changes have.
        keys: Tell rows apart, and changes older from newer.
        may_lack: Columns that a change may leave as they are.
        held: Lets go of what Spark keeps.
        few: Whether the keys are listed, as `are_few` says.

    Raises:
        ChangeRefusedError: If nothing tells which of a key's changes is newer.
    """
    one_each = kept(folded(changes, keys, may_lack, spec.is_partial), held)
    lacks = (F.col(DOES) != DELETE) & ((F.size(KEPT) > 0) | (F.size(UNKNOWN) > 0))
    aggregates = (
        F.count(F.lit(1)).alias("count"),
        F.count_if(F.col(DOES) == DELETE).alias("deletes"),
        F.bool_or(SEVERAL_PARTITIONS).alias("several"),
        F.count_if(lacks).alias("lacking"),
    )
    within, found = bounds(one_each, keys, *aggregates, few=few)
    if not keys.has_order and found["several"]:
        raise not_comparable(spec, "in one batch")
    counts = {name: found[name] for name in ("count", "deletes", "lacking")}
    return FoldedBatch(changes, one_each, within, **counts)
