"""Fold: of all changes of a key in a batch, one is left, with the newest value of each column."""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.decode.rows import CHANGE
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys, quoted, stop

_ALIAS, _ORDER, _DELETED_AT = "__kafka_lake_changes", "__kafka_lake_order", "__kafka_lake_deleted_at"
_LACKING, _TELLS_ROW = "__kafka_lake_lacking", "__kafka_lake_tells_row"
SEVERAL_PARTITIONS = "__kafka_lake_several_partitions"
"""Whether the changes of a key came from several Kafka partitions."""
NEEDS_ROW = "__kafka_lake_needs_row"
"""Whether a delete has no order of its own, and none of a delete before it."""
UNTOLD = "__kafka_lake_untold"
"""Whether a delete has no order of its own, so that it is newer than all before it in its Kafka partition."""
TOMBSTONE_ELSEWHERE = "KAFKA_LAKE_TOMBSTONE_ELSEWHERE"
"""Begins the message of an error: a delete without an order is in another partition than its key's row."""
UNKNOWN = "__kafka_lake_unknown"
"""Columns that the newest change leaves as they are, though the row was deleted before it."""


def folded(changes: DataFrame, keys: Keys, may_lack: Sequence[str], is_partial: bool = False) -> DataFrame:
    """Return one change for each key.

    A value that the newest change doesn't tell is that of the newest change before it which tells it, back to the last
    delete: so a row that is inserted, and changed in another column, keeps its values.

    Args:
        changes: What `changes_of` gave, in the table's types; deletes have an order, if the key's changes have.
        keys: Tell rows apart, and changes older from newer.
        may_lack: Columns that a change may leave as they are.
        is_partial: Whether what it leaves is null in a row that isn't there yet.

    Returns:
        The columns of the changes; `KEPT` names those that no change of the batch has told, and that aren't null in a
        row that the batch brings; `order_of` has for each
        that may be kept when it was told. And `SEVERAL_PARTITIONS` and `UNKNOWN`.
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
    # A row that is only marked keeps its values.
    takes_away = (F.col(DOES) == DELETE) & F.lit(not keys.is_soft)
    deleted_at = F.max(F.when(takes_away, order)).over(Window.partitionBy(*by))
    since = ordered.withColumn(_DELETED_AT, deleted_at)
    since = since.filter(F.col(_DELETED_AT).isNull() | (order >= F.col(_DELETED_AT)))
    whole = [name for name in columns if name not in may_lack and name != KEPT]
    newest = F.max_by(F.struct(*[F.col(quoted(name)) for name in whole]), order).alias("newest")
    # Each value with the order of the change that tells it: the row may have a newer one.
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
    # Behind a delete there is no row whose values could be kept.
    all_lacking, none = F.array_compact(F.array(*lacking)), F.array().cast("array<string>")
    is_gone = F.col(_DELETED_AT).isNotNull()
    unknown = F.when(is_gone & (F.col("newest")[DOES] != DELETE), all_lacking)
    found = {name: F.col("newest")[name] for name in whole}
    found |= {name: F.col(value_of(number))["value"] for number, name in enumerate(may_lack)}
    # What is marked in the batch that brings it is a row as well.
    is_brought = F.lit(keys.is_soft and is_partial) & F.col(_TELLS_ROW)
    found[KEPT] = F.when(is_gone | is_brought, none).otherwise(all_lacking)
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
    """Return the changes that bring rows of some keys, behind the last delete of each: those that lack a value.

    Args:
        changes: What `changes_of` gave, in the table's types.
        of: The keys, as changes; `KEPT` and `UNKNOWN` name the columns.
        keys: Tell rows apart, and changes older from newer.
    """
    names = F.array_join(F.when(F.size(UNKNOWN) > 0, F.col(UNKNOWN)).otherwise(F.col(KEPT)), ", ")
    key = [F.expr(each).alias(f"__kafka_lake_key_{number}") for number, each in enumerate(keys.key("o"))]
    lacking = of.alias("o").select(*key, names.alias(_LACKING))
    by = [F.expr(each) for each in keys.key("c")]
    same = [each == F.col(f"__kafka_lake_key_{number}") for number, each in enumerate(by)]
    order = F.expr(keys.order("c"))
    joined = changes.alias("c").join(lacking, reduce(and_, same))
    deleted_at = F.max(F.when(F.col(f"c.{DOES}") == DELETE, order)).over(Window.partitionBy(*by))
    place = F.col(f"c.{quoted(keys.metadata)}")
    told = joined.select(
        place["partition"].alias("partition"), place["offset"].alias("offset"), F.col(_LACKING).alias("columns"),
        (F.col(f"c.{DOES}") != DELETE).alias("brings"), (deleted_at.isNull() | (order > deleted_at)).alias("behind"),
    )  # fmt: skip
    return told.filter("brings AND behind").select("partition", "offset", "columns")


def value_of(number: int) -> str:
    """Return the column of a value that a change may leave as it is, with the order of the change that tells it."""
    return f"__kafka_lake_value_{number}"


def order_of(number: int) -> str:
    """Return the column of that order; null if no change of the batch tells the value."""
    return f"__kafka_lake_order_{number}"


def _tells(name: str) -> Column:
    return ~F.array_contains(F.col(KEPT), F.lit(name))


def tombstones_ordered(changes: DataFrame, keys: Keys) -> DataFrame:
    """Give deletes that have no order of their own the newest one before them in their Kafka partition.

    Args:
        changes: What `changes_of` gave, in the table's types.
        keys: Tell rows apart, and changes older from newer.

    Returns:
        The changes, `NEEDS_ROW` and `UNTOLD`.
    """
    named = changes.alias(_ALIAS)
    place = [F.expr(each) for each in keys.place(_ALIAS)]
    before = Window.partitionBy(*[F.expr(each) for each in keys.key(_ALIAS)], *place[:2]).orderBy(place[2])
    told = [F.expr(each) for each in keys.told(_ALIAS)]
    is_told = F.when(told[0].isNotNull(), F.expr(f"struct({', '.join(keys.own_order(_ALIAS))})"))
    is_gone = F.col(f"{_ALIAS}.{DOES}") == DELETE
    newest = told_before(told, is_gone, is_told, before, has_envelope=keys.has_envelope)
    last = [F.coalesce(each, newest[f"_{n}"]) for n, each in enumerate(told)]
    # What follows a delete that tells its order says nothing more.
    needs_row = is_gone & told[0].isNull() & ~F.coalesce(newest["is_gone"], F.lit(False))
    # Debezium's say nothing of their own.
    untold = needs_row & F.lit(not keys.has_envelope)
    ordered = with_order(_ALIAS, changes.columns, keys, last)
    return named.select(*ordered, needs_row.alias(NEEDS_ROW), untold.alias(UNTOLD))


def told_before(
    told: Sequence[Column], is_gone: Column, order: Column, before: WindowSpec, *, has_envelope: bool
) -> Column:
    """Return what the newest change before one has told: its order as `_0`, `_1` and so on, and `is_gone`.

    Args:
        told: The parts of the order that a change tells; the first is null if it tells none.
        is_gone: Whether it is a delete.
        order: By which changes are compared; null if it tells none.
        before: Its key's changes in its Kafka partition, in the order of offsets.
        has_envelope: Whether an envelope tells the order.
    """
    change = F.struct(*[each.alias(f"_{n}") for n, each in enumerate(told)], is_gone.alias("is_gone"))
    newest = F.max_by(change, order).over(before)
    if not has_envelope:
        return newest
    # Debezium tells a delete and then a tombstone. Sent once more, both come behind what is newer.
    previous = F.last(F.when(told[0].isNotNull(), change), ignorenulls=True).over(before)
    return F.when(previous["is_gone"], previous).otherwise(newest)


def with_order_of_rows(changes: DataFrame, rows: DataFrame, keys: Keys, within: Bounds) -> DataFrame:
    """Give deletes that have no order of their own that of the row which they delete, where it is newer.

    So a change that is older than the row stays late when the row is gone. If only the row has an order, and it came
    from another Kafka partition, the query fails: nothing tells which of the two is newer.

    Args:
        keys: Tell rows apart, and changes older from newer.
        within: Between which values the keys of the changes lie that need a row.

    Returns:
        The changes.
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
    """Return columns of changes, with another order.

    Args:
        alias: Of the changes, or the struct column that has theirs.
        keys: Tell where the order is.
    """
    replaced = dict(zip(keys.order_by, order, strict=False))
    if keys.has_envelope:
        op = F.col(f"{alias}.{CHANGE}")["op"].alias("op")
        replaced[CHANGE] = F.struct(op, order[-1].alias("order"))
    return [replaced.get(name, F.col(f"{alias}.{quoted(name)}")).alias(name) for name in names]
