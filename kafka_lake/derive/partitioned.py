"""Rows of a derived table by the time partitions that they are of."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.query import ORIGIN
from kafka_lake.ingest.record_keys import at_version
from kafka_lake.lake.catalog import quoted

_MOST_KEYS = 1000


def in_window(todo: DerivePlan, columns: T.StructType) -> str:
    """Return the condition that a row is of the partitions that are computed again; empty if all rows are computed.

    Args:
        todo: The commit.
        columns: The table's.

    Raises:
        ConfigurationError: If the partitions' column tells no time.
    """
    if todo.window is None:
        return ""
    cut = todo.window.partitions
    return todo.window.condition(cut.checked(_type_of(columns, cut.column)))


def partition_keys(spec: DerivedTable, rows: DataFrame, columns: T.StructType) -> tuple[str, ...]:
    """Return the keys of the partitions that rows are of, the newest first, some thousand at most.

    Args:
        spec: The derived table.
        rows: Of it.
        columns: The table's.

    Raises:
        ConfigurationError: If the partitions' column tells no time.
    """
    cut = spec.time_partitions
    if cut is None:
        return ()
    hours = F.expr(cut.hours(cut.checked(_type_of(columns, cut.column))))
    days = hours if cut.unit == "hourly" else F.floor(hours / 24) * 24
    found = rows.select(days.cast("bigint").alias("hours")).filter("hours IS NOT NULL").distinct()
    newest_first = found.orderBy(F.desc("hours")).limit(_MOST_KEYS).collect()
    keys = (cut.key(row.hours) for row in newest_first)
    return tuple(dict.fromkeys(key for key in keys if key is not None))


def audit_window(engine: Engine, spec: DerivedTable, whole: DataFrame, *, head: int, cut: str) -> None:
    """Make sure that no record, or key, has changed its partition: it would be there twice, or be lost.

    That happens where the time comes from a table under ``join``, or from a query that has changed.

    Args:
        engine: Of the run.
        spec: The derived table.
        whole: What the query gives for all partitions.
        head: The snapshot of the table whose rows are replaced.
        cut: The condition that a row is of the partitions.

    Raises:
        AuditFailedError: If one has.
    """
    at = F.col(quoted(ORIGIN))
    if spec.write == "append":
        names = [at[name].alias(name) for name in ("topic_id", "partition", "offset")]
    else:
        names = [F.col(quoted(name)) for name in spec.key]
    if not names:
        return
    there = at_version(engine.spark(), engine.catalog.spark_name(spec.identifier), head)
    within = F.coalesce(F.expr(cut), F.lit(False))
    goes, stays = (there.filter(each).select(*names).distinct() for each in (within, ~within))
    comes, others = (whole.filter(each).select(*names).distinct() for each in (within, ~within))
    moved, gone = comes.intersect(stays).count(), goes.subtract(comes)
    if not gone.isEmpty():
        # Only then need all partitions be computed.
        moved += gone.intersect(others).count()
    if moved:
        what = "records" if spec.write == "append" else "keys"
        raise AuditFailedError(
            f"Table {spec.name}: {moved} {what} of these partitions are in others, too, by the query as it is now, or "
            "by the rows that are there: they would be there twice, or be lost.",
            "main is as it was. The time of a row comes from a table under join:, or one record has rows in several "
            f"partitions. `kafka-lake rebuild {spec.name}` computes all partitions at once.",
        )


def places(rows: DataFrame) -> list[OffsetRange]:
    """Return the offsets between which rows are, of each Kafka partition."""
    at = F.col(quoted(ORIGIN))
    found = rows.groupBy(at["partition"].alias("p")).agg(F.min(at["offset"]).alias("a"), F.max(at["offset"]).alias("b"))
    return [OffsetRange(row.p, row.a, row.b + 1) for row in found.orderBy("p").collect()]


def _type_of(columns: T.StructType, name: str) -> str | None:
    return next((each.dataType.simpleString() for each in columns if each.name.lower() == name.lower()), None)
