"""Large is only more of the same: many partitions, large records, one partition with nearly everything.

The session's JVM has a heap of 1 GiB: what runs here runs in less than the promised 2.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as Created

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION
from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.ingest.plan import plan
from kafka_lake.ingest.read import RECORDS_A_SPLIT, read
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource
from kafka_lake.orchestration.sensors.requests import Pace, Sharing
from kafka_lake.orchestration.sensors.topics import evaluate, poll_topics
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.relay import Relay, served

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


def test_skewed_partition_is_read_by_all_cores(
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


class ManyTables(Relay):
    """A REST catalog that takes 50 ms for each answer, whose tables have read their topics to the end."""

    metadata = ""
    asked: ClassVar[Counter[str]] = Counter()
    at_once = most_at_once = 0
    lock = threading.Lock()

    def handle_request(self) -> None:
        found = ManyTables
        table = self.path.rpartition("/tables/")[2].partition("?")[0] if "/tables/" in self.path else ""
        with found.lock:
            found.at_once += 1
            found.most_at_once = max(found.most_at_once, found.at_once)
            found.asked[table] += 1
        time.sleep(0.05)
        answer = f'{{"metadata-location": "file:/m", "metadata": {self.metadata.replace("TOPIC", table)}}}'
        with found.lock:
            found.at_once -= 1
        config = '{"defaults": {}, "overrides": {}}'
        self.answer(200, {"Content-Type": "application/json"}, (answer if table else config).encode())


@pytest.fixture
def many_tables(tmp_path: Path) -> Iterator[LakeCatalog]:
    local = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": f"file://{tmp_path}"}
    catalog = LakeCatalog("lake", local)
    catalog.ensure_namespace("it")
    rows = pa.table({"id": [1]})
    table = catalog.pyiceberg.create_table(("it", "orders"), rows.schema)
    position = Position(TopicIdentity("c", "t", "TOPIC"), {0: 7})
    table.append(rows, snapshot_properties={POSITION: position.to_json()})
    ManyTables.metadata = table.metadata.model_dump_json()
    with served(ManyTables) as address:
        yield LakeCatalog("lake", {"type": "rest", "uri": address})


def test_a_tick_asks_for_a_thousand_tables_eight_at_a_time(many_tables: LakeCatalog) -> None:
    """Without its seconds, which say how busy the machine is: docs/catalogs.md has some, and `pytest -s` shows them."""
    names = [f"t{number}" for number in range(1000)]
    specs = [TopicTable(name, "it", name) for name in names]
    answers = {name: Watermarks(TopicIdentity("c", "t", name), {0: 0}, {0: 7}) for name in names}
    with dg.DagsterInstance.ephemeral() as instance:
        for name in names:
            instance.add_dynamic_partitions(partitions_of(name).name or "", ["0"])
        began, used = time.perf_counter(), time.process_time()
        result = evaluate(
            dg.build_sensor_context(instance=instance), specs, answers, many_tables, Pace(10.0), Sharing(3)
        )
        print(f"{time.perf_counter() - began:.1f} s, {time.process_time() - used:.1f} CPU-seconds with the server's")
    assert isinstance(result, dg.SkipReason)
    assert str(result.skip_message).count("up to date") == 1000
    loads = {table: count for table, count in ManyTables.asked.items() if table}
    assert loads == dict.fromkeys(names, 1)
    assert ManyTables.most_at_once == 8


def test_a_tick_over_five_hundred_topics_of_a_real_broker(
    kafka_resource: KafkaResource, catalog_resource: CatalogResource
) -> None:
    """Without its seconds, likewise: docs/many-topics.md has some."""
    cluster, catalog = kafka_resource.cluster(), catalog_resource.open()
    names = [f"tick-{number}" for number in range(500)]
    admin = AdminClient(kafka_resource.properties)
    made = admin.create_topics([Created(name, num_partitions=3) for name in names])
    for answer in made.values():
        answer.result(60)
    specs = [TopicTable(name, "it", name.replace("-", "_")) for name in names]
    with dg.DagsterInstance.ephemeral() as instance:
        for name in names:
            instance.add_dynamic_partitions(partitions_of(name).name or "", ["0", "1", "2"])
        context = dg.build_sensor_context(instance=instance)
        deadline, reported = time.monotonic() + 60, ""
        while reported.count("up to date") < 500 and time.monotonic() < deadline:
            # The first one may find partitions without a leader yet.
            began, used = time.perf_counter(), time.process_time()
            result = poll_topics(context, specs, cluster=cluster, catalog=catalog, pace=Pace(10.0), sharing=Sharing(3))
            print(f"{time.perf_counter() - began:.1f} s, {time.process_time() - used:.1f} CPU-seconds")
            reported = str(result.skip_message) if isinstance(result, dg.SkipReason) else ""
    assert reported.count("up to date") == 500
