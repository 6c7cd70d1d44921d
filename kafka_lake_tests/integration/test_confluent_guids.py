"""GUIDs in headers, written by Confluent's own serializers; the registry answers as Confluent's specification says."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import wrappers_pb2

from kafka_lake.ingest.run import ingest, replay_dead_letters
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.run import verify
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_formats import avro, letters, order, rows_by_id
from kafka_lake_tests.integration.test_registry import Answer, Headers, Impostor

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]
NAME = "__value_schema_id"


class Guids:
    """Schemas by id and GUID."""

    def __init__(self) -> None:
        self.schemas: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, path: str, headers: Headers) -> Answer:
        route = path.partition("?")[0].strip("/").split("/")
        if route[0] == "subjects" and "form" in headers:
            return self._registered(json.loads(headers["form"]))
        known = dict(self.schemas) if route[1] == "guids" else dict(self._by_id())
        if route[2] not in known:
            return 404, json.dumps({"error_code": 40403, "message": "Schema not found"})
        return 200, json.dumps(known[route[2]])

    def _by_id(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return ((str(number), schema) for number, (_, schema) in enumerate(self.schemas, 1))

    def _registered(self, schema: dict[str, Any]) -> Answer:
        texts = [json.dumps(known, sort_keys=True) for _, known in self.schemas]
        if (text := json.dumps(schema, sort_keys=True)) not in texts:
            self.schemas.append((str(uuid.uuid5(uuid.NAMESPACE_URL, text)), schema))
            texts.append(text)
        number = texts.index(text)
        return 200, json.dumps({"id": number + 1, "guid": self.schemas[number][0], "version": 1, **schema})


@pytest.fixture
def server() -> Iterator[Impostor]:
    with Impostor(Guids()) as running:
        yield running


def test_ids_in_headers_and_in_values_in_one_topic(
    new_topic: NewTopic, connections: NewConnections, view: NewView, server: Impostor
) -> None:
    topic, client = new_topic(), SchemaRegistryClient({"url": server.url})
    first, second = order(("id", "long")), order(("id", "long"), ("note", "string"))
    key = {"type": "record", "name": "Key", "fields": [{"name": "k", "type": "string"}]}
    ways = header_schema_id_serializer, prefix_schema_id_serializer

    def serializer(schema: Any, way: Any) -> AvroSerializer:
        return AvroSerializer(client, Schema(json.dumps(schema), "AVRO"), conf={"schema.id.serializer": way})

    values = {n: {"id": n} if n % 3 else {"id": n, "note": "ü"} for n in range(24)}
    for n, value in values.items():
        # As Kafka Streams forwards it from a topic of another serializer.
        headers: list[tuple[str, bytes]] = [("apicurio.value.globalId", (n + 1).to_bytes(8))]
        of_value, of_key = (
            SerializationContext(topic.name, part, headers) for part in (MessageField.VALUE, MessageField.KEY)
        )
        raw = serializer(first if n % 3 else second, ways[n % 2])(value, of_value)
        raw_key = serializer(key, ways[n // 2 % 2])({"k": f"k{n}"}, of_key)
        topic.send(raw, key=raw_key, headers=headers)
    spec = topic.spec(None, format="avro", key_format="avro")
    ingest(spec, connections(SchemaRegistry({"url": server.url})), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {n: {"note": None, **value, "_key": {"k": f"k{n}"}} for n, value in values.items()}
    report = verify(spec, spec, connections(SchemaRegistry({"url": server.url})), sample=1.0)
    assert (report.problems, report.counts["compared_rows"]) == ([], len(values))
    asked = {path.partition("?")[0] for path, _ in server.asked}
    assert {f"/schemas/guids/{guid}" for guid, _ in server.answer.schemas} <= asked  # type: ignore[attr-defined]


def test_message_indexes_are_in_the_header(
    new_topic: NewTopic, connections: NewConnections, view: NewView, server: Impostor
) -> None:
    topic, client = new_topic(), SchemaRegistryClient({"url": server.url})
    for n, kind in enumerate((wrappers_pb2.Int32Value, wrappers_pb2.Int64Value, wrappers_pb2.UInt32Value)):
        conf = {"use.deprecated.format": False, "schema.id.serializer": header_schema_id_serializer}
        headers: list[tuple[str, bytes]] = []
        context = SerializationContext(topic.name, MessageField.VALUE, headers)
        topic.send(ProtobufSerializer(kind, client, conf)(kind(value=n), context), headers=headers)
    spec = topic.spec(None, format="protobuf")
    ingest(spec, connections(SchemaRegistry({"url": server.url})), "run-1")
    see = view(spec)
    assert letters(see) == []
    assert sorted(row["value"] for row in see.rows()) == [0, 1, 2]


def test_damaged_headers_are_dead_letters_until_they_are_mended(
    new_topic: NewTopic, connections: NewConnections, view: NewView, server: Impostor
) -> None:
    topic, client, schema = new_topic(), SchemaRegistryClient({"url": server.url}), order(("id", "long"))
    client.register_schema("orders-value", Schema(json.dumps(schema), "AVRO"))
    guid, unknown = uuid.UUID(server.answer.schemas[0][0]).bytes, uuid.uuid4()  # type: ignore[attr-defined]
    value, damaged = avro(schema, {"id": 7}), f"The header {NAME} has no schema id: its value is 0x"
    sent: dict[bytes | None, tuple[str, str] | None] = {
        b"\x01" + guid: None,
        b"\x01" + guid[:-1]: ("no_schema_id", damaged),
        b"\x01" + guid + b"\x00": ("no_schema_id", damaged),
        b"\x01" + guid + b"\x80": ("no_schema_id", damaged),
        b"\x02" + guid: ("no_schema_id", damaged),
        b"\x03\x00" + guid: ("no_schema_id", damaged),
        b"": ("no_schema_id", f"{damaged}."),
        b"\x01" + unknown.bytes: ("unknown_schema", f"The registry has no schema guid {unknown}."),
    }
    for header in sent:
        topic.send(value, headers=[(NAME, header)])
    spec, schemas = topic.spec(None, format="avro"), SchemaRegistry({"url": server.url})
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert see.ids() == [7]
    for offset, (found, expected) in enumerate(zip(letters(see), list(sent.values())[1:], strict=True), 1):
        assert expected is not None
        assert (found[0], expected[1] in found[1]) == (expected[0], True), (offset, found)
    # The registry gets the schema, and the dead letter goes back in.
    server.answer.schemas.append((str(unknown), {"schema": json.dumps(schema), "schemaType": "AVRO"}))  # type: ignore[attr-defined]
    replay_dead_letters(spec, connections(SchemaRegistry({"url": server.url})), "run-2")
    assert see.ids() == [7, 7]


@pytest.mark.parametrize("body", ['{"error_code": 40403, "message": "no"}', '{"error_code": 404}', "<html>"])
def test_a_registry_without_guids_ends_no_run(
    body: str, new_topic: NewTopic, connections: NewConnections, view: NewView, server: Impostor
) -> None:
    topic, schema, guid = new_topic(), order(("id", "long")), uuid.uuid4()
    SchemaRegistryClient({"url": server.url}).register_schema("orders-value", Schema(json.dumps(schema), "AVRO"))
    topic.send(b"\x00\x00\x00\x00\x01" + avro(schema, {"id": 1}))
    topic.send(b"\x01" + guid.bytes + avro(schema, {"id": 2}))

    def answer(path: str, headers: Headers) -> Answer:
        return (404, body) if "guids" in path else server.answer(path, headers)

    with Impostor(answer) as front:
        spec = topic.spec(None, format="avro")
        ingest(spec, connections(SchemaRegistry({"url": front.url})), "run-1")
    assert view(spec).ids() == [1]
    assert letters(view(spec)) == [("unknown_schema", f"The registry has no schema guid {guid}.")]
