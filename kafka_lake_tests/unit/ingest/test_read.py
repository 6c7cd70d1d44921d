"""What a plan asks Spark's Kafka source for, and what the client is asked for instead."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.ingest.read import RECORDS_A_SPLIT, SAMPLE_RECORDS, both_ends, read, read_sample
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import Plan

ME = TopicIdentity("c", "t", "pizzas")


def asked(plan: Plan) -> Mapping[str, str]:
    """Return the options that Spark's Kafka source gets."""
    nothing: Any = None
    frames: Any = SimpleNamespace(from_kafka=lambda _, options: options)
    options: Any = read(Connections(nothing, {"kafka.a": "b"}, nothing, lambda: None, frames=frames), plan, "pizzas")
    return dict(options)


class Frame(SimpleNamespace):
    """What Spark is asked for."""

    def union(self, other: "Frame") -> "Frame":
        return Frame(asked=self.asked + other.asked)

    def coalesce(self, _: int) -> "Frame":
        return self


def sampled(plan: Plan) -> list[tuple[int, int, int]]:
    """Return the ranges that a sample reads; none if there is no sample."""

    def given(_: Any, options: Mapping[str, str]) -> Frame:
        starts, ends = (json.loads(options[name])["pizzas"] for name in ("startingOffsets", "endingOffsets"))
        return Frame(asked=[(int(p), starts[p], ends[p]) for p in starts])

    nothing: Any = None
    frames: Any = SimpleNamespace(from_kafka=given)
    frame: Any = read_sample(Connections(nothing, {}, nothing, lambda: None, frames=frames), plan, "pizzas")
    return [] if frame is None else frame.asked


def test_sample_has_both_ends_of_each_range() -> None:
    long = SAMPLE_RECORDS * 5
    plan = Plan((OffsetRange(0, 7, long), OffsetRange(1, 0, 3), OffsetRange(2, 5, 5)), Position(ME, {}), 0)
    count = SAMPLE_RECORDS // 4
    assert sampled(plan) == [(0, 7, 7 + count), (1, 0, 3), (0, long - count, long)]
    large = sum(end - start for _, start, end in sampled(replace(plan, record_bytes=1e6)))
    assert 2 < large < 20
    assert sampled(replace(plan, by_client=True)) == sampled(replace(plan, ranges=(OffsetRange(0, 0, 9),))) == []


def test_ends_of_ranges_do_not_overlap() -> None:
    first, last = both_ends([OffsetRange(0, 0, 10), OffsetRange(1, 0, 6)], 24)
    assert (first, last) == ((OffsetRange(0, 0, 6), OffsetRange(1, 0, 6)), (OffsetRange(0, 6, 10),))


def test_read_fails_if_kafka_lost_a_planned_offset() -> None:
    plan = Plan((OffsetRange(0, 3, 9), OffsetRange(2, 0, 1)), Position(ME, {0: 9, 2: 1}), 0)
    options = asked(plan)
    assert options["failOnDataLoss"] == "true"
    assert json.loads(options["assign"]) == {"pizzas": [0, 2]}
    assert json.loads(options["startingOffsets"]) == {"pizzas": {"0": 3, "2": 0}}
    assert json.loads(options["endingOffsets"]) == {"pizzas": {"0": 9, "2": 1}}
    assert (options["kafka.a"], options["includeHeaders"]) == ("b", "true")
    assert "minPartitions" not in options
    long = replace(plan, ranges=(OffsetRange(0, 0, 3 * RECORDS_A_SPLIT), OffsetRange(1, 0, 5)))
    assert asked(long)["minPartitions"] == "5"
