"""Changes that rules refuse: set apart from a batch, and what is left of them, the marks of their keys."""

from collections.abc import Iterator
from contextlib import ExitStack

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode.rows import STALE, STALE_RULE
from kafka_lake.ingest.keyed.bounds import Bounds, bounds
from kafka_lake.ingest.keyed.fold import SEVERAL_PARTITIONS, UNKNOWN, folded
from kafka_lake.ingest.keyed.keys import DOES, KEPT, Keys, quoted
from kafka_lake.ingest.keyed.stale import MARK
from kafka_lake.ingest.rules.refused import Refused
from kafka_lake.spark.kept import kept

_RULE = "__kafka_lake_rule"
_PLACE = ("topic_id", "partition", "offset")


def split(changes: DataFrame, refused: Refused, keys: Keys) -> tuple[DataFrame, DataFrame]:
    """Return the changes that no rule refuses, and the others with the class of their dead letters.

    Args:
        changes: In the table's types.
        refused: Names the records of the latter.
        keys: Tell where the place in Kafka is.
    """
    told = changes.sparkSession.createDataFrame(refused.records)
    classes = F.create_map(*[F.lit(each) for n, (name, _) in enumerate(refused.reasons) for each in (n, name)])
    named = [F.col(name).alias(f"__kafka_lake_refused_{name}") for name in _PLACE]
    told = F.broadcast(told.select(*named, classes[F.col("reason")].alias(_RULE)))
    place = F.col(quoted(keys.metadata))
    same = place["topic_id"].eqNullSafe(F.col("__kafka_lake_refused_topic_id"))
    for name in _PLACE[1:]:
        same &= place[name] == F.col(f"__kafka_lake_refused_{name}")
    bad = changes.join(told, same).select(*[F.col(quoted(name)) for name in changes.columns], _RULE)
    return changes.join(told, same, "left_anti"), bad


def marks_of(refused: DataFrame, keys: Keys, columns: T.StructType) -> DataFrame:
    """Return the newest refused change of each key, with its mark, and `SEVERAL_PARTITIONS`.

    Args:
        refused: Changes, with the class of their dead letters.
        keys: Tell rows apart, and changes older from newer.
        columns: The table's.
    """
    kind = columns[STALE].dataType
    assert isinstance(kind, T.StructType), "has_marks has looked"
    newest = folded(refused, keys, ()).drop(UNKNOWN)
    values = [_value(field, keys).cast(field.dataType).alias(field.name) for field in kind]
    no_names = F.array().cast("array<string>")
    made = newest.withColumns({STALE: F.struct(*values), DOES: F.lit(MARK), KEPT: no_names})
    return made.drop(_RULE)


def _value(field: T.StructField, keys: Keys) -> Column:
    if field.name == STALE_RULE:
        return F.col(_RULE)
    if field.name == keys.metadata:
        assert isinstance(field.dataType, T.StructType), "its fields name a record"
        place = F.col(quoted(keys.metadata))
        return F.struct(*[place[name].alias(name) for name in field.dataType.names])
    return F.col(quoted(field.name))


def with_marks(
    changes: DataFrame, marks: DataFrame, keys: Keys, held: ExitStack
) -> tuple[DataFrame, Bounds, int, bool]:
    """Return changes with the marks of their keys, and marks of the keys that have no other change.

    Args:
        changes: One for each key.
        marks: What `marks_of` gave.
        keys: Tell rows apart.
        held: Lets go of what Spark keeps.

    Returns:
        All that is to be merged; between which values their keys lie; how many have nothing but a mark; and whether
        there are changes of a key from several Kafka partitions.
    """
    same = F.expr(keys.same("s", "m"))
    names = [name for name in changes.columns if name != STALE]
    several = F.coalesce(F.col(f"m.{SEVERAL_PARTITIONS}"), F.lit(False)).alias(SEVERAL_PARTITIONS)
    of_change = [*[F.col(f"s.{quoted(name)}") for name in names], F.col(f"m.{STALE}"), several]
    marked = changes.alias("s").join(marks.alias("m"), same, "left").select(*of_change)
    alone = marks.alias("m").join(changes.alias("s"), same, "left_anti")
    both = kept(marked.unionByName(alone.select(*_shared(marks, marked)), allowMissingColumns=True), held)
    other = f"s.{STALE} IS NOT NULL AND {keys.other_partition('s', f's.{STALE}')}"
    looked = (
        F.count_if(F.col(DOES) == MARK).alias("alone"),
        F.expr(f"coalesce(bool_or({SEVERAL_PARTITIONS} OR ({other})), false)").alias("several"),
    )
    within, found = bounds(both, keys, *looked)
    return both.drop(SEVERAL_PARTITIONS), within, found["alone"], found["several"]


def _shared(marks: DataFrame, changes: DataFrame) -> Iterator[Column]:
    return (F.col(f"m.{quoted(name)}") for name in marks.columns if name in changes.columns)
