"""`snapshot: reconcile`: at the end of a new snapshot, the rows go whose keys it lacks; on a real broker."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.jobs.replay import Extent
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_exactly_once import killed_at  # noqa: F401
from kafka_lake_tests.integration.test_keyed import debezium, facts, rows
from kafka_lake_tests.lanes import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

RECONCILE = {"write": "upsert", "envelope": "debezium", "snapshot": "reconcile"}


def send(topic: Topic, op: str, position: int, number: int, v: str = "", marker: str = "false") -> None:
    """Send a change of a row, a transaction of its own; or a row that a snapshot has read, by its marker."""
    change = debezium(op, position, None if op == "d" else {"id": number, "v": v}, None if op == "r" else position - 1)
    change["source"]["snapshot"] = marker
    topic.send(change, key=json.dumps({"id": number}).encode())


def snapshot(topic: Topic, position: int, numbers: list[int], v: str = "read") -> None:
    """Send a snapshot of these rows, as of a table among others."""
    for place, number in enumerate(numbers):
        marker = "first_in_data_collection" if place == 0 else "true"
        marker = "last_in_data_collection" if place == len(numbers) - 1 else marker
        send(topic, "r", position, number, v, marker)


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
        op = self.chance.choice("ud") if is_there else "c"
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


@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4), exhaustive(5)])
def test_the_table_is_what_the_database_is_after_each_snapshot(
    seed: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, source = new_topic(1), Database(random.Random(seed))
    spec = topic.spec(
        "id bigint not null, v string not null", **RECONCILE, max_removed="100%", max_records_per_commit=25
    )
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
    replay(spec, connections(), "again", Extent("earliest", "latest"))
    assert rows(view(spec), "id", "v") == sorted(source.rows.items())
    reset(spec, connections(), "back", "earliest")
    ingest(spec, connections(), "once more")
    assert rows(view(spec), "id", "v") == sorted(source.rows.items())


def test_rows_that_a_snapshot_lacks_go_at_its_end_and_stay_gone(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2, 3, 4])
    send(topic, "u", 110, 2, "changed")
    ingest(spec, connections(), "run-1")
    # An incremental snapshot says nothing of other keys.
    send(topic, "r", 120, 1, "incremental", "incremental")
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id") == [(1,), (2,), (3,), (4,)]
    snapshot(topic, 200, [1, 3, 5], "read again")
    send(topic, "c", 210, 6, "new")
    report = ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "read again"), (3, "read again"), (5, "read again"), (6, "new")]
    assert facts(report)["rows_not_in_snapshot"] == 2
    send(topic, "u", 150, 2, "late")
    send(topic, "d", 220, 3)
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id") == [(1,), (5,), (6,)]
    # A snapshot at the very position of the one before: the source has changed and told nothing in between.
    snapshot(topic, 300, [1, 5, 6], "third")
    snapshot(topic, 300, [5, 6], "fourth")
    ingest(spec, connections(), "run-5")
    assert rows(view(spec), "id", "v") == [(5, "fourth"), (6, "fourth")]
    # A table of one row, and one that the snapshot began with.
    send(topic, "r", 400, 5, "alone", "last_in_data_collection")
    ingest(spec, connections(), "run-6")
    assert rows(view(spec), "id", "v") == [(5, "alone")]
    send(topic, "r", 500, 7, "first of all", "first")
    ingest(spec, connections(), "run-7")
    assert rows(view(spec), "id") == [(5,), (7,)]
    send(topic, "c", 510, 8, "streamed")
    ingest(spec, connections(), "run-8")
    assert rows(view(spec), "id") == [(7,), (8,)]


@pytest.mark.parametrize("step", ["primary staged", exhaustive("audited")])
def test_a_snapshot_of_several_commits_may_be_killed_in_each(
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2, 3, 4, 5])
    ingest(spec, connections(), "run-1")
    records = [(1, "first"), (2, "true"), (4, "true"), (6, "last")]
    for number, marker in records:
        send(topic, "r", 200, number, "again", marker)
        killed_at(spec, step)
        assert {each[0] for each in rows(view(spec), "id")} == {1, 2, 3, 4, 5}
        ingest(spec, connections(), f"run-{marker}-{number}")
    assert rows(view(spec), "id", "v") == [(1, "again"), (2, "again"), (4, "again"), (6, "again")]
    view(spec).assert_no_branches()


def test_more_than_the_limit_stops_the_run(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2, 3, 4, 5])
    ingest(spec, connections(), "run-1")
    snapshot(topic, 200, [1, 2])
    before = view(spec).fingerprint()
    with pytest.raises(KafkaLakeError, match=r"began in partition 0 at offset 5 lacks 3 of 5 rows, the limit is .*50%"):
        ingest(spec, connections(), "run-2")
    assert view(spec).fingerprint() == before
    ingest(replace(spec, max_removed=3), connections(), "run-3")
    assert rows(view(spec), "id") == [(1,), (2,)]


def test_a_record_that_is_a_dead_letter_may_be_of_any_key(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec("id bigint, v string", **RECONCILE, max_records_per_commit=2)
    snapshot(topic, 100, [1, 2, 3])
    ingest(spec, connections(), "run-1")
    send(topic, "r", 200, 1, "again", "first")
    topic.send(b"no json", key=b'{"id": 2}')
    send(topic, "r", 200, 3, "again", "last")
    with pytest.raises(KafkaLakeError, match=r"lacks 1 of 3 rows, and 1 records since then are dead letters"):
        ingest(spec, connections(), "run-2")
    ingest(replace(spec, snapshot="upsert"), connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "again"), (2, "read"), (3, "again")]
    snapshot(topic, 300, [1, 2])
    ingest(spec, connections(), "run-4")
    # With the setting changed meanwhile, the snapshot's first record is all that is needed.
    assert rows(view(spec), "id") == [(1,), (2,)]


def test_a_snapshot_whose_beginning_was_not_read_takes_nothing_away(
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
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(1, "read"), (2, "read"), (3, "read"), (4, "again")]


def test_several_partitions_are_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, **RECONCILE)
    snapshot(topic, 100, [1, 2])
    with pytest.raises(KafkaLakeError, match=r"snapshot: reconcile needs a topic with one partition, and it has 2"):
        ingest(spec, connections(), "run-1")
