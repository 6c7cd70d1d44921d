"""Every format through a real broker and a real registry: written by the reference encoders, read back from Iceberg."""

import io
import json
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kafka_lake.catalog.positions import summary_of
from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.errors import ConfigurationError, RegistryError, TableError
from kafka_lake.formats.task.decoded import ANOTHER_TYPE
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View, data_files

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def schemas(registry: EmbeddedRegistry) -> SchemaRegistry:
    return SchemaRegistry({"url": registry.url}, 5.0)


def register(client: SchemaRegistryClient, topic: Topic, text: Any, kind: str = "AVRO", part: str = "value") -> int:
    text = text if isinstance(text, str) else json.dumps(text)
    return int(client.register_schema(f"{topic.name}-{part}", Schema(text, kind)))


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\x00" + struct.pack(">I", schema_id) + payload


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def order(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": name, "type": kind} for name, kind in fields
    ]}  # fmt: skip


def rows_by_id(see: View) -> dict[Any, dict[str, Any]]:
    return {row["id"]: {k: v for k, v in row.items() if k != "_kafka"} for row in see.rows()}


def letters(see: View) -> list[tuple[str, str]]:
    return [(r["error_class"], r["error_message"]) for r in sorted(see.dead_letters(), key=lambda r: r["offset"])]


@pytest.mark.exhaustive
def test_five_schema_versions_interleaved_in_one_batch(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    topic = new_topic(3)
    versions = [
        order(("id", "long"), ("n", "int")),
        order(("id", "long"), ("n", "int"), ("note", ["null", "string"])),
        order(("id", "long"), ("n", "long"), ("note", ["null", "string"])),
        order(("id", "long"), ("n", "long"), ("line", {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}]})),
        order(("line", {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}), ("id", "long")),
    ]  # fmt: skip
    ids = [register(client, topic, version) for version in versions]
    values = [
        {"n": 1}, {"n": 2, "note": "ü"}, {"n": 2**40, "note": None}, {"n": -(2**40), "line": {"sku": "a"}},
        {"line": {"sku": "b", "count": 7}},
    ]  # fmt: skip
    for number in range(15):
        value = {"id": number, **values[number % 5]}
        topic.send(framed(ids[number % 5], avro(versions[number % 5], value)), partition=(number // 5) % 3)

    spec = topic.spec(None, format="avro")
    report = ingest(spec, connections(schemas), "run-1")

    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    empty = {"n": None, "note": None, "line": None}
    expected = {number: {"id": number, **empty, **values[number % 5]} for number in range(15)}
    for value in expected.values():
        if value["line"]:
            value["line"] = {"sku": None, "count": None, **value["line"]}
    assert rows_by_id(see) == expected
    (evolution,) = [f for f in report.findings() if f.check == "schema_evolution"]
    assert {k: v for k, v in evolution.facts.items() if k.startswith("records of")} == {
        f"records of schema id {identifier}": 3 for identifier in ids
    }
    head = see.table.current_snapshot()
    assert head is not None
    assert summary_of(head)["kafka-lake.schema-ids"] == ",".join(map(str, sorted(ids)))

    # One more version, seen by nobody yet: one column more, in the table's place of all others.
    newest = order(("id", "long"), ("when", {"type": "long", "logicalType": "timestamp-millis"}))
    topic.send(
        framed(register(client, topic, newest), avro(newest, {"id": 99, "when": datetime(2026, 1, 2, tzinfo=UTC)}))
    )
    topic.send(framed(ids[0], avro(versions[0], {"id": 100, "n": 3})))
    report = ingest(spec, connections(schemas), "run-2")
    see.assert_exactly_once(topic.ledger)
    found = rows_by_id(see)
    assert found[99] == {"id": 99, **empty, "when": datetime(2026, 1, 2, tzinfo=UTC)}
    assert found[100] == {"id": 100, **empty, "n": 3, "when": None}
    (evolution,) = [f for f in report.findings() if f.check == "schema_evolution"]
    assert [(c.column, c.what) for c in evolution.changes] == [("when", "added")]


@pytest.mark.exhaustive
def test_undecodable_avro_is_a_dead_letter_with_reason(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    topic = new_topic()
    schema = order(("id", "long"), ("name", "string"))
    known = register(client, topic, schema)
    other = register(client, topic, {"type": "object", "properties": {"id": {"type": "integer"}}}, "JSON", "other")
    no_columns = register(client, topic, {"type": "array", "items": "null"}, part="nulls")
    good = avro(schema, {"id": 1, "name": "x"})
    topic.send(framed(known, good))
    for bad in (b"\x01abc", b"\x00\x00", framed(4_000_000, good), framed(known, good[:-1]), framed(other, b'{"id": 1}'),
                framed(no_columns, b"\x00")):  # fmt: skip
        topic.send(bad)
    version = uuid.UUID("0a1b2c3d-0000-4000-8000-00000000000f")
    for start in (b"\x03\x00", b"\x03\x05", b"\x03\x07"):
        topic.send(start + version.bytes + good)
    topic.send(None)
    spec = topic.spec(None, format="avro")
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {1: {"id": 1, "name": "x"}}
    assert [name for name, _ in letters(see)] == [
        "no_schema_id", "no_schema_id", "unknown_schema", "malformed", *["unknown_schema"] * 3, "malformed",
        "no_schema_id",
    ]  # fmt: skip
    messages = [message for _, message in letters(see)]
    assert messages[0] == "The value begins with 0x01616263."
    assert messages[2] == "The registry has no schema id 4000000."
    assert messages[3].startswith(f"The bytes don't decode with schema id {known}.")
    assert messages[4] == f"Schema id {other} is JSON, the topic's format is avro."
    assert "is an array whose elements take no bytes" in messages[5]
    assert messages[6].startswith("Schema version 0a1b2c3d-0000-4000-8000-00000000000f can't be found in the registry")
    assert "set KAFKA_LAKE_SCHEMA_REGISTRY_URL=glue://REGION" in messages[6]
    assert messages[7].startswith("The compressed content is damaged")
    assert messages[8] == "The value begins with 0x03070A1B2C.", "not a byte that Glue's serializers write"


def test_unreachable_registry_fails_run_before_staging(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    topic = new_topic()
    schema = order(("id", "long"))
    topic.send(framed(register(client, topic, schema), avro(schema, {"id": 1})))
    spec = topic.spec(None, format="avro")
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    before, files = see.table.metadata, data_files(see.table)
    topic.send(framed(register(client, topic, schema), avro(schema, {"id": 2})))
    steps: list[str] = []
    down = SchemaRegistry({"url": "http://127.0.0.1:9"}, 1.0)
    patient = connections(down)
    impatient = type(patient)(**{**vars(patient), "retry": type(patient.retry)(attempts=1)})
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9"):
        ingest(spec, impatient, "run-2", observer=Observer(step_done=steps.append))
    assert (see.table.metadata, data_files(see.table)) == (before, files)
    assert "table staged" not in steps
    ingest(spec, connections(schemas), "run-3")
    see.assert_exactly_once(topic.ledger)


def test_without_a_registry_the_error_names_the_setting(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    topic.send(framed(1, b"\x02"))
    with pytest.raises(ConfigurationError, match="KAFKA_LAKE_SCHEMA_REGISTRY_URL"):
        ingest(topic.spec(None, format="avro"), connections(), "run-1")


@pytest.mark.exhaustive
def test_types_of_all_formats_may_be_mixed_in_one_topic(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    topic = new_topic()
    schema = order(("id", "long"), ("a", "string"))
    first = register(client, topic, schema)
    described = {"type": "object", "properties": {"id": {"type": "integer"}, "j": {"type": "boolean"}}}
    second = register(client, topic, described, "JSON", "json")
    proto = 'syntax = "proto3"; message A { int64 id = 1; } message B { int64 id = 1; string p = 2; message C { int64 id = 1; double c = 2; } }'  # noqa: E501
    third = register(client, topic, proto, "PROTOBUF", "proto")
    topic.send(framed(first, avro(schema, {"id": 1, "a": "avro"})))
    topic.send(framed(second, b'{"id": 2, "j": true}'))
    # Two messages of one schema, one within the other: indexes [1] and [1, 0].
    topic.send(framed(third, b"\x02\x02" + b"\x08\x03\x12\x05proto"))
    topic.send(framed(third, b"\x04\x02\x00" + b"\x08\x04\x11" + struct.pack("<d", 0.5)))
    topic.send(framed(third, b"\x00" + b"\x08\x05"))
    topic.send(framed(second, b'{"id": "six"}'))
    spec = topic.spec(None, format="confluent")
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    none = {"a": None, "j": None, "p": None, "c": None}
    assert rows_by_id(see) == {
        1: {"id": 1, **none, "a": "avro"},
        2: {"id": 2, **none, "j": True},
        3: {"id": 3, **none, "p": "proto"},
        4: {"id": 4, **none, "c": 0.5},
        5: {"id": 5, **none},
    }
    assert letters(see) == [("wrong_type", f'Column id (bigint) got "six". {ANOTHER_TYPE}')]


@pytest.mark.exhaustive
def test_dead_letters_become_rows_after_format_is_corrected(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    topic = new_topic()
    schema = order(("id", "long"), ("a", "string"))
    known = register(client, topic, schema)
    described = {"type": "object", "properties": {"id": {"type": "integer"}, "j": {"type": "string"}}}
    other = register(client, topic, described, "JSON", "other")
    topic.send(framed(known, avro(schema, {"id": 1, "a": "x"})))
    topic.send(framed(other, b'{"id": 2, "j": "y"}'))
    topic.send(b"neither")
    ingest(topic.spec(None, format="avro"), connections(schemas), "run-1")
    spec = topic.spec(None, format="confluent")
    done = replay_dead_letters(spec, connections(schemas), "run-2")
    assert (done.moved, done.remaining) == (1, 1)
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {1: {"id": 1, "a": "x", "j": None}, 2: {"id": 2, "a": None, "j": "y"}}
    # And a part of the topic read again is decoded by today's settings likewise.
    report = replay(spec, connections(schemas), "run-3", ReplayRange("0", "2"))
    assert report.total("rows") == 2
    see.assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_keys_become_a_column(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    topic = new_topic()
    schema, key = order(("id", "long"), ("_key", "string")), order(("tenant", "string"), ("n", "int"))
    value_id, key_id = register(client, topic, schema), register(client, topic, key, part="key")
    value = framed(value_id, avro(schema, {"id": 1, "_key": "of the value"}))
    topic.send(value, key=framed(key_id, avro(key, {"tenant": "t", "n": 7})))
    topic.send(framed(value_id, avro(schema, {"id": 2, "_key": "x"})))
    topic.send(value, key=b"no key")
    topic.send(None, key=b"no key, but a tombstone")
    spec = topic.spec(None, format="avro", key_format="avro")
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {
        1: {"id": 1, "_key__2": "of the value", "_key": {"tenant": "t", "n": 7}},
        2: {"id": 2, "_key__2": "x", "_key": None},
    }
    assert [name for name, _ in letters(see)] == ["bad_key"]
    assert letters(see)[0][1].startswith("The key: The value begins with 0x")
    # The key's schema is remembered beside the value's, and both evolve.
    wider = order(("tenant", "string"), ("n", "long"), ("region", ["null", "string"]))
    wide_key = framed(
        register(client, topic, wider, part="key"), avro(wider, {"tenant": "t", "n": 2**40, "region": "eu"})
    )
    topic.send(framed(value_id, avro(schema, {"id": 3, "_key": "y"})), key=wide_key)
    ingest(spec, connections(schemas), "run-2")
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see)[3]["_key"] == {"tenant": "t", "n": 2**40, "region": "eu"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("key_format", "key", "settings", "expected"),
    [
        ("string", "schlüssel".encode(), {}, "schlüssel"),
        ("bytes", b"\xff\x00", {}, b"\xff\x00"),
        ("json", b'{"a": 1}', {"key_schema": "a int"}, {"a": 1}),
    ],
)
def test_keys_of_plain_formats(
    key_format: str,
    key: bytes,
    settings: dict[str, str],
    expected: Any,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
) -> None:
    topic = new_topic()
    topic.send({"id": 1}, key=key)
    spec = topic.spec("id bigint", key_format=key_format, key_column="k", **settings)
    ingest(spec, connections(), "run-1")
    assert rows_by_id(view(spec)) == {1: {"id": 1, "k": expected}}


def test_text_and_bytes_are_one_column(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    text, raw = new_topic(), new_topic()
    for topic in (text, raw):
        topic.send("grüß dich".encode())
        topic.send(b"\xff\xfe")
        topic.send(b"")
        topic.send(None)
    of_text, of_bytes = text.spec(None, format="string"), raw.spec(None, format="bytes")
    ingest(of_text, connections(), "run-1")
    ingest(of_bytes, connections(), "run-1")
    for topic, spec in ((text, of_text), (raw, of_bytes)):
        view(spec).assert_exactly_once(topic.ledger)
    assert sorted(r["value"] for r in view(of_text).rows()) == ["", "grüß dich"]
    assert letters(view(of_text)) == [("not_text", "The value is not UTF-8; it begins with 0xFFFE.")]
    assert sorted(r["value"] for r in view(of_bytes).rows()) == [b"", "grüß dich".encode(), b"\xff\xfe"]
    assert letters(view(of_bytes)) == []


def test_a_schema_file_serves_as_well_as_a_registry(
    new_topic: NewTopic, connections: NewConnections, view: NewView, tmp_path: Path
) -> None:
    schema = order(
        ("id", "long"),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("day", {"type": "int", "logicalType": "date"}),
    )
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(schema))
    topic = new_topic()
    topic.send(avro(schema, {"id": 1, "price": Decimal("12.34"), "day": date(2026, 2, 3)}))
    topic.send(b"\xff")
    spec = topic.spec(None, format="avro", schema_file=str(file))
    ingest(spec, connections(), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {1: {"id": 1, "price": Decimal("12.34"), "day": date(2026, 2, 3)}}
    assert letters(see) == [("malformed", "The bytes don't decode with the schema file.")]
    # What another engine reads is the same.
    paths = [task.file.file_path.removeprefix("file://") for task in see.table.scan().plan_files()]
    assert duckdb.sql(f"select id, price, day from read_parquet({paths})").fetchall() == [
        (1, Decimal("12.34"), date(2026, 2, 3))
    ]
    # The file may change: the table follows.
    file.write_text(json.dumps(order(("id", "long"), ("note", "string"))))
    topic.send(avro(order(("id", "long"), ("note", "string")), {"id": 2, "note": "n"}))
    ingest(spec, connections(), "run-2")
    assert rows_by_id(see)[2] == {"id": 2, "price": None, "day": None, "note": "n"}


def test_a_proto_file_and_what_it_imports(
    new_topic: NewTopic, connections: NewConnections, view: NewView, tmp_path: Path
) -> None:
    """By names from the folder that all of them are in; a file beside them that none imports is left alone."""
    folder = tmp_path / "p"
    (folder / "parts").mkdir(parents=True)
    money = (
        'syntax = "proto3"; package p; import "p/parts/unit.proto"; message Money { int64 cents = 1; Unit unit = 2; }'
    )
    (folder / "money.proto").write_text(money)
    (folder / "parts" / "unit.proto").write_text('syntax = "proto3"; package p; message Unit { string name = 1; }')
    (folder / "broken.proto").write_bytes(b"\xff")
    file = folder / "order.proto"
    file.write_text(
        'syntax = "proto3"; package p; import "p/money.proto"; message Other { int32 x = 1; } '
        "message Order { int64 id = 1; Money price = 2; }"
    )
    described = descriptor_pb2.FileDescriptorProto(name="money.proto", package="p", syntax="proto3")
    field = described.message_type.add(name="Money").field.add(name="cents", number=1)
    field.type, field.label = field.TYPE_INT64, field.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Money"))(cents=250).SerializeToString()
    topic = new_topic()
    topic.send(b"\x08\x01\x12" + bytes([len(made)]) + made)
    topic.send(b"\x08\x80")
    spec = topic.spec(None, format="protobuf", schema_file=str(file), message="Order")
    ingest(spec, connections(), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {1: {"id": 1, "price": {"cents": 250, "unit": None}}}
    assert [name for name, _ in letters(see)] == ["malformed"]


def json_object(additional: Any = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return schema if additional is None else {**schema, "additionalProperties": additional}


def evolution_of(report: RunReport) -> list[tuple[str, str, str]]:
    (finding,) = [f for f in report.findings() if f.check == "schema_evolution"]
    return [(n.column, n.what, n.why) for n in finding.changes]


def test_fields_beyond_a_json_schema_become_columns(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
    tmp_path: Path,
) -> None:
    number, text = {"type": "integer"}, {"type": "string"}
    closed = json_object(False, zip=text)
    topic, schema = new_topic(), json_object(id=number, where=json_object(zip=text), far=closed)
    schema_id = register(client, topic, schema, "JSON")
    value = {"id": 1, "where": {"zip": "a", "city": "b"}, "far": {"zip": "c", "moon": 1}, "more": [{"x": 1.5}]}
    for sent in (value, {**value, "id": 2}):
        topic.send(framed(schema_id, json.dumps(sent).encode()))
    spec = topic.spec(None, format="json_schema")
    report = ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {1: value, 2: {**value, "id": 2}}
    assert [note for note in evolution_of(report) if note[1] == "not kept"] == []
    # Nothing new. Then a field that the settings leave out.
    topic.send(framed(schema_id, json.dumps({**value, "id": 3, "far": {}}).encode()))
    assert evolution_of(ingest(spec, connections(schemas), "run-2")) == []
    topic.send(framed(schema_id, json.dumps({**value, "id": 4, "far": {}, "late": True}).encode()))
    ignoring = topic.spec(None, format="json_schema", evolution="ignore_new")
    report = ingest(ignoring, connections(schemas), "run-3")
    assert evolution_of(report) == [("late", "not added", "evolution is ignore_new")]
    assert rows_by_id(see)[4] == {**value, "id": 4, "far": {"zip": None, "moon": None}}

    # The same by a file.
    file, topic = tmp_path / "order.json", new_topic()
    file.write_text(json.dumps(json_object({"type": "number"}, id=number)))
    topic.send({"id": 1, "n": 1})
    topic.send({"id": 2, "n": 2.5})
    spec = topic.spec(None, format="json_schema", schema_file=str(file))
    ingest(spec, connections(), "run-1")
    assert rows_by_id(view(spec)) == {1: {"id": 1, "n": 1.0}, 2: {"id": 2, "n": 2.5}}


@pytest.mark.exhaustive
def test_types_within_themselves_are_columns_then_text(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    """A tree by each kind of schema: columns, and JSON text from the second level on; Avro's is refused."""
    topic = new_topic()
    tree = order(("id", "long"), ("parts", {"type": "array", "items": "shop.Order"}))
    object_ = {"type": "object", "properties": {
        "id": {"type": "integer"}, "parts": {"type": "array", "items": {"$ref": "#"}}
    }}  # fmt: skip
    proto = 'syntax = "proto3"; message Tree { int32 id = 1; repeated Tree parts = 2; }'
    value = {"id": 1, "parts": [{"id": 10, "parts": [{"id": 100, "parts": []}]}, {"id": 11, "parts": []}]}
    first = register(client, topic, tree)
    topic.send(framed(first, avro(tree, value)))
    topic.send(framed(register(client, topic, object_, "JSON", "json"), json.dumps({**value, "id": 2}).encode()))
    inner = b"\x08\x0a\x12\x02\x08\x64"
    leaf = b"\x08\x0b"
    parts = b"".join(b"\x12" + bytes([len(part)]) + part for part in (inner, leaf))
    topic.send(framed(register(client, topic, proto, "PROTOBUF", "proto"), b"\x00\x08\x03" + parts))
    spec = topic.spec(None, format="confluent")
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    rows = rows_by_id(see)
    assert {number: [json.loads(part) for part in row["parts"]] for number, row in rows.items()} == {
        2: value["parts"],
        # What isn't set is left out of Protobuf's JSON.
        3: [{"id": 10, "parts": [{"id": 100}]}, {"id": 11}],
    }
    ((name, message),) = letters(see)
    assert name == "unknown_schema"
    assert "parts.element: the type shop.Order contains itself, which no table can hold" in message


def test_unsupported_registry_schema_is_refused_with_reason(
    new_topic: NewTopic, connections: NewConnections, client: SchemaRegistryClient, schemas: SchemaRegistry
) -> None:
    topic = new_topic()
    schema_id = register(client, topic, order(("id", "long"), ("nothing", {"type": "array", "items": "null"})))
    topic.send(framed(schema_id, b"\x02\x00"))
    why = rf"Avro: schema id {schema_id}, nothing: the type is an array whose elements take no bytes"
    with pytest.raises(TableError, match=f"the table would have no columns. {why}"):
        ingest(topic.spec(None, format="avro"), connections(schemas), "run-1")


def test_protobuf_columns_are_those_of_messages_in_the_topic(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    client: SchemaRegistryClient,
    schemas: SchemaRegistry,
) -> None:
    """A key's message may stand before that of the values, with the same fields of other types."""
    topic = new_topic()
    rest = " ".join(f"message M{n} {{ int32 n{n} = 1; }}" for n in range(2, 65))
    text = f'syntax = "proto3"; package p; message Key {{ string id = 1; }} message Order {{ int64 id = 1; }} {rest}'
    schema_id = register(client, topic, text, "PROTOBUF")
    topic.send(framed(schema_id, b"\x02\x02" + b"\x08\x07"))
    spec = topic.spec(None, format="protobuf")
    ingest(spec, connections(schemas), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert (letters(see), rows_by_id(see)) == ([], {7: {"id": 7}})
    # The message at index 64, whose number takes two bytes; and one that the schema doesn't have.
    topic.send(framed(schema_id, b"\x02\x80\x01" + b"\x08\x09"))
    topic.send(framed(schema_id, b"\x02\x82\x01" + b"\x08\x09"))
    for run in ("run-2", "run-3"):
        ingest(spec, connections(schemas), run)
    see.assert_exactly_once(topic.ledger)
    assert rows_by_id(see) == {7: {"id": 7, "n64": None}, None: {"id": None, "n64": 9}}
    ((name, said),) = letters(see)
    assert (name, "no message at index [65]" in said) == ("unknown_schema", True)


def test_records_without_fields_may_get_fields_later(
    new_topic: NewTopic, connections: NewConnections, view: NewView, tmp_path: Path
) -> None:
    def event(*fields: tuple[str, Any]) -> dict[str, Any]:
        arms = [{**order(*of), "name": name} for name, of in (("Created", fields), ("Deleted", ()))]
        return order(("id", "long"), ("what", ["null", *arms]))

    def proto(fields: str) -> str:
        arms = f"message Created {{ {fields} }} message Deleted {{}}"
        oneof = "oneof what { Created created = 2; Deleted deleted = 3; }"
        return f'syntax = "proto3"; {arms} message Event {{ int64 id = 1; {oneof} }}'

    (tmp_path / "event.avsc").write_text(json.dumps(event()))
    (tmp_path / "event.proto").write_text(proto(""))
    specs, topics = [], [new_topic(), new_topic()]
    for topic, format_, file in zip(topics, ("avro", "protobuf"), ("event.avsc", "event.proto"), strict=True):
        message = "Event" if format_ == "protobuf" else None
        specs.append(topic.spec(None, format=format_, schema_file=str(tmp_path / file), message=message))
    topics[0].send(avro(event(), {"id": 1, "what": ("shop.Created", {})}))
    topics[0].send(avro(event(), {"id": 2, "what": ("shop.Deleted", {})}))
    topics[1].send(b"\x08\x01\x12\x00")
    topics[1].send(b"\x08\x02\x1a\x00")
    for spec in specs:
        ingest(spec, connections(), "run-1")
    later = event(("by", "string"))
    (tmp_path / "event.avsc").write_text(json.dumps(later))
    (tmp_path / "event.proto").write_text(proto("string by = 1;"))
    topics[0].send(avro(later, {"id": 3, "what": ("shop.Created", {"by": "x"})}))
    topics[1].send(b"\x08\x03\x12\x03\x0a\x01x")
    expected = {
        1: {"Created": {"_set": True, "by": None}, "Deleted": None},
        2: {"Created": None, "Deleted": {"_set": True}},
        3: {"Created": {"_set": None, "by": "x"}, "Deleted": None},
    }
    for spec, topic in zip(specs, topics, strict=True):
        ingest(spec, connections(), "run-2")
        see = view(spec)
        see.assert_exactly_once(topic.ledger)
        assert see.dead_letters() == []
        arms = {row["id"]: row.get("what", row) for row in see.rows()}
        found = {n: {name: row[next(c for c in row if c.lower() == name.lower())] for name in ("Created", "Deleted")}
                 for n, row in arms.items()}  # fmt: skip
        assert found == expected
