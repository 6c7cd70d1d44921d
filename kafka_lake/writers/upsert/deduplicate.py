"""Deduplicate change events: one event per key remains, with the newest value of each column."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window, WindowSpec
from pyspark.sql import functions as F

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.task.change import DELETE, READ, UPSERT
from kafka_lake.engine.frames import cached
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.rows import CHANGE
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.change_events import event_counts, no_names
from kafka_lake.writers.upsert.keys import (
    INTERNAL,
    OPERATION,
    UNCHANGED,
    WITHOUT_ORDER,
    KeyBounds,
    Keys,
    key_bounds,
    partitions_error,
    tombstone_error,
)

SEVERAL_PARTITIONS = f"{INTERNAL}several_partitions"
"""Partition and offset of an event that can't be ordered against one of another partition, and that partition."""
NEEDS_ROW = f"{INTERNAL}needs_row"
"""Whether a delete has no order of its own, so that it takes that of its key's row, if that is newer."""
UNKNOWN = f"{INTERNAL}unknown"
"""Columns that the newest event leaves unchanged although a delete precedes it: their values are unknown."""
_EVENTS, _ORDER, _UNORDERED, _DELETED_AT, _HAS_ROW, _ROW_EVENTS, _INCOMPLETE = (
    f"{INTERNAL}{name}"
    for name in ("events", "order", "unordered", "deleted_at", "has_row", "row_events", "incomplete")
)


@dataclass(frozen=True)
class EventStatistics:
    """Statistics of a batch's events, from one pass.

    Args:
        counts: ``changes``, ``deletes``, ``truncates``, ``snapshot_markers`` and ``sources``; see `event_counts`.
        incomplete: Number of events that leave a column unchanged.
    """

    counts: Row
    keys: int
    events_per_key: int
    incomplete: int
    bounds: KeyBounds


@dataclass(frozen=True)
class LatestEvents:
    """One event per key, as `latest_per_key` returns them, and counts of them.

    Args:
        incomplete: Number of keys whose event lacks a value.
    """

    events: DataFrame
    bounds: KeyBounds
    count: int
    deletes: int
    incomplete: int


def event_statistics(spec: TopicTable, events: DataFrame, keys: Keys, *, records: int) -> EventStatistics:
    """Count events, in all and per key, in one pass that shuffles nothing but keys."""
    names = [key_column(number) for number in range(len(keys.key("c")))]
    key = [F.expr(expression).alias(name) for name, expression in zip(names, keys.key("c"), strict=True)]
    per_key, totals = event_counts(spec)
    operations = [UPSERT, READ] if spec.ignores_deletes else [UPSERT, READ, DELETE]
    per_key[_ROW_EVENTS] = F.count_if(F.col(OPERATION).isin(*operations))
    per_key[_INCOMPLETE] = F.count_if(F.size(UNCHANGED) > 0)
    by_key = events.alias("c").groupBy(*key).agg(*[count.alias(name) for name, count in per_key.items()])
    if keys.columns:
        named = [F.col(name).alias(column) for name, column in zip(names, keys.columns, strict=True)]
    else:
        named = [F.struct(F.col(names[0]).alias("key")).alias(METADATA_COLUMN)]
    totals |= {"keys": F.count_if(F.col(_ROW_EVENTS) > 0), "most": F.coalesce(F.max(_ROW_EVENTS), F.lit(0))}
    totals["incomplete"] = F.coalesce(F.sum(_INCOMPLETE), F.lit(0))
    aggregates = [total.alias(name) for name, total in totals.items()]
    bounds, row = key_bounds(by_key.select(*named, *per_key), keys, *aggregates, records=records)
    return EventStatistics(row, row["keys"], row["most"], row["incomplete"], bounds=bounds)


def already_unique(spec: TopicTable, events: DataFrame, statistics: EventStatistics) -> LatestEvents:
    """Return the events of a batch in which no key has two."""
    deletes = 0 if spec.ignores_deletes else statistics.counts["deletes"]
    return LatestEvents(
        events.withColumn(UNKNOWN, no_names()), statistics.bounds, count=statistics.keys, deletes=deletes, incomplete=0
    )


def deduplicate(
    spec: TopicTable, events: DataFrame, keys: Keys, nullable: Sequence[str], *, held: ExitStack, records: int
) -> LatestEvents:
    """Return one event per key; Spark caches them until ``held`` ends."""
    latest = cached(latest_per_key(events, keys, nullable, spec.is_partial), held)
    is_incomplete = (F.col(OPERATION) != DELETE) & ((F.size(UNCHANGED) > 0) | (F.size(UNKNOWN) > 0))
    aggregates = (
        F.count(F.lit(1)).alias("count"),
        F.count_if(F.col(OPERATION) == DELETE).alias("deletes"),
        F.max(SEVERAL_PARTITIONS).alias("several"),
        F.count_if(is_incomplete).alias("incomplete"),
    )
    bounds, row = key_bounds(latest, keys, *aggregates, records=records)
    if conflict := row["several"]:
        raise tombstone_error(spec, *conflict) if keys.has_order else partitions_error(spec, *conflict)
    counts = {name: row[name] for name in ("count", "deletes", "incomplete")}
    return LatestEvents(latest, bounds, **counts)


def latest_per_key(events: DataFrame, keys: Keys, nullable: Sequence[str], is_partial: bool = False) -> DataFrame:
    """Return the newest event of each key.

    A value that it leaves unchanged comes from the newest event before it that has the value, back to the last delete.
    """
    columns = events.columns
    named = events.alias(_EVENTS)
    key = [F.expr(column).alias(key_column(number)) for number, column in enumerate(keys.key(_EVENTS))]
    ordered = named.select(
        *[F.col(f"{_EVENTS}.{quoted(name)}") for name in columns],
        *key,
        F.expr(keys.order(_EVENTS)).alias(_ORDER),
        (F.expr(keys.has_no_order(_EVENTS)) if keys.has_order else F.lit(True)).alias(_UNORDERED),
    )
    by = [F.col(key_column(number)) for number in range(len(key))]
    is_change = ~F.col(_UNORDERED) | F.lit(not keys.has_order)
    several = conflict(F.col(quoted(METADATA_COLUMN)), F.col(_UNORDERED), is_change).alias(SEVERAL_PARTITIONS)
    order = F.col(_ORDER)
    if not nullable:
        newest = F.max_by(F.struct(*[F.col(quoted(name)) for name in columns]), order).alias("newest")
        grouped = ordered.groupBy(*by).agg(newest, several)
        return grouped.select("newest.*", SEVERAL_PARTITIONS, no_names().alias(UNKNOWN))
    # A soft delete keeps the row's values.
    is_delete = (F.col(OPERATION) == DELETE) & F.lit(not keys.is_soft)
    since = ordered.withColumn(_DELETED_AT, F.max(F.when(is_delete, order)).over(Window.partitionBy(*by)))
    # Older events count for what can't be ordered.
    is_since = F.col(_DELETED_AT).isNull() | (order >= F.col(_DELETED_AT))
    complete = [name for name in columns if name not in nullable and name != UNCHANGED]
    newest = F.max_by(F.struct(*[F.col(quoted(name)) for name in complete]), order).alias("newest")
    values = []
    for number, name in enumerate(nullable):
        # Each value has the order of its event, since the table may have a newer value.
        value = F.struct(F.col(quoted(name)).alias("value"), order.alias("order"))
        has_value = _has_value(name) & ~is_delete & is_since
        values.append(F.max_by(F.when(has_value, value), F.when(has_value, order)).alias(_value_column(number)))
    has_row = F.bool_or(_has_value(METADATA_COLUMN) & is_since).alias(_HAS_ROW)
    grouped = since.groupBy(*by).agg(newest, several, has_row, F.max(_DELETED_AT).alias(_DELETED_AT), *values)
    missing = F.array_compact(
        F.array(*[F.when(F.col(_value_column(n)).isNull(), F.lit(name)) for n, name in enumerate(nullable)])
    )
    # After a delete there is no row that has the missing values.
    is_deleted = F.col(_DELETED_AT).isNotNull()
    unknown = F.when(is_deleted & (F.col("newest")[OPERATION] != DELETE), missing)
    result = {name: F.col("newest")[name] for name in complete}
    result |= {name: F.col(_value_column(number))["value"] for number, name in enumerate(nullable)}
    # The batch both inserts the row and marks it as deleted.
    is_inserted = F.lit(keys.is_soft and is_partial) & F.col(_HAS_ROW)
    result[UNCHANGED] = F.when(is_deleted | is_inserted, no_names()).otherwise(missing)
    orders = [
        F.coalesce(F.col(_value_column(number))["order"], F.col(_DELETED_AT)).alias(value_order_column(number))
        for number in range(len(nullable))
    ]
    return grouped.select(
        *[result[name].alias(name) for name in columns],
        *orders,
        SEVERAL_PARTITIONS,
        F.coalesce(unknown, no_names()).alias(UNKNOWN),
    )


def conflict(place: Column, is_unordered: Column, is_change: Column) -> Column:
    """Return the place of a key's event without an order beside a change in another Kafka partition; null if none."""
    partition = F.when(is_change, place["partition"])
    least, most = F.min(partition), F.max(partition)

    def beside(pick: Callable[[Column], Column]) -> Column:
        event = pick(F.when(is_unordered, F.struct(place["partition"], place["offset"])))
        other = F.when(least != event["partition"], least).otherwise(most)
        return F.when(other != event["partition"], F.struct(event["partition"], event["offset"], other))

    return F.coalesce(beside(F.min), beside(F.max))


def key_column(number: int) -> str:
    """Return the name of a column with a part of the key."""
    return f"{INTERNAL}key_{number}"


def _value_column(number: int) -> str:
    return f"{INTERNAL}value_{number}"


def value_order_column(number: int) -> str:
    """Return the name of the column with the order of a value; null if no event of the batch has the value."""
    return f"{INTERNAL}order_{number}"


def _has_value(name: str) -> Column:
    return ~F.array_contains(F.col(UNCHANGED), F.lit(name))


def order_tombstones(events: DataFrame, keys: Keys) -> DataFrame:
    """Give deletes without an order the newest order before them in their Kafka partition."""
    named = events.alias(_EVENTS)
    topic, partition, offset = map(F.expr, keys.kafka_order(_EVENTS))
    before = Window.partitionBy(*map(F.expr, keys.key(_EVENTS)), topic, partition).orderBy(offset)
    values = [F.expr(value) for value in keys.order_values(_EVENTS)]
    order = F.when(values[0].isNotNull(), F.expr(f"struct({', '.join(keys.source_order(_EVENTS))})"))
    is_delete = F.col(f"{_EVENTS}.{OPERATION}") == DELETE
    earlier = newest_before(values, is_delete, order, before, has_envelope=keys.has_envelope)
    filled = [F.coalesce(value, earlier[f"_{number}"]) for number, value in enumerate(values)]
    needs_row = is_delete & values[0].isNull()
    if keys.has_envelope:
        # The delete before a tombstone has the source's own order.
        needs_row &= ~F.coalesce(earlier["is_delete"], F.lit(False))
    # Debezium sends a tombstone after each delete: by itself it deletes nothing.
    without_order = needs_row & F.lit(not keys.has_envelope)
    columns = with_order(_EVENTS, events.columns, keys, filled)
    return named.select(*columns, needs_row.alias(NEEDS_ROW), without_order.alias(WITHOUT_ORDER))


def newest_before(
    values: Sequence[Column], is_delete: Column, order: Column, before: WindowSpec, *, has_envelope: bool
) -> Column:
    """Return the newest event of a window, as a struct of its order's values `_0`, `_1`, … and `is_delete`."""
    event = F.struct(*[value.alias(f"_{number}") for number, value in enumerate(values)], is_delete.alias("is_delete"))
    newest = F.max_by(event, order).over(before)
    if not has_envelope:
        return newest
    # Debezium sends a delete and then a tombstone. If a connector sends both again, newer events precede them.
    previous = F.last(F.when(values[0].isNotNull(), event), ignorenulls=True).over(before)
    return F.when(previous["is_delete"], previous).otherwise(newest)


def order_by_rows(events: DataFrame, rows: DataFrame, keys: Keys, bounds: KeyBounds) -> DataFrame:
    """Give deletes that need it the order of the row that they delete, if that is newer.

    So an event that is older than the row stays late after the row is deleted. The query fails if the row came from
    another Kafka partition: delete and row can't be compared then.
    """
    named = events.alias("s")
    condition = F.expr(" AND ".join([keys.same_key("s", "t"), *bounds.conditions("t")]))
    joined = named.filter(F.col(NEEDS_ROW)).join(rows.alias("t"), condition, "left")
    other_partition, has_no_order = keys.other_partition("s", "t"), keys.has_no_order("s")
    fails = f"{other_partition} AND {has_no_order} AND {keys.raise_tombstone('s', 't')}"
    event_order, row_order = (f"struct({', '.join(keys.source_order(alias))})" for alias in ("s", "t"))
    takes_row = f"{has_no_order} OR (NOT coalesce({other_partition}, true) AND {row_order} > {event_order})"
    order = [
        F.expr(f"CASE WHEN {fails} THEN NULL WHEN {takes_row} THEN {of_row} ELSE {of_event} END")
        for of_event, of_row in zip(keys.order_values("s"), keys.order_values("t"), strict=True)
    ]
    names = [name for name in events.columns if name != NEEDS_ROW]
    unaffected = named.filter(~F.col(NEEDS_ROW)).select(*[F.col(f"s.{quoted(name)}") for name in names])
    return unaffected.unionByName(joined.select(*with_order("s", names, keys, order)))


def with_order(alias: str, names: Sequence[str], keys: Keys, order: Sequence[Column]) -> list[Column]:
    """Return the columns of events with another order; the alias may be that of a struct column."""
    replaced = dict(zip(keys.order_by, order, strict=False))
    if keys.has_envelope:
        operation = F.col(f"{alias}.{CHANGE}")["op"].alias("op")
        replaced[CHANGE] = F.struct(operation, order[-1].alias("order"))
    return [replaced.get(name, F.col(f"{alias}.{quoted(name)}")).alias(name) for name in names]
