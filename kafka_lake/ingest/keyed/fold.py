"""Fold: of all changes of a key in a batch, one is left, with the newest value of each column."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.decode.rows import CHANGE, DELETED
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys

_ALIAS, _ORDER, _DELETED_AT = "change", "__kafka_lake_order", "__kafka_lake_deleted_at"
PARTITIONS = "__kafka_lake_partitions"
"""How many Kafka partitions the changes of a key came from."""


def folded(changes: DataFrame, keys: Keys, may_lack: Sequence[str]) -> DataFrame:
    """Return one change for each key.

    A value that the newest change doesn't tell is that of the newest change before it which tells it, back to the last
    delete: so a row that is inserted, and changed in another column, keeps its values.

    Args:
        changes: What `changes_of` gave, in the table's types.
        keys: Tell rows apart, and changes older from newer.
        may_lack: Columns that a change may leave as they are.

    Returns:
        The columns of the changes; `KEPT` names those that no change of the batch has told; `order_of` has for each
        that may be kept when it was told. And `PARTITIONS`.
    """
    columns = changes.columns
    named = changes.alias(_ALIAS)
    key = [F.expr(each).alias(f"__kafka_lake_key_{number}") for number, each in enumerate(keys.key(_ALIAS))]
    if keys.has_order:
        named = _tombstones_ordered(named, keys).alias(_ALIAS)
    ordered = named.select(
        *[F.col(f"{_ALIAS}.`{name}`") for name in columns], *key, F.expr(keys.order(_ALIAS)).alias(_ORDER)
    )
    by = [F.col(f"__kafka_lake_key_{number}") for number in range(len(key))]
    partitions = F.count_distinct(F.col(f"`{keys.metadata}`")["partition"]).alias(PARTITIONS)
    order = F.col(_ORDER)
    if not may_lack:
        newest = F.max_by(F.struct(*[F.col(f"`{name}`") for name in columns]), order).alias("newest")
        return ordered.groupBy(*by).agg(newest, partitions).select("newest.*", PARTITIONS)
    # A row that is only marked keeps its values.
    takes_away = (F.col(DOES) == DELETE) & F.lit(DELETED not in columns)
    deleted_at = F.max(F.when(takes_away, order)).over(Window.partitionBy(*by))
    since = ordered.withColumn(_DELETED_AT, deleted_at)
    since = since.filter(F.col(_DELETED_AT).isNull() | (order >= F.col(_DELETED_AT)))
    whole = [name for name in columns if name not in may_lack and name != KEPT]
    newest = F.max_by(F.struct(*[F.col(f"`{name}`") for name in whole]), order).alias("newest")
    # Each value with the order of the change that tells it: the row may have a newer one.
    told_by = [F.struct(F.col(f"`{name}`").alias("value"), order.alias("order")) for name in may_lack]
    values = [
        F.max_by(F.when(_tells(name), told), F.when(_tells(name), order)).alias(value_of(number))
        for number, (name, told) in enumerate(zip(may_lack, told_by, strict=True))
    ]
    grouped = since.groupBy(*by).agg(newest, partitions, F.max(_DELETED_AT).alias(_DELETED_AT), *values)
    lacking = [F.when(F.col(value_of(number)).isNull(), F.lit(name)) for number, name in enumerate(may_lack)]
    # Behind a delete there is no row whose values could be kept.
    kept = F.when(F.col(_DELETED_AT).isNull(), F.array_compact(F.array(*lacking)))
    found = {name: F.col("newest")[name] for name in whole}
    found |= {name: F.col(value_of(number))["value"] for number, name in enumerate(may_lack)}
    found[KEPT] = F.coalesce(kept, F.array().cast("array<string>"))
    orders = [
        F.coalesce(F.col(value_of(number))["order"], F.col(_DELETED_AT)).alias(order_of(number))
        for number in range(len(may_lack))
    ]
    return grouped.select(*[found[name].alias(name) for name in columns], *orders, PARTITIONS)


def value_of(number: int) -> str:
    """Return the column of a value that a change may leave as it is, with the order of the change that tells it."""
    return f"__kafka_lake_value_{number}"


def order_of(number: int) -> str:
    """Return the column of that order; null if no change of the batch tells the value."""
    return f"__kafka_lake_order_{number}"


def _tells(name: str) -> Column:
    return ~F.array_contains(F.col(KEPT), F.lit(name))


def _tombstones_ordered(changes: DataFrame, keys: Keys) -> DataFrame:
    """Give tombstones, which have no order of their own, that of the change before them in their Kafka partition."""
    place = [F.expr(each) for each in keys.place(_ALIAS)]
    before = Window.partitionBy(*[F.expr(each) for each in keys.key(_ALIAS)], *place[:2]).orderBy(place[2])
    found: dict[str, Column] = {}
    for name in keys.order_by:
        found[name] = F.coalesce(
            F.col(f"{_ALIAS}.`{name}`"), F.last(f"{_ALIAS}.`{name}`", ignorenulls=True).over(before)
        )
    if keys.has_envelope:
        order = F.col(f"{_ALIAS}.{CHANGE}")["order"]
        found[CHANGE] = F.struct(
            F.col(f"{_ALIAS}.{CHANGE}")["op"].alias("op"),
            F.coalesce(order, F.last(order, ignorenulls=True).over(before)).alias("order"),
        )
    return changes.select(*[found.get(name, F.col(f"{_ALIAS}.`{name}`")).alias(name) for name in changes.columns])
