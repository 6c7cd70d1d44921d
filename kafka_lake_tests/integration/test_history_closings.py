"""Histories with truncates and snapshots that lack rows: ahead of the table, late, with other settings by then."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.common.errors import TableError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

TRUNCATES = {"write": "upsert", "envelope": "debezium", "history": True, "on_truncate": "apply"}
SNAPSHOTS = {"write": "upsert", "envelope": "debezium", "history": True, "snapshot": "reconcile", "max_removed": None}


def send(topic: Topic, op: str, position: int, number: int | None = None, v: str = "", marker: str = "false") -> None:
    """Send a change that was made so many seconds after 1970 as its position says; or a truncate, without a number."""
    sequence = json.dumps([None if op == "r" else str(position - 1), str(position)])
    source = {"connector": "postgresql", "lsn": position, "sequence": sequence, "snapshot": marker}
    after = {"id": number, "v": v} if op in "cur" else None
    change = {"before": None, "after": after, "op": op, "source": {**source, "ts_ms": position * 1000}}
    topic.send(change, 0, key=None if number is None else json.dumps({"id": number}).encode())


def snapshot(topic: Topic, position: int, numbers: list[int]) -> None:
    for place, number in enumerate(numbers):
        marker = "first_in_data_collection" if place == 0 else "true"
        marker = "last_in_data_collection" if place == len(numbers) - 1 else marker
        send(topic, "r", position, number, "read", marker)


def rows(view: View) -> list[tuple[int, str]]:
    return sorted((row["id"], row["v"]) for row in view.rows())


def versions(view: View) -> list[tuple[Any, ...]]:
    """Return id and value of each version, from when and until when it counts."""
    seen = [row for row in view.history() if row["valid_to"] is None or row["valid_from"] < row["valid_to"]]
    told = [
        (row["id"], row["v"], *(row[name] and row[name].timestamp() for name in ("valid_from", "valid_to")))
        for row in seen
    ]
    return sorted(told, key=repr)


@pytest.mark.parametrize("is_ahead", ["killed", pytest.param("rolled back", marks=pytest.mark.exhaustive)])
def test_a_history_may_be_ahead_of_its_table_by_a_truncate_whatever_commits_come_next(
    is_ahead: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **TRUNCATES)
    send(topic, "c", 100, 1, "a")
    ingest(spec, connections(), "run-1")
    first = view(spec).table.current_snapshot().snapshot_id
    for number in (1, 2, 3):
        send(topic, "u", 110 + number, 1, f"b{number}")
    send(topic, "t", 200)
    send(topic, "c", 210, 3, "c")
    if is_ahead == "killed":
        killed_at(spec, "history published")
    else:
        ingest(spec, connections(), "run-2")
        connections().spark().sql(view(spec).call("rollback_to_snapshot", snapshot_id=str(first))).collect()
    ingest(replace(spec, max_records_per_commit=2), connections(), "run-3")
    assert rows(view(spec)) == [(3, "c")]
    of_one = [(1, "a", 100, 111), (1, "b1", 111, 112), (1, "b2", 112, 113), (1, "b3", 113, 200)]
    assert versions(view(spec)) == [*of_one, (3, "c", 210, None)]


@pytest.mark.exhaustive
def test_a_truncate_that_was_applied_counts_whatever_the_settings_are_by_then(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **TRUNCATES)
    send(topic, "c", 100, 1, "a")
    send(topic, "t", 200)
    ingest(spec, connections(), "run-1")
    ignoring = replace(spec, on_truncate="ignore")
    send(topic, "c", 150, 2, "late")
    send(topic, "c", 300, 3, "new")
    ingest(ignoring, connections(), "run-2")
    assert rows(view(spec)) == [(3, "new")]
    before = [(1, "a", 100, 200), (2, "late", 150, 200)]
    assert versions(view(spec)) == [*before, (3, "new", 300, None)]
    # One that the history alone has applied, since the run died, isn't passed over.
    send(topic, "t", 400)
    killed_at(spec, "history published")
    send(topic, "c", 500, 4, "newer")
    with pytest.raises(TableError, match="offset 4, and on_truncate: ignore would pass over it"):
        ingest(ignoring, connections(), "run-3")
    ingest(spec, connections(), "run-4")
    assert rows(view(spec)) == [(4, "newer")]
    assert versions(view(spec)) == [*before, (3, "new", 300, 400), (4, "newer", 500, None)]


@pytest.mark.exhaustive
def test_rows_that_a_snapshot_lacked_before_the_history_began_end_at_its_time(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **SNAPSHOTS)
    snapshot(topic, 100, [1, 2])
    ingest(replace(spec, history=False), connections(), "run-1")
    snapshot(topic, 200, [1, 3])
    ingest(replace(spec, history=False), connections(), "run-2")
    send(topic, "u", 210, 1, "x")
    ingest(spec, connections(), "run-3")
    replay(spec, connections(), "again", Extent("earliest", "latest"))
    assert rows(view(spec)) == [(1, "x"), (3, "read")]
    assert versions(view(spec)) == [
        (1, "read", 100, 210), (1, "x", 210, None), (2, "read", 100, 200), (3, "read", 200, None),
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_a_tombstone_behind_a_late_truncate_deletes_what_its_key_told(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **TRUNCATES)
    send(topic, "c", 10, 1, "old")
    send(topic, "c", 30, 1, "a")
    ingest(spec, connections(), "run-1")
    send(topic, "t", 20)
    topic.send(None, 0, key=b'{"id": 1}')
    ingest(spec, connections(), "run-2")
    assert rows(view(spec)) == []
    found = versions(view(spec))
    assert [each[:3] for each in found] == [(1, "a", 30), (1, "old", 10)]
    assert found[1][3] == 20
    assert found[0][3] is not None
