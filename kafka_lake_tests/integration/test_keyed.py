"""Keyed tables on real servers: what a source holds is what the table holds, whatever came in which order and when."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401
from kafka_lake_tests.lanes import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def rows(view: View, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in view.rows())


def facts(report: Any) -> dict[str, Any]:
    return next(f.facts for f in report.commits[-1].findings if f.check == "row_count")


def test_a_row_for_each_key_as_its_newest_record_left_it(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, write="upsert")
    topic.send({"id": 1, "v": "a"}, 0, key=b"one")
    topic.send({"id": 2, "v": "b"}, 1, key=b"two")
    topic.send({"id": 1, "v": "c"}, 0, key=b"one")
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "v") == [(1, "c"), (2, "b")]

    topic.send({"id": 2, "v": "d", "more": 1.5}, 1, key=b"two")
    topic.send(None, 0, key=b"one")
    topic.send({"id": 3, "v": "e"}, 0, key=b"three")
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v", "more") == [(2, "d", 1.5), (3, "e", None)]
    told = facts(report)
    assert (told["rows_inserted"], told["rows_updated"], told["rows_deleted"], told["keys_ignored"]) == (1, 1, 1, 0)

    topic.send(None, 0, key=b"three")
    topic.send({"id": 3, "v": "f"}, 0, key=b"three")
    topic.send(None, 1, key=b"never there")
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(2, "d"), (3, "f")]
    assert ingest(spec, connections(), "run-4").commits == []


def test_the_order_is_the_columns_and_a_delete_is_remembered(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    spec = topic.spec("id bigint, at bigint, v string", write="upsert", key=("id",), order_by=("at",),
                      delete_when="v = 'gone'")  # fmt: skip
    topic.send({"id": 1, "at": 5, "v": "new"}, 0)
    topic.send({"id": 1, "at": 3, "v": "old"}, 1)
    topic.send({"id": 2, "at": 9, "v": "gone"}, 2)
    topic.send({"id": 2, "at": 8, "v": "late in the batch"}, 1)
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "v") == [(1, "new")]
    topic.send({"id": 2, "at": 7, "v": "late"}, 0)
    topic.send({"id": 1, "at": 4, "v": "late"}, 2)
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(1, "new")]
    assert facts(report)["keys_later_deleted"] == 1
    topic.send({"id": 2, "at": 10, "v": "back"}, 0)
    topic.send({"id": 3, "at": None, "v": "no order"}, 0)
    topic.send({"id": None, "at": 1, "v": "no key"}, 0)
    report = ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "new"), (2, "back")]
    assert {(c["error_class"]) for c in view(spec).dead_letters()} == {"no_order", "no_key"}


def test_a_key_of_two_partitions_without_an_order_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("v string", write="upsert")
    topic.send({"v": "a"}, 0, key=b"one")
    ingest(spec, connections(), "run-1")
    topic.send({"v": "b"}, 1, key=b"one")
    with pytest.raises(KafkaLakeError, match=r"partition 1 at offset 0; its row came from partition 0.*order_by"):
        ingest(spec, connections(), "run-2")
    assert rows(view(spec), "v") == [("a",)]
    view(spec).assert_no_branches()


def debezium(op: str, lsn: int, after: dict[str, Any] | None = None, commit: int | None = None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": lsn, "sequence": json.dumps([commit and str(commit), str(lsn)])}
    return {"before": None, "after": after, "op": op, "source": source, "ts_ms": 1}


def test_debezium_without_a_setting_but_its_name(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, write="upsert", envelope="debezium")

    def send(change: dict[str, Any] | None, number: int) -> None:
        topic.send(change, 0, key=json.dumps({"id": number}).encode())

    send(debezium("r", 100, {"id": 1, "name": "ada", "price": 1.10}), 1)
    send(debezium("r", 100, {"id": 2, "name": "bob", "price": 2.50}), 2)
    send(debezium("c", 110, {"id": 3, "name": "cy", "price": None}, 105), 3)
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "id", "name", "price") == [(1, "ada", 1.1), (2, "bob", 2.5), (3, "cy", None)]

    send(debezium("u", 120, {"id": 1, "name": "__debezium_unavailable_value", "price": 7.0}, 115), 1)
    send(debezium("d", 130, None, 125), 2)
    send(None, 2)
    # Of a transaction that began earlier and was committed later.
    send(debezium("u", 90, {"id": 3, "name": "cyd", "price": 1.0}, 128), 3)
    # Of before the row that is there, though it comes later: what it tells is older than what the row has.
    send(debezium("r", 90, {"id": 1, "name": "old", "price": 0.0}), 1)
    send({"ts_ms": 7}, 9)
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "name", "price") == [(1, "ada", 7.0), (3, "cyd", 1.0)]
    assert [(c["error_class"], bytes(c["value"])) for c in view(spec).dead_letters()] == [
        ("not_a_change", b'{"ts_ms": 7}')
    ]
    assert facts(report)["rows_deleted"] == 1


def test_random_changes_end_as_a_model_in_memory(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    spec = topic.spec("id bigint, at bigint, v bigint", write="upsert", key=("id",), order_by=("at",))
    chance = random.Random(17)
    newest: dict[int, tuple[int, int, int, int | None]] = {}
    for batch in range(4):
        for _ in range(60):
            number, at, partition = chance.randrange(12), chance.randrange(40), chance.randrange(3)
            value = chance.randrange(1000)
            sent = topic.send({"id": number, "at": at, "v": value}, partition, key=str(number).encode())
            newest[number] = max(newest.get(number, (-1, 0, 0, None)), (at, partition, sent.offset, value))
        ingest(spec, connections(), f"run-{batch}")
        assert rows(view(spec), "id", "at", "v") == sorted(
            (number, at, value) for number, (at, _, _, value) in newest.items()
        )


class Source:
    """A table of a PostgreSQL database, and what Debezium tells of it: transactions in the order of their commits."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.events: list[tuple[int, dict[str, Any] | None]] = []
        self._chance = random.Random(seed)
        self._lsn, self._committed = 100, 90

    def transactions(self, count: int) -> None:
        """Let transactions interleave: each has written its changes before any of them is told."""
        for _ in range(count):
            open_ = [
                [self._next() for _ in range(self._chance.randint(1, 3))] for _ in range(self._chance.randint(1, 3))
            ]
            self._chance.shuffle(open_)
            for positions in open_:
                before, committed = self._committed, self._next()
                for position in positions:
                    self._change(position, before)
                self._committed = committed

    def snapshot(self) -> None:
        """Read all rows once more, as an incremental snapshot does."""
        self._committed = position = self._next()
        for number, row in sorted(self.rows.items()):
            self.events.append((number, debezium("r", position, dict(row))))

    def again(self) -> None:
        """Tell the last changes once more, as a connector does that was killed."""
        self.events += self.events[-self._chance.randint(1, 8) :]

    def _next(self) -> int:
        self._lsn += self._chance.randint(1, 9)
        return self._lsn

    def _change(self, position: int, before: int) -> None:
        number = self._chance.randrange(10)
        row = self.rows.get(number)
        if row is None:
            row = self.rows[number] = {"id": number, "n": self._chance.randrange(100), "big": f"big {position}"}
            self.events.append((number, debezium("c", position, dict(row), before)))
        elif self._chance.random() < 0.3:
            del self.rows[number]
            self.events += [(number, debezium("d", position, None, before)), (number, None)]
        else:
            told = {**row, "n": self._chance.randrange(100), "big": "__debezium_unavailable_value"}
            if self._chance.random() < 0.4:
                told["big"] = f"big {position}"
            self.rows[number] = {**told, "big": row["big"] if told["big"].startswith("__") else told["big"]}
            self.events.append((number, debezium("u", position, told, before)))


@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4)])
def test_the_table_is_what_the_database_is(
    seed: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint not null, n bigint not null, big string", write="upsert", envelope="debezium")
    source, chance = Source(seed), random.Random(seed)
    for number in range(4):
        source.transactions(8)
        if number:
            chance.choice((source.snapshot, source.again, lambda: None))()
        for key, change in source.events:
            topic.send(change, key % 2, key=json.dumps({"id": key}).encode())
        source.events.clear()
        ingest(spec, connections(), f"run-{number}")
        assert rows(view(spec), "id", "n", "big") == sorted(tuple(row.values()) for row in source.rows.values())
        assert view(spec).dead_letters() == []


@pytest.mark.parametrize("step", ["deletes published", "primary staged", exhaustive("audited")])
def test_a_run_killed_at_a_step_leaves_each_key_as_it_shall_be(
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", dead_letters="table")
    for key in ("a", "b", "c"):
        topic.send({"v": key}, key=key.encode())
    ingest(spec, connections(), "run-1")
    topic.send(None, key=b"a")
    topic.send({"v": "new b"}, key=b"b")
    topic.send(b"not json", key=b"c")
    killed_at(spec, step)
    assert rows(view(spec), "v") == [("a",), ("b",), ("c",)]
    topic.send({"v": "a again"}, key=b"a")
    topic.send(None, key=b"b")
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "v") == [("a again",), ("c",)]
    assert len(view(spec).dead_letters()) == 1
    view(spec).assert_no_branches()


def test_a_topic_is_read_again_without_harm_and_by_todays_settings(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string, n int", write="upsert")
    for key, value in (("a", "x"), ("b", "x"), ("a", "y"), ("c", "gone")):
        topic.send({"v": value, "n": 1}, key=key.encode())
    topic.send(None, key=b"b")
    ingest(spec, connections(), "run-1")
    assert rows(view(spec), "v") == [("gone",), ("y",)]
    today = replace(spec, delete_when="v = 'gone'")
    replay(today, connections(), "again", Extent("earliest", "latest"))
    assert rows(view(spec), "v") == [("y",)]
    reset(today, connections(), "back", "earliest")
    assert rows(view(spec), "v") == [("y",)]
    ingest(today, connections(), "run-2")
    assert rows(view(spec), "v") == [("y",)]


@pytest.mark.parametrize(
    ("deletes", "left"),
    [("soft", [("a", True), ("b", False)]), ("ignore", [("a", None), ("b", None)])],
)
def test_deletes_as_the_settings_say(
    deletes: Any, left: list[Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", deletes=deletes)
    topic.send({"v": "a"}, key=b"1")
    topic.send({"v": "old b"}, key=b"2")
    ingest(spec, connections(), "run-1")
    topic.send(None, key=b"1")
    topic.send(None, key=b"2")
    topic.send({"v": "b"}, key=b"2")
    topic.send(None, key=b"3")
    ingest(spec, connections(), "run-2")
    found = sorted((row["v"], row.get("_is_deleted")) for row in view(spec).rows())
    assert found == left


def test_deletes_that_shall_fail_publish_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", deletes="fail")
    topic.send({"v": "a"}, key=b"1")
    topic.send(None, key=b"1")
    with pytest.raises(KafkaLakeError, match="1 records delete rows, the first in partition 0 at offset 1"):
        ingest(spec, connections(), "run-1")
    view(spec).assert_no_branches()


def test_settings_that_do_not_go_with_the_rows_are_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(1)
    spec = topic.spec("id int, at int", write="upsert", key=("id",))
    topic.send({"id": 1, "at": 1})
    ingest(spec, connections(), "run-1")
    with pytest.raises(KafkaLakeError, match=r"key was id and is id, at; order_by was \(none\) and is at"):
        ingest(replace(spec, key=("id", "at"), order_by=("at",)), connections(), "run-2")
    with pytest.raises(KafkaLakeError, match="its topic is set to append"):
        ingest(topic.spec("id int, at int"), connections(), "run-3")


def test_deletes_are_forgotten_after_their_time(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert", keep_deletes="2d")
    topic.send(None, key=b"first")
    ingest(spec, connections(), "run-1")
    spark, name = connections().spark(), connections().catalog.spark_name(spec.deletes_table)
    for days in (1, 3, 30):
        old = f"SELECT _kafka, _deleted_at - INTERVAL '{days}' DAY FROM {name} WHERE _deleted_at > current_date()"
        spark.sql(f"INSERT INTO {name} {old}")
    topic.send(None, key=b"second")
    ingest(spec, connections(), "run-2")
    kept = spark.sql(f"SELECT datediff(current_date(), _deleted_at) AS days FROM {name} ORDER BY days").collect()
    assert [row["days"] for row in kept] == [0, 0, 1]
