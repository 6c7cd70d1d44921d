"""Replays of a topic with several tables: each record is where today's conditions say, once, and nothing vanishes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.ingest.topic_runner import LeftBehindError
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def table_of(topic: Topic, name: str, **settings: Any) -> TopicTable:
    return TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", **{"schema": "id bigint", **settings})


def of_type(*types: str) -> When:
    return When(field="type", values=types)


@pytest.mark.exhaustive
def test_replay_moves_rows_and_dead_letters_that_no_table_takes(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    orders, refunds = table_of(topic, "orders"), table_of(topic, "refunds")
    spec = topic.spec("id bigint", where=of_type("own"), routes=(Route(of_type("order"), orders),))
    for kind in ("order", "own", "refund", "other"):
        topic.send({"type": kind, "id": 1})

    def letters() -> list[tuple[int, str]]:
        return sorted((row["offset"], row["error_class"]) for row in view(spec).dead_letters())

    ingest(spec, connections(), "first")
    assert letters() == [(2, "unmatched"), (3, "unmatched")]
    replay(spec, connections(), "same", ReplayRange())
    assert letters() == [(2, "unmatched"), (3, "unmatched")]
    # One table begins to take records, and another one takes none any more.
    routes = (Route(of_type("none"), orders), Route(of_type("refund"), refunds))
    changed = replace(spec, routes=routes)
    ingest(changed, connections(), "refunds")
    replay(changed, connections(), "changed", ReplayRange())
    assert letters() == [(0, "unmatched"), (3, "unmatched")]
    assert [view(table_spec).ids() for table_spec in (orders, refunds, spec)] == [[], [1], [1]]
    replay(replace(changed, unmatched="ignore"), connections(), "ignored", ReplayRange())
    assert letters() == []


def test_dead_letter_replay_of_changes_leaves_unmatched_ones(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint", where=of_type("own"), write="upsert", key=("id",))
    for value in ({"type": "own", "id": 1}, {"type": "other", "id": 2}, {"type": "own", "id": "3x"}):
        topic.send(value)
    ingest(spec, connections(), "first")
    replay_dead_letters(spec, connections(), "again")
    letters = sorted((row["offset"], row["error_class"]) for row in view(spec).dead_letters())
    assert letters == [(1, "unmatched"), (2, "wrong_type")]


@pytest.mark.exhaustive
def test_replay_sets_a_record_apart_that_cannot_be_routed(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    orders, big = table_of(topic, "orders"), table_of(topic, "big")
    for number in range(3):
        topic.send({"type": "order", "id": number}, key=b"5" if number == 1 else None)
    spec = topic.spec("id bigint", routes=(Route(of_type("order"), orders),))
    ingest(spec, connections(), "first")
    assert view(orders).ids() == [0, 1, 2]
    raises = Route(When(sql="cast(concat(string(key), 'x') as int) > 0"), big)
    changed = replace(spec, routes=(*spec.routes, raises))
    ingest(changed, connections(), "big")
    replay(changed, connections(), "replay", ReplayRange())
    assert view(orders).ids() == [0, 2]
    assert [(row["offset"], row["error_class"]) for row in view(spec).dead_letters()] == [(1, "undecodable")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("write", ["append", "upsert"])
def test_settings_of_dead_letters_count_for_unmatched_records(
    write: Any, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, warnings = new_topic(1), list[str]()
    its: dict[str, Any] = {"write": write, "key": ("id",)} if write == "upsert" else {}
    routes = (Route(of_type("order"), table_of(topic, "orders")),)
    spec = topic.spec("id bigint", where=of_type("own"), routes=routes, **its)
    for kind in ("own", "refund", "order"):
        topic.send({"type": kind, "id": 1})
    # A keyed table takes it for the end of a row.
    topic.send(None, key=b"1")
    count = 1 if write == "append" else 2
    for settings, message in (
        ({"unmatched": "fail"}, "no table takes the record at partition 0, offset 1"),
        ({"dead_letters": "fail"}, f"dead_letters is fail, and {count} of 3 records can't become rows"),
        ({"max_dead_letters": 0}, f"{count} dead letters of 3 records, the limit is 0"),
    ):
        with pytest.raises(LeftBehindError, match=message):
            ingest(replace(spec, **settings), connections(), "refused", observer=Observer(warn=warnings.append))
    assert not [warning for warning in warnings if "Planning again" in warning]
    assert view(spec.tables[1]).ids() == [1]
    done = ingest(replace(spec, dead_letters="skip"), connections(), "skipped")
    assert (done.total("dead_letters"), view(spec).ids()) == (count, [1])
    for kind in ("refund", "own"):
        topic.send({"type": kind, "id": 2})
    ingest(spec, connections(), "kept")
    assert [(row["offset"], row["error_class"]) for row in view(spec).dead_letters()] == [(4, "unmatched")]
    assert view(spec).ids() == [1, 2]
