"""Metrics of real topics and tables, scraped over HTTP and compared with what was produced."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.maintenance.policy import table_health
from kafka_lake.observability.collect import ClusterCollector, max_age
from kafka_lake.observability.samples import key_of
from kafka_lake.observability.serve import LatestSamples
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.scraped import Scraped, scrape, served
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


class Watched:
    """Topics of some clusters, collected when a test says so, and scraped over HTTP."""

    def __init__(self, catalog: CatalogResource, by_cluster: list[tuple[KafkaResource, list[TopicTable]]]) -> None:
        specs = [spec for item in by_cluster for spec in item[1]]
        self.reported: list[str] = []
        self.latest = LatestSamples(map(key_of, specs), max_age(15))
        self.collectors = [
            ClusterCollector(
                specs=specs,
                cluster=kafka.cluster,
                catalog=catalog.open,
                latest=self.latest,
                tell_user=self.reported.append,
            )
            for kafka, specs in by_cluster
        ]

    def scrape(self) -> Scraped:
        for number, collector in enumerate(self.collectors):
            collector.collect()
            self.latest.collected(str(number), time.time(), 0.0)
        with served(lambda now: self.latest.samples(now, len(self.collectors))) as address:
            return scrape(address)


def abort(kafka: KafkaResource, topic: str) -> None:
    """Produce a record in a transaction that is aborted."""
    address = {"bootstrap.servers": kafka.cluster().bootstrap_servers}
    producer = Producer({**address, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"{}", partition=0)
    producer.flush(20)
    producer.abort_transaction(20)
    await_transactions(address["bootstrap.servers"], {topic: 1})


def test_metrics_match_produced_and_written_records(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    catalog_resource: CatalogResource,
    kafka_resource: KafkaResource,
) -> None:
    topic, idle, untouched = new_topic(2), new_topic(1), new_topic(1)
    spec, quiet, none_yet = topic.spec(), idle.spec(), untouched.spec()
    for sent in range(10):
        topic.send({"id": sent}, sent % 2)
    topic.send(b"junk", 0)
    topic.send({"id": "no number"}, 1)
    topic.send(None, 1, key=b"gone")
    idle.send({"id": 1})
    ingest(spec, connections(), "first")
    ingest(quiet, connections(), "first")
    watched = Watched(catalog_resource, [(kafka_resource, [spec, quiet, none_yet])])
    before, (name, table) = watched.scrape(), key_of(spec)
    labels = {"topic": name, "table": table}

    old = time.time() - 500
    topic.send({"id": 20}, 0, timestamp_ms=int(old * 1000))
    topic.send({"id": 21}, 0)
    untouched.send({"id": 1}, timestamp_ms=int(old * 1000))
    abort(kafka_resource, idle.name)
    found = watched.scrape()
    assert watched.reported == []
    assert all(value == 1 for _, value in found.all("scrape_success"))
    assert len(found.all("scrape_success")) == 9
    assert found.of("topics") == 3
    assert found.of("partitions", **labels) == 2

    def by_partition_of(metric: str) -> dict[str, float]:
        return {labels["partition"]: value for labels, value in found.all(metric, topic=name)}

    assert by_partition_of("log_start_offset") == {"0": 0, "1": 0}
    assert by_partition_of("log_end_offset") == {"0": 8, "1": 7}
    assert (
        by_partition_of("position_offset") == {str(p): o for p, o in view(spec).position().items()} == {"0": 6, "1": 7}
    )
    assert by_partition_of("lag_records") == {"0": 2, "1": 0}
    ages = by_partition_of("lag_seconds")
    assert ages["1"] == 0
    assert 500 <= ages["0"] <= 560
    assert [value for _, value in found.all("lag_records", topic=idle.name)] == [2], "a record, and a marker"
    assert [value for _, value in found.all("lag_seconds", topic=idle.name)] == [0], "nobody waits for what was aborted"
    assert 500 <= found.all("lag_seconds", topic=untouched.name)[0][1] <= 560
    assert found.all("position_offset", topic=untouched.name) == []
    assert found.all("last_commit_timestamp_seconds", topic=untouched.name) == []

    counts = {
        metric: found.of(f"{metric}_total", **labels)
        for metric in ("records_read", "rows_written", "dead_letters", "tombstones", "commits", "refused_commits")
    }
    assert counts == {
        "records_read": 13,
        "rows_written": 10,
        "dead_letters": 2,
        "tombstones": 1,
        "commits": 1,
        "refused_commits": 0,
    }
    sent_bytes = sum(len(record.value or b"") + len(record.key or b"") for record in topic.ledger[:13])
    assert found.of("read_bytes_total", **labels) == sent_bytes
    steps = {labels["step"]: value for labels, value in found.all("step_seconds_total", topic=name)}
    assert steps.keys() == {"plan", "stage", "audit"}
    assert 0 < sum(steps.values()) < 120
    assert found.of("dead_letters_waiting", **labels) == len(view(spec).dead_letters()) == 2
    health = table_health(view(spec).table)
    assert found.of("table_rows", **labels) == len(view(spec).rows()) == 10
    assert found.of("table_data_files", **labels) == health.data_files
    assert found.of("table_size_bytes", **labels) == health.size
    assert found.of("table_snapshots", **labels) == len(view(spec).table.metadata.snapshots)
    head = view(spec).table.current_snapshot()
    assert head is not None
    assert found.of("last_commit_timestamp_seconds", **labels) == head.timestamp_ms / 1000
    letters = ".".join(spec.dead_letter_table)
    assert found.of("table_rows", topic=name, table=letters) == 2
    assert before.of("lag_records", **labels, partition="0") == 0

    # Read again, read on, and go back over a loss: the identity holds, and the loss is counted.
    replay(spec, connections(), "again", ReplayRange("0:0,1:0", "0:2,1:1"))
    place = TopicPartition(topic.name, 0, 7)
    topic.admin.delete_records([place])[TopicPartition(topic.name, 0)].result(20)
    reset(spec, connections(), "skip", "0:7,1:7")
    ingest(spec, connections(), "second")
    found = watched.scrape()
    read, rows, dead, tombstones = (
        found.of(f"{metric}_total", **labels) or 0
        for metric in ("records_read", "rows_written", "dead_letters", "tombstones")
    )
    assert (read, rows + dead + tombstones) == (17, 17)
    assert found.of("commits_total", **labels) == 4
    assert found.of("lag_records", **labels, partition="0") == 0
    assert found.of("lost_records", **labels, reason="skipped") == 1
    assert found.of("losses", **labels, reason="skipped") == 1


@pytest.mark.exhaustive
def test_metrics_of_upsert_table_count_changes_and_deletes(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    catalog_resource: CatalogResource,
    kafka_resource: KafkaResource,
) -> None:
    topic = new_topic(1)
    spec = topic.spec("v string", write="upsert")
    for key, value in ((b"a", {"v": "1"}), (b"a", {"v": "2"}), (b"b", {"v": "3"}), (b"b", None), (None, {"v": "4"})):
        topic.send(value, key=key)
    ingest(spec, connections(), "first")
    found, labels = (
        Watched(catalog_resource, [(kafka_resource, [spec])]).scrape(),
        dict(zip(("topic", "table"), key_of(spec), strict=True)),
    )
    counts = [
        found.of(f"{metric}_total", **labels)
        for metric in ("records_read", "rows_written", "tombstones", "dead_letters")
    ]
    assert counts == [5, 3, 1, 1]
    assert found.of("table_rows", topic=topic.name, table=".".join(spec.deletes_table)) == 1
    assert len(view(spec).rows()) == 1


@pytest.mark.exhaustive
def test_dead_broker_removes_only_metrics_of_its_topics(
    new_topic: NewTopic,
    catalog_resource: CatalogResource,
    kafka_resource: KafkaResource,
    tmp_path: Path,
) -> None:
    here, name = new_topic(1), f"elsewhere-{uuid.uuid4().hex[:6]}"
    here.send({"id": 1})
    with EmbeddedBroker(tmp_path, heap="256m") as other:
        address = {"bootstrap.servers": other.bootstrap_servers, "log_level": 0}
        there = Topic(name, name.replace("-", "_"), AdminClient(address), Producer(address))
        there.create(1)
        there.send({"id": 1})
        kafka = KafkaResource(properties={"bootstrap.servers": other.bootstrap_servers}, timeout=4)
        ours, theirs = here.spec(), there.spec()
        watched = Watched(catalog_resource, [(kafka_resource, [ours]), (kafka, [theirs])])
        both = watched.scrape()
        assert [both.all("lag_records", topic=spec.topic)[0][1] for spec in (ours, theirs)] == [1, 1]
    one = watched.scrape()
    assert one.all("lag_records", topic=ours.topic)[0][1] == 1
    for metric in ("lag_records", "lag_seconds", "log_end_offset", "partitions"):
        assert one.all(metric, topic=theirs.topic) == [], metric
    success = {labels["part"]: value for labels, value in one.all("scrape_success", topic=theirs.topic)}
    assert success == {"brokers": 0, "unread": 0, "table": 1}
    last, now = (
        item.all("scrape_last_success_timestamp_seconds", topic=theirs.topic, part="brokers") for item in (both, one)
    )
    assert last == now, "a frozen time tells how old the last values are"
    assert len(watched.reported) == 1
    assert other.bootstrap_servers in watched.reported[0]
    assert all(value == 1 for _, value in one.all("scrape_success", topic=ours.topic))
