"""Commits stay near their limit of bytes on a real broker, and what was read is counted, whoever decodes."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.records import Probe
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.records import record_sizes
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_discover import transaction
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

LIMIT = 4_000_000


def fill(broker: EmbeddedBroker, topic: Topic, sizes: dict[int, list[int]]) -> dict[tuple[int, int], int]:
    """Produce records of about these sizes per partition, and return the bytes of each by partition and offset."""
    made: dict[tuple[int, int], int] = {}
    # In the order of the calls, even if the broker is slow and batches are sent once more.
    compressed = {"compression.type": "zstd", "linger.ms": 20, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **compressed})
    for partition, item in sizes.items():
        for offset, size in enumerate(item):
            value = json.dumps({"id": offset, "text": "x" * size}).encode()
            producer.produce(topic.name, value, b"key", partition, headers=[("h", b"12345")])
            made[partition, offset] = len(value) + len("keyh12345")
            producer.poll(0)
    assert producer.flush(30) == 0
    return made


@pytest.mark.parametrize("settings", [pytest.param({}, id="arrow"), exhaustive(by(False), id="spark")])
def test_commits_stay_near_byte_limit_for_uneven_records(
    settings: dict[str, Any],
    broker: EmbeddedBroker,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
) -> None:
    topic, chance = new_topic(3), random.Random(1)
    sizes = {
        0: [100] * 600 + [20_000] * 200,
        1: [chance.choice((50, 50, 50, 40_000)) for _ in range(400)],
        2: [300] * 50,
    }
    made = fill(broker, topic, sizes)
    spec = topic.spec("id bigint", max_bytes_per_commit=LIMIT, **settings)
    report = ingest(spec, connections(), "run-1")

    read = [sum(made[r.partition, o] for r in c.ranges for o in range(r.start, r.end)) for c in report.commits]
    assert [c.bytes_read for c in report.commits] == read
    assert sum(read) == sum(made.values()) > 1.7 * LIMIT
    assert max(read) <= 1.25 * LIMIT
    assert len(read) <= 2 + 2 * sum(read) / LIMIT
    rows = sorted((r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in view(spec).rows())
    assert rows == sorted(made)
    assert view(spec).position() == {p: len(item) for p, item in sizes.items()}


def test_probes_report_the_offsets_that_they_read(
    broker: EmbeddedBroker, new_topic: NewTopic, connections: NewConnections
) -> None:
    topic = new_topic(3)
    made = fill(broker, topic, {0: list(range(1000)), 1: [300_000] * 8})
    cluster, ranges = connections().cluster, (OffsetRange(0, 100, 900), OffsetRange(1, 0, 8), OffsetRange(2, 0, 0))
    found = record_sizes(cluster, topic.name, ranges, 4)
    assert sorted((commit.partition, commit.start, commit.offsets) for commit in found) == [
        *((0, start, 16) for start in (100, 300, 500, 700)),
        # One large record is enough of a look.
        *((1, start, 1) for start in (0, 2, 4, 6)),
    ]
    for item in found:
        seen = range(item.start, item.start + item.offsets)
        assert item.bytes == sum(made[item.partition, offset] for offset in seen)
    few = record_sizes(cluster, topic.name, (OffsetRange(0, 10, 13),), 16)
    assert sorted((commit.start, commit.offsets) for commit in few) == [(10, 1), (11, 1), (12, 1)]
    assert record_sizes(cluster, topic.name, ranges, 4, seconds=0) == []


def test_offsets_without_records_are_known_to_have_none(
    broker: EmbeddedBroker, new_topic: NewTopic, connections: NewConnections
) -> None:
    topic = new_topic(1)
    with transaction(broker, topic, commit=False) as producer:
        for _ in range(99):
            producer.produce(topic.name, b"x" * 1000, partition=0)
    topic.send({"id": 1})
    cluster = connections().cluster
    # The marker of the aborted transaction may come before or after the record.
    topic.wait_for(lambda: cluster.watermarks_of(topic.name).end == {0: 101})
    assert record_sizes(cluster, topic.name, (OffsetRange(0, 0, 101),), 1) == [Probe(0, 0, 101, len(b'{"id": 1}'))]
    assert record_sizes(cluster, topic.name, (OffsetRange(0, 0, 99),), 1) == [Probe(0, 0, 99, 0)]


def test_every_place_is_looked_at_in_time(
    broker: EmbeddedBroker, new_topic: NewTopic, connections: NewConnections
) -> None:
    """A client that leaves partitions alone for a second between two requests finds a tenth of the places by then."""
    topic = new_topic(6)
    fill(broker, topic, {partition: [50] * 800 for partition in range(6)})
    ranges = [OffsetRange(partition, 0, 800) for partition in range(6)]
    probes = record_sizes(connections().cluster, topic.name, ranges, 16)
    places = {(probe.partition, probe.start) for probe in probes}
    assert places == {(partition, place * 50) for partition in range(6) for place in range(16)}
