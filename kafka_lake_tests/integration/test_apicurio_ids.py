"""Ids of Apicurio's own serializers, as its Java source writes them, looked up in a real Apicurio."""

import json
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import requests
from confluent_kafka.schema_registry import SchemaRegistryClient

from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.errors import ConfigurationError, RegistryError, RegistryRefusedError, SchemaNotSupportedError
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.orchestration.resources import RegistryResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable, When
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.debezium_avro import envelope
from kafka_lake_tests.integration.test_formats import avro, framed, letters, order, rows_by_id
from kafka_lake_tests.integration.test_keyed_avro import COLUMNS, Capture
from kafka_lake_tests.integration.test_registry import SECRET, Impostor

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]
Ids = tuple[int, int]
Register = Callable[..., Ids]


@pytest.fixture
def register(registry: EmbeddedRegistry) -> Register:
    """Register by Apicurio's own API; return globalId and contentId, which are never the same."""
    groups = f"{registry.url.partition('/apis/')[0]}/apis/registry/v2/groups/default/artifacts"

    def post(content: Any, kind: str, references: Any) -> Ids:
        name = f"a{uuid.uuid4().hex}"
        answer = requests.post(
            groups,
            data=json.dumps({"content": content, "references": references}),
            headers={
                "X-Registry-ArtifactId": name,
                "X-Registry-ArtifactType": kind,
                "Content-Type": "application/create.extended+json",
            },
            timeout=20,
        )
        made = answer.json()
        register.name = name  # type: ignore[attr-defined]
        return made["globalId"], made["contentId"]

    def register(schema: Any, kind: str = "AVRO", references: Any = ()) -> Ids:
        content = schema if isinstance(schema, str) else json.dumps(schema)
        ids = post(content, kind, list(references))
        while ids[0] == ids[1]:
            ids = post(content, kind, list(references))
        return ids

    return register


def long(number: int) -> bytes:
    return struct.pack(">q", number)


def by_header(kind: str, number: int, part: str = "value") -> tuple[str, bytes]:
    """Return what DefaultHeadersHandler writes."""
    return f"apicurio.{part}.{kind}", long(number)


def unique(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {**order(*fields), "doc": uuid.uuid4().hex}


def test_ids_in_headers_need_no_setting(
    new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry, register: Register
) -> None:
    topic, first, second = new_topic(), unique(("id", "long")), unique(("id", "long"), ("note", "string"))
    json_schema = {"type": "object", "title": uuid.uuid4().hex, "properties": {"id": {"type": "integer"}}}
    (global_1, _), (_, content_2), (global_3, _) = register(first), register(second), register(json_schema, "JSON")
    key = {"type": "record", "name": f"K{uuid.uuid4().hex}", "fields": [{"name": "k", "type": "string"}]}
    (key_id, _) = register(key)
    of_key = by_header("globalId", key_id, "key")
    for n in range(0, 30, 3):
        sent = {"key": avro(key, {"k": f"k{n}"})}
        topic.send(avro(first, {"id": n}), headers=[("trace", b"x"), of_key, by_header("globalId", global_1)], **sent)
        topic.send(avro(second, {"id": n + 1, "note": "ü"}), headers=[by_header("contentId", content_2)])
        topic.send(json.dumps({"id": n + 2}).encode(), headers=[by_header("globalId", global_3), ("trace", None)])
    spec = topic.spec(None, format="confluent", key_format="avro")
    report = ingest(spec, connections(SchemaRegistry({"url": registry.url})), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert see.dead_letters() == []
    assert rows_by_id(see) == {
        n: {"id": n, "note": "ü" if n % 3 == 1 else None, "_key": None if n % 3 else {"k": f"k{n}"}} for n in range(30)
    }
    (evolution,) = [found for found in report.findings() if found.check == "schema_evolution"]
    assert evolution.facts[f"records of schema globalId {global_1}"] == 10
    topic.send(avro(first, {"id": 99}), headers=[by_header("globalId", 0), by_header("globalId", global_1)])
    ingest(spec, connections(SchemaRegistry({"url": registry.url})), "run-2")
    assert rows_by_id(see)[99]["id"] == 99, "of two headers with one name, the last one counts"


@pytest.mark.parametrize("use_id", ["globalId", "contentId"])
@pytest.mark.parametrize("size", [4, 8])
def test_ids_in_values_are_of_the_kind_that_is_set(
    use_id: str,
    size: int,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    registry: EmbeddedRegistry,
    register: Register,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, schema = new_topic(), unique(("id", "long"))
    number = register(schema)[use_id == "contentId"]
    topic.send(b"\x00" + number.to_bytes(size) + avro(schema, {"id": 7}))
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", registry.url)
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY_APICURIO_USE_ID", use_id)
    spec = topic.spec(None, format="avro")
    ingest(spec, connections(RegistryResource().registry()), "run-1")
    view(spec).assert_exactly_once(topic.ledger)
    assert view(spec).ids() == [7]


def test_what_is_damaged_or_declined_says_what_to_set(
    new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry, register: Register
) -> None:
    topic, schema = new_topic(), unique(("id", "long"))
    number = register(schema)[0]
    proto = f'syntax = "proto3"; message M{uuid.uuid4().hex} {{ int64 id = 1; }}'
    of_proto, value = register(proto, "PROTOBUF"), avro(schema, {"id": 7})
    name = "apicurio.value.globalId"
    sent: list[tuple[bytes, Any, tuple[str, str] | None]] = [
        (value, [by_header("globalId", number)], None),
        (b"\x00" + long(number) + value, [], ("unknown_schema", "set KAFKA_LAKE_REGISTRY_APICURIO_USE_ID")),
        (value, [(name, long(number)[1:])], ("no_schema_id", f"The header {name} has no schema id: its value is 0x")),
        (value, [(name, long(number) + b"\x00")], ("no_schema_id", f"The header {name} has no schema id")),
        (value, [(name, b"")], ("no_schema_id", f"The header {name} has no schema id: its value is 0x.")),
        (value, [(name, None)], ("no_schema_id", f"The header {name} has no schema id")),
        (value, [(name, long(2**40))], ("unknown_schema", f"The registry has no schema globalId {2**40}.")),
        (value[:-1], [by_header("globalId", number)], ("malformed", f"schema globalId {number}")),
        (b"\x08\x07", [by_header("globalId", of_proto[0])], ("unknown_schema", "send-indexes=true")),
        (framed(of_proto[1], b"\x03\x0a\x01M\x08\x07"), [], ("unknown_schema", "send-indexes=true")),
    ]
    for content, headers, _ in sent:
        topic.send(content, headers=headers)
    spec = topic.spec(None, format="confluent")
    ingest(spec, connections(SchemaRegistry({"url": registry.url})), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert see.ids() == [7]
    assert {row["offset"] for row in see.dead_letters()} == set(range(1, len(sent)))
    for (found, message), (_, _, expected) in zip(letters(see), sent[1:], strict=True):
        assert expected is not None
        assert (found, expected[1] in message) == (expected[0], True), message


def test_references_come_with_a_global_id(registry: EmbeddedRegistry, register: Register) -> None:
    money = {"type": "record", "name": f"M{uuid.uuid4().hex}", "fields": [{"name": "cents", "type": "long"}]}
    register(money)
    reference = {"groupId": "default", "artifactId": register.name, "version": "1", "name": money["name"]}  # type: ignore[attr-defined]
    number, _ = register(unique(("price", money["name"])), references=[reference])
    found = SchemaRegistry({"url": registry.url}).by_id(f"globalId {number}")
    assert found.kind == "AVRO"
    assert json.loads(found.text)["fields"][0]["type"].items() >= money.items()


@pytest.mark.exhaustive
def test_debezium_with_ids_in_headers(
    new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry
) -> None:
    topic = new_topic()

    class Headers:
        """Moves the ids of a record to its headers."""

        name = topic.name

        def send(self, value: bytes | None, partition: int, key: bytes) -> None:
            parts = {"value": value, "key": key}
            headers = [by_header("contentId", int.from_bytes(raw[1:5]), part) for part, raw in parts.items() if raw]
            topic.send(value and value[5:], partition, key=key[5:], headers=headers)

    capture = Capture(Headers(), registry.url, COLUMNS)  # type: ignore[arg-type]
    capture.send(envelope("c", 100, {"id": 1, "name": "a"}, commit=90), [1])
    capture.send(envelope("c", 101, {"id": 2, "name": "b"}, commit=91), [2])
    capture.send(envelope("d", 102, None, {"id": 1, "name": None}, commit=92), [1])
    capture.send(None, [1])
    spec = topic.spec(None, format="avro", write="upsert", envelope="debezium")
    ingest(spec, connections(SchemaRegistry({"url": registry.url})), "run-1")
    assert view(spec).dead_letters() == []
    assert [(row["id"], row["name"]) for row in view(spec).rows()] == [(2, "b")]


def test_a_schemas_name_is_found_by_a_header(
    new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry, register: Register
) -> None:
    topic, mine, other = new_topic(), unique(("id", "long")), {**unique(("id", "long")), "name": "Customer"}
    for n, schema in enumerate((mine, other, mine)):
        topic.send(avro(schema, {"id": n}), headers=[by_header("globalId", register(schema)[0])])
    client = SchemaRegistryClient({"url": registry.url})
    topic.send(framed(client.get_latest_version(register.name).schema_id, avro(mine, {"id": 3})))  # type: ignore[attr-defined]
    topic.send(b"\x00" + long(7) + avro(mine, {"id": 4}))
    spec = topic.spec(None, format="avro", where=When(schema=("shop.Order",)), unmatched="ignore")
    ingest(spec, connections(SchemaRegistry({"url": registry.url})), "run-1")
    assert view(spec).ids() == [0, 2, 3]
    # A table may be meant to take it, so it isn't ignored.
    ((error_class, message),) = letters(view(spec))
    assert (error_class, "set KAFKA_LAKE_REGISTRY_APICURIO_USE_ID" in message) == ("unknown_schema", True)


def test_credentials_go_to_apicurios_api_too() -> None:
    with Impostor(lambda *_: (401, f'{{"message": "not {SECRET}"}}')) as server:
        url = f"{server.url}/apis/ccompat/v7"
        registry = SchemaRegistry({"url": url, "basic.auth.user.info": f"bob:{SECRET}"})
        with pytest.raises(RegistryRefusedError, match="refused user bob: HTTP 401") as failed:
            registry.by_id("globalId 7")
        assert SECRET not in str(failed.value)
    path, headers = server.asked[0]
    assert path == "/apis/registry/v2/ids/globalIds/7?dereference=true"
    assert headers["authorization"].startswith("Basic ")
    with pytest.raises(RegistryError, match="can't be reached"):
        registry.by_id("globalId 7")


def test_global_ids_of_other_registries_are_refused() -> None:
    with pytest.raises(SchemaNotSupportedError, match="/apis/ccompat/v7"):
        SchemaRegistry({"url": "http://127.0.0.1:1"}).by_id("globalId 7")


def test_the_kind_of_ids_is_one_of_two() -> None:
    with pytest.raises(ConfigurationError, match=r"apicurio\.use\.id is global, neither globalId nor contentId"):
        SchemaRegistry({"url": "http://127.0.0.1:1", "apicurio.use.id": "global"})
