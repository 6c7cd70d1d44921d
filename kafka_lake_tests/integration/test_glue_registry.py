"""Values of AWS Glue's serializers, written as its Java source writes them; the registry is moto's server."""

import json
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from moto.server import ThreadedMotoServer

from kafka_lake.common.processes import HOST, free_port
from kafka_lake.discovery.guess import Schemas, guess
from kafka_lake.errors import (
    ConfigurationError,
    KafkaLakeError,
    RegistryError,
    RegistryRefusedError,
    UnknownSchemaError,
)
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.glue_registry import GlueSchemaRegistry
from kafka_lake.orchestration.resources import RegistryResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable, When
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_formats import avro, letters, order, rows_by_id
from kafka_lake_tests.integration.test_registry import Impostor

pytestmark = pytest.mark.integration

REGION = "eu-west-1"
NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]
Register = Callable[..., uuid.UUID]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadedMotoServer(HOST, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "bob")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", f"glue://{REGION}")
    yield
    server.stop()


@pytest.fixture
def register(registry: None) -> Register:
    glue = boto3.client("glue", region_name=REGION)
    # moto keeps what a server of its has when another one starts.
    home, names = uuid.uuid4().hex, set[str]()

    def registered(name: str, schema: Any, kind: str = "AVRO") -> uuid.UUID:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if name in names:
            made = glue.register_schema_version(
                SchemaId={"RegistryName": home, "SchemaName": name}, SchemaDefinition=text
            )
        else:
            if not names:
                glue.create_registry(RegistryName=home)
            made = glue.create_schema(
                RegistryId={"RegistryName": home}, SchemaName=name, DataFormat=kind, Compatibility="NONE",
                SchemaDefinition=text,
            )  # fmt: skip
            names.add(name)
        return uuid.UUID(made["SchemaVersionId"])

    return registered


def written(version: uuid.UUID, content: bytes, compressed: bool = False) -> bytes:
    """Return what SerializationDataEncoder writes."""
    return bytes([3, 5 if compressed else 0]) + version.bytes + (zlib.compress(content) if compressed else content)


def test_avro_values_and_keys_in_both_compressions(
    new_topic: NewTopic, connections: NewConnections, view: NewView, register: Register
) -> None:
    topic = new_topic(2)
    first, second = order(("id", "long"), ("n", "int")), order(("id", "long"), ("note", "string"))
    key = {"type": "record", "name": "Key", "fields": [{"name": "k", "type": "string"}]}
    versions = register("orders", first), register("orders", second), register("keys", key)
    values = {n: {"id": n, "n": n} if n % 2 else {"id": n, "note": "ü" * n} for n in range(40)}
    for n, value in values.items():
        schema, version = (first, versions[0]) if n % 2 else (second, versions[1])
        topic.send(
            written(version, avro(schema, value), compressed=n % 3 == 0),
            key=written(versions[2], avro(key, {"k": f"k{n}"}), compressed=n % 5 == 0),
            partition=n % 2,
        )
    spec = topic.spec(None, format="avro", key_format="avro")
    report = ingest(spec, connections(RegistryResource().registry()), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    empty = {"n": None, "note": None}
    assert rows_by_id(see) == {n: {**empty, **value, "_key": {"k": f"k{n}"}} for n, value in values.items()}
    (evolution,) = [found for found in report.findings() if found.check == "schema_evolution"]
    assert evolution.facts[f"records of schema version {versions[0]}"] == 20
    topic.send(written(versions[0], avro(first, {"id": 99, "n": 1})))
    ingest(spec, connections(RegistryResource().registry()), "run-2")
    assert rows_by_id(see)[99] == {"id": 99, "n": 1, "note": None, "_key": None}


def test_damaged_values_are_dead_letters_at_their_offsets(
    new_topic: NewTopic, connections: NewConnections, view: NewView, register: Register
) -> None:
    topic, schema = new_topic(), order(("id", "long"))
    version, unknown = register("orders", schema), uuid.uuid4()
    content = avro(schema, {"id": 7})
    packed = written(version, content * 50, compressed=True)
    sent = {
        written(version, content): None,
        written(unknown, content): ("unknown_schema", f"The registry has no schema version {unknown}."),
        written(version, b"")[:-1]: ("no_schema_id", "The value begins with 0x0300"),
        b"\x03\x01" + written(version, content)[2:]: ("no_schema_id", "The value begins with 0x0301"),
        b"\x02" + written(version, content)[1:]: ("no_schema_id", "The value begins with 0x0200"),
        packed[:-1]: ("malformed", "The compressed content is damaged: it is cut off"),
        packed + b"x": ("malformed", "The compressed content is damaged"),
        packed[:18] + b"\xff" + packed[19:]: ("malformed", "The compressed content is damaged: Error -3"),
        written(version, b"\x80"): ("malformed", f"The bytes don't decode with schema version {version}."),
        written(version, b"a" * 5000, compressed=True): ("too_large", "more than 1000 bytes uncompressed"),
        b"\x00\x00\x00\x00\x07" + content: ("unknown_schema", "Schema 7 isn't a schema version of AWS Glue"),
    }
    for value in sent:
        topic.send(value)
    spec = topic.spec(None, format="avro", max_record_bytes=1000)
    ingest(spec, connections(RegistryResource().registry()), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert [row["id"] for row in see.rows()] == [7]
    found = {row["offset"]: (row["error_class"], row["error_message"], row["value"]) for row in see.dead_letters()}
    assert found.keys() == set(range(1, len(sent)))
    for offset, (value, said) in enumerate(sent.items()):
        if said:
            assert found[offset][0] == said[0]
            assert said[1] in found[offset][1]
            assert found[offset][2] == value


PROTO = """syntax = "proto3"; package shop;
message Order { int64 id = 1; Line line = 2; map<string, int32> counts = 3; message Line { string sku = 1; } }
message Audit { int64 id = 1; string who = 2; }
"""
# As MessageIndexFinder counts: by full names, entries of maps among them.
NUMBERS = {"shop.Audit": 0, "shop.Order": 1, "shop.Order.CountsEntry": 2, "shop.Order.Line": 3}


def test_protobuf_messages_are_numbered_by_their_names(
    new_topic: NewTopic, connections: NewConnections, view: NewView, register: Register
) -> None:
    topic, version = new_topic(), register("proto", PROTO, "PROTOBUF")
    make = messages()
    order_ = make["shop.Order"](id=1, line={"sku": "a"}, counts={"x": 2})
    audit, line = make["shop.Audit"](id=2, who="bob"), make["shop.Order.Line"](sku="b")
    for n, message in enumerate((order_, audit, line)):
        number = bytes([NUMBERS[message.DESCRIPTOR.full_name]])
        topic.send(written(version, number + message.SerializeToString(), compressed=n == 1))
    topic.send(written(version, b"\x04"))
    topic.send(written(version, b"\x02"))
    topic.send(written(version, b""))
    spec = topic.spec(None, format="protobuf")
    ingest(spec, connections(RegistryResource().registry()), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    empty = {"id": None, "line": None, "counts": None, "who": None, "sku": None}
    rows = sorted(see.rows(), key=lambda row: row["_kafka"]["offset"])
    found = [{name: dict(row[name]) if name == "counts" and row[name] else row[name] for name in empty} for row in rows]
    assert found[0] | {"who": None} == {**empty, "id": 1, "line": {"sku": "a"}, "counts": {"x": 2}}
    assert [found[1]["id"], found[1]["who"], found[2]["sku"]] == [2, "bob", "b"]
    assert [kind for kind, _ in letters(see)] == ["unknown_schema"] * 3
    assert "there is no message with the number 4" in letters(see)[0][1]


def messages() -> dict[str, Any]:
    """Return the classes of PROTO by a compiler that isn't kafka_lake's."""
    text, integer, message = (getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
                              for kind in ("STRING", "INT64", "MESSAGE"))  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order_ = file.message_type.add(name="Order")
    order_.field.add(name="id", number=1, type=integer, label=1)
    order_.field.add(name="line", number=2, type=message, label=1, type_name=".shop.Order.Line")
    order_.field.add(name="counts", number=3, type=message, label=3, type_name=".shop.Order.CountsEntry")
    order_.nested_type.add(name="Line").field.add(name="sku", number=1, type=text, label=1)
    entry = order_.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=text, label=1)
    entry.field.add(name="value", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT32, label=1)
    audit = file.message_type.add(name="Audit")
    audit.field.add(name="id", number=1, type=integer, label=1)
    audit.field.add(name="who", number=2, type=text, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in NUMBERS
        if "Entry" not in name
    }


def test_json_goes_to_tables_by_its_schemas_name(
    new_topic: NewTopic, connections: NewConnections, view: NewView, register: Register
) -> None:
    topic = new_topic()
    kinds = {
        title: register(title, {"title": title, "type": "object", "properties": {"id": {"type": "integer"}}}, "JSON")
        for title in ("Order", "Customer")
    }
    for n in range(6):
        title = ("Order", "Customer")[n % 2]
        topic.send(written(kinds[title], json.dumps({"id": n}).encode(), compressed=n > 3))
    spec = topic.spec(None, format="json_schema", where=When(schema=("Order",)), unmatched="ignore")
    ingest(spec, connections(RegistryResource().registry()), "run-1")
    assert view(spec).ids() == [0, 2, 4]


def test_discovery_names_format_and_columns(register: Register) -> None:
    schema = order(("id", "long"))
    version = register("orders", schema)
    contents = [written(version, avro(schema, {"id": n}), compressed=n % 2 == 0) for n in range(4)]
    found = guess(contents, "value", Schemas(RegistryResource().registry()))
    assert (found.format, found.columns[0].ddl) == ("avro", "id bigint")
    assert found.evidence == f"4 of 4 sampled values are Avro with schema version {version}"
    assert "KAFKA_LAKE_SCHEMA_REGISTRY_URL" in guess(contents, "value", Schemas(None)).remarks[0]


@pytest.mark.parametrize(
    ("status", "code", "error", "said"),
    [
        (400, "EntityNotFoundException", UnknownSchemaError, "glue://eu-west-1 has no such schema"),
        (400, "AccessDeniedException", RegistryRefusedError, "Allow it glue:GetSchemaVersion"),
        (400, "ThrottlingException", RegistryError, "is temporarily unavailable"),
        (500, "InternalServiceException", RegistryError, "is temporarily unavailable"),
    ],
)
def test_each_answer_has_its_error(
    status: int, code: str, error: type[KafkaLakeError], said: str, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Impostor(lambda *_: (status, json.dumps({"__type": code}))) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", server.url)
        with pytest.raises(error, match=f"Schema version {uuid.UUID(int=7)}: .*{said}") as failed:
            RegistryResource().registry().by_id(f"version {uuid.UUID(int=7)}")
    assert type(failed.value) is error


@pytest.mark.exhaustive
def test_a_registry_that_is_away_fails_the_run(
    new_topic: NewTopic, connections: NewConnections, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    topic.send(written(uuid.uuid4(), b"x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://{HOST}:{free_port()}")
    with pytest.raises(RegistryError, match="can't be reached"):
        ingest(topic.spec(None, format="avro"), connections(GlueSchemaRegistry({"url": "glue://eu-west-1"}, 1)), "run")


@pytest.mark.parametrize("url", ["glue://", "glue:eu", "glue://eu-west-1/orders"])
def test_an_address_is_one_region(url: str) -> None:
    with pytest.raises(ConfigurationError, match="glue://REGION"):
        RegistryResource(properties={"url": url}).registry()


def test_properties_of_other_registries_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"basic\.auth\.user\.info"):
        RegistryResource(properties={"url": "glue://eu-west-1", "basic.auth.user.info": "bob:x"}).registry()


def test_state_needs_no_other_permission(registry: None) -> None:
    assert GlueSchemaRegistry({"url": "glue://eu-west-1"}).state() == "glue://eu-west-1"
