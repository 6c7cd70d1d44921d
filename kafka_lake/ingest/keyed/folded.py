"""A batch's changes, folded to one for each key and looked at once: what a merge works with."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.keyed.bounds import Bounds, bounds
from kafka_lake.ingest.keyed.fold import SEVERAL_PARTITIONS, UNKNOWN, folded
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys
from kafka_lake.ingest.keyed.refusals import not_comparable
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.spark.frames import kept


@dataclass(frozen=True)
class FoldedBatch:
    """The changes of a batch, and what is left of them.

    Args:
        one_each: One for each key, as `folded` gives them.
        within: Between which values their keys lie.
        count: How many keys they have.
        deletes: How many of the keys are deleted.
        lacking: How many of the keys lack a value.
    """

    changes: DataFrame
    one_each: DataFrame
    within: Bounds
    count: int
    deletes: int
    lacking: int


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
