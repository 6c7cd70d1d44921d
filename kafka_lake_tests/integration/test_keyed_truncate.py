"""`on_truncate: apply`: what is older than a truncate is gone, and stays so, whatever comes when; on a real broker."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.runtime.context import Connections
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

DEBEZIUM = {"write": "upsert", "envelope": "debezium", "on_truncate": "apply"}


def send(topic: Topic, op: str, position: int, number: int | None = None, v: str = "", partition: int = 0) -> None:
    """Send a change of a row, or a truncate; each is a transaction of its own."""
    after = {"id": number, "v": v} if op in "cur" else None
    key = None if number is None else json.dumps({"id": number}).encode()
    topic.send(debezium(op, position, after, position - 1), partition, key=key)


@dataclass
class Model:
    """What a table shall hold, by the changes that have arrived.

    Args:
        chance: Decides what happens.
        queues: What each partition has still to get.
        newest: Each key's newest change that has arrived: its position, and its value; None for a delete.
        emptied: The newest truncate that has arrived.
    """

    chance: random.Random
    queues: dict[int, list[tuple[str, int, int | None]]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    newest: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    emptied: int = 0
    position: int = 100

    def happen(self, count: int) -> None:
        """Let changes and truncates happen, each key's in a partition of its own, truncates in any."""
        for _ in range(count):
            self.position += self.chance.randint(2, 9)
            op = self.chance.choices(["u", "d", "t"], [12, 3, 1])[0]
            number = None if op == "t" else self.chance.randrange(9)
            partition = self.chance.randrange(3) if number is None else number % 3
            self.queues[partition].append((op, self.position, number))

    def arrive(self, topic: Topic, everything: bool = False) -> None:
        """Let a part of it arrive, of each partition another one."""
        for partition, queue in self.queues.items():
            count = len(queue) if everything else self.chance.randrange(len(queue) + 1)
            for op, position, number in queue[:count]:
                send(topic, op, position, number, f"at {position}", partition)
                if number is None:
                    self.emptied = max(self.emptied, position)
                else:
                    change = (position, f"at {position}" if op == "u" else None)
                    self.newest[number] = max(self.newest.get(number, (0, None)), change)
            del queue[:count]

    def rows(self) -> list[tuple[int, str]]:
        """Return the rows that the table shall have."""
        return sorted(
            (number, v) for number, (position, v) in self.newest.items() if v is not None and position > self.emptied
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, exhaustive(2), exhaustive(3), exhaustive(4), exhaustive(5)])
def test_truncated_table_matches_model_in_any_partition_order(
    seed: int, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, model = new_topic(3), Model(random.Random(seed))
    spec = topic.spec("id bigint not null, v string not null", **DEBEZIUM)
    for number in range(3):
        model.happen(30)
        model.arrive(topic, everything=number == 2)
        ingest(spec, connections(), f"run-{number}")
        assert rows(view(spec), "id", "v") == model.rows(), f"after run {number}"
    assert model.emptied, "the seed has a truncate"
    assert view(spec).dead_letters() == []
    reset(spec, connections(), "back", "earliest")
    ingest(spec, connections(), "once more")
    assert rows(view(spec), "id", "v") == model.rows()


@pytest.mark.exhaustive
def test_truncate_within_batch_deletes_only_older_rows(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, **DEBEZIUM)
    for number, partition in ((1, 0), (2, 1), (3, 0)):
        send(topic, "r", 100, number, "read", partition)
    send(topic, "u", 130, 3, "newer than the truncate")
    ingest(spec, connections(), "run-1")
    send(topic, "c", 110, 4, "before")
    send(topic, "t", 120, partition=1)
    send(topic, "u", 115, 2, "late")
    send(topic, "c", 125, 1, "after")
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(1, "after"), (3, "newer than the truncate")]
    reported = facts(report)
    assert (reported["rows_truncated"], reported["changes_before_truncate"]) == (1, 2)
    assert (reported["rows_inserted"], reported["rows_updated"], reported["rows_deleted"]) == (0, 1, 0)
    # It is remembered, also behind snapshots of others.
    connections().spark().sql(view(spec).call("rewrite_data_files", options="map('rewrite-all', 'true')")).collect()
    send(topic, "u", 119, 2, "late", 1)
    send(topic, "c", 118, 5, "late")
    report = ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "after"), (3, "newer than the truncate")]
    assert (facts(report)["rows_truncated"], facts(report)["changes_before_truncate"]) == (0, 2)
    # An older one changes nothing, and one that comes alone takes all.
    send(topic, "t", 105)
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id") == [(1,), (3,)]
    send(topic, "t", 200)
    ingest(spec, connections(), "run-5")
    assert rows(view(spec), "id") == []
    send(topic, "c", 199, 6, "late")
    ingest(spec, connections(), "run-6")
    assert rows(view(spec), "id") == []


@pytest.mark.exhaustive
def test_value_not_sent_is_not_taken_from_before_truncate(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **DEBEZIUM)
    send(topic, "c", 10, 1, "big")
    send(topic, "c", 11, 2, "big")
    ingest(spec, connections(), "run-1")
    send(topic, "t", 20)
    send(topic, "u", 30, 1, "__debezium_unavailable_value")
    send(topic, "c", 31, 2, "new")
    send(topic, "u", 32, 2, "__debezium_unavailable_value")
    ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(2, "new")]
    assert [(letter["offset"], letter["error_class"]) for letter in view(spec).dead_letters()] == [
        (3, "value_not_sent")
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", ["deletes published", "table staged", "audited"])
def test_truncate_of_killed_run_is_applied_by_the_next(
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **DEBEZIUM)
    for number in (1, 2):
        send(topic, "c", 10 + number, number, "old")
    ingest(spec, connections(), "run-1")
    before = view(spec).table.metadata.current_snapshot_id
    send(topic, "t", 20)
    send(topic, "c", 30, 3, "new")
    send(topic, "c", 31, 4, "new")
    send(topic, "d", 32, 4)
    killed_at(spec, step)
    assert rows(view(spec), "id", "v") == [(1, "old"), (2, "old")]
    send(topic, "c", 12, 1, "late")
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(3, "new")]
    replay(spec, connections(), "again", ReplayRange("earliest", "latest"))
    assert rows(view(spec), "id", "v") == [(3, "new")]
    view(spec).assert_no_branches()
    # A table that is taken back to before the truncate knows nothing of it.
    connections().spark().sql(view(spec).call("rollback_to_snapshot", snapshot_id=str(before))).collect()
    assert rows(view(spec), "id", "v") == [(1, "old"), (2, "old")]
    ingest(spec, connections(), "run-4")
    assert rows(view(spec), "id", "v") == [(3, "new")]


CANAL = {"write": "upsert", "envelope": "canal", "key": ("id",), "on_truncate": "apply"}
TRUNCATE = {"type": "TRUNCATE", "isDdl": True, "data": None}


def insert(number: int, v: str) -> dict[str, Any]:
    return {"type": "INSERT", "isDdl": False, "data": [{"id": str(number), "v": v}], "sqlType": {"id": -5, "v": 12}}


@pytest.mark.exhaustive
def test_an_order_of_offsets_alone_is_enough_in_one_partition(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(1)
    spec = topic.spec(None, **CANAL)
    for record in (insert(1, "a"), insert(2, "b")):
        topic.send(record)
    ingest(spec, connections(), "run-1")
    for record in (insert(3, "before"), TRUNCATE, insert(2, "after")):
        topic.send(record)
    report = ingest(spec, connections(), "run-2")
    assert rows(view(spec), "id", "v") == [(2, "after")]
    assert (facts(report)["rows_truncated"], facts(report)["changes_before_truncate"]) == (1, 1)
    replay(spec, connections(), "again", ReplayRange("earliest", "latest"))
    assert rows(view(spec), "id", "v") == [(2, "after")]
    # What is in partitions that came later has been written later.
    topic.admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(20)
    topic.wait_for(lambda: topic.partitions() == 3)
    topic.send(insert(4, "in a new partition"), 2)
    ingest(spec, connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(2, "after"), (4, "in a new partition")]


@pytest.mark.exhaustive
def test_truncate_without_order_across_partitions_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, **CANAL)
    topic.send(insert(1, "a"), 0)
    topic.send(insert(2, "b"), 1)
    ingest(spec, connections(), "run-1")
    topic.send(TRUNCATE, 1)
    topic.send(insert(3, "c"), 0)
    before = view(spec).fingerprint()
    with pytest.raises(KafkaLakeError, match=r"partition 1 at offset 1 truncates the table, .* 2 partitions"):
        ingest(spec, connections(), "run-2")
    assert view(spec).fingerprint() == before
    ingest(replace(spec, on_truncate="ignore"), connections(), "run-3")
    assert rows(view(spec), "id", "v") == [(1, "a"), (2, "b"), (3, "c")]
