"""What `kafka-lake discover` tells of topics on a real broker, and a real registry; no group, no commit."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import wrappers_pb2
from typer.testing import Result

import kafka_lake.cli.commands.discover
import kafka_lake.cli.project
from kafka_lake.devstack.servers import EmbeddedBroker, EmbeddedRegistry
from kafka_lake.discovery.discover import Discovered, discover
from kafka_lake.discovery.guess import Column
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import Sample, Sampler
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.integration.test_kafka_errors import ADMIN, GUEST, port, secured  # noqa: F401
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
Sampled = Callable[..., Sample]
QUICK = 3.0


@pytest.fixture
def sampled(connections: NewConnections) -> Callable[..., Sample]:
    """Return a function that takes a topic's sample, and none of it too slowly."""

    def take(topic: Topic, count: int, **limits: float) -> Sample:
        cluster = connections().cluster
        now = cluster.watermarks_of(topic.name)
        began = time.monotonic()
        with Sampler(cluster, **limits) as sampler:  # type: ignore[arg-type]
            sample = sampler.newest(now, count)
        assert time.monotonic() - began < QUICK
        return sample

    return take


def places(sample: Sample) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in sample.records)


@contextmanager
def transaction(broker: EmbeddedBroker, topic: Topic, commit: bool) -> Iterator[Producer]:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": uuid.uuid4().hex, "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    yield producer
    assert producer.flush(20) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(20)
    await_transactions(broker.bootstrap_servers, {topic.name: topic.partitions()})


def test_the_newest_records_are_read_alike_from_all_partitions(new_topic: NewTopic, sampled: Sampled) -> None:
    topic = new_topic(4)
    sent = [topic.send({"id": i}, i % 2, key=b"k", headers=[("h", b"1")]) for i in range(12)]
    topic.send({"id": 12}, 2)
    sample = sampled(topic, 5)
    assert places(sample) == [(0, 4), (0, 5), (1, 4), (1, 5), (2, 0)]
    assert (sample.offsets, sample.complete) == (5, True)
    record = next(r for r in sample.records if r.partition == 1)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", sent[9].value, sent[9].timestamp_ms)
    assert record.size == len(b"k") + len(record.value or b"") + len("h1")
    assert places(sampled(topic, 100)) == [*((p, o) for p in (0, 1) for o in range(6)), (2, 0)]
    assert len(sampled(topic, 1).records) == 1


def test_a_transaction_aborted_last_is_stepped_over(
    new_topic: NewTopic, sampled: Sampled, broker: EmbeddedBroker
) -> None:
    topic = new_topic(2)
    topic.send_ids(range(3))
    with transaction(broker, topic, commit=True) as producer:
        producer.produce(topic.name, b'{"id": 3}', partition=0)
    with transaction(broker, topic, commit=False) as producer:
        for _ in range(500):
            producer.produce(topic.name, b"aborted", partition=0)
            producer.produce(topic.name, b"aborted", partition=1)
    sample = sampled(topic, 8)
    assert [record.value for record in sample.records] == [b'{"id": %d}' % i for i in range(4)]
    assert sample.complete
    assert places(sampled(topic, 2)) == [(0, 3)]
    sample = sampled(topic, 2, farthest=100)
    assert (sample.records, sample.offsets, sample.complete) == ((), 200, True)


def test_an_open_transaction_is_not_waited_for(new_topic: NewTopic, sampled: Sampled, broker: EmbeddedBroker) -> None:
    topic = new_topic()
    topic.send_ids(range(3))
    with transaction(broker, topic, commit=False) as producer:
        producer.produce(topic.name, b"open", partition=0)
        producer.flush(20)
        assert places(sampled(topic, 5)) == [(0, 0), (0, 1), (0, 2)]


def test_tombstones_at_the_end_are_stepped_over(new_topic: NewTopic, sampled: Sampled) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})
    for i in range(30):
        topic.send({"id": i} if i in (3, 5) else None, key=b"%d" % i)
    sample = sampled(topic, 2)
    assert places(sample) == [(0, offset) for offset in range(3, 30)]
    assert sample.offsets == 2 + 16 + 12


def test_large_records_end_the_sample_early(new_topic: NewTopic, sampled: Sampled) -> None:
    topic = new_topic()
    for _ in range(6):
        topic.send(100_000 * b"x")
    assert len(sampled(topic, 5, max_bytes=250_000).records) == 3
    sample = sampled(topic, 5, seconds=0.0)
    assert (sample.records, sample.complete) == ((), False)


def test_discover_needs_only_read_right_and_reports_its_lack(port: int) -> None:  # noqa: F811
    admin = AdminClient({**secured(port, *ADMIN), "log_level": 0})
    producer = Producer({**secured(port, *ADMIN), "log_level": 0})
    producer.produce("orders", b"{}")
    assert producer.flush(20) == 0

    def allow(operation: AclOperation) -> None:
        right = (ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, f"User:{GUEST[0]}", "*", operation)
        for done in admin.create_acls([AclBinding(*right, AclPermissionType.ALLOW)]).values():
            done.result(20)

    connections = Connections(KafkaCluster(secured(port, *GUEST)), {}, None, None)  # type: ignore[arg-type]

    def reported(error: str) -> bool:
        (found,) = discover(["orders"], [], connections, 5)
        assert found.cleanup_policy is None
        return found.error.startswith(error) if error else found.value.format == "json"

    allow(AclOperation.DESCRIBE)
    Topic.wait_for(lambda: reported("Reading topic orders: "))
    allow(AclOperation.READ)
    Topic.wait_for(lambda: reported(""))
    # Long enough for the refusal of the group, which isn't needed, to come as well.
    with Sampler(connections.cluster) as sampler:
        now = connections.cluster.watermarks_of("orders")
        for _ in range(20):
            assert len(sampler.newest(now, 5).records) == 1


def found_of(connections: Connections, *topics: Topic, specs: tuple[TopicTable, ...] = ()) -> list[Discovered]:
    return discover([topic.name for topic in topics], specs, connections, 20)


def test_detected_format_is_shown_with_evidence(new_topic: NewTopic, connections: NewConnections) -> None:
    orders, texts, numbers, framed, empty = (new_topic(2) for _ in range(5))
    for i in range(30):
        orders.send({"id": i, "tags": ["a"], "at": "2026-01-01T10:00:00Z"}, i % 2, key=b"%d" % i)
    for i in range(3):
        texts.send(f"line {i}".encode())
        numbers.send((2**40 + i).to_bytes(8, "big"), key=b"\x00\xff")
        framed.send(b"\x00\x00\x00\x00\x07\x02\x06abc")
    found = found_of(connections(), orders, texts, numbers, framed, empty, specs=(orders.spec(),))
    assert [(discovered.value.format, discovered.value.evidence) for discovered in found] == [
        ("json", "20 of 20 sampled values are JSON objects"),
        ("string", "3 of 3 sampled values are text"),
        ("bytes", "3 of 3 sampled values are binary, 8 bytes each"),
        ("confluent", "3 of 3 sampled values look like a registry's wire format, schema id 7"),
        (None, "the topic is empty"),
    ]
    assert [(discovered.key.format, discovered.key.evidence) for discovered in found] == [
        ("string", "20 of 20 sampled keys are text"),
        (None, "no record sampled has a key"),
        ("bytes", "3 of 3 sampled keys are binary, 2 bytes each"),
        (None, "no record sampled has a key"),
        (None, ""),
    ]
    assert found[0].value.columns == (
        Column("id", "bigint"),
        Column("tags", "array<string>"),
        Column("at", "string", "timestamp"),
    )
    assert "KAFKA_LAKE_SCHEMA_REGISTRY_URL" in found[3].value.remarks[0]
    assert [(discovered.partitions, discovered.offsets, discovered.sampled) for discovered in found] == [
        (2, 30, 20),
        (2, 3, 3),
        (2, 3, 3),
        (2, 3, 3),
        (2, 0, 0),
    ]
    sizes = [len(sent.value or b"") + len(sent.key or b"") for sent in orders.ledger]
    assert found[0].estimated_bytes == pytest.approx(sum(sizes), rel=0.1)
    assert found[4].estimated_bytes is None
    assert [discovered.tables for discovered in found] == [(f"it.{orders.table}",), (), (), (), ()]
    assert {discovered.cleanup_policy for discovered in found} == {"delete"}


def test_no_topic_waits_for_the_client_to_look_around(new_topic: NewTopic, connections: NewConnections) -> None:
    """Which it does once a second by itself."""
    topics = [new_topic() for _ in range(6)]
    for topic in topics:
        topic.send({})
    began = time.monotonic()
    assert all(discovered.sampled for discovered in found_of(connections(), *topics))
    assert time.monotonic() - began < len(topics) - 2


def test_missing_value_is_reported(new_topic: NewTopic, connections: NewConnections, broker: EmbeddedBroker) -> None:
    compacted, deleted, aborted = new_topic(**{"cleanup.policy": "compact"}), new_topic(), new_topic()
    for i in range(5):
        compacted.send({"id": i}, key=b"k")
        compacted.send(None, key=b"k")
        deleted.send(None, key=b"k")
    with transaction(broker, aborted, commit=False) as producer:
        producer.produce(aborted.name, b"never")
    found = found_of(connections(), compacted, deleted, aborted)
    assert [(discovered.value.format, discovered.value.evidence, discovered.tombstones) for discovered in found] == [
        ("json", "5 of 5 sampled values are JSON objects", 5),
        (None, "no value at its 5 offsets: tombstones, aborted or compacted away", 5),
        (None, "no value at its 2 offsets: tombstones, aborted or compacted away", 0),
    ]
    assert [discovered.cleanup_policy for discovered in found] == ["compact", "delete", "delete"]
    assert found[1].key.evidence == "5 of 5 sampled keys are text"


def test_a_topic_that_is_not_there_stops_no_other(new_topic: NewTopic, connections: NewConnections) -> None:
    before, after = new_topic(), new_topic()
    after.send({"id": 1})
    gone = new_topic()
    gone.delete()
    found = found_of(connections(), before, gone, after)
    assert [discovered.topic for discovered in found] == [before.name, gone.name, after.name]
    assert [discovered.error.partition(":")[0] for discovered in found] == ["", f"Topic {gone.name}", ""]
    assert found[2].value.format == "json"


def test_a_look_leaves_no_consumer_group(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    topic.send({"id": 1})
    found_of(connections(), topic)
    groups = topic.admin.list_consumer_groups().result(20).valid
    assert not [group.group_id for group in groups if "sample" in group.group_id]


def test_discover_shows_schemas_of_the_registry(
    new_topic: NewTopic, connections: NewConnections, registry: EmbeddedRegistry
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    schema = {"type": "record", "name": f"R{uuid.uuid4().hex}", "fields": [{"name": "id", "type": "long"}]}
    newer = {**schema, "fields": [*schema["fields"], {"name": "at", "type": {"type": "int", "logicalType": "date"}}]}  # type: ignore[misc]
    number = ProtobufSerializer(wrappers_pb2.Int64Value, client, {"use.deprecated.format": False})
    avro, mixed, stranger = new_topic(), new_topic(), new_topic()
    for topic in (avro, mixed):
        context = SerializationContext(topic.name, MessageField.VALUE)
        for version in (schema, newer):
            topic.send(AvroSerializer(client, json.dumps(version))({"id": 1, "at": 0}, context), key=b"1")
    # Under a subject of its own: in Apicurio all versions of a subject are of one type.
    mixed.send(number(wrappers_pb2.Int64Value(value=7), SerializationContext("numbers", MessageField.VALUE)))
    stranger.send(b"\x00\x00\x0f\x00\x00anything")
    asking = replace(connections(), registry=SchemaRegistry({"url": registry.url}))
    found = found_of(asking, avro, mixed, stranger)
    older, latest = sorted(int.from_bytes((sent.value or b"")[1:5], "big") for sent in avro.ledger)
    assert [discovered.value.format for discovered in found] == ["avro", "confluent", "bytes"]
    assert found[0].value.evidence == f"2 of 2 sampled values are Avro with schema ids {older}, {latest}"
    assert found[0].value.columns == (Column("id", "bigint"), Column("at", "date"))
    assert ", 1 is Protobuf with schema id " in found[1].value.evidence
    assert {column.name for column in found[1].value.columns} == {"id", "at", "value"}
    assert found[2].value.remarks == ("The registry doesn't have these schema ids.",)

    unreachable = replace(connections(), registry=SchemaRegistry({"url": "http://127.0.0.1:1"}))
    found = found_of(unreachable, avro, mixed)
    assert [discovered.value.format for discovered in found] == ["confluent", "confluent"]
    assert all("can't be reached" in discovered.value.remarks[0] for discovered in found)


@pytest.fixture
def cli(command_line: Callable[..., Result]) -> Callable[..., Result]:
    """Return the command where no topic has a table."""

    return lambda *arguments: command_line([], "discover", *arguments)


def test_cluster_without_topics_is_reported_as_empty(
    connections: NewConnections, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    server = next(iter(mock.list_topics(timeout=10).brokers.values()))
    empty = replace(connections(), cluster=KafkaCluster({"bootstrap.servers": f"{server.host}:{server.port}"}))
    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", lambda *_, **__: nullcontext(empty))
    assert cli().output.strip() == "There are no topics yet."
    assert cli("--json").stdout.strip() == "[]"


@pytest.mark.exhaustive
def test_topics_are_listed_and_the_chosen_written(
    new_topic: NewTopic, cli: Callable[..., Result], tmp_path: Path
) -> None:
    orders, lines = new_topic(2), new_topic()
    orders.send({"id": 1, "\x1b[2J[red]": {"": None, "a": 1}}, key=b'{"id": 1}')
    lines.send(b"a line")
    shown = cli()
    assert shown.exit_code == 0
    for text in (
        orders.name[:20],
        "json: 1 of 1 sampled values is a JSON object",
        "string: 1 of 1 sampled values is text",
    ):
        assert text in " ".join(shown.output.split())
    assert "\x1b[2J" not in shown.output
    assert max(map(len, shown.output.splitlines())) <= 100

    into = ("--into", str(tmp_path))
    parsed = json.loads(cli(orders.name, lines.name, "--json").stdout)
    assert [(discovered["topic"], discovered["value"]["format"], discovered["written"]) for discovered in parsed] == [
        (orders.name, "json", None),
        (lines.name, "string", None),
    ]
    written = cli(lines.name, "--write", *into)
    assert written.exit_code == 0
    assert [file.parent.name for file in tmp_path.rglob("defs.yaml")] == [lines.table]
    assert f"kafka-lake schema {lines.name}" in written.output

    for arguments in (("--write",), ("--write", "--json")):
        refused = cli(*arguments, *into)
        assert refused.exit_code == 1
        assert "Name them, as in" in refused.output
    before = (tmp_path / lines.table / "defs.yaml").read_text()
    refused = cli(orders.name, lines.name, "--write", *into)
    assert refused.exit_code == 1
    assert f"{lines.table}/defs.yaml already exists" in "".join(refused.output.split("\n"))
    assert [file.parent.name for file in tmp_path.rglob("defs.yaml")] == [lines.table]
    assert (tmp_path / lines.table / "defs.yaml").read_text() == before

    documents = json.loads(cli(orders.name, "--write", "--json", *into).stdout)
    assert documents[0]["written"] == str(tmp_path / orders.table / "defs.yaml")
    gone = cli(f"{orders.name}-gone", "--write", *into)
    assert gone.exit_code == 1
    assert "no such topic" in " ".join(gone.output.split())
    assert cli(f"{orders.name}-gone").exit_code == 1
