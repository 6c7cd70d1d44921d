"""Whatever the bytes are, each record is a row or a dead letter; random records of random schemas read back equal."""

import io
import json
import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.formats.task.decoded import ANOTHER_TYPE
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

SEED = 20261121
# FUZZ_COLUMNS=5000 for all that was ever asked of it: a minute.
COLUMNS = int(os.environ.get("FUZZ_COLUMNS", "1200"))


def nested(depth: int, inner: str = "1") -> bytes:
    return ('{"a":' * depth + inner + "}" * depth).encode()


HOSTILE = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"{",
    b'{"id": 1',
    b'{"id": "\xc3"}',
    b'{"id": 1e999}',
    b'{"id": NaN}',
    b'{"id": -Infinity}',
    b'{"id": 1, "id": 2}',
    b'{"id": "\\u0000\\ud800"}',
    b'{"text": "a\\u0000b"}',
    b'{"id": ' + b"9" * 400 + b"}",
    b'{"f": 0.' + b"1" * 400 + b"}",
    b'{"": {"": {"": 1}}}',
    b'{"a.b": {"c`d": 1, "C`D": 2}}',
    b"[" * 2000 + b"]" * 2000,
    nested(60),
    nested(65),
    b'{"deep": ' + b"[" * 100 + b"]" * 100 + b"}",
    b'{"flat": [' + b'{"x": ["\\"[[["]}, ' * 300 + b'{"x": []}]}',
    nested(1000),
    nested(5000),
    b'{"' + b"k" * 70_000 + b'": 1}',
    json.dumps({"text": "x" * 900_000}).encode(),
]


def sent(topic: Topic) -> Counter[tuple[int, int]]:
    return Counter(record.place for record in topic.ledger if record.value is not None)


def random_bytes(random_: random.Random, count: int) -> list[bytes]:
    return [random_.randbytes(random_.choice([1, 5, 6, 20, 300])) for _ in range(count)]


@pytest.mark.parametrize("schema", [None, exhaustive("id bigint, text string, f double, a struct<a: struct<a: int>>")])
def test_json_of_every_kind(
    schema: str | None, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    topic.send({"id": 7, "text": "fine"})
    for number, value in enumerate(HOSTILE + random_bytes(random.Random(SEED), 30)):
        topic.send(value, partition=number % 2)
    spec = topic.spec(schema)
    ingest(spec, connections(), "run-1")
    see = view(spec)
    # Through Spark: what such names and depths are to another reader is not the question here.
    made = connections()
    rows = made.spark().table(made.catalog.spark_name(spec.identifier)).select("_kafka.partition", "_kafka.offset")
    held = Counter((r["partition"], r["offset"]) for r in rows.collect())
    dead = Counter((r["partition"], r["offset"]) for r in see.dead_letters())
    assert held + dead == sent(topic)
    assert held[0, 0] == 1
    classes = Counter(r["error_class"] for r in see.dead_letters())
    assert set(classes) <= {"not_json", "wrong_type", "too_deep"}
    assert classes["too_deep"] == 5


@pytest.mark.exhaustive
def test_thousands_of_columns(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    wide = {f"c{n}": n for n in range(COLUMNS)}
    topic.send(wide)
    spec = topic.spec(None, max_columns=COLUMNS)
    ingest(spec, connections(), "run-1")
    topic.send({"c1": 1, f"c{COLUMNS - 1}": None})
    topic.send({"c1": "no number"})
    ingest(spec, connections(), "run-2")
    rows = sorted(view(spec).rows(), key=lambda row: row["_kafka"]["offset"])
    assert {name: value for name, value in rows[0].items() if name != "_kafka"} == wide
    view(spec).assert_exactly_once(topic.ledger)
    assert [r["error_message"] for r in view(spec).dead_letters()] == [
        f'Column c1 (bigint) got "no number". {ANOTHER_TYPE}'
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_", ["avro", exhaustive("confluent")])
def test_random_bytes_behind_real_schema_ids(
    format_: str, new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry
) -> None:
    topic, client, random_ = new_topic(), SchemaRegistryClient({"url": registry.url}), random.Random(SEED)
    texts = {
        "AVRO": json.dumps({"type": "record", "name": "R", "fields": [
            {"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "m", "type": {"type": "map", "values": "bytes"}}]}),
        "PROTOBUF": 'syntax = "proto3"; message R {int64 id = 1; repeated string tags = 2; map<string, bytes> m = 3;}',
        "JSON": json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "s": {"type": "string"}}}),
    }  # fmt: skip
    ids = {k: client.register_schema(f"{topic.name}-{k}", Schema(text, k)) for k, text in texts.items()}
    topic.send(b"\x00" + struct.pack(">I", ids["AVRO"]) + b"\x02\x00\x00")
    for raw in random_bytes(random_, 60):
        topic.send(b"\x00" + struct.pack(">I", random_.choice([*ids.values(), 77_777])) + raw)
        topic.send(raw)
    spec = topic.spec(None, format=format_)
    ingest(spec, connections(SchemaRegistry({"url": registry.url}, 5.0)), "run-1")
    view(spec).assert_exactly_once(topic.ledger)
    assert (0, 0) in {(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in view(spec).rows()}


@pytest.mark.exhaustive
def test_random_records_are_read_back_equal_by_two_engines(
    new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry
) -> None:
    topic, client, random_ = new_topic(2), SchemaRegistryClient({"url": registry.url}), random.Random(SEED)
    expected: dict[tuple[int, int], dict[str, Any]] = {}
    for number in range(6):
        schema = record_schema(random_, f"R{number}", f"s{number}_", depth=2)
        parsed = fastavro.parse_schema(schema)
        id_ = client.register_schema(f"{topic.name}-{number}", Schema(json.dumps(schema), "AVRO"))
        for _ in range(8):
            value = random_value(random_, schema)
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, value)
            at = topic.send(b"\x00" + struct.pack(">I", id_) + out.getvalue(), partition=random_.randrange(2))
            expected[at.place] = value
    spec = topic.spec(None, format="confluent")
    ingest(spec, connections(SchemaRegistry({"url": registry.url}, 5.0)), "run-1")
    see = view(spec)
    assert see.dead_letters() == []
    by_iceberg = {(r["_kafka"]["partition"], r["_kafka"]["offset"]): r for r in see.rows()}
    paths = [task.file.file_path.removeprefix("file://") for task in see.table.scan().plan_files()]
    result = duckdb.sql(f"select * from read_parquet({paths})")
    by_duckdb = {}
    for row in result.fetchall():
        record = dict(zip(result.columns, row, strict=True))
        by_duckdb[record["_kafka"]["partition"], record["_kafka"]["offset"]] = record
    assert set(by_iceberg) == set(by_duckdb) == set(expected)
    for place, value in expected.items():
        for found in (by_iceberg[place], by_duckdb[place]):
            assert {name: plain(item) for name, item in found.items() if name in value} == value
            assert all(
                item is None or item in ([], {}) for name, item in found.items() if name not in (*value, "_kafka")
            )


def plain(value: Any) -> Any:
    """Return a value as the reference encoder was given it: PyIceberg gives maps as pairs."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: plain(element) for key, element in value}
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    return value


def record_schema(random_: random.Random, name: str, prefix: str, depth: int) -> dict[str, Any]:
    kinds = [random_kind(random_, f"{name}_{n}", depth) for n in range(random_.randint(2, 5))]
    return {"type": "record", "name": name, "fields": [
        {"name": f"{prefix}f{n}", "type": kind} for n, kind in enumerate(kinds)
    ]}  # fmt: skip


def random_kind(random_: random.Random, name: str, depth: int) -> Any:
    simple = ["boolean", "int", "long", "double", "string", "bytes", ["null", "long"], ["null", "string"]]
    nested_kinds = ["record", "array", "map"] if depth else []
    kind = random_.choice([*simple, *nested_kinds, *nested_kinds])
    if kind == "record":
        return record_schema(random_, name, "", depth - 1)
    if kind == "array":
        return {"type": "array", "items": random_kind(random_, name, depth - 1)}
    if kind == "map":
        return {"type": "map", "values": random_kind(random_, name, depth - 1)}
    return kind


def random_value(random_: random.Random, kind: Any) -> Any:
    if isinstance(kind, list):
        return None if random_.random() < 0.4 else random_value(random_, kind[1])
    if isinstance(kind, dict):
        if kind["type"] == "record":
            return {f["name"]: random_value(random_, f["type"]) for f in kind["fields"]}
        # At least one: PyIceberg tells a map from a list by its entries only.
        some = range(random_.randint(1, 3))
        if kind["type"] == "array":
            return [random_value(random_, kind["items"]) for _ in some]
        return {f"k{n}": random_value(random_, kind["values"]) for n in some}
    return {
        "boolean": lambda: random_.random() < 0.5,
        "int": lambda: random_.randint(-(2**31), 2**31 - 1),
        "long": lambda: random_.randint(-(2**63), 2**63 - 1),
        "double": lambda: random_.uniform(-1e300, 1e300),
        "string": lambda: "".join(random_.choices("aü€\U0001f355\x00 '\"", k=random_.randint(0, 8))),
        "bytes": lambda: random_.randbytes(random_.randint(0, 8)),
    }[kind]()
