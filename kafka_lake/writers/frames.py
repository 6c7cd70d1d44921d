"""Spark frames: cast to a table's columns, and appended by Spark."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import TableState
from kafka_lake.engine.settings import PARALLELISM
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.staged import StagedTable, staged_table

_ROWS_PER_TASK = 250_000
_ROWS_PER_FILE = 1_000_000
_PARTITIONS_PER_TASK = 100


def append(branch: StagingBranch, state: TableState, rows: DataFrame, summary: Mapping[str, str]) -> StagedTable:
    """Append rows to a branch as a snapshot."""
    base = branch.staged_snapshot()
    writer: Any = rows.writeTo(branch.write_name)
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.append()
    return staged_table(branch, base, state)


def tasks_of(plan: Plan, spark: Any) -> int:
    """Return the number of tasks that write a plan's records.

    A long batch uses all cores. Without a known parallelism, each million records get a task.
    """
    records = plan.records_at_most - plan.elsewhere
    parallelism = spark.conf.get(PARALLELISM, "")
    cores = int(parallelism) if parallelism else max(2, records // _ROWS_PER_FILE)
    by_work = -(-records // _ROWS_PER_TASK)
    # Each Kafka partition needs a consumer; many are opened on all cores.
    by_partitions = -(-len(plan.ranges) // _PARTITIONS_PER_TASK)
    return max(1, min(cores, max(by_work, by_partitions)))


def shaped(rows: DataFrame, target: T.StructType) -> DataFrame:
    """Cast rows to the columns of a table; missing ones are null."""
    if rows.schema.simpleString() == target.simpleString():
        return rows
    return rows.select(*[_field(rows.schema, lambda name: F.col(quoted(name)), column) for column in target])


def _field(have: T.StructType, get: Any, column: T.StructField) -> Any:
    source = next((field for field in have if field.name.lower() == column.name.lower()), None)
    if source is None:
        return F.lit(None).cast(column.dataType).alias(column.name)
    value = _value(get(source.name), source.dataType, column.dataType)
    return value.alias(column.name)


def _value(value: Any, have: T.DataType, want: T.DataType) -> Any:
    if have.simpleString() == want.simpleString():
        return value
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
        whole = F.struct(*[_field(have, value.getField, column) for column in want])
        return F.when(value.isNotNull(), whole)
    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        return F.transform(value, lambda element: _value(element, have.elementType, want.elementType))
    if isinstance(have, T.MapType) and isinstance(want, T.MapType):
        return F.transform_values(value.cast(T.MapType(want.keyType, have.valueType)),
                                  lambda _, item: _value(item, have.valueType, want.valueType))  # fmt: skip
    return value.cast(want)
