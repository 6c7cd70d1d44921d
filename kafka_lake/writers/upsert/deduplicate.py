"""Fold: of all changes of a key in a batch, one is left, with the newest value of each column."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window, WindowSpec
from pyspark.sql import functions as F

from kafka_lake.cdc.task.change import DELETE, READ, UPSERT
from kafka_lake.engine.frames import cached
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.formats.rows import CHANGE
from kafka_lake.formats.task.error_classes import VALUE_NOT_SENT
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.change_events import counted
from kafka_lake.writers.upsert.deleted_keys import without_late
from kafka_lake.writers.upsert.keys import (
    INTERNAL,
    OPERATION,
    TOMBSTONE_ELSEWHERE,
    UNCHANGED,
    WITHOUT_ORDER,
    Bounds,
    Keys,
    bounds,
    not_comparable,
    quoted,
    stop,
)

_ALIAS, _ORDER, _DELETED_AT = "__kafka_lake_changes", "__kafka_lake_order", "__kafka_lake_deleted_at"
_LACKING, _TELLS_ROW = "__kafka_lake_lacking", "__kafka_lake_tells_row"
SEVERAL_PARTITIONS = "__kafka_lake_several_partitions"
"""Whether the changes of a key came from several Kafka partitions."""
NEEDS_ROW = "__kafka_lake_needs_row"
"""Whether a delete has no order of its own, and no delete before it in the batch has one."""
_OF_ROW = f"{INTERNAL}of_row"
UNKNOWN = "__kafka_lake_unknown"
"""Columns that the newest change leaves as they are, though the row was deleted before it."""
MOST_NOT_SENT = 100_000
"""The most changes of a batch that may lack a value."""
_NOT_SENT = {"partition": "int", "offset": "bigint", "columns": "string"}


@dataclass(frozen=True)
class MissingValue:
    """The place of a change whose source left values out that neither the batch nor the table has."""

    partition: int
    offset: int
    columns: str


@dataclass(frozen=True)
class LatestEvents:
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
    """Count changes, in all and of each key, in one pass that moves nothing but keys between tasks."""
    names = [f"{INTERNAL}key_{number}" for number in range(len(keys.key("c")))]
    key = [F.expr(each).alias(name) for name, each in zip(names, keys.key("c"), strict=True)]
    parts, totals = counted(spec)
    kinds = [UPSERT, READ] if spec.deletes == "ignore" else [UPSERT, READ, DELETE]
    parts[_OF_ROW] = F.count_if(F.col(OPERATION).isin(*kinds))
    by_key = changes.alias("c").groupBy(*key).agg(*[part.alias(name) for name, part in parts.items()])
    if keys.columns:
        named = [F.col(name).alias(column) for name, column in zip(names, keys.columns, strict=True)]
    else:
        named = [F.struct(F.col(names[0]).alias("key")).alias(keys.metadata)]
    totals |= {"keys": F.count_if(F.col(_OF_ROW) > 0), "most": F.coalesce(F.max(_OF_ROW), F.lit(0))}
    asked = [total.alias(name) for name, total in totals.items()]
    within, found = bounds(by_key.select(*named, *parts), keys, *asked, few=few)
    return Figures(found, found["keys"], found["most"], within)


def already_folded(spec: TopicTable, changes: DataFrame, seen: Figures) -> LatestEvents:
    """Return changes of which each is of another key as folded: nothing is sorted or moved."""
    deletes = 0 if spec.deletes == "ignore" else seen.counts["deletes"]
    one_each = changes.withColumns({SEVERAL_PARTITIONS: F.lit(False), UNKNOWN: F.array().cast("array<string>")})
    return LatestEvents(changes, one_each, seen.within, count=seen.keys, deletes=deletes, lacking=0)


def fold_batch(
    spec: TopicTable, changes: DataFrame, keys: Keys, may_lack: Sequence[str], *, held: ExitStack, few: bool
) -> LatestEvents:
    """Fold changes to one for each key, cache these, and count them in one pass."""
    one_each = cached(folded(changes, keys, may_lack, spec.is_partial), held)
    lacks = (F.col(OPERATION) != DELETE) & ((F.size(UNCHANGED) > 0) | (F.size(UNKNOWN) > 0))
    aggregates = (
        F.count(F.lit(1)).alias("count"),
        F.count_if(F.col(OPERATION) == DELETE).alias("deletes"),
        F.bool_or(SEVERAL_PARTITIONS).alias("several"),
        F.count_if(lacks).alias("lacking"),
    )
    within, found = bounds(one_each, keys, *aggregates, few=few)
    if not keys.has_order and found["several"]:
        raise not_comparable(spec, "in one batch")
    counts = {name: found[name] for name in ("count", "deletes", "lacking")}
    return LatestEvents(changes, one_each, within, **counts)


def folded(changes: DataFrame, keys: Keys, may_lack: Sequence[str], is_partial: bool = False) -> DataFrame:
    """Return one change for each key.

    A value that the newest change leaves as it is comes from the newest change before it that has the value, back to
    the last delete.
    """
    columns = changes.columns
    named = changes.alias(_ALIAS)
    key = [F.expr(each).alias(f"__kafka_lake_key_{number}") for number, each in enumerate(keys.key(_ALIAS))]
    ordered = named.select(
        *[F.col(f"{_ALIAS}.{quoted(name)}") for name in columns], *key, F.expr(keys.order(_ALIAS)).alias(_ORDER)
    )
    by = [F.col(f"__kafka_lake_key_{number}") for number in range(len(key))]
    partition = F.col(quoted(keys.metadata))["partition"]
    several = (F.min(partition) != F.max(partition)).alias(SEVERAL_PARTITIONS)
    order = F.col(_ORDER)
    if not may_lack:
        newest = F.max_by(F.struct(*[F.col(quoted(name)) for name in columns]), order).alias("newest")
        none = F.array().cast("array<string>").alias(UNKNOWN)
        return ordered.groupBy(*by).agg(newest, several).select("newest.*", SEVERAL_PARTITIONS, none)
    # A soft delete keeps the row's values.
    takes_away = (F.col(OPERATION) == DELETE) & F.lit(not keys.is_soft)
    deleted_at = F.max(F.when(takes_away, order)).over(Window.partitionBy(*by))
    since = ordered.withColumn(_DELETED_AT, deleted_at)
    since = since.filter(F.col(_DELETED_AT).isNull() | (order >= F.col(_DELETED_AT)))
    whole = [name for name in columns if name not in may_lack and name != UNCHANGED]
    newest = F.max_by(F.struct(*[F.col(quoted(name)) for name in whole]), order).alias("newest")
    # Each value has the order of its change, since the table may have a newer value.
    told_by = [F.struct(F.col(quoted(name)).alias("value"), order.alias("order")) for name in may_lack]
    values = [
        F.max_by(F.when(_tells(name) & ~takes_away, told), F.when(_tells(name) & ~takes_away, order)).alias(
            value_of(number)
        )
        for number, (name, told) in enumerate(zip(may_lack, told_by, strict=True))
    ]
    tells_row = F.bool_or(_tells(keys.metadata)).alias(_TELLS_ROW)
    grouped = since.groupBy(*by).agg(newest, several, tells_row, F.max(_DELETED_AT).alias(_DELETED_AT), *values)
    lacking = [F.when(F.col(value_of(number)).isNull(), F.lit(name)) for number, name in enumerate(may_lack)]
    # After a delete there is no row with values to keep.
    all_lacking, none = F.array_compact(F.array(*lacking)), F.array().cast("array<string>")
    is_gone = F.col(_DELETED_AT).isNotNull()
    unknown = F.when(is_gone & (F.col("newest")[OPERATION] != DELETE), all_lacking)
    found = {name: F.col("newest")[name] for name in whole}
    found |= {name: F.col(value_of(number))["value"] for number, name in enumerate(may_lack)}
    # A row that the batch both inserts and marks is a row as well.
    is_brought = F.lit(keys.is_soft and is_partial) & F.col(_TELLS_ROW)
    found[UNCHANGED] = F.when(is_gone | is_brought, none).otherwise(all_lacking)
    orders = [
        F.coalesce(F.col(value_of(number))["order"], F.col(_DELETED_AT)).alias(order_of(number))
        for number in range(len(may_lack))
    ]
    return grouped.select(
        *[found[name].alias(name) for name in columns],
        *orders,
        SEVERAL_PARTITIONS,
        F.coalesce(unknown, none).alias(UNKNOWN),
    )


def without_value(changes: DataFrame, of: DataFrame, keys: Keys) -> DataFrame:
    """Return the changes of some keys that come after the key's last delete, with the columns that they lack."""
    names = F.array_join(F.when(F.size(UNKNOWN) > 0, F.col(UNKNOWN)).otherwise(F.col(UNCHANGED)), ", ")
    key = [F.expr(each).alias(f"__kafka_lake_key_{number}") for number, each in enumerate(keys.key("o"))]
    lacking = of.alias("o").select(*key, names.alias(_LACKING))
    by = [F.expr(each) for each in keys.key("c")]
    same = [each == F.col(f"__kafka_lake_key_{number}") for number, each in enumerate(by)]
    order = F.expr(keys.order("c"))
    joined = changes.alias("c").join(lacking, reduce(and_, same))
    deleted_at = F.max(F.when(F.col(f"c.{OPERATION}") == DELETE, order)).over(Window.partitionBy(*by))
    place = F.col(f"c.{quoted(keys.metadata)}")
    told = joined.select(
        place["partition"].alias("partition"), place["offset"].alias("offset"), F.col(_LACKING).alias("columns"),
        (F.col(f"c.{OPERATION}") != DELETE).alias("brings"),
        (deleted_at.isNull() | (order > deleted_at)).alias("behind"),
    )  # fmt: skip
    return told.filter("brings AND behind").select("partition", "offset", "columns")


def value_of(number: int) -> str:
    """Return the name of the column with a value and the order of its change."""
    return f"__kafka_lake_value_{number}"


def order_of(number: int) -> str:
    """Return the name of the column with the order of a value; null if no change of the batch has the value."""
    return f"__kafka_lake_order_{number}"


def _tells(name: str) -> Column:
    return ~F.array_contains(F.col(UNCHANGED), F.lit(name))


def tombstones_ordered(changes: DataFrame, keys: Keys) -> DataFrame:
    """Give deletes without an order the newest order before them in their Kafka partition."""
    named = changes.alias(_ALIAS)
    place = [F.expr(each) for each in keys.place(_ALIAS)]
    before = Window.partitionBy(*[F.expr(each) for each in keys.key(_ALIAS)], *place[:2]).orderBy(place[2])
    told = [F.expr(each) for each in keys.told(_ALIAS)]
    is_told = F.when(told[0].isNotNull(), F.expr(f"struct({', '.join(keys.own_order(_ALIAS))})"))
    is_gone = F.col(f"{_ALIAS}.{OPERATION}") == DELETE
    newest = told_before(told, is_gone, is_told, before, has_envelope=keys.has_envelope)
    last = [F.coalesce(each, newest[f"_{n}"]) for n, each in enumerate(told)]
    # A tombstone after a delete with an order adds nothing.
    needs_row = is_gone & told[0].isNull() & ~F.coalesce(newest["is_gone"], F.lit(False))
    # Debezium's tombstones never delete anything by themselves.
    untold = needs_row & F.lit(not keys.has_envelope)
    ordered = with_order(_ALIAS, changes.columns, keys, last)
    return named.select(*ordered, needs_row.alias(NEEDS_ROW), untold.alias(WITHOUT_ORDER))


def told_before(
    told: Sequence[Column], is_gone: Column, order: Column, before: WindowSpec, *, has_envelope: bool
) -> Column:
    """Return the order of the newest earlier change as a struct of `_0`, `_1` and so on, and whether it `is_gone`."""
    change = F.struct(*[each.alias(f"_{n}") for n, each in enumerate(told)], is_gone.alias("is_gone"))
    newest = F.max_by(change, order).over(before)
    if not has_envelope:
        return newest
    # Debezium sends a delete and then a tombstone. Sent again, both follow newer changes.
    previous = F.last(F.when(told[0].isNotNull(), change), ignorenulls=True).over(before)
    return F.when(previous["is_gone"], previous).otherwise(newest)


def with_order_of_rows(changes: DataFrame, rows: DataFrame, keys: Keys, within: Bounds) -> DataFrame:
    """Give deletes without an order that of the row that they delete, if it is newer.

    So a change that is older than the row stays late after the row is gone. The query fails if the row came from
    another Kafka partition, since nothing orders the two.
    """
    named = changes.alias("s")
    there = F.expr(" AND ".join([keys.same("s", "t"), *within.hold_for("t")]))
    found = named.filter(F.col(NEEDS_ROW)).join(rows.alias("t"), there, "left")
    told = list(zip(keys.told("s"), keys.told("t"), strict=True))
    elsewhere = keys.other_partition("s", "t")
    stopped = f"{elsewhere} AND {keys.is_untold('s')} AND {stop(TOMBSTONE_ELSEWHERE, keys, 's', 't')}"
    own, its = (f"struct({', '.join(keys.own_order(alias))})" for alias in ("s", "t"))
    takes = f"{keys.is_untold('s')} OR (NOT coalesce({elsewhere}, true) AND {its} > {own})"
    last = [F.expr(f"CASE WHEN {stopped} THEN NULL WHEN {takes} THEN {its} ELSE {own} END") for own, its in told]
    names = [name for name in changes.columns if name != NEEDS_ROW]
    others = named.filter(~F.col(NEEDS_ROW)).select(*[F.col(f"s.{quoted(name)}") for name in names])
    return others.unionByName(found.select(*with_order("s", names, keys, last)))


def with_order(alias: str, names: Sequence[str], keys: Keys, order: Sequence[Column]) -> list[Column]:
    """Return columns of changes with another order; the alias may be that of a struct column."""
    replaced = dict(zip(keys.order_by, order, strict=False))
    if keys.has_envelope:
        op = F.col(f"{alias}.{CHANGE}")["op"].alias("op")
        replaced[CHANGE] = F.struct(op, order[-1].alias("order"))
    return [replaced.get(name, F.col(f"{alias}.{quoted(name)}")).alias(name) for name in names]


def find_not_sent(context: Context, batch: LatestEvents, rows: DataFrame, keys: Keys) -> tuple[MissingValue, ...]:
    """Return the changes whose source left out a value that neither the batch nor the table has."""
    in_time = without_late(context, batch.one_each, keys)
    lacking = (batch.one_each if in_time is None else in_time).filter(F.col(OPERATION) != DELETE)
    there = F.expr(" AND ".join([keys.same("t", "s"), *batch.within.hold_for("t")]))
    no_row = (
        lacking.filter((F.size(UNCHANGED) > 0) & (F.size(UNKNOWN) == 0))
        .alias("s")
        .join(rows.alias("t"), there, "left_anti")
    )
    of = no_row.unionByName(lacking.filter(F.size(UNKNOWN) > 0))
    found = without_value(batch.changes, of, keys).orderBy("partition", "offset").limit(MOST_NOT_SENT + 1).collect()
    if len(found) > MOST_NOT_SENT:
        raise value_not_told(context.spec, *found[0])
    return tuple(MissingValue(*each) for each in found)


def without(changes: DataFrame, spark: Any, not_sent: Sequence[MissingValue], keys: Keys) -> DataFrame:
    """Return the changes of a batch without those that lack a value."""
    place = F.col(quoted(keys.metadata))
    return changes.join(_places(spark, not_sent), _same_place(place["partition"], place["offset"]), "left_anti")


def with_not_sent(with_errors: DataFrame, spark: Any, not_sent: Sequence[MissingValue]) -> DataFrame:
    """Return records with ``error_class`` and ``error_message``, which changes that lack a value have as well."""
    if not not_sent:
        return with_errors
    columns = F.col("__kafka_lake_columns")
    said = F.concat(F.lit("Not sent, since unchanged, and no row of the key has it: "), columns, F.lit("."))
    found = {
        "error_class": F.coalesce("error_class", F.when(columns.isNotNull(), F.lit(VALUE_NOT_SENT))),
        "error_message": F.coalesce("error_message", said),
    }
    joined = with_errors.join(_places(spark, not_sent), _same_place(F.col("partition"), F.col("offset")), "left")
    return joined.select(*[found.get(name, F.col(quoted(name))).alias(name) for name in with_errors.columns])


def _places(spark: Any, changes: Sequence[MissingValue]) -> DataFrame:
    columns = ", ".join(f"__kafka_lake_{name} {kind}" for name, kind in _NOT_SENT.items())
    frame: DataFrame = spark.createDataFrame([(c.partition, c.offset, c.columns) for c in changes], columns)
    return F.broadcast(frame)


def _same_place(partition: Column, offset: Column) -> Column:
    return (partition == F.col("__kafka_lake_partition")) & (offset == F.col("__kafka_lake_offset"))


def value_not_told(spec: TopicTable, partition: object, offset: object, columns: str) -> ChangeRefusedError:
    """Return the refusal of a change that leaves out values that nothing has."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: the change in partition {partition} at offset {offset} and more than {MOST_NOT_SENT:,} "
        f"others don't have {columns}, which the source left unchanged, and there is no row of their keys.",
        "main is as it was. Read the topic from its beginning, or let the source take a new snapshot.",
    )
