"""Changes whose source left a value out that no change of the batch tells, and no row has: they are dead letters."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.executors.error_classes import VALUE_NOT_SENT
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.keyed.check import NotSent
from kafka_lake.ingest.keyed.deletes import without_late
from kafka_lake.ingest.keyed.fold import UNKNOWN, without_value
from kafka_lake.ingest.keyed.folded import FoldedBatch
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys, quoted
from kafka_lake.ingest.keyed.refusals import value_not_told

LIMIT = 100_000
"""As many changes may lack a value in one batch."""
_COLUMNS = {"partition": "int", "offset": "bigint", "columns": "string"}


def find_not_sent(context: Context, batch: FoldedBatch, rows: DataFrame, keys: Keys) -> tuple[NotSent, ...]:
    """Return the changes whose source left a value out that no change of the batch tells, and no row has.

    Args:
        rows: The table's, before the batch.
        keys: Tell rows apart, and changes older from newer.

    Raises:
        ChangeRefusedError: If there are too many of them.
    """
    in_time = without_late(context, batch.one_each, keys)
    lacking = (batch.one_each if in_time is None else in_time).filter(F.col(DOES) != DELETE)
    there = F.expr(" AND ".join([keys.same("t", "s"), *batch.within.hold_for("t")]))
    no_row = (
        lacking.filter((F.size(KEPT) > 0) & (F.size(UNKNOWN) == 0)).alias("s").join(rows.alias("t"), there, "left_anti")
    )
    of = no_row.unionByName(lacking.filter(F.size(UNKNOWN) > 0))
    found = without_value(batch.changes, of, keys).orderBy("partition", "offset").limit(LIMIT + 1).collect()
    if len(found) > LIMIT:
        raise value_not_told(context.spec, *found[0])
    return tuple(NotSent(*each) for each in found)


def without(changes: DataFrame, spark: Any, not_sent: Sequence[NotSent], keys: Keys) -> DataFrame:
    """Return the changes of a batch but for those that lack a value."""
    place = F.col(quoted(keys.metadata))
    return changes.join(_places(spark, not_sent), _same_place(place["partition"], place["offset"]), "left_anti")


def with_not_sent(judged: DataFrame, spark: Any, not_sent: Sequence[NotSent]) -> DataFrame:
    """Return records with ``error_class`` and ``error_message``, which changes that lack a value have as well.

    Args:
        judged: The records of the batch.
        not_sent: Those of them that lack a value.
    """
    if not not_sent:
        return judged
    columns = F.col("__kafka_lake_columns")
    said = F.concat(F.lit("Not sent, since unchanged, and no row of the key has it: "), columns, F.lit("."))
    found = {
        "error_class": F.coalesce("error_class", F.when(columns.isNotNull(), F.lit(VALUE_NOT_SENT))),
        "error_message": F.coalesce("error_message", said),
    }
    joined = judged.join(_places(spark, not_sent), _same_place(F.col("partition"), F.col("offset")), "left")
    return joined.select(*[found.get(name, F.col(quoted(name))).alias(name) for name in judged.columns])


def _places(spark: Any, changes: Sequence[NotSent]) -> DataFrame:
    columns = ", ".join(f"__kafka_lake_{name} {kind}" for name, kind in _COLUMNS.items())
    frame: DataFrame = spark.createDataFrame([(c.partition, c.offset, c.columns) for c in changes], columns)
    return F.broadcast(frame)


def _same_place(partition: Column, offset: Column) -> Column:
    return (partition == F.col("__kafka_lake_partition")) & (offset == F.col("__kafka_lake_offset"))
