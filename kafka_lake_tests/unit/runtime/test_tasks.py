"""How many tasks write a commit: all cores are at it, and none of them twice."""

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.frames import tasks_of


@pytest.mark.parametrize(
    ("records", "partitions", "cores", "tasks"),
    [
        (0, 0, "4", 1),
        (1_000, 6, "4", 1),
        (250_001, 6, "4", 2),
        (5_000_000, 6, "2", 2),
        (5_000_000, 6, "4", 4),
        (5_000_000, 6, "64", 20),
        (1_000, 1_000, "4", 4),
        (1_000, 150, "4", 2),
        (1_000, 6, "", 1),
        (1_000_000, 6, "", 2),
        (5_000_000, 6, "", 5),
    ],
)
def test_a_long_batch_is_written_by_all_cores_at_once(records: int, partitions: int, cores: str, tasks: int) -> None:
    item = records // max(1, partitions)
    lengths = [item + (records - item * partitions if p == 0 else 0) for p in range(partitions)]
    ranges = tuple(OffsetRange(p, 0, length) for p, length in enumerate(lengths))
    plan = Plan(ranges, Position(TopicIdentity("c", "t", "orders"), {}), 0)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _, default: cores or default))
    assert tasks_of(plan, spark) == tasks
