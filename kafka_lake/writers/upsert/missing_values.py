"""Events that lack a value which neither the batch nor the table has become dead letters.

PostgreSQL leaves large values (TOAST) out of an update that doesn't change them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.task.change import DELETE
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.formats.task.error_classes import VALUE_NOT_SENT
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.deduplicate import UNKNOWN, LatestEvents, key_column
from kafka_lake.writers.upsert.deleted_keys import without_late
from kafka_lake.writers.upsert.keys import INTERNAL, OPERATION, UNCHANGED, Keys

_MOST = 100_000
_MISSING = f"{INTERNAL}missing"
_COLUMNS = {"partition": "int", "offset": "bigint", "columns": "string"}


@dataclass(frozen=True)
class MissingValue:
    """Partition and offset of an event, and the columns whose values are unknown."""

    partition: int
    offset: int
    columns: str


def find_missing_values(
    context: Context, events: DataFrame, latest: LatestEvents, rows: DataFrame, keys: Keys
) -> tuple[MissingValue, ...]:
    """Return the events of a batch that lack a value; ``rows`` are the table's."""
    in_time = without_late(context, latest.events, keys)
    candidates = (latest.events if in_time is None else in_time).filter(F.col(OPERATION) != DELETE)
    same_key = F.expr(" AND ".join([keys.same_key("t", "s"), *latest.bounds.conditions("t")]))
    unchanged = candidates.filter((F.size(UNCHANGED) > 0) & (F.size(UNKNOWN) == 0))
    without_row = unchanged.alias("s").join(rows.alias("t"), same_key, "left_anti")
    incomplete = without_row.unionByName(candidates.filter(F.size(UNKNOWN) > 0))
    return collect_missing_values(context.spec, _since_delete(events, incomplete, keys))


def collect_missing_values(spec: TopicTable, missing: DataFrame) -> tuple[MissingValue, ...]:
    """Collect events that lack values: partition, offset and columns."""
    rows = missing.distinct().orderBy("partition", "offset").limit(_MOST + 1).collect()
    if len(rows) > _MOST:
        partition, offset, columns = rows[0]
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the change in partition {partition} at offset {offset} and more than {_MOST:,} "
            f"others lack {columns}, which the source left unchanged, and the table has no row of their keys.",
            "main is unchanged. Read the topic from its start, or take a new snapshot of the source.",
        )
    return tuple(MissingValue(*row) for row in rows)


def _since_delete(events: DataFrame, incomplete: DataFrame, keys: Keys) -> DataFrame:
    """Return all events of some keys after the key's last delete, with the columns that they lack."""
    names = F.array_join(F.when(F.size(UNKNOWN) > 0, F.col(UNKNOWN)).otherwise(F.col(UNCHANGED)), ", ")
    key = [F.expr(column).alias(key_column(number)) for number, column in enumerate(keys.key("o"))]
    by = [F.expr(column) for column in keys.key("c")]
    same_key = reduce(and_, [column == F.col(key_column(number)) for number, column in enumerate(by)])
    joined = events.alias("c").join(incomplete.alias("o").select(*key, names.alias(_MISSING)), same_key)
    is_delete, order = F.col(f"c.{OPERATION}") == DELETE, F.expr(keys.order("c"))
    deleted_at = F.max(F.when(is_delete, order)).over(Window.partitionBy(*by))
    place = F.col(f"c.{quoted(METADATA_COLUMN)}")
    selected = joined.select(
        place["partition"].alias("partition"),
        place["offset"].alias("offset"),
        F.col(_MISSING).alias("columns"),
        (~is_delete & (deleted_at.isNull() | (order > deleted_at))).alias("is_affected"),
    )
    return selected.filter("is_affected").drop("is_affected")


def without_missing(events: DataFrame, spark: Any, missing: Sequence[MissingValue], keys: Keys) -> DataFrame:
    """Return the events of a batch that have all their values."""
    place = F.col(quoted(METADATA_COLUMN))
    return events.join(_frame(spark, missing), _same_place(place["partition"], place["offset"]), "left_anti")


def with_missing_errors(records: DataFrame, spark: Any, missing: Sequence[MissingValue]) -> DataFrame:
    """Set ``error_class`` and ``error_message`` of the records that lack values."""
    if not missing:
        return records
    columns = F.col(f"{INTERNAL}columns")
    message = F.concat(F.lit("The source omitted unchanged values that no row of the key has: "), columns, F.lit("."))
    errors = {
        "error_class": F.coalesce("error_class", F.when(columns.isNotNull(), F.lit(VALUE_NOT_SENT))),
        "error_message": F.coalesce("error_message", message),
    }
    joined = records.join(_frame(spark, missing), _same_place(F.col("partition"), F.col("offset")), "left")
    return joined.select(*[errors.get(name, F.col(quoted(name))).alias(name) for name in records.columns])


def _frame(spark: Any, missing: Sequence[MissingValue]) -> DataFrame:
    columns = ", ".join(f"{INTERNAL}{name} {kind}" for name, kind in _COLUMNS.items())
    frame: DataFrame = spark.createDataFrame([(m.partition, m.offset, m.columns) for m in missing], columns)
    return F.broadcast(frame)


def _same_place(partition: Column, offset: Column) -> Column:
    return (partition == F.col(f"{INTERNAL}partition")) & (offset == F.col(f"{INTERNAL}offset"))
