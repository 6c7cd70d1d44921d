"""`on_snapshot: replace`: at the end of a new snapshot, the rows go that it lacks, and no others; on a real broker."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401
from kafka_lake_tests.integration.test_keyed import debezium, facts, rows

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

RECONCILE = {"write": "upsert", "envelope": "debezium", "snapshot": "replace", "max_removed": None}


def send(topic: Topic, op: str, position: int, number: int, v: str = "", marker: str = "false") -> None:
    """Send a change of a row, a transaction of its own; or a row that a snapshot has read, by its marker."""
    change = debezium(op, position, None if op == "d" else {"id": number, "v": v}, None if op == "r" else position - 1)
    change["source"] |= {"snapshot": marker, "ts_ms": position}
    topic.send(change, key=json.dumps({"id": number}).encode())


def snapshot(topic: Topic, position: int, numbers: list[int], v: str = "read") -> None:
    """Send a snapshot of these rows, as of a table among others."""
    for place, number in enumerate(numbers):
        marker = "first_in_data_collection" if place == 0 else "true"
        marker = "last_in_data_collection" if place == len(numbers) - 1 else marker
        send(topic, "r", position, number, v, marker)


def deleted(spec: TopicTable, connections: Connections) -> list[tuple[Any, ...]]:
    """Return key, operation and order of the keys that are remembered as deleted."""
    name = connections.catalog.spark_name(spec.deletes_table)
    found = connections.spark().sql(f"SELECT id, _change.op, _change.order FROM {name} ORDER BY id").collect()
    return [(row["id"], row["op"], row["order"]) for row in found]


@pytest.mark.exhaustive
def test_rows_that_a_snapshot_lacks_go_at_its_end_and_stay_gone(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2, 3, 4, 7])
    send(topic, "u", 110, 2, "changed")
    send(topic, "u", 210, 7, "changed behind the snapshot, though it came before")
    ingest(spec, connections(), "run-1")
    # An incremental snapshot says nothing of other keys; and half a snapshot says nothing yet.
    send(topic, "r", 120, 1, "incremental", "incremental")
    send(topic, "r", 200, 1, "read again", "first")
    send(topic, "r", 200, 3, "read again", "true")
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id") == [(1,), (2,), (3,), (4,), (7,)]
    send(topic, "r", 200, 5, "read again", "last")
    send(topic, "c", 220, 6, "new")
    report = ingest(spec, connections(), "run-3")
    left = [(1, "read again"), (3, "read again"), (5, "read again"), (6, "new")]
    left.append((7, "changed behind the snapshot, though it came before"))
    assert rows(view(spec), "id", "v") == left
    assert facts(report)["rows_not_in_snapshot"] == 2
    assert deleted(spec, connections()) == [(2, "read", [200, 0]), (4, "read", [200, 0])]
    # What is older than the snapshot brings no row back, whatever the settings are by then.
    send(topic, "u", 150, 2, "late")
    send(topic, "c", 130, 8, "late")
    assert facts(ingest(spec, connections(), "run-4"))["changes_before_snapshot"] == 2
    assert rows(view(spec), "id", "v") == left
    send(topic, "u", 151, 4, "late")
    send(topic, "c", 230, 2, "back")
    ingest(replace(spec, snapshot="merge"), connections(), "run-5")
    assert rows(view(spec), "id", "v") == [left[0], (2, "back"), *left[1:]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", ["deletes published", exhaustive("table staged"), exhaustive("audited")])
def test_killed_snapshot_completes_and_short_one_stops_the_run(
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **{**RECONCILE, "max_removed": "30%"})
    snapshot(topic, 100, [1, 2, 3, 4, 5])
    ingest(spec, connections(), "run-1")
    for number, marker in ((1, "first"), (2, "true")):
        send(topic, "r", 200, number, "again", marker)
    ingest(spec, connections(), "run-2")
    send(topic, "r", 200, 6, "again", "last")
    before = view(spec).fingerprint()
    with pytest.raises(KafkaLakeError, match=r"partition 0 at offset 5 lacks 3 of 6 rows, and the limit is .*: 30%"):
        ingest(spec, connections(), "run-3")
    assert view(spec).fingerprint() == before
    spec = replace(spec, max_removed=3)
    send(topic, "d", 210, 2)
    killed_at(spec, step)
    assert [row[0] for row in rows(view(spec), "id")] == [1, 2, 3, 4, 5]
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id", "v") == [(1, "again"), (6, "again")]
    view(spec).assert_no_branches()


@dataclass
class Database:
    """A table of a database, and what its connector has told of it.

    Args:
        chance: Decides what happens.
        rows: What it holds.
        position: Of its log.
    """

    chance: random.Random
    rows: dict[int, str] = field(default_factory=dict)
    position: int = 100

    def change(self, topic: Topic | None) -> None:
        """Change a row; tell it if there is a topic, else the connector has lost its place."""
        self.position += self.chance.randint(2, 9)
        number, v = self.chance.randrange(12), f"at {self.position}"
        is_there = number in self.rows
        # Of an empty table, a snapshot has no records.
        op = self.chance.choice("ud" if len(self.rows) > 1 else "u") if is_there else "c"
        if op == "d":
            del self.rows[number]
        else:
            self.rows[number] = v
        if topic is not None:
            send(topic, op, self.position, number, v)

    def read(self, topic: Topic, breaks_off: bool) -> None:
        """Take a snapshot; or begin one that breaks off."""
        self.position += self.chance.randint(2, 9)
        numbers = sorted(self.rows)
        count = self.chance.randrange(len(numbers)) if breaks_off else len(numbers)
        for place, number in enumerate(numbers[:count]):
            marker = "first" if place == 0 else "true"
            marker = "last" if place == len(numbers) - 1 else marker
            send(topic, "r", self.position, number, self.rows[number], marker)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4), exhaustive(5)])
def test_table_matches_the_database_after_each_snapshot(
    seed: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, source = new_topic(1), Database(random.Random(seed))
    spec = topic.spec("id bigint not null, v string not null", **RECONCILE, max_records_per_commit=25)
    for number in range(2):
        for _ in range(12):
            source.change(topic)
        ingest(spec, connections(), f"run-{number}")
        assert rows(view(spec), "id", "v") == sorted(source.rows.items())
        for _ in range(8):
            source.change(None)
        if source.chance.random() < 0.5:
            source.read(topic, breaks_off=True)
            ingest(spec, connections(), f"run-{number}-broken-off")
            source.change(None)
        source.read(topic, breaks_off=False)
        ingest(spec, connections(), f"run-{number}-read")
        assert rows(view(spec), "id", "v") == sorted(source.rows.items()), f"after snapshot {number}"
    assert view(spec).dead_letters() == []
    replay(spec, connections(), "again", ReplayRange("earliest", "latest"))
    assert rows(view(spec), "id", "v") == sorted(source.rows.items())
    reset(spec, connections(), "back", "earliest")
    ingest(spec, connections(), "once more")
    assert rows(view(spec), "id", "v") == sorted(source.rows.items())


@pytest.mark.exhaustive
def test_one_batch_may_have_several_source_snapshots(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2, 3, 4, 5])
    ingest(spec, connections(), "run-1")
    # One that broke off, one that was taken anew, and another one behind it.
    for number, marker in ((1, "first"), (2, "true"), (3, "true")):
        send(topic, "r", 200, number, "second", marker)
    snapshot(topic, 300, [2, 3, 4, 5], "third")
    snapshot(topic, 400, [2, 4, 5], "fourth")
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(2, "fourth"), (4, "fourth"), (5, "fourth")]
    # A row before the snapshot's first one, and its beginning once more: all are of the same snapshot.
    send(topic, "r", 500, 2, "fifth", "true")
    for number, marker in ((4, "first"), (6, "true"), (4, "first"), (4, "last")):
        send(topic, "r", 500, number, "fifth", marker)
    for number, marker in ((4, "first"), (6, "true")):
        send(topic, "r", 500, number, "fifth", marker)
    send(topic, "u", 510, 4, "streamed")
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(2, "fifth"), (4, "streamed"), (6, "fifth")]
    # A table of one row; and one that is the first of several, of which nothing tells that it has ended.
    send(topic, "r", 600, 6, "alone", "last_in_data_collection")
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id", "v") == [(6, "alone")]
    send(topic, "r", 700, 7, "first of all", "first")
    ingest(spec, connections(), "run-5")
    send(topic, "c", 710, 8, "streamed")
    ingest(spec, connections(), "run-6")
    assert rows(view(spec), "id") == [(6,), (7,), (8,)]


@pytest.mark.exhaustive
def test_changes_replacing_snapshot_rows_are_read_before_deletes(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v string", **RECONCILE, max_records_per_commit=2)
    snapshot(topic, 100, [1, 2, 3, 4])
    ingest(spec, connections(), "run-1")
    # The record of key 2 is compacted away; that of key 4 was never there.
    send(topic, "r", 200, 1, "again", "first")
    send(topic, "r", 200, 3, "again", "last")
    send(topic, "u", 210, 1, "newer")
    send(topic, "u", 150, 4, "late")
    send(topic, "u", 220, 2, "newer")
    report = ingest(spec, connections(), "run-2")
    seen = [
        sorted(view(spec).table.scan(snapshot_id=commit.snapshot).to_arrow()["id"].to_pylist())
        for commit in report.commits
    ]
    assert seen == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3]]


@pytest.mark.exhaustive
def test_a_record_that_is_a_dead_letter_may_be_of_any_row(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v string", **RECONCILE, max_records_per_commit=2)
    snapshot(topic, 100, [1, 2, 3])
    ingest(spec, connections(), "run-1")
    send(topic, "r", 200, 1, "again", "first")
    topic.send(b"no json", key=b'{"id": 2}')
    send(topic, "r", 200, 3, "again", "last")
    with pytest.raises(KafkaLakeError, match=r"lacks 1 of 3 rows, and 1 records of its commits are dead letters"):
        ingest(spec, connections(), "run-2")
    ingest(replace(spec, snapshot="merge"), connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "again"), (2, "read"), (3, "again")]
    # With the setting changed meanwhile, the next snapshot's first record is all that is needed.
    snapshot(topic, 300, [1, 2])
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id", "v") == [(1, "read"), (2, "read")]
    # If the first row is a dead letter, nothing tells where the snapshot began.
    topic.send(b"no json", key=b'{"id": 1}')
    ingest(spec, connections(), "run-5")
    send(topic, "r", 400, 3, "again", "last")
    ingest(spec, connections(), "run-6")
    assert rows(view(spec), "id") == [(1,), (2,), (3,)]


@pytest.mark.exhaustive
def test_snapshot_without_its_beginning_deletes_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2, 3])
    ingest(spec, connections(), "run-1")
    send(topic, "r", 200, 1, "again", "first")
    send(topic, "r", 200, 2, "again", "true")
    reset(spec, connections(), "passed over", "latest")
    send(topic, "r", 200, 4, "again", "last")
    said: list[str] = []
    ingest(spec, connections(), "run-2", observer=Observer(warn=said.append))
    assert rows(view(spec), "id", "v") == [(1, "read"), (2, "read"), (3, "read"), (4, "again")]
    assert any("ended in partition 0 at offset 5 began before" in message for message in said)


def test_truncate_and_snapshot_delete_only_older_rows(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE, on_truncate="apply")
    snapshot(topic, 100, [1, 2, 3])
    ingest(spec, connections(), "run-1")
    snapshot(topic, 200, [1, 2])
    topic.send(debezium("t", 210, None, 209))
    send(topic, "c", 220, 4, "since")
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(4, "since")]
    assert facts(report)["rows_truncated"] == 3
    topic.send(debezium("t", 230, None, 229))
    snapshot(topic, 240, [5, 6])
    report = ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id") == [(5,), (6,)]
    assert facts(report)["rows_not_in_snapshot"] == 1


@pytest.mark.exhaustive
def test_several_partitions_are_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2])
    with pytest.raises(KafkaLakeError, match=r"on_snapshot: replace needs a topic with one partition, and it has 2"):
        ingest(spec, connections(), "run-1")


@pytest.mark.exhaustive
def test_snapshot_of_one_table_deletes_no_rows_of_another(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint not null, v string not null", **{**RECONCILE, "on_truncate": "apply"})

    def of(table: str, op: str, position: int, number: int | None, marker: str = "false") -> None:
        change = debezium(op, position, {"id": number, "v": "x"} if op in "cr" else None, position - 1)
        if op == "r":
            del change["source"]["sequence"]
        change["source"] |= {"db": "shop", "schema": "public", "table": table, "snapshot": marker, "ts_ms": position}
        topic.send(change, key=None if number is None else json.dumps({"id": number}).encode())

    of("orders_1", "c", 10, 1)
    ingest(spec, connections(), "run-1")
    of("orders_2", "c", 12, 2)
    ingest(spec, connections(), "run-2")
    of("orders_1", "r", 20, 1, "first")
    of("orders_1", "r", 20, 1, "last")
    before = view(spec).fingerprint()
    with pytest.raises(KafkaLakeError, match=r"has ended.*shop\.public\.orders_1, shop\.public\.orders_2"):
        ingest(spec, connections(), "run-3")
    assert view(spec).fingerprint() == before
    # As for a table that was renamed: a run by whose settings no rows go forgets the old name.
    ingest(replace(spec, snapshot="merge", on_truncate="ignore"), connections(), "run-4")
    of("orders_2", "t", 30, None)
    ingest(spec, connections(), "run-5")
    assert rows(view(spec), "id") == []
    of("orders_2", "c", 40, 3)
    of("orders_1", "t", 50, None)
    with pytest.raises(KafkaLakeError, match=r"empties the source's table.*orders_1, shop\.public\.orders_2"):
        ingest(spec, connections(), "run-6")
