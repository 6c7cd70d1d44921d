"""Merge: a batch's changes, one for each key, into a branch of the table, as one snapshot with that in its summary."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.changes.change import DELETE, READ, UPSERT
from kafka_lake.ingest.decode.rows import DELETED
from kafka_lake.ingest.keyed.fold import order_of
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys, quoted
from kafka_lake.lake.branches import StagingBranch

_PROPERTY = "spark.sql.iceberg.snapshot-property."
NOT_THERE = "KAFKA_LAKE_VALUE_NOT_THERE"
"""Begins the message of an error: a change leaves a value as it is, and there is no row that has it."""
OTHER_PARTITION = "KAFKA_LAKE_OTHER_PARTITION"
"""Likewise: a key's row came from another Kafka partition, and only offsets tell which change is newer."""
_PRUNABLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.StringType, T.BinaryType, T.DateType,
             T.TimestampType, T.TimestampNTZType, T.DecimalType)  # fmt: skip


def merge(
    spark: Any,
    branch: StagingBranch,
    changes: DataFrame,
    keys: Keys,
    may_lack: Sequence[str],
    within: Sequence[str],
    summary: Mapping[str, str],
) -> None:
    """Merge changes into a branch; `StagingBranch.written` tells whether they went where they should.

    Args:
        spark: The session.
        branch: Of the table.
        changes: What `folded` gave, without late ones.
        keys: Tell rows apart, and changes older from newer.
        may_lack: Columns that a change may leave as they are.
        within: Conditions on the table's keys that hold for all changes, by which files are skipped.
        summary: Of the snapshot.
    """
    view = f"kafka_lake_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        with _summary(spark, summary):
            spark.sql(statement(branch.write_name, view, changes.columns, keys, may_lack, within)).collect()
    finally:
        spark.catalog.dropTempView(view)


def statement(
    table: str, view: str, columns: Sequence[str], keys: Keys, may_lack: Sequence[str], within: Sequence[str]
) -> str:
    """Return the MERGE. Pure."""
    names = [name for name in columns if not name.startswith("__kafka_lake")]
    newer, does = keys.is_newer("s", "t"), f"s.{DOES}"
    if not keys.has_order:
        told = "concat('" + OTHER_PARTITION + " ', s.{0}.`partition`, ' ', s.{0}.`offset`, ' ', t.{0}.`partition`)"
        stop = f"raise_error({told.format(quoted(keys.metadata))})"
        newer = f"(CASE WHEN {keys.other_partition('s', 't')} THEN CAST({stop} AS BOOLEAN) ELSE {newer} END)"
    sets, values = [], []
    for name in names:
        column = quoted(name)
        if name in may_lack:
            told = f"s.{order_of(may_lack.index(name))}"
            is_newer = f"{told} IS NOT NULL AND {told} >= {keys.order('t')}"
            sets.append(f"t.{column} = CASE WHEN {is_newer} THEN s.{column} ELSE t.{column} END")
        else:
            sets.append(f"t.{column} = s.{column}")
        values.append(f"s.{column}")
    is_soft = DELETED in names
    matched = [f"WHEN MATCHED AND {newer} AND {does} = '{DELETE}' THEN DELETE"] if not is_soft else []
    brings = f"{does} IN ('{UPSERT}', '{READ}')" + (
        f" OR ({does} = '{DELETE}' AND size(s.{KEPT}) = 0)" if is_soft else ""
    )
    place = f"s.{quoted(keys.metadata)}"
    said = f"concat('{NOT_THERE} ', {place}.`partition`, ' ', {place}.`offset`, ' ', array_join(s.{KEPT}, ', '))"
    lacking = f"raise_error({said})"
    whole = f"(CASE WHEN {does} <> '{DELETE}' AND size(s.{KEPT}) > 0 THEN CAST({lacking} AS BOOLEAN) ELSE true END)"
    conditions = " AND ".join([keys.same("t", "s"), *within])
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {conditions}",
            *matched,
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {', '.join(sets)}",
            f"WHEN NOT MATCHED AND ({brings}){f' AND {whole}' if may_lack else ''} "
            f"THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({', '.join(values)})",
        ]
    )


def bounds(changes: DataFrame, keys: Keys) -> list[str]:
    """Return conditions on the table's keys, between the least and the greatest of the changes'. One look at them."""
    found = []
    expressions = keys.key("t")
    asked = changes.alias("s").select(*[F.expr(each).alias(f"k{i}") for i, each in enumerate(keys.key("s"))])
    usable = [i for i, field in enumerate(asked.schema) if isinstance(field.dataType, _PRUNABLE)]
    if not usable:
        return []
    row = asked.agg(
        *[f(f"k{i}").alias(f"{n}{i}") for i in usable for n, f in (("lo", F.min), ("hi", F.max))]
    ).collect()[0]
    for i in usable:
        low, high = row[f"lo{i}"], row[f"hi{i}"]
        if low is None:
            continue
        kind = asked.schema[i].dataType
        found.append(f"{expressions[i]} BETWEEN {_literal(low, kind)} AND {_literal(high, kind)}")
    return found


def _literal(value: Any, kind: T.DataType) -> str:
    if isinstance(kind, T.BinaryType):
        return f"X'{bytes(value).hex()}'"
    if isinstance(kind, T.StringType):
        encoded = str(value).encode().hex()
        return f"CAST(X'{encoded}' AS STRING)"
    return f"CAST('{value}' AS {kind.simpleString()})"


@contextmanager
def _summary(spark: Any, summary: Mapping[str, str]) -> Iterator[None]:
    """Let the snapshots of the block have that in their summary: MERGE takes no options."""
    names = [f"{_PROPERTY}{key}" for key in summary]
    for name, value in zip(names, summary.values(), strict=True):
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)
