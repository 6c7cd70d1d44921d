"""Large is only more of the same: many partitions, large records, one partition with nearly everything.

The session's JVM has a heap of 1 GiB: what runs here runs in less than the promised 2.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.plan.append import plan
from kafka_lake.ingest.read import RECORDS_A_SPLIT, read
from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def heap_bytes(spark_resource: Any) -> int:
    runtime = spark_resource.spark_session.sparkContext._jvm.java.lang.Runtime.getRuntime()
    return int(runtime.maxMemory())


def test_a_thousand_partitions_are_one_commit(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    assert heap_bytes(spark_resource) < 2 << 30
    topic = new_topic(1000)
    for partition in range(1000):
        topic.producer.produce(topic.name, b'{"id": %d}' % partition, partition=partition)
    assert topic.producer.flush(60) == 0
    spec = topic.spec()
    report = ingest(spec, connections(), "run-1")
    assert [c.rows for c in report.commits] == [1000]
    assert report.total("files") <= 2
    assert view(spec).ids() == list(range(1000))
    assert view(spec).position() == dict.fromkeys(range(1000), 1)


def test_a_record_of_ten_mebibytes_passes(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    assert heap_bytes(spark_resource) < 2 << 30
    topic = new_topic(1, **{"max.message.bytes": str(12 << 20)})
    size = 10 << 20
    producer = topic.producer.__class__(
        {"bootstrap.servers": connections().cluster.bootstrap_servers, "message.max.bytes": 12 << 20, "log_level": 0}
    )
    for number in range(3):
        producer.produce(topic.name, b'{"id": %d, "blob": "%s"}' % (number, b"x" * size))
        assert producer.flush(60) == 0
    spec = topic.spec("id bigint, blob string")
    ingest(spec, connections(), "run-1")
    assert [(r["id"], len(r["blob"])) for r in view(spec).rows()] == [(0, size), (1, size), (2, size)]


def test_a_topic_with_nearly_everything_in_one_partition_is_read_by_all_cores(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic(4)
    count = 4 * RECORDS_A_SPLIT
    for number in range(count):
        topic.producer.produce(topic.name, b'{"id": %d}' % number, partition=0 if number % 10 else number // 10 % 4)
        if number % 50_000 == 0:
            assert topic.producer.flush(120) == 0
    assert topic.producer.flush(120) == 0
    made = connections()
    todo = plan(None, made.cluster.watermarks_of(topic.name), dict.fromkeys(range(4), 0), 10 * count)
    assert todo is not None
    frame = read(made, todo, topic.name)
    sizes = sorted(row["count"] for row in frame.selectExpr("spark_partition_id() p").groupBy("p").count().collect())
    assert sum(sizes) == count
    assert sizes[-1] < 0.4 * count, "the long partition is split"
    spec = topic.spec()
    report = ingest(spec, made, "run-1")
    assert report.total("rows") == count
    assert report.total("files") > 1
