"""Kafka timestamps that no table holds: their records become rows, and nothing fails because of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.ingest.preview import preview
from kafka_lake.ingest.read import read
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.kafka.records import arrival_times, unread
from kafka_lake.orchestration.check_results import freshness
from kafka_lake.orchestration.table_metadata import figures_metadata
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import Plan, ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.transactions import await_transactions
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

GOOD = 1_767_323_045_123
# By id of the record. The third and those after it overflow where Spark makes microseconds of milliseconds.
STAMPS = [GOOD, GOOD * 1000, GOOD * 1_000_000, 2**63 - 1, -(2**63), -(10**15), -2, 253_402_300_800_000]
WIDE = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@pytest.mark.parametrize("settings", [{}, exhaustive(by(False)), exhaustive({"write": "upsert", "key": ("id",)})])
def test_records_with_impossible_times_become_rows(
    settings: dict[str, Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2, **WIDE)
    for number, stamp in enumerate(STAMPS):
        topic.send({"id": number}, timestamp_ms=stamp)
    topic.send(b"junk", timestamp_ms=GOOD * 1_000_000)
    topic.send({"id": 100}, 1, timestamp_ms=GOOD)
    spec = topic.spec(**settings)
    said: list[str] = []
    report = ingest(spec, connections(), "run-1", observer=Observer(warn=said.append))
    assert (report.total("records"), report.total("untimed"), report.total("dead_letters")) == (10, 8, 1)
    assert figures_metadata(report.figures())["records_without_timestamp"] == 8
    (reported,) = [line for line in said if "null" in line]
    assert reported.startswith(
        f"Topic {topic.name}: 8 records have no Kafka timestamp, or one outside of the years 1970"
    )
    times = {row["id"]: row["_kafka"]["timestamp"] for row in view(spec).rows()}
    assert {number for number, time in times.items() if time is not None} == {0, 100}
    assert times.keys() == {*range(len(STAMPS)), 100}
    assert times[0].timestamp() == GOOD / 1000
    (letter,) = view(spec).dead_letters()
    assert (letter["timestamp"], letter["value"]) == (None, b"junk")
    # Nothing is missing after what has been read in another way, and nothing is twice after a replay.
    topic.send({"id": 101}, timestamp_ms=GOOD)
    ingest(spec, connections(), "run-2")
    if spec.write == "append":
        replay(spec, connections(), "run-3", ReplayRange())
    view(spec).assert_exactly_once(topic.ledger)
    assert len(view(spec).dead_letters()) == 1


def test_client_and_spark_read_the_same_timestamps(
    new_topic: NewTopic, connections: NewConnections, broker: Any
) -> None:
    topic = new_topic(2)
    topic.send(b"\x00\xff", key=b"k", headers=[("h", b"\xff"), ("h", b""), ("none", None)], timestamp_ms=GOOD)
    topic.send(None, 1, key=b"", timestamp_ms=1)
    topic.send(b"", 1, timestamp_ms=-1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name})
    producer.init_transactions(20)
    for aborted in (False, True):
        producer.begin_transaction()
        producer.produce(topic.name, f"aborted: {aborted}", partition=0, timestamp=GOOD)
        producer.abort_transaction(20) if aborted else producer.commit_transaction(20)
    await_transactions(broker.bootstrap_servers, {topic.name: 2})
    now = connections().cluster.watermarks_of(topic.name)
    ends = [OffsetRange(p, 0, now.end[p]) for p in now.partitions]
    for ranges in (ends, [OffsetRange(0, 1, 2), OffsetRange(1, 0, 1)], [OffsetRange(0, now.end[0] - 1, now.end[0])]):
        plan = Plan(tuple(ranges), Position(now.identity, now.end), 0)
        frames = [read(connections(), plan_, topic.name) for plan_ in (plan, replace(plan, by_client=True))]
        assert frames[0].dtypes == frames[1].dtypes
        by_spark, by_client = (sorted(map(str, frame.collect())) for frame in frames)
        assert by_client == by_spark


def test_samples_with_impossible_times_are_shown(
    new_topic: NewTopic, connections: NewConnections, command_line: Callable[..., Any], tmp_path: Any
) -> None:
    topic, cluster = new_topic(3, **WIDE), connections().cluster
    for number, stamp in enumerate(STAMPS):
        topic.send({"id": number}, number % 2, timestamp_ms=stamp)
    topic.send({"id": 8}, 2, timestamp_ms=GOOD)
    spec = topic.spec(max_age="5m")
    lines = command_line([spec], "topic", "tail", topic.name, "--json").output.splitlines()
    reported = {json.loads(line["value"])["id"]: line["timestamp"] for line in map(json.loads, lines)}
    assert reported == {
        **dict.fromkeys(range(1, 8)),
        0: "2026-01-02T03:04:05.123+00:00",
        8: "2026-01-02T03:04:05.123+00:00",
    }
    assert str(GOOD * 1_000_000) in command_line([spec], "topic", "tail", topic.name).output
    assert command_line([spec], "discover", topic.name, "--json").exit_code == 0
    # Whose oldest unread record has no time, nobody can say how old it is.
    now = cluster.watermarks_of(topic.name)
    places = {record.partition: record for record in unread(now, Position(now.identity, {0: 1, 1: 0, 2: 0})).values()}
    assert arrival_times(cluster, places.values(), 10) == {places[2]: GOOD / 1000}
    assert freshness([spec], cluster, connections().catalog) == []
    assert cluster.offsets_at(topic.name, [2], -1) == {2: 0}
    seen = preview(spec, connections(), 100)
    assert (seen.records, seen.refused) == (9, "")
