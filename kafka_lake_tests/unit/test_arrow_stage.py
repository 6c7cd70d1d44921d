"""Arrow's batches without a bound of bytes: what is lifted is put back, and what goes wrong there hides nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.arrow_writer import _without_bound, may_withhold


def session(fails_from: int) -> tuple[Any, list[str]]:
    """Return a session that answers no more from its n-th setting on, and what it was set to."""
    told: list[str] = []

    def set_(_: str, value: str) -> None:
        told.append(value)
        if len(told) >= fails_from:
            raise ConnectionError("the server is gone")

    return SimpleNamespace(conf=SimpleNamespace(set=set_)), told


def test_the_bound_is_put_back_whatever_becomes_of_the_batch() -> None:
    spark, told = session(9)
    with pytest.raises(ValueError, match="the batch"), _without_bound(spark):
        raise ValueError("the batch")
    assert told == ["2147483647", "67108864b"]


def test_a_server_that_is_gone_hides_no_error_by_that() -> None:
    spark, told = session(2)
    with pytest.raises(ValueError, match="the batch"), _without_bound(spark):
        raise ValueError("the batch")
    assert len(told) == 2


@pytest.mark.parametrize(("record_bytes", "count", "may"), [(0, 200_000, True), (200, 200_000, True),
                                                            (10_000, 200_000, False), (200, 100, False)])  # fmt: skip
def test_large_records_are_left_out_first_unless_many_are_large(record_bytes: float, count: int, may: bool) -> None:
    spark = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "67108864b"))
    after = Position(TopicIdentity("c", "t", "pizzas"), {0: count})
    plan = Plan((OffsetRange(0, 0, count),), after, 0, record_bytes=record_bytes)
    assert may_withhold(spark, [], plan) == may
