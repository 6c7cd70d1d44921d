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
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived import frames as frames_module
from kafka_lake.derived.frames import Computed, Frames, within
from kafka_lake.derived.plan import DerivePlan, Pinned
from kafka_lake.derived.upstream import Changes, Read, Record
from kafka_lake.derived.verify import verify
from kafka_lake.errors import AuditFailedError
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.runtime.context import Observer
from kafka_lake_tests.exhaustive import exhaustive

COLUMNS = (
    "id int, store string, "
    "_kafka struct<topic: string, topic_id: string, partition: int, offset: bigint, timestamp: timestamp>"
)
SPEC = DerivedTable(table="t", sources=("orders",), write="append", sql="SELECT id FROM orders")


def orders_of(session: SparkSession, orders: Sequence[tuple[int, int, str | None]]) -> DataFrame:
    """Make rows of a topic: of each the offset, the id and the store."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return session.createDataFrame(
        [(number, store, ("orders", "t", 0, offset, at)) for offset, number, store in orders], COLUMNS
    )


def pinned(since: int) -> Pinned:
    read = Read("lake.orders", "u", 1, Position(TopicIdentity("c", "t", "orders"), {0: since}), 9, 0, 9, 0)
    return Pinned(("lake", "orders"), read, read, Changes(True, {0: since}), origin="_kafka")


class Here(Frames):
    """Gives frames that are there already."""

    def __init__(
        self, session: SparkSession, plan: DerivePlan, held: ExitStack, spec: DerivedTable = SPEC, **tables: DataFrame
    ) -> None:
        engine: Any = SimpleNamespace(spark=lambda: session)
        super().__init__(engine, spec, plan, held)
        self.tables = tables

    def _rows(self, item: Pinned, snapshot: int | None) -> DataFrame:
        return self.tables[item.identifier[1]]


@pytest.mark.exhaustive
def test_rows_are_found_by_however_many_ranges_of_offsets(spark_resource: SparkResource) -> None:
    session, chance = spark_resource.spark_session, random.Random(7)
    offsets = sorted(chance.sample(range(4000), 500))
    rows, item = orders_of(session, [(offset, 1, "s") for offset in offsets]), pinned(3900)

    def found(frame: DataFrame) -> list[int]:
        return sorted(row.offset for row in frame.select("_kafka.offset").collect())

    plan = DerivePlan(None, 1, Record("q", {}, {}), {"orders": item}, {})
    with ExitStack() as held:
        frames = Here(session, plan, held, orders=rows)
        for count in (3, 900):
            starts = sorted(chance.sample(range(1300), count))
            ranges = [OffsetRange(0, 3 * start, 3 * start + 2) for start in starts]
            inside = {offset for one in ranges for offset in range(one.start, one.end)}
            assert found(rows.filter(within(item.identity, ranges))) == [one for one in offsets if one in inside]
            assert found(frames.new(ranges)) == [one for one in offsets if one in inside or one >= 3900]


@pytest.mark.parametrize("most", [exhaustive(1000), 3])
def test_offsets_between_added_rows_are_not_derived_again(
    most: int, spark_resource: SparkResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made of them stays, also where their rows have expired."""
    session = spark_resource.spark_session
    added = orders_of(session, [(key, 1, "s") for key in (3, 3, 4, 90, 700, 702)])
    monkeypatch.setattr(frames_module, "added_between", lambda *_: added)
    monkeypatch.setattr(frames_module, "MAX_RANGES", most)
    value = pinned(800)
    upstream = Pinned(value.identifier, value.read, value.before, Changes(True, {0: 800}, added=((1, 2),)), "_kafka")
    plan = DerivePlan(None, 1, Record("q", {}, {}), {"orders": upstream}, {})
    with ExitStack() as held:
        frames = Here(session, plan, held)
        frames._engine.catalog = SimpleNamespace(spark_name=lambda _: "t")  # type: ignore[misc,assignment]
        exact = (OffsetRange(0, 3, 5), OffsetRange(0, 90, 91), OffsetRange(0, 700, 701), OffsetRange(0, 702, 703))
        assert frames.ranges() == (exact if most == 1000 else (OffsetRange(0, 3, 703),))


SUMS = DerivedTable(
    table="t", sources=("orders",), write="aggregate", key={"store": "store"},
    sql="SELECT store, count(*) AS n FROM orders GROUP BY store",
)  # fmt: skip
RIGHT = [("a", 2), (None, 1), ("b", 1)]


@pytest.mark.parametrize(
    ("staged", "problem"),
    [
        (RIGHT, ""),
        ([*RIGHT, ("gone", 1)], r'store = "gone", .* {"store": "gone", "n": 1} from .*, and no row from all rows'),
        ([("a", 2), (None, 2), ("b", 1)], r'store = null, .* {"store": null, "n": 2} from .* "n": 1} from all rows'),
        (RIGHT[:2], r'store = "b", .* no row from .*, and {"store": "b", "n": 1} from all rows'),
        ([*RIGHT, ("a", 2)], r'1 of 5 keys differ: for store = "a", .* and no row from all rows'),
    ],
)
def test_touched_keys_are_staged_as_all_rows_give_them(
    staged: list[tuple[str | None, int]], problem: str, spark_resource: SparkResource
) -> None:
    """Among them are keys that have gone, and the null key."""
    if problem:
        with pytest.raises(AuditFailedError, match=problem):
            compared(spark_resource.spark_session, staged)
    else:
        assert compared(spark_resource.spark_session, staged) == 5


def test_rows_are_hidden_without_samples(spark_resource: SparkResource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_SAMPLES", "false")
    with pytest.raises(AuditFailedError, match=r"1 of 5 keys differ: .* they differ in n") as refused:
        compared(spark_resource.spark_session, [("a", 77), *RIGHT[1:]])
    assert "77" not in str(refused.value)


def compared(session: SparkSession, staged: list[tuple[str | None, int]]) -> int:
    """Verify what is staged for some touched keys."""
    rows = orders_of(session, [(0, 1, "a"), (1, 2, "a"), (2, 3, None), (3, 4, "b")])
    plan = DerivePlan(None, 1, Record("q", {}, {}), {"orders": pinned(4)}, {})
    there = session.createDataFrame(staged, "store string, n bigint")
    touched = session.createDataFrame([("a",), (None,), ("gone",), ("b",), ("never",)], "kafka_lake_key_0 string")
    with ExitStack() as held:
        frames = Here(session, plan, held, SUMS, orders=rows)
        engine: Any = SimpleNamespace(observer=Observer())
        return verify(engine, SUMS, plan, frames, computed=Computed(there, "derive", keys=touched), staged=there)
