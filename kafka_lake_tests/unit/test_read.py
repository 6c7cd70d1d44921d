"""What a plan asks Spark's Kafka source for, and what the client is asked for instead."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.read import RECORDS_A_SPLIT, read

ME = TopicIdentity("c", "t", "pizzas")


def asked(plan: Plan) -> Mapping[str, str]:
    """Return the options that Spark's Kafka source gets."""
    nothing: Any = None
    frames: Any = SimpleNamespace(from_kafka=lambda _, options: options)
    options: Any = read(Connections(nothing, {"kafka.a": "b"}, nothing, lambda: None, frames=frames), plan, "pizzas")
    return dict(options)


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
