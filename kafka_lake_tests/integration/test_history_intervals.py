"""Histories without a topic: whatever comes in which batch, the rows are those of all events sorted at once."""

import random
from collections import defaultdict
from typing import Any

import pytest
from pyspark.sql import types as T

from kafka_lake.formats.rows import DELETED, EVENT, EVENT_TYPE, METADATA, VALID_FROM, VALID_TO
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.writers.history.versions import HistoryTable, event_rows, is_changed, union_events, with_intervals
from kafka_lake.writers.upsert.keys import EVENT_TIME, OPERATION, UNCHANGED, Keys
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.history_model import Event, assert_tiles, history

pytestmark = pytest.mark.integration

VALUES = T.StructType(
    [
        *(T.StructField(name, T.LongType()) for name in ("id", "at", "a")),
        T.StructField("b", T.StringType()),
        T.StructField("m", T.MapType(T.StringType(), T.LongType())),
    ]
)
ROWS = T.StructType([*VALUES.fields, T.StructField("_kafka", METADATA)])
OWN = {VALID_FROM: T.LongType(), VALID_TO: T.LongType(), DELETED: T.BooleanType(), EVENT: EVENT_TYPE}
TABLE = T.StructType([*ROWS.fields, *(T.StructField(name, kind) for name, kind in OWN.items())])
CHANGES = T.StructType(
    [
        *ROWS.fields,
        T.StructField(OPERATION, T.StringType()),
        T.StructField(UNCHANGED, T.ArrayType(T.StringType())),
        T.StructField(EVENT_TIME, T.TimestampType()),
    ]
)
IDS = {name: number for number, name in enumerate(VALUES.names)}
BATCHES = 3


def shape_of(track: tuple[str, ...] = ()) -> HistoryTable:
    keys = Keys(columns=("id",), order_by=("at",), has_envelope=False, topic_id="today")
    return HistoryTable(keys, TABLE, track, nullable=("a", "b", "m"), ids=IDS)


def random_events(chance: random.Random, keys: int) -> list[tuple[int, Event]]:
    """Return events with the batch that each comes in: those of a Kafka partition in the order of their offsets."""
    found = []
    offsets: dict[int, int] = defaultdict(int)
    for key in range(keys):
        batches = dict.fromkeys(range(3), 0)
        for _ in range(chance.randint(1, 10)):
            partition = chance.randrange(3)
            batches[partition] = min(BATCHES - 1, batches[partition] + chance.choice((0, 0, 0, 1)))
            is_delete = chance.random() < 0.25
            at = None if is_delete and chance.random() < 0.5 else chance.randrange(6)
            values = {"a": chance.randrange(2), "b": chance.choice("xy"), "m": {"x": chance.randrange(2)}}
            keeps = frozenset(name for name in values if chance.random() < 0.3)
            if is_delete:
                values, keeps = dict.fromkeys(values), frozenset()
            reported = {name: value for name, value in values.items() if name not in keeps}
            event = Event(key, partition, offsets[partition], at, at, {**reported, "at": at}, keeps, is_delete)
            offsets[partition] += 1
            found.append((batches[partition], event))
            while chance.random() < 0.15:
                found.append((chance.randint(batches[partition], BATCHES - 1), event))
    return found


def change(event: Event) -> tuple[Any, ...]:
    values = [event.values.get(name) for name in ("a", "b", "m")]
    place = ("t", "today", event.partition, event.offset, None, None, None, None)
    does = "delete" if event.is_delete else "upsert"
    return (event.key, event.order, *values, place, does, sorted(event.keeps), None)


def as_told(row: Any) -> tuple[Any, ...]:
    return (row["valid_from"], row["valid_to"], row[DELETED], row["a"], row["b"], row["m"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("track", [("a", "m"), exhaustive(()), exhaustive(("b",))])
def test_the_rows_are_those_of_all_events_sorted_at_once(track: tuple[str, ...], spark_resource: SparkResource) -> None:
    spark, shape = spark_resource.spark_session, shape_of(track)
    events = random_events(random.Random(len(track)), 150)
    stored: list[Any] = []
    for number in range(BATCHES):
        batch = {event: None for in_batch, event in events if in_batch == number}
        changes = spark.createDataFrame([change(event) for event in batch], CHANGES)
        reported = union_events(spark.createDataFrame(stored, shape.columns), event_rows(changes, shape), shape)
        rows = with_intervals(reported, shape).cache()
        stored = rows.select(*shape.columns.names).collect()
        arrived = [event for in_batch, event in events if in_batch <= number]
        modelled = history(arrived, track)
        assert_tiles(modelled)
        wanted = {
            place: (row.valid_from, row.valid_to, row.is_delete, *(row.values.get(name) for name in ("a", "b", "m")))
            for place, row in modelled.items()
        }
        found = {(r["id"], r["_kafka"]["partition"], r["_kafka"]["offset"]): as_told(r) for r in stored}
        assert found == wanted
    # What is told once more changes nothing.
    again = union_events(spark.createDataFrame(stored, shape.columns), event_rows(changes, shape), shape)
    assert with_intervals(again, shape).filter(is_changed(shape)).count() == 0


def test_maps_are_compared_by_their_entries_to_the_microsecond(spark_resource: SparkResource) -> None:
    spark = spark_resource.spark_session
    kind = "map<string, timestamp>"
    table = spark.sql(
        f"SELECT 1 AS id, CAST(null AS {kind}) AS m, "
        f"struct(CAST(null AS {kind}) AS m, 0.0D AS d, array(CAST(null AS {kind})) AS l) AS s"
    ).schema
    keys = Keys(columns=("id",), order_by=(), has_envelope=False, topic_id="today")
    shape = HistoryTable(keys, table)
    entries = "'a', TIMESTAMP '2026-01-01 00:00:00.000001'", "'b', TIMESTAMP '2026-01-02 00:00:00'"
    others = {
        f"map({', '.join(entries)})": True,
        f"map({', '.join(reversed(entries))})": True,
        f"map({', '.join(entries)})".replace("0001'", "0002'"): False,
        "map()": False,
        "null": False,
    }
    one = next(iter(others))
    for other, is_same in others.items():
        frame = spark.sql(
            f"SELECT struct({one} AS m) AS x, struct(CAST({other} AS {kind}) AS m) AS y, "
            f"struct(struct({one} AS m, 0.0D AS d, array({one}, null) AS l) AS s) AS v, "
            f"struct(struct(CAST({other} AS {kind}) AS m, -0.0D AS d, array({one}, null) AS l) AS s) AS w"
        )
        same = shape.comparable(("m",), "x").eqNullSafe(shape.comparable(("m",), "y"))
        nested = shape.comparable(("s",), "v").eqNullSafe(shape.comparable(("s",), "w"))
        (found,) = frame.select(same.alias("same"), nested.alias("nested")).collect()
        assert found["same"] == is_same, other
        assert found["nested"] == is_same, other
