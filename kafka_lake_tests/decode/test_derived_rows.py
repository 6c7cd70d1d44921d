"""What a commit of a derived table does to its rows, by the real Spark over frames: no table, no broker."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.derive import frames as frames_module
from kafka_lake.derive.by_offset import new_rows, rows_within, rows_without
from kafka_lake.derive.compute import Computed, compute
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.detect import Changes
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.plan import DerivePlan, Pinned
from kafka_lake.derive.record import Read, Record
from kafka_lake.derive.waiting import Waiting
from kafka_lake_tests.lanes import exhaustive

NOW, LOOKBACK = 1_700_000_000, 100
COLUMNS = (
    "id int, store string, "
    "_kafka struct<topic: string, topic_id: string, partition: int, offset: bigint, timestamp: timestamp>"
)
SPEC = DerivedTable(
    table="t", sources=("orders",), join=("stores",), wait_for=("stores",), lookback=f"{LOOKBACK}s", write="upsert",
    key={"id": "id"}, sql="SELECT o.id, s.city FROM orders o JOIN stores s ON o.store = s.store",
)  # fmt: skip


def orders_of(session: SparkSession, orders: Sequence[tuple[int, int, str]]) -> DataFrame:
    """Make rows of a topic: of each the offset, the id and the store."""
    at = datetime.fromtimestamp(NOW, UTC)
    return session.createDataFrame(
        [(number, store, ("orders", "t", 0, offset, at)) for offset, number, store in orders], COLUMNS
    )


def pinned(since: int, ranges: Sequence[OffsetRange] = (), expired: int = 0) -> Pinned:
    read = Read("lake.orders", "u", 1, Position(TopicIdentity("c", "t", "orders"), {0: since}), 9, 0, 9, 0, expired)
    return Pinned(("lake", "orders"), read, read, Changes(True, {0: since}, tuple(ranges)), origin="_kafka")


class Here(Frames):
    """Gives frames that are there already."""

    def __init__(self, session: SparkSession, plan: DerivePlan, held: ExitStack, **tables: DataFrame) -> None:
        engine: Any = SimpleNamespace(spark=lambda: session)
        super().__init__(engine, SPEC, plan, held)
        self.tables = tables

    def _rows(self, each: Pinned, snapshot: int | None) -> DataFrame:
        return self.tables[each.identifier[1]]

    def made_of(self, name: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        return rows_within(self.tables["own"], self._plan.upstream[name], ranges)


def computed(
    session: SparkSession, held: ExitStack, orders: Pinned, rows: DataFrame, *, waiting: Sequence[OffsetRange] = (),
    own: DataFrame | None = None,
) -> Computed:  # fmt: skip
    joined = Pinned(("lake", "stores"), Read("lake.stores", "u", 1, None, 9, 0, 9, 0))
    plan = DerivePlan(
        None, 1, Record("q", {}, {}), {"orders": orders}, {"stores": joined}, now=NOW, looks_again=True,
        waiting=Waiting(tuple(waiting), NOW * 1000 if waiting else None),
    )  # fmt: skip
    there = session.createDataFrame([("there", "a city")], "store string, city string")
    tables = {"orders": rows, "stores": there, "own": rows.limit(0) if own is None else own}
    return compute(Here(session, plan, held, **tables), SPEC, plan)


def test_a_row_goes_whose_record_is_derived_again_and_finds_nothing_to_look_up_any_more(
    spark_resource: SparkResource,
) -> None:
    session = spark_resource.spark_session
    rows = orders_of(session, [(0, 10, "gone"), (1, 11, "there"), (2, 12, "there")])
    with ExitStack() as held:
        again = pinned(3, [OffsetRange(0, 0, 2)])
        done = computed(session, held, again, rows, own=rows)
        assert done.keys is not None
        assert {each[0] for each in done.keys.collect()} == {10, 11}
        assert [(row.id, row.city) for row in done.rows.collect()] == [(11, "a city")]
        assert done.kept_back.waiting.ranges == (OffsetRange(0, 0, 1),)


@pytest.mark.parametrize(
    ("expired", "replayed", "told"), [exhaustive(1, (), 2), exhaustive(0, (), 0), (1, (OffsetRange(0, 1, 2),), 1)]
)
def test_records_whose_rows_expire_while_they_wait_are_told(
    expired: int, replayed: Sequence[OffsetRange], told: int, spark_resource: SparkResource
) -> None:
    session = spark_resource.spark_session
    rows = orders_of(session, [(0, 10, "there"), (3, 13, "none"), (7, 17, "there")])
    waiting = [OffsetRange(0, 0, 4)] if told == 2 else [OffsetRange(0, 0, 1), OffsetRange(0, 1, 4)]
    with ExitStack() as held:
        upstream = pinned(7, replayed, expired)
        back = computed(session, held, upstream, rows, waiting=waiting).kept_back
        assert (back.expired, back.waiting.ranges) == (told, (OffsetRange(0, 3, 4),))
        assert sum(map(len, back.released)) == 3


def test_rows_are_found_by_however_many_ranges_of_offsets(spark_resource: SparkResource) -> None:
    session, chance = spark_resource.spark_session, random.Random(7)
    offsets = sorted(chance.sample(range(4000), 500))
    rows, each = orders_of(session, [(offset, 1, "s") for offset in offsets]), pinned(3900)

    def found(frame: DataFrame) -> list[int]:
        return sorted(row.offset for row in frame.select("_kafka.offset").collect())

    for count in (3, 300):
        starts = sorted(chance.sample(range(1300), count))
        ranges = [OffsetRange(0, 3 * start, 3 * start + 2) for start in starts]
        inside = {offset for one in ranges for offset in range(one.start, one.end)}
        assert found(rows_within(rows, each, ranges)) == [one for one in offsets if one in inside]
        assert found(rows_without(rows, each, ranges)) == [one for one in offsets if one not in inside]
        assert found(new_rows(rows, each, ranges)) == [one for one in offsets if one in inside or one >= 3900]


@pytest.mark.parametrize("most", [exhaustive(1000), 3])
def test_offsets_between_those_that_were_added_are_not_derived_again(
    most: int, spark_resource: SparkResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made of them stays, also where their rows have expired."""
    session = spark_resource.spark_session
    added = orders_of(session, [(each, 1, "s") for each in (3, 3, 4, 90, 700, 702)])
    monkeypatch.setattr(frames_module, "added_between", lambda *_: added)
    monkeypatch.setattr(frames_module, "_MOST_RANGES", most)
    each = pinned(800)
    upstream = Pinned(each.identifier, each.read, each.before, Changes(True, {0: 800}, added=((1, 2),)), "_kafka")
    plan = DerivePlan(None, 1, Record("q", {}, {}), {"orders": upstream}, {})
    with ExitStack() as held:
        frames = Here(session, plan, held)
        frames._engine.catalog = SimpleNamespace(spark_name=lambda _: "t")  # type: ignore[misc,assignment]
        exact = (OffsetRange(0, 3, 5), OffsetRange(0, 90, 91), OffsetRange(0, 700, 701), OffsetRange(0, 702, 703))
        assert frames.ranges("orders") == (exact if most == 1000 else (OffsetRange(0, 3, 703),))
