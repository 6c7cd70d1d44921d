"""Events of a history: the changes of a batch, and those that the table has of their keys."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.decode.rows import DELETED, EVENT, EVENT_TYPE
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.history.shape import Shape
from kafka_lake.ingest.keyed.keys import AT, DOES, KEPT, quoted

STORED = "__kafka_lake_stored"
"""The row that the table has of an event; null if it has none."""
IN_BATCH = "__kafka_lake_in_batch"
"""Whether an event is one of the batch."""
IS_DOUBLE = "__kafka_lake_is_double"
"""Whether the table has several rows of an event."""
_OLD, _NEW, _ROW = "__kafka_lake_old", "__kafka_lake_new", "__kafka_lake_row"
_PLACE, _PLACES = "__kafka_lake_place_", ("topic_id", "partition", "offset")


def events_of(changes: DataFrame, shape: Shape) -> DataFrame:
    """Return a batch's changes as rows of the table: all of them, not one for each key; their intervals are null.

    Args:
        changes: What `changes_of` gave, in the table's types; those that change nothing left out.
    """
    left = [F.when(F.array_contains(KEPT, name), F.lit(shape.ids[name])) for name in shape.may_lack]
    event = {"kept": F.array_compact(F.array(*left)) if left else F.array(), "at": F.col(AT)}
    made: dict[str, Column] = {
        DELETED: F.col(DOES) == DELETE,
        EVENT: F.struct(*[value.cast(EVENT_TYPE[name].dataType).alias(name) for name, value in event.items()]),
    }
    have = set(changes.columns)
    return changes.select(
        *[
            (made.get(field.name, F.col(quoted(field.name)) if field.name in have else F.lit(None)))
            .cast(field.dataType)
            .alias(field.name)
            for field in shape.columns
        ]
    )


def stored_of(rows: DataFrame, events: DataFrame, shape: Shape, within: Bounds) -> DataFrame:
    """Return the rows of a table that are of some events' keys.

    Args:
        within: Between which values the events' keys lie.
    """
    condition = " AND ".join([shape.keys.same("t", "s"), *within.hold_for("t")])
    return rows.alias("t").join(events.alias("s"), F.expr(condition), "left_semi")


def joined(stored: DataFrame, batch: DataFrame, shape: Shape) -> DataFrame:
    """Return all events of some keys, each once: one that is read again is as it is told now.

    Args:
        stored: Those that the table has, in its columns.
    """
    row = F.struct(*[F.col(quoted(name)) for name in shape.columns.names])
    none = F.lit(None).cast(shape.columns)
    both = stored.select(row.alias(_OLD), none.alias(_NEW)).unionByName(batch.select(none.alias(_OLD), row.alias(_NEW)))
    place = F.col(_ROW)[shape.keys.metadata]
    key = {name: F.expr(each) for name, each in zip(shape.key_names, shape.keys.key(_ROW), strict=True)}
    placed = both.withColumn(_ROW, F.coalesce(_OLD, _NEW)).withColumns(
        {**key, **{f"{_PLACE}{name}": place[name] for name in _PLACES}}
    )
    # All that follows is asked of one key after the other.
    grouped = placed.repartition(*shape.key_names).groupBy(*shape.key_names, *[f"{_PLACE}{each}" for each in _PLACES])
    either = [F.first(name, ignorenulls=True).alias(name) for name in (_OLD, _NEW)]
    one = grouped.agg(*either, (F.count(_OLD) > 1).alias(IS_DOUBLE))
    return one.select(
        *shape.key_names,
        F.coalesce(_NEW, _OLD).alias(_ROW),
        F.col(_OLD).alias(STORED),
        F.col(_NEW).isNotNull().alias(IN_BATCH),
        IS_DOUBLE,
    ).select(*shape.key_names, f"{_ROW}.*", STORED, IN_BATCH, IS_DOUBLE)
