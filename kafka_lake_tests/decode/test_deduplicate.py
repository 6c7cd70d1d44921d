"""Deduplicate change events in Spark: which event of a key counts, and which values."""

from collections.abc import Sequence
from typing import Any

import pytest

from kafka_lake.cdc.task.change import DELETE, UPSERT
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.writers.upsert.deduplicate import UNKNOWN, latest_per_key
from kafka_lake.writers.upsert.keys import OPERATION, UNCHANGED, Keys

pytestmark = pytest.mark.integration

KEYS = Keys(("id",), ("at",), has_envelope=False, topic_id="today")
COLUMNS = (
    f"id int, at int, a string, b string, _kafka struct<topic_id: string, partition: int, offset: bigint>, "
    f"{OPERATION} string, {UNCHANGED} array<string>"
)
Change = tuple[int, int, str | None, str | None, str, list[str]]


def change(id_: int, at: int, a: str | None, b: str | None = None, does: str = UPSERT, kept: Sequence[str] = ()) -> Any:
    return (id_, at, a, b, does, list(kept))


@pytest.fixture
def fold(spark_resource: SparkResource) -> Any:
    def run(changes: Sequence[Change], may_lack: Sequence[str]) -> dict[int, Any]:
        rows = [
            (id_, at, a, b, ("today", 0, offset), does, kept)
            for offset, (id_, at, a, b, does, kept) in enumerate(changes)
        ]
        frame = spark_resource.spark_session.createDataFrame(rows, COLUMNS)
        return {row["id"]: row for row in latest_per_key(frame, KEYS, may_lack).collect()}

    return run


def test_newest_change_of_a_key_is_left(fold: Any) -> None:
    changes = [
        change(1, 5, "newest"), change(1, 4, "older"), change(1, 3, "oldest"),
        change(2, 1, "first"), change(2, 1, "of equal ones the last"), change(3, 9, None, does=DELETE),
        change(3, 8, "gone"),
    ]  # fmt: skip
    for may_lack in ((), ("a", "b")):
        found = fold(changes, may_lack)
        assert {key: (row["at"], row["a"], row[OPERATION]) for key, row in found.items()} == {
            1: (5, "newest", UPSERT), 2: (1, "of equal ones the last", UPSERT), 3: (9, None, DELETE),
        }  # fmt: skip


def test_value_is_taken_from_newest_change_that_has_it(fold: Any) -> None:
    changes = [
        change(1, 1, "a1", "b1"), change(1, 3, "a3", None, kept=["b"]), change(1, 2, None, "b2", kept=["a"]),
        change(2, 2, None, None, kept=["a", "b"]), change(2, 1, None, "b1", kept=["a"]),
    ]  # fmt: skip
    found = fold(changes, ("a", "b"))
    assert {key: (row["at"], row["a"], row["b"], row[UNCHANGED], row[UNKNOWN]) for key, row in found.items()} == {
        1: (3, "a3", "b2", [], []), 2: (2, None, "b1", ["a"], []),
    }  # fmt: skip


def test_value_before_the_last_delete_is_unknown(fold: Any) -> None:
    changes = [
        change(1, 1, "a1", "b1"), change(1, 2, None, does=DELETE), change(1, 3, "a3", "b3"),
        change(1, 4, None, does=DELETE),
        change(1, 5, "a5", None, kept=["b"]),
        # The delete is older than the row that was told again.
        change(2, 1, "a1", "b1"), change(2, 2, None, does=DELETE), change(2, 3, None, "b3", kept=["a"]),
        change(2, 4, "a4", None, kept=["b"]),
    ]  # fmt: skip
    found = fold(changes, ("a", "b"))
    assert {key: (row["a"], row["b"], row[UNCHANGED], row[UNKNOWN]) for key, row in found.items()} == {
        1: ("a5", None, [], ["b"]), 2: ("a4", "b3", [], []),
    }  # fmt: skip
