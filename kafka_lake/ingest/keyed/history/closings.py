"""Closings: what took many rows away at once, truncates and ended snapshots of the source, as events of each key.

A closing is a delete of each key that had an event between the closing before it and itself. So a history stays a
function of the events of each key and of the closings, whatever came when.
"""

import json
from collections.abc import Iterable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import READ, TRUNCATE
from kafka_lake.ingest.decode.rows import CHANGE, DELETED, EVENT
from kafka_lake.ingest.keyed.history.shape import EVENT_TYPE, Shape
from kafka_lake.ingest.keyed.keys import Keys, quoted
from kafka_lake.ingest.keyed.truncates import MOST, Truncate
from kafka_lake.lake.positions import TableState, ancestors, summary_of

CLOSINGS = "kafka-lake.closings"
"""In a summary of a history's snapshot: the newest closings, the oldest one first."""
_ROW, _NUMBER, _READ, _TOPIC, _CLOSED, _AT = (
    f"__kafka_lake_{name}" for name in ("row", "number", "read", "topic", "closed", "closing")
)


def remembered_closings(state: TableState) -> list[Truncate]:
    """Return the closings that a history has applied, as far as it remembers them."""
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    told = next((found[CLOSINGS] for found in summaries if CLOSINGS in found), "[]")
    return [Truncate.of(each) for each in json.loads(told)]


def closings_as_json(closings: Iterable[Truncate]) -> str:
    """Return the text that a snapshot's summary carries."""
    return json.dumps([vars(each) for each in closings], separators=(",", ":"))


def closings_of(known: Iterable[Truncate], new: Iterable[Truncate], keys: Keys) -> list[Truncate]:
    """Return the newest closings, each once, the oldest one first.

    Args:
        known: Those of before; where a record is told again, as it was told first.
        new: Those of the batch.
        keys: Tell the order.
    """
    each_once = {each.place: each for each in (*new, *known)}
    return sorted(each_once.values(), key=lambda each: each.sorted_by(keys))[-MOST:]


def is_one_of(closings: Sequence[Truncate], shape: Shape) -> Column:
    """Return whether an event is what one of the closings made of a key."""
    place = F.col(quoted(shape.keys.metadata))
    same = [
        place["topic_id"].eqNullSafe(F.lit(topic_id)) & (place["partition"] == partition) & (place["offset"] == offset)
        for topic_id, partition, offset in (each.place for each in closings)
    ]
    return reduce(Column.__or__, same, F.lit(False))


def is_closing(keys: Keys) -> Column:
    """Return whether an event is what a closing made of a key, and no record of the key's own."""
    return F.col(CHANGE)["op"].eqNullSafe(F.lit(TRUNCATE)) if keys.has_envelope else F.lit(False)


def closed(events: DataFrame, closings: Sequence[Truncate], shape: Shape) -> DataFrame:
    """Return the deletes that closings are for the keys of some events.

    Args:
        events: All events of some keys, in the history's columns; closings among them don't count.
        closings: The oldest one first.
        shape: Of the history.

    Returns:
        Events in the history's columns: one for each key and closing that took something away. A snapshot of the source
        takes no key away that it has itself.
    """
    keys = shape.keys
    # A snapshot's closing is at the place of its first row, which is a record of that row's key.
    others = events.filter(~(is_closing(keys) if keys.has_envelope else is_one_of(closings, shape)))
    rows = others.select(F.struct(*[F.col(quoted(name)) for name in shape.columns.names]).alias(_ROW))
    key = [F.expr(each).alias(name) for name, each in zip(shape.key_names, keys.key(_ROW), strict=True)]
    numbered = rows.select(
        *key,
        F.col(_ROW)[keys.metadata]["topic"].alias(_TOPIC),
        _first([F.expr(each.is_behind(keys, _ROW)) for each in closings]).alias(_NUMBER),
        _first([_is_read_by(each) for each in closings]).alias(_READ),
    )
    of_key = numbered.groupBy(*shape.key_names).agg(
        F.min(_TOPIC).alias(_TOPIC), F.array_except(F.collect_set(_NUMBER), F.collect_set(_READ)).alias(_CLOSED)
    )
    which = F.array(*[_literal(each) for each in closings])
    one_each = of_key.select(*shape.key_names, _TOPIC, F.explode(_CLOSED).alias(_NUMBER)).withColumn(
        _AT, F.get(which, F.col(_NUMBER))
    )
    return one_each.select(*_columns(shape))


def _first(conditions: Sequence[Column]) -> Column:
    """Return the number of the first condition that holds; null if there is none."""
    return F.coalesce(*[F.when(each, F.lit(number)) for number, each in enumerate(conditions)])


def _is_read_by(closing: Truncate) -> Column:
    if not closing.is_read:
        return F.lit(False)
    change = F.col(_ROW)[CHANGE]
    # The table of deleted keys has what a snapshot lacked by the snapshot's order.
    return ~F.col(_ROW)[DELETED] & (change["op"] == READ) & (change["order"] == _order(closing))


def _order(closing: Truncate) -> Column:
    return F.array(*[F.lit(each) for each in closing.order]).cast("array<bigint>")


def _literal(closing: Truncate) -> Column:
    topic_id, partition, offset = closing.place
    values = {
        "topic_id": F.lit(topic_id).cast("string"),
        "partition": F.lit(partition),
        "offset": F.lit(offset).cast("bigint"),
        "timestamp": F.timestamp_millis(F.lit(closing.stamp).cast("bigint")),
        "order": _order(closing),
        "at": F.timestamp_millis(F.lit(closing.at).cast("bigint")),
    }
    return F.struct(*[value.alias(name) for name, value in values.items()])


def _columns(shape: Shape) -> list[Column]:
    """Return a history's columns: those of a delete of a key, at the place of the closing."""
    keys, at = shape.keys, F.col(_AT)
    names = keys.columns or (None,)
    by_name = dict(zip(names, map(F.col, shape.key_names), strict=True))
    told = {name: at[name] for name in ("topic_id", "partition", "offset", "timestamp")}
    told |= {"topic": F.col(_TOPIC), "key": by_name.pop(None, F.lit(None))}
    origin = [
        told.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in shape.columns[keys.metadata].dataType
    ]
    event = {"kept": F.array(), "at": at["at"]}
    made = {
        **by_name,
        keys.metadata: F.struct(*origin),
        CHANGE: F.struct(F.lit(TRUNCATE).alias("op"), at["order"].alias("order")),
        DELETED: F.lit(True),
        EVENT: F.struct(*[value.cast(EVENT_TYPE[name].dataType).alias(name) for name, value in event.items()]),
    }
    return [made.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in shape.columns]
