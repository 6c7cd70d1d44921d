"""Events of a history: those of a batch, those that it has already, and those that a table had before it."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.executors.changes.change import DELETE
from kafka_lake.ingest.decode.rows import DELETED, EVENT, VALID_FROM, VALID_TO
from kafka_lake.ingest.keyed.bounds import Bounds
from kafka_lake.ingest.keyed.deletes import DELETED_AT
from kafka_lake.ingest.keyed.history.shape import EVENT_TYPE, Shape
from kafka_lake.ingest.keyed.keys import AT, DOES, KEPT, quoted

STORED = "__kafka_lake_stored"
"""The row that the history has of an event; null if it has none."""
IN_BATCH = "__kafka_lake_in_batch"
"""Whether an event is one of the batch."""
_OLD, _NEW, _ROW, _IS_STORED = "__kafka_lake_old", "__kafka_lake_new", "__kafka_lake_row", "__kafka_lake_is_stored"
_FROM_TABLE, _PLACE, _PLACES = "__kafka_lake_from_table", "__kafka_lake_place_", ("topic_id", "partition", "offset")


def events_of(changes: DataFrame, shape: Shape) -> DataFrame:
    """Return a batch's changes as events: all of them, not one for each key.

    Args:
        changes: What `changes_of` gave, in the table's types; those that change nothing left out.
        shape: Of the history.
    """
    left = [F.when(F.array_contains(KEPT, name), F.lit(shape.ids[name])) for name in shape.may_lack]
    kept = F.array_compact(F.array(*left)) if left else F.array()
    made = {DELETED: F.col(DOES) == DELETE, EVENT: _event(kept, F.col(AT))}
    return changes.select(*_columns(shape, made))


def seeds_of(rows: DataFrame, deletes: DataFrame | None, shape: Shape) -> DataFrame:
    """Return the events that a table's rows and remembered deletes tell of: its history before it had one.

    Args:
        rows: The table's.
        deletes: Those of the table of deleted keys; None if there is none.
        shape: Of the history.
    """
    whole = F.lit(None)
    is_gone = F.col(DELETED) if shape.keys.is_soft else F.lit(False)
    told = rows.select(*_columns(shape, {DELETED: is_gone, EVENT: _event(whole, F.lit(None))}))
    if deletes is None:
        return told
    have = set(deletes.columns)
    metadata = shape.keys.metadata
    origin = F.struct(
        *[
            (F.col(quoted(metadata))[field.name] if field.name in deletes.schema[metadata].dataType.names else
             F.lit(None).cast(field.dataType)).alias(field.name)
            for field in shape.columns[metadata].dataType
        ]
    )  # fmt: skip
    made: dict[str, Column] = {
        field.name: F.lit(None).cast(field.dataType) for field in shape.columns if field.name not in have
    }
    # When a run wrote it down: Kafka's time isn't kept.
    made |= {metadata: origin, DELETED: F.lit(True), EVENT: _event(whole, F.col(DELETED_AT))}
    gone = deletes.select(*_columns(shape, made))
    both = told.withColumn(_FROM_TABLE, F.lit(True)).unionByName(gone.withColumn(_FROM_TABLE, F.lit(False)))
    # A run that was repeated wrote its deletes twice, and a row that is only marked is there as well.
    place = F.col(quoted(metadata))
    same = [*map(F.expr, shape.keys.key(_ROW)), *(place[name] for name in _PLACES)]
    by = Window.partitionBy(*same).orderBy(F.col(_FROM_TABLE).desc(), F.col(EVENT)["at"])
    numbered = both.alias(_ROW).withColumn("__kafka_lake_number", F.row_number().over(by))
    return numbered.filter(F.col("__kafka_lake_number") == 1).drop("__kafka_lake_number", _FROM_TABLE)


def stored_of(rows: DataFrame, one_each: DataFrame, shape: Shape, within: Bounds) -> DataFrame:
    """Return the rows of a history that are of a batch's keys.

    Args:
        rows: All of them.
        one_each: A row of each key.
        shape: Of the history.
        within: Between which values the keys lie.
    """
    condition = " AND ".join([shape.keys.same("t", "s"), *within.hold_for("t")])
    return rows.alias("t").join(one_each.alias("s"), F.expr(condition), "left_semi")


def joined(stored: DataFrame, seeds: DataFrame | None, batch: DataFrame, shape: Shape) -> DataFrame:
    """Return all events of some keys, each once: one that is read again is as it is told now.

    Args:
        stored: Those that the history has, in its columns.
        seeds: Those that `seeds_of` gave, for a history that has none yet.
        batch: Those that `events_of` gave.
        shape: Of the history.

    Returns:
        The history's columns, those of their keys, `STORED` and `IN_BATCH`.
    """
    row = F.struct(*[F.col(quoted(name)) for name in shape.columns.names])
    none = F.lit(None).cast(shape.columns)
    both = stored.select(row.alias(_OLD), none.alias(_NEW), F.lit(True).alias(_IS_STORED))
    if seeds is not None:
        both = both.unionByName(seeds.select(row.alias(_OLD), none.alias(_NEW), F.lit(False).alias(_IS_STORED)))
    both = both.unionByName(batch.select(none.alias(_OLD), row.alias(_NEW), F.lit(False).alias(_IS_STORED)))
    place = F.col(_ROW)[shape.keys.metadata]
    key = {name: F.expr(each) for name, each in zip(shape.key_names, shape.keys.key(_ROW), strict=True)}
    placed = both.withColumn(_ROW, F.coalesce(_OLD, _NEW)).withColumns(
        {**key, **{f"{_PLACE}{name}": place[name] for name in _PLACES}}
    )
    # All that follows is asked of one key after the other.
    grouped = placed.repartition(*shape.key_names).groupBy(*shape.key_names, *[f"{_PLACE}{each}" for each in _PLACES])
    one = grouped.agg(
        *[F.first(name, ignorenulls=True).alias(name) for name in (_OLD, _NEW)], F.max(_IS_STORED).alias(_IS_STORED)
    )
    # A row of the table has all values, of which its event may have told a few only.
    is_whole = F.col(_OLD)[EVENT]["kept"].isNull() & ~F.col(_OLD)[DELETED] & ~F.col(_NEW)[DELETED]
    takes_old = F.col(_NEW).isNull() | (F.col(_OLD).isNotNull() & is_whole)
    at = F.coalesce(F.col(_NEW)[EVENT]["at"], F.col(_OLD)[EVENT]["at"])
    return one.select(
        *shape.key_names,
        F.when(takes_old, F.col(_OLD).withField(f"{EVENT}.at", at)).otherwise(F.col(_NEW)).alias(_ROW),
        F.when(F.col(_IS_STORED), F.col(_OLD)).alias(STORED),
        F.col(_NEW).isNotNull().alias(IN_BATCH),
    ).select(*shape.key_names, f"{_ROW}.*", STORED, IN_BATCH)


def _event(kept: Column, at: Column) -> Column:
    return F.struct(
        *[value.cast(EVENT_TYPE[name].dataType).alias(name) for name, value in (("kept", kept), ("at", at))]
    )


def _columns(shape: Shape, made: dict[str, Column]) -> list[Column]:
    """Return a history's columns, some of which are made, and its intervals null."""
    none = F.lit(None).cast(shape.valid_type)
    found = {VALID_FROM: none, VALID_TO: none, **made}
    return [found.get(name, F.col(quoted(name))).alias(name) for name in shape.columns.names]
