"""Histories on real servers: what was true when is what the history says, whatever came in which order and when."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.history_model import Event, assert_tiles, history
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401
from kafka_lake_tests.integration.test_keyed import facts

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def versions(view: View, *names: str) -> list[tuple[Any, ...]]:
    """Return what is seen by whoever asks for a time, or for what is current."""
    seen = [row for row in view.rows() if row["valid_to"] is None or row["valid_from"] < row["valid_to"]]
    found = [(row["id"], row["valid_from"], row["valid_to"], *(row[name] for name in names)) for row in seen]
    return sorted(found, key=lambda item: item[:2])


def test_a_late_change_splits_the_interval_that_it_falls_in(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id int, at bigint, v string", write="history", key=("id",), order_by=("at",))
    for at, value in ((10, "a"), (30, "c")):
        topic.send({"id": 1, "at": at, "v": value}, 0)
    topic.send({"id": 2, "at": 10, "v": "x"}, 0)
    report = ingest(spec, connections(), "run-1")
    assert versions(view(spec), "v") == [(1, 10, 30, "a"), (1, 30, None, "c"), (2, 10, None, "x")]
    reported = facts(report)
    assert (reported["rows_added"], reported["versions_added"], reported["versions_closed"]) == (3, 3, 1)

    topic.send({"id": 1, "at": 20, "v": "b"}, 1)
    topic.send({"id": 1, "at": 5, "v": "z"}, 1)
    topic.send(None, 0, key=b'{"id": 2}')
    # Exactly what was there before: it is another version nevertheless.
    topic.send({"id": 2, "at": 40, "v": "x"}, 0)
    report = ingest(spec, connections(), "run-2")
    # A tombstone has no order: in numbers, what it deletes counts for no time.
    assert versions(view(spec), "v") == [
        (1, 5, 10, "z"), (1, 10, 20, "a"), (1, 20, 30, "b"), (1, 30, None, "c"), (2, 40, None, "x"),
    ]  # fmt: skip
    assert facts(report)["rows_rewritten"] == 2
    view(spec).assert_no_branches()


class Source:
    """Random changes of a few keys, and the events that they are."""

    def __init__(self, seed: int, topic: Topic, is_partial: bool = True) -> None:
        self.events: list[Event] = []
        self._is_partial = is_partial
        self._chance, self._topic = random.Random(seed), topic

    def send(self, count: int, long: bool = False) -> None:
        for _ in range(count):
            key = self._chance.randrange(8)
            # A tombstone has an order among the changes of its partition only: a run stops where its row is of another.
            partition = key % 2 if key < 4 else self._chance.randrange(2)
            stamp = BEGIN + timedelta(minutes=self._chance.randrange(60))
            if key < 4 and self._chance.random() < 0.2:
                self._sent(None, key, partition, stamp)
                continue
            row = {"id": key, "at": (BEGIN + timedelta(minutes=self._chance.randrange(60))).isoformat()}
            row |= {"a": self._chance.choice((None, 1, 2)), "b": self._chance.choice(("x", "x", "y", "gone"))}
            if long and self._chance.random() < 0.5:
                row["b"] = "long" * 30
            self._sent(row, key, partition, stamp)
            if self._chance.random() < 0.2:
                self._sent(row, key, partition, stamp)

    def _sent(self, row: dict[str, Any] | None, key: int, partition: int, stamp: datetime) -> None:
        sent = self._topic.send(
            row, partition, key=json.dumps({"id": key}).encode(), timestamp_ms=int(stamp.timestamp() * 1000)
        )
        place = key, partition, sent.offset
        if row is None:
            nothing = dict.fromkeys(("at", "a", "b"))
            self.events.append(Event(*place, None, None, nothing, is_delete=True, stamp=stamp))
            return
        at = datetime.fromisoformat(row["at"])
        values = {"at": at, "a": row["a"], "b": row["b"]}
        is_delete = row["b"] == "gone"
        is_kept = self._is_partial and not is_delete
        keeps = frozenset(name for name in ("a",) if row[name] is None and is_kept)
        reported = {name: value for name, value in values.items() if name not in keeps}
        self.events.append(Event(*place, at, at, reported, keeps, is_delete))


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def as_modelled(view: View) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    names = ("valid_from", "valid_to", "_is_deleted", "at", "a", "b")
    return {
        (row["id"], row["_kafka"]["partition"], row["_kafka"]["offset"]): tuple(row[name] for name in names)
        for row in view.rows()
    }


def model(events: list[Event]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    rows = history(events)
    assert_tiles(rows)
    return {
        place: (row.valid_from, row.valid_to, row.is_delete, *(row.values[name] for name in ("at", "a", "b")))
        for place, row in rows.items()
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4)])
def test_history_of_random_changes_matches_model_after_kills(
    seed: int,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id int, at timestamp, a int, b string", write="history", key=("id",), order_by=("at",),
                      ignore_null_updates=("a",), delete_when="b = 'gone'")  # fmt: skip
    source = Source(seed, topic)
    for number, step in enumerate((None, "table published", "table staged")):
        source.send(30)
        if step is not None:
            killed_at(spec, step)
            source.send(10)
        ingest(spec, connections(), f"run-{number}")
        assert as_modelled(view(spec)) == model(source.events)
    before = view(spec).rows()
    replay(spec, connections(), "again", ReplayRange("earliest", "latest"))
    assert sorted(map(str, view(spec).rows())) == sorted(map(str, before))
    view(spec).assert_no_branches()


def debezium(op: str, lsn: int, at: int, after: dict[str, Any] | None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": lsn, "sequence": json.dumps([str(lsn - 1), str(lsn)]), "ts_ms": at}
    return {"before": None, "after": after, "op": op, "source": source}


def second(number: float) -> datetime:
    return datetime.fromtimestamp(number, UTC)


@pytest.mark.exhaustive
def test_debezium_versions_start_at_the_time_of_change(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, missing = new_topic(2), "__debezium_unavailable_value"
    spec = topic.spec("id int, state string, visits int, big string, doc string", write="history", envelope="debezium",
                      track=("state", "big"))  # fmt: skip

    def send(op: str, lsn: int, at: int, after: dict[str, Any] | None = None, number: int = 1, to: int = 0) -> None:
        row = after and {"id": number, "doc": {"n": lsn}, **after}
        topic.send(debezium(op, lsn, at * 1000, row), to, key=json.dumps({"id": number}).encode())

    send("c", 10, 100, {"state": "new", "visits": 1, "big": "x"})
    send("u", 20, 200, {"state": "new", "visits": 2, "big": missing})
    send("u", 50, 500, {"state": "old", "visits": 5, "big": missing})
    # Of a clock that went back.
    send("u", 60, 450, {"state": "older", "visits": 6, "big": missing})
    send("c", 10, 100, {"state": "new", "visits": 1, "big": "x"}, number=2)
    send("d", 20, 200, number=2)
    topic.send(None, 0, key=b'{"id": 2}')
    ingest(spec, connections(), "run-1")
    assert versions(view(spec), "state", "visits", "big") == [
        (1, second(100), second(500), "new", 2, "x"), (1, second(500), None, "older", 6, "x"),
        (2, second(100), second(200), "new", 1, "x"),
    ]  # fmt: skip
    # Late, by another partition: it splits the run of two events that were one version, and fills what was left out.
    send("u", 15, 150, {"state": "late", "visits": 9, "big": "y"}, to=1)
    # What is there once more, as a snapshot reads it; and what was there before a delete.
    send("r", 70, 700, {"state": "older", "visits": 6, "big": "y"})
    send("c", 30, 300, {"state": "new", "visits": 1, "big": "x"}, number=2)
    ingest(spec, connections(), "run-2")
    assert versions(view(spec), "state", "visits", "big") == [
        (1, second(100), second(150), "new", 1, "x"), (1, second(150), second(200), "late", 9, "y"),
        (1, second(200), second(500), "new", 2, "y"), (1, second(500), None, "older", 6, "y"),
        (2, second(100), second(200), "new", 1, "x"), (2, second(300), None, "new", 1, "x"),
    ]  # fmt: skip
    name = view(spec).sql_name()
    current = connections().spark().sql(f"SELECT id, doc FROM {name} WHERE valid_to IS NULL ORDER BY id")
    assert [tuple(row) for row in current.collect()] == [(1, '{"n":70}'), (2, '{"n":30}')]
    # Debezium's tombstone says what the delete before it has said.
    assert sum(row["_is_deleted"] for row in view(spec).rows()) == 1


@pytest.mark.exhaustive
def test_a_history_goes_with_the_columns_of_its_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="history", key_format="string")

    def send(key: str, at: int, row: dict[str, Any] | None) -> None:
        topic.send(row and {"id": key, **row}, 0, key=key.encode(), timestamp_ms=at * 1000)

    send("a", 100, {"n": 1})
    send("b", 100, {"n": 1})
    ingest(spec, connections(), "run-1")
    # A record without a time of its own order counts from the latest one before it on.
    send("a", 50, {"n": 2**40, "valid_from": "of its own"})
    send("b", 300, None)
    send("c", 400, {"n": 4})
    ingest(spec, connections(), "run-2")
    assert versions(view(spec), "n") == [
        ("a", second(100), None, 2**40), ("b", second(100), second(300), 1), ("c", second(400), None, 4),
    ]  # fmt: skip
    # The names of a history's own columns are taken.
    others = {name for name in view(spec).table.schema().column_names if name.startswith("valid_from_")}
    assert others
    renamed = replace(spec, renames={"n": "number"}, evolution="evolve")
    send("c", 500, {"n": 5, "more": "x"})
    ingest(renamed, connections(), "run-3")
    assert versions(view(spec), "number", "more")[-2:] == [
        ("c", second(400), second(500), 4, None), ("c", second(500), None, 5, "x"),
    ]  # fmt: skip
    before = view(spec).fingerprint()
    for other, said in (
        ({"track": ("number",)}, r"track was \(none\) and is number"),
        ({"write": "upsert"}, "write was history and is upsert; track was"),
        (
            {"write": "append"},
            "was written with write: history, but its topic now has write: append",
        ),
    ):
        with pytest.raises(KafkaLakeError, match=said):
            ingest(replace(renamed, **other), connections(), "run-4")
    assert view(spec).fingerprint() == before
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_a_late_change_fills_in_a_column_that_was_not_there(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(None, write="history", key=("id",), order_by=("at",), ignore_null_updates=True)
    topic.send({"id": 1, "at": 20, "a": 1})
    ingest(spec, connections(), "run-1")
    # What comes in two commits for one key comes in one for the other.
    topic.send({"id": 2, "at": 20, "a": 1})
    for key in (1, 2):
        topic.send({"id": key, "at": 10, "a": 1, "c": 5})
    ingest(spec, connections(), "run-2")
    assert versions(view(spec), "a", "c") == [
        (1, 10, 20, 1, 5), (1, 20, None, 1, 5), (2, 10, 20, 1, 5), (2, 20, None, 1, 5),
    ]  # fmt: skip
    topic.send({"id": 1, "at": 15, "c": 6})
    ingest(spec, connections(), "run-3")
    before = versions(view(spec), "a", "c")
    assert before[:3] == [(1, 10, 15, 1, 5), (1, 15, 20, 1, 6), (1, 20, None, 1, 6)]
    replay(spec, connections(), "again", ReplayRange("earliest", "latest"))
    assert versions(view(spec), "a", "c") == before


def test_a_column_to_track_that_rows_lack_is_an_error(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    topic.send({"id": 1}, key=b"1")
    with pytest.raises(KafkaLakeError, match="track: nothing isn't a column of the rows"):
        ingest(topic.spec(None, write="history", key_format="string", track=("nothing",)), connections(), "run-1")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("deletes", "wanted"),
    [
        ("apply", [("1", second(1), second(2)), ("2", second(1), second(2)), ("2", second(3), None)]),
        exhaustive("ignore", [("1", second(1), None), ("2", second(1), None)]),
    ],
)
def test_deletes_end_versions_unless_they_are_ignored(
    deletes: Any, wanted: list[Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id string, v string", write="history", deletes=deletes)
    for key, at, value in (("1", 1, "a"), ("2", 1, "a"), ("1", 2, None), ("2", 2, None), ("2", 3, "a"), ("3", 3, None)):
        topic.send(value and {"id": key, "v": value}, key=key.encode(), timestamp_ms=at * 1000)
    ingest(spec, connections(), "run-1")
    assert versions(view(spec)) == wanted
    topic.send(None, key=b"2", timestamp_ms=4000)
    ingest(spec, connections(), "run-2")
    assert sum(row["valid_to"] is None for row in view(spec).rows()) == (0 if deletes == "apply" else 2)


@pytest.mark.exhaustive
def test_a_history_widens_with_its_table(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)
    spec = topic.spec("id int, at int, v string", write="history", key=("id",), order_by=("at",))
    for number in (1, 2):
        topic.send({"id": number, "at": 1, "v": "a"})
    ingest(spec, connections(), "run-1")
    spec = replace(spec, schema="id bigint, at bigint, v string, more double")
    topic.send({"id": 1, "at": 2**40, "v": "a", "more": 0.5})
    ingest(spec, connections(), "run-2")
    assert versions(view(spec), "more") == [(1, 1, 2**40, None), (1, 2**40, None, 0.5), (2, 1, None, None)]


@pytest.mark.exhaustive
def test_nothing_is_published_if_the_table_has_a_change_twice(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id int, at int, v string", write="history", key=("id",), order_by=("at",))
    topic.send({"id": 1, "at": 1, "v": "a"})
    ingest(spec, connections(), "run-1")
    name = view(spec).sql_name()
    wrong = "(id, at, v, _kafka, valid_from, valid_to, _is_deleted)"
    # As if another writer had been there.
    connections().spark().sql(
        f"INSERT INTO {name} {wrong} SELECT id, 0, 'b', _kafka, 0, 5, false FROM {name} WHERE valid_from = 1"
    ).collect()
    topic.send({"id": 1, "at": 9, "v": "c"})
    before = view(spec).fingerprint()
    with pytest.raises(KafkaLakeError, match=r"row_count: 1 changes have several rows in the table"):
        ingest(spec, connections(), "run-2")
    assert view(spec).fingerprint()[:1] == before[:1]
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3)])
def test_current_rows_and_history_of_a_topic_agree(
    seed: int,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(2)
    state = topic.spec("id int, at timestamp, a int, b string", write="upsert", key=("id",), order_by=("at",),
                       delete_when="b = 'gone'", max_record_bytes=100)  # fmt: skip
    past = replace(state, table=f"{state.table}_history", write="history")
    every = When(sql="true")
    spec = replace(state, where=every, routes=(Route(every, past),))
    source = Source(seed, topic, is_partial=False)
    names = ("id", "at", "a", "b", "_kafka")

    def assert_agree(events: list[Event]) -> None:
        rows = sorted((str([row[name] for name in names])) for row in view(state).rows())
        current = [row for row in view(past).rows() if row["valid_to"] is None]
        assert rows == sorted(str([row[name] for name in names]) for row in current)
        assert as_modelled(view(past)) == model(events)

    for number, step in enumerate((None, "table published", "table staged")):
        source.send(30)
        if step is not None:
            killed_at(spec, step)
            source.send(10)
        ingest(spec, connections(), f"run-{number}")
        assert_agree(source.events)
    # Records that were too long come late: behind newer changes and deletes of their keys.
    in_time = list(source.events)
    source.send(15, long=True)
    too_long = [event for event in source.events if len(str(event.values.get("b"))) > 100]
    source.send(15)
    ingest(spec, connections(), "too long")
    assert too_long
    assert_agree([event for event in source.events if event not in too_long or event in in_time])
    for table in (state, past):
        assert replay_dead_letters(replace(table, max_record_bytes=None), connections(), table.table).remaining == 0
    assert_agree(source.events)
