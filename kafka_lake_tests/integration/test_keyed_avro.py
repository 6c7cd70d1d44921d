"""Debezium's envelope in Avro, on a real broker, with a real registry: written as Debezium's converters do."""

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.debezium_avro import (
    DECIMAL,
    HEARTBEAT,
    TRANSACTION,
    VARIABLE,
    envelope,
    envelope_schema,
    key_schema,
    named,
    optional,
)

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

PLACEHOLDER = "__debezium_unavailable_value"
COLUMNS = {"id": "long", "name": optional("string")}
TYPED = {
    "id": "long",
    "name": optional("string"),
    "price": optional(DECIMAL),
    "numeric": optional(VARIABLE),
    "money": optional(named("bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=64,
                            logicalType="decimal")),
    "at": optional(named("string", "io.debezium.time.ZonedTimestamp")),
    "local": optional(named("long", "io.debezium.time.MicroTimestamp")),
    "day": optional(named("int", "io.debezium.time.Date")),
    "time": optional(named("long", "io.debezium.time.MicroTime")),
    "iso_day": optional(named("string", "io.debezium.time.IsoDate")),
    "iso_local": optional(named("string", "io.debezium.time.IsoTimestamp")),
    "iso_time": optional(named("string", "io.debezium.time.IsoTime")),
    "doc": optional(named("string", "io.debezium.data.Json")),
    "uid": optional(named("string", "io.debezium.data.Uuid")),
    "tags": optional({"type": "array", "items": ["null", "string"]}),
    "days": optional({"type": "array", "items": ["null", named("int", "io.debezium.time.Date")]}),
    "raw": optional("bytes"),
    "ok": optional("boolean"),
    "ratio": optional("double"),
    "small": {"type": "int", "connect.default": 4, "connect.type": "int16", "default": 4},
}  # fmt: skip
ROW = {
    "id": 1,
    "name": "Zoë",
    "price": Decimal("12.50000"),
    "numeric": {"scale": 3, "value": (123456789012345678901234567890123).to_bytes(14, "big")},
    "money": Decimal("-12.50"),
    "at": "2026-11-24T10:00:00.123456Z",
    "local": 1_795_514_400_123_456,
    "day": 20_781,
    "time": 36_000_500_000,
    "iso_day": "2026-11-24Z",
    "iso_local": "2026-11-24T10:00:00.5Z",
    "iso_time": "10:00:00.5Z",
    "doc": '{"a": 1.10}',
    "uid": "00000000-0000-0000-0000-00000000000A",
    "tags": ["a", None],
    "days": [20_781, None],
    "raw": b"\x00\xff",
    "ok": True,
    "ratio": 0.1,
    "small": 4,
}
VALUES = {
    **ROW,
    "numeric": "123456789012345678901234567890.123",
    "money": "-12.50",
    "at": datetime(2026, 11, 24, 10, 0, 0, 123456, tzinfo=UTC),
    "local": datetime(2026, 11, 24, 10, 0, 0, 123456),
    "day": date(2026, 11, 24),
    "time": "10:00:00.500000",
    "iso_day": date(2026, 11, 24),
    "iso_local": datetime(2026, 11, 24, 10, 0, 0, 500_000),
    "iso_time": "10:00:00.5",
    "days": [date(2026, 11, 24), None],
}


class Capture:
    """A topic that Debezium writes to.

    Args:
        topic: The topic.
        url: The registry's.
        columns: Of the row.
        key: Of them, those of the key.
    """

    def __init__(self, topic: Topic, url: str, columns: dict[str, Any], key: tuple[str, ...] = ("id",)) -> None:
        self.topic = topic
        self._client = SchemaRegistryClient({"url": url})
        self.value(envelope_schema(columns))
        self._key = self._serializer(key_schema({name: columns[name] for name in key}))
        self._columns = key

    def value(self, schema: Any) -> None:
        """Write values with another schema from now on."""
        self._value = self._serializer(schema)

    def _serializer(self, schema: Any) -> Any:
        options = {"auto.register.schemas": True, "normalize.schemas": False}
        return AvroSerializer(self._client, Schema(json.dumps(schema), "AVRO"), conf=options)

    def send(self, value: Any, key: Any, partition: int = 0) -> None:
        """Send a record.

        Args:
            value: An envelope; None for a tombstone.
            key: Values of the key's columns; None for no key.
            partition: Of the topic.
        """
        name = self.topic.name
        reported = key and self._key(
            dict(zip(self._columns, key, strict=True)), SerializationContext(name, MessageField.KEY)
        )
        self.topic.send(
            value and self._value(value, SerializationContext(name, MessageField.VALUE)), partition, key=reported
        )


def rows(view: View, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in view.rows())


@pytest.fixture
def new_capture(new_topic: NewTopic, registry: EmbeddedRegistry) -> Callable[..., Capture]:
    def make(columns: dict[str, Any], partitions: int = 1, **more: Any) -> Capture:
        return Capture(new_topic(partitions), registry.url, columns, **more)

    return make


@pytest.fixture
def schemas(registry: EmbeddedRegistry) -> SchemaRegistry:
    return SchemaRegistry({"url": registry.url})


def test_debezium_in_avro_without_a_setting_but_its_name(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    capture = new_capture(COLUMNS, 2)
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    capture.send(envelope("r", 90, {"id": 1, "name": "read"}, commit=80), [1])
    capture.send(envelope("c", 100, {"id": 2, "name": "b"}, commit=90), [2], 1)
    capture.send(envelope("u", 120, {"id": 1, "name": "newest"}, commit=110), [1])
    # Written before it, committed after it; and of a partition of its own.
    capture.send(envelope("u", 115, {"id": 1, "name": "older"}, commit=105), [1], 1)
    ingest(spec, connections(schemas), "run-1")
    assert view(spec).dead_letters() == []
    assert rows(view(spec), "id", "name") == [(1, "newest"), (2, "b")]
    assert [(r["_change"]["op"], r["_change"]["order"]) for r in view(spec).rows() if r["id"] == 1] == [
        ("upsert", [110, 120])
    ]
    capture.send(envelope("d", 130, None, {"id": 2, "name": None}, commit=125), [2], 1)
    capture.send(None, [2], 1)
    capture.send(envelope("u", 128, {"id": 2, "name": "late"}, commit=120), [2])
    capture.send(None, [1])
    report = ingest(spec, connections(schemas), "run-2")
    assert rows(view(spec), "id") == []
    assert view(spec).dead_letters() == []
    assert report.commits[-1].rows == 0
    capture.send(envelope("c", 140, {"id": 1, "name": "back"}, commit=135), [1])
    ingest(spec, connections(schemas), "run-3")
    assert rows(view(spec), "id", "name") == [(1, "back")]


@pytest.mark.exhaustive
def test_a_field_that_is_left_out_may_have_any_type(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    capture = new_capture({**COLUMNS, "doc": optional("string")})
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium", except_columns=("doc",))
    capture.send(envelope("c", 10, {"id": 1, "name": "a", "doc": "x"}, commit=5), [1])
    capture.send(envelope("c", 11, {"id": 2, "name": "b", "doc": "y"}, commit=10), [2])
    ingest(spec, connections(schemas), "run-1")
    capture.value(envelope_schema({**COLUMNS, "doc": "double", "age": optional("int")}))
    capture.send(envelope("u", 20, {"id": 1, "name": "a", "doc": 1.5, "age": 7}, commit=15), [1])
    ingest(spec, connections(schemas), "run-2")
    assert rows(view(spec), "id", "name", "age") == [(1, "a", 7), (2, "b", None)]
    assert "doc" not in view(spec).rows()[0]
    assert view(spec).dead_letters() == []


@pytest.mark.exhaustive
def test_a_row_has_the_types_of_its_source(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    capture = new_capture(TYPED)
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    nothing = {**dict.fromkeys(ROW), "id": 2, "small": 0}
    capture.send(envelope("c", 10, ROW), [1])
    capture.send(envelope("c", 11, nothing), [2])
    capture.send(envelope("c", 12, {**nothing, "id": 3, "at": "+292278994-08-17T00:00:00Z"}), [3])
    ingest(spec, connections(schemas), "run-1")
    (letter,) = view(spec).dead_letters()
    assert (letter["offset"], letter["error_class"]) == (2, "malformed")
    found, empty = sorted(view(spec).rows(), key=lambda row: row["id"])
    assert {name: found[name] for name in VALUES} == VALUES
    assert {name: empty[name] for name in nothing} == nothing


@pytest.mark.exhaustive
def test_values_that_were_not_sent_stay(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    columns = {"id": "long", "big": optional("string"), "raw": optional("bytes"), "n": optional("int"),
               "tags": optional({"type": "array", "items": ["null", "string"]}),
               "pairs": {"type": "map", "values": "string"},
               "days": {"type": "array", "items": ["null", named("int", "io.debezium.time.Date")]},
               "ints": {"type": "array", "items": "int"},
               "raws": optional({"type": "array", "items": "bytes"})}  # fmt: skip
    capture = new_capture(columns)
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    row = {"id": 1, "big": "b", "raw": b"\x01", "n": 1, "tags": ["a"], "pairs": {"a": "b"}, "days": [20_781],
           "ints": [1], "raws": [b"\x02"]}  # fmt: skip
    numbers = [*PLACEHOLDER.encode()]
    left = {"big": PLACEHOLDER, "raw": PLACEHOLDER.encode(), "tags": [PLACEHOLDER], "pairs": {PLACEHOLDER: PLACEHOLDER},
            "days": numbers, "ints": numbers, "raws": [PLACEHOLDER.encode()]}  # fmt: skip
    capture.send(envelope("c", 10, row), [1])
    capture.send(envelope("u", 11, {**row, **left, "n": 2}), [1])
    ingest(spec, connections(schemas), "run-1")
    capture.send(envelope("u", 12, {**row, **left, "n": 3}), [1])
    capture.send(envelope("u", 13, {**row, **left, "id": 2}), [2])
    ingest(spec, connections(schemas), "run-2")
    names = ("id", "big", "raw", "n", "tags", "pairs", "days", "ints", "raws")
    kept = ([("a", "b")], [date(2026, 11, 24)], [1], [b"\x02"])
    assert [tuple(item[name] for name in names) for item in view(spec).rows()] == [(1, "b", b"\x01", 3, ["a"], *kept)]
    (letter,) = view(spec).dead_letters()
    assert letter["error_class"] == "value_not_sent"
    assert b64encode(PLACEHOLDER.encode()).decode() not in str(view(spec).rows())


@pytest.mark.exhaustive
def test_the_row_evolves_in_its_envelope(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    capture = new_capture(COLUMNS)
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    capture.send(envelope("c", 10, {"id": 1, "name": "a"}), [1])
    ingest(spec, connections(schemas), "run-1")
    capture.value(envelope_schema({**COLUMNS, "since": optional(named("int", "io.debezium.time.Date"))}))
    capture.send(envelope("c", 11, {"id": 2, "name": "b", "since": 20_781}), [2])
    capture.send(envelope("d", 12, None, {"id": 1, "name": None, "since": None}), [1])
    ingest(spec, connections(schemas), "run-2")
    assert rows(view(spec), "id", "name", "since") == [(2, "b", date(2026, 11, 24))]
    # A run of its own knows both schemas from the table, before it has looked at a record.
    capture.send(envelope("u", 13, {"id": 2, "name": "c", "since": 20_782}), [2])
    ingest(spec, connections(schemas), "run-3")
    assert rows(view(spec), "id", "name", "since") == [(2, "c", date(2026, 11, 25))]
    assert view(spec).dead_letters() == []


@pytest.mark.exhaustive
def test_event_that_changes_no_row_is_dead_letter_with_reason(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    capture = new_capture(COLUMNS)
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    capture.send(envelope("c", 10, {"id": 1, "name": "a"}), [1])
    ingest(spec, connections(schemas), "run-1")
    good = capture._value
    for schema, value in (
        (HEARTBEAT, {"ts_ms": 1}),
        (TRANSACTION, {"status": "BEGIN", "id": "1", "event_count": None, "ts_ms": 1}),
    ):
        capture.value(schema)
        capture.send(value, [1])
    capture._value = good
    capture.send(envelope("c", None, {"id": 1, "name": "a"}, sequence=None), [1])
    capture.send(envelope("c", 20, {"id": 2, "name": "no key"}), None)
    for value in (b"{}", b"\x00\x7f\xff\xff\xffx"):
        capture.topic.send(value)
    ingest(spec, connections(schemas), "run-2")
    letters = sorted(
        (letter["offset"], letter["error_class"], letter["error_message"]) for letter in view(spec).dead_letters()
    )
    assert [letter[:2] for letter in letters] == [
        (1, "not_a_change"), (2, "not_a_change"), (3, "no_order"), (5, "no_schema_id"), (6, "unknown_schema"),
    ]  # fmt: skip
    assert "heartbeat" in letters[0][2]
    assert "transaction" in letters[1][2]
    # Their columns are none of the table's; and the row itself tells the key where the record doesn't.
    assert set(view(spec).rows()[0]) == {"id", "name", "_kafka", "_change"}
    assert rows(view(spec), "id", "name") == [(1, "a"), (2, "no key")]


@pytest.mark.exhaustive
def test_keys_of_the_row_need_the_row_before(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    capture = new_capture({"id": "long", "mail": "string"}, key=("id",))
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium", key=("mail",))
    for number, mail in enumerate(("a", "b")):
        capture.send(envelope("c", 10 + number, {"id": number, "mail": mail}), [number])
    capture.send(envelope("d", 20, None, {"id": 0, "mail": "a"}), [0])
    capture.send(None, [0])
    before = {"id": 1, "mail": "b"}
    capture.send({**envelope("u", 21, {"id": 1, "mail": "moved"}), "before": before}, [1])
    ingest(spec, connections(schemas), "run-1")
    assert rows(view(spec), "mail") == [("moved",)]
    assert view(spec).dead_letters() == []
    capture.send(envelope("c", 30, {"id": 3, "mail": "c"}), [3])
    with pytest.raises(KafkaLakeError, match="needs a schema registry"):
        ingest(spec, connections(), "run-2")


@pytest.mark.exhaustive
def test_key_columns_that_rows_lack_are_those_of_the_records_key(
    new_capture: Callable[..., Capture], connections: NewConnections, view: NewView, schemas: SchemaRegistry
) -> None:
    """As Debezium's ByLogicalTableRouter writes them."""
    table = "__dbz__physicalTableIdentifier"
    capture = new_capture({**COLUMNS, table: "string"}, key=("id", table))
    capture.value(envelope_schema(COLUMNS))
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    for number, shard in enumerate(("shop.orders_1", "shop.orders_2")):
        capture.send(envelope("c", 10 + number, {"id": 1, "name": shard}), [1, shard])
    ingest(spec, connections(schemas), "run-1")
    capture.send(envelope("u", 20, {"id": 1, "name": "changed"}), [1, "shop.orders_1"])
    capture.send(envelope("d", 21, None, {"id": 1, "name": "x"}), [1, "shop.orders_2"])
    ingest(spec, connections(schemas), "run-2")
    assert rows(view(spec), "id", table, "name") == [(1, "shop.orders_1", "changed")]
    assert view(spec).dead_letters() == []


def test_keys_without_columns_stop_the_first_run(
    new_capture: Callable[..., Capture], connections: NewConnections, schemas: SchemaRegistry
) -> None:
    capture = new_capture(COLUMNS)
    spec = capture.topic.spec(None, format="avro", write="upsert", envelope="debezium")
    value = capture._value(envelope("c", 10, {"id": 1, "name": "a"}), SerializationContext("x", MessageField.VALUE))
    capture.topic.send(value, key=b'{"id": 1}')
    with pytest.raises(KafkaLakeError, match=r"names no columns.*as Avro records"):
        ingest(spec, connections(schemas), "run-1")
