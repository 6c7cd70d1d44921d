"""Debezium's envelope in Avro: rows cut out of it as the bytes that they are, in Python alone."""

import io
import json
import struct
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import types as T

from kafka_lake.cdc.avro import envelope_schema as envelopes_of
from kafka_lake.cdc.avro import envelopes_and_keys
from kafka_lake.cdc.task.change import DELETE, NOTHING, READ, TRUNCATE, UPSERT
from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.formats.avro.task.decoder import MALFORMED
from kafka_lake.formats.registered import avro_type
from kafka_lake.formats.task.error_classes import NO_OLD_KEY, NO_ORDER, NOT_A_CHANGE, OTHER_KEY
from kafka_lake.formats.task.registered import NO_SCHEMA_ID, UNKNOWN_SCHEMA
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake_tests.debezium_avro import (
    DECIMAL,
    HEARTBEAT,
    SCHEMA_CHANGE,
    TRANSACTION,
    VARIABLE,
    envelope,
    envelope_schema,
    key_schema,
    named,
    optional,
)
from kafka_lake_tests.unit.cdc.changes import change, columns, decoded, records

ENVELOPE, KEY, OTHER = 7, 8, 9
COLUMNS = {"id": "long", "name": optional("string")}
ROW = {"id": 1, "name": "ada"}


def schema(of: Any, id_: int = ENVELOPE) -> WriterSchema:
    return WriterSchema("AVRO", json.dumps(of), id=id_)


def written(of: Any, value: Any, id_: int = ENVELOPE) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(json.dumps(of))), value)
    return struct.pack(">bI", 0, id_) + out.getvalue()


KINDS = columns(id=T.LongType(), name=T.StringType())


def reported(
    value: Any,
    key: Any = {"id": 1},  # noqa: B006
    fields: Any = ("id",),
    of_record: bool = True,
    of: Any = None,
    kinds: T.StructType = KINDS,
) -> Any:
    """Return what a record is decoded to whose schemas are known."""
    of = of or envelope_schema(COLUMNS)
    keys = key_schema({"id": "long"} if "id" in (key or {}) else {"other": "long"})
    known = {ENVELOPE: schema(of), KEY: schema(keys, KEY)}
    rows, of_keys = envelopes_and_keys(known.__getitem__, "confluent")
    batch = records((key and written(keys, key, KEY), written(of, value) if isinstance(value, dict) else value))
    rows, of_keys = rows.known([ENVELOPE]), of_keys.known([KEY])
    return change(decoded(batch, "debezium", kinds, fields, rows=rows, keys=of_keys, of_record=of_record))


@pytest.mark.parametrize("marker", ["first", "true", "last_in_data_collection", "incremental"])
def test_a_row_that_a_snapshot_has_read_tells_which_of_them_it_is(marker: str) -> None:
    assert reported(envelope("r", 7, ROW, snapshot=marker)).snapshot == marker
    assert reported(envelope("c", 7, ROW, snapshot="false")).snapshot is None


@pytest.mark.parametrize(
    ("op", "operation"), [("c", UPSERT), ("u", UPSERT), ("r", READ), ("d", DELETE), ("t", TRUNCATE)]
)
def test_an_operation(op: str, operation: str) -> None:
    found = reported(envelope(op, 20, ROW if op in "cur" else None, commit=10))
    assert (found.operation, found.error, found.at) == (operation, None, 1)
    assert found.order == ([10, 0] if op == "r" else [10, 20])
    if op == "d":
        assert found.row == {"id": 1, "name": None}
    elif op != "t":
        assert found.row == ROW


def test_a_tombstone_deletes_the_row_of_its_key() -> None:
    found = reported(None)
    assert (found.operation, found.order) == (DELETE, None)
    assert found.row == {"id": 1, "name": None}
    assert reported(None, {"other": 1}, of_record=False).operation == NOTHING


def test_a_key_that_is_not_the_records_is_told_by_the_row_before() -> None:
    found = reported(envelope("d", 20, None, ROW), fields=("name",), of_record=False)
    assert found.row == {"id": None, "name": "ada"}


def test_update_of_a_key_that_is_not_the_records_tells_the_row_before() -> None:
    found = reported(envelope("u", 20, ROW, {**ROW, "id": 7}), fields=("name",), of_record=False)
    assert found.old_key == {"name": "ada"}
    assert reported(envelope("u", 20, ROW, {**ROW, "id": 7})).old_key is None
    assert reported(envelope("u", 20, ROW), fields=("name",), of_record=False).error == NO_OLD_KEY


def test_values_that_were_not_sent_are_kept() -> None:
    of = {"id": "long", "big": ["null", "string"], "days": {"type": "array", "items": ["null", "int"]}, "n": "int"}
    kinds = columns(id=T.LongType(), big=T.StringType(), days=T.ArrayType(T.IntegerType()), n=T.IntegerType())
    text = "__debezium_unavailable_value"
    row = {"id": 1, "big": text, "days": [*text.encode()], "n": 1}
    found = reported(envelope("u", 20, row), of=envelope_schema(of), kinds=kinds)
    assert (found.unavailable, found.row) == (["big", "days"], {"id": 1, "big": None, "days": None, "n": 1})
    assert reported(envelope("u", 20, {**row, "big": "x"}), of=envelope_schema(of), kinds=kinds).unavailable == ["days"]
    assert reported(envelope("u", 20, ROW)).unavailable == []


def test_key_columns_that_the_row_lacks_are_in_the_records_key() -> None:
    lacking = envelope_schema({"name": ["null", "string"]})
    assert reported(envelope("u", 20, {"name": "ada"}), of=lacking).row == {"id": 1, "name": "ada"}
    assert reported(envelope("d", 20, None), of=lacking).row == {"id": 1, "name": None}


def test_a_key_of_other_columns_is_told_with_both() -> None:
    found = reported(envelope("u", 20, ROW), {"other": 1})
    assert found.error == OTHER_KEY
    assert "other, the table's key has id." in found.message


@pytest.mark.parametrize(
    ("of", "value", "says"),
    [
        (HEARTBEAT, {"ts_ms": 1}, "heartbeat"),
        (TRANSACTION, {"status": "BEGIN", "id": "1", "event_count": None, "ts_ms": 1}, "transaction"),
        (SCHEMA_CHANGE, {"ts_ms": 1, "databaseName": None, "ddl": "create"}, "schema"),
        (key_schema({"id": "long"}), {"id": 1}, "leave out envelope:"),
        ("string", "x", "not an envelope"),
        (["null", "string"], None, "not an envelope"),
    ],
)
def test_what_is_no_envelope_says_what_it_is(of: Any, value: Any, says: str) -> None:
    found = reported(written(of, value), of=of)
    assert found.error == NOT_A_CHANGE
    assert says in found.message
    with pytest.raises(SchemaNotSupportedError, match="schema id 7 is not an envelope of Debezium"):
        envelopes_of(schema(of))


def test_a_source_without_a_position_has_no_order() -> None:
    found = reported(envelope("c", None, ROW, sequence=None))
    assert found.error == NO_ORDER
    assert "postgresql" in found.message
    assert reported(envelope("m", 1, ROW)).error == NOT_A_CHANGE


def test_bytes_that_are_no_whole_envelope_are_malformed() -> None:
    whole = written(envelope_schema(COLUMNS), envelope("u", 20, ROW, ROW))
    for data in (*(whole[:end] for end in range(5, len(whole))), whole + b"\x00"):
        assert reported(data).error == MALFORMED
    assert reported(whole[:5] + b"\xff" * 200).error == MALFORMED


def test_a_type_that_a_union_does_not_have_is_malformed() -> None:
    whole = written(envelope_schema(COLUMNS), envelope("u", 20, ROW, ROW))
    for number in (b"\x01", b"\x04"):
        assert reported(whole[:5] + number + whole[6:]).error == MALFORMED


def test_a_value_of_no_known_schema_says_so() -> None:
    for data in (b"", b"\x00\x00", b'{"op": "c"}'):
        assert reported(data).error == NO_SCHEMA_ID
    assert reported(struct.pack(">bI", 0, OTHER) + b"x").error == UNKNOWN_SCHEMA


def test_many_elements_in_few_bytes_end_at_once() -> None:
    of = envelope_schema({"a": {"type": "array", "items": "int"}, "m": {"type": "map", "values": "long"}})
    billions = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    head = struct.pack(">bI", 0, ENVELOPE)
    for row in (billions, b"\x00" + billions, b"\x01\x02" + billions):
        assert reported(head + b"\x00\x02" + row, of=of).error == MALFORMED


def test_the_types_of_rows_are_those_that_connect_names() -> None:
    of = {
        "day": named("int", "io.debezium.time.Date"),
        "at": optional(named("string", "io.debezium.time.ZonedTimestamp")),
        "local": optional(named("long", "io.debezium.time.MicroTimestamp")),
        "milli": named("long", "io.debezium.time.Timestamp"),
        "nano": named("long", "io.debezium.time.NanoTimestamp"),
        "connect": named("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"),
        "time": named("long", "io.debezium.time.MicroTime"),
        "price": optional(DECIMAL),
        "numeric": optional(VARIABLE),
        "again": optional("io.debezium.data.VariableScaleDecimal"),
        "days": {"type": "array", "items": ["null", named("int", "io.debezium.time.Date")]},
        "iso_day": named("string", "io.debezium.time.IsoDate"),
        "iso_local": named("string", "io.debezium.time.IsoTimestamp"),
        "iso_time": named("string", "io.debezium.time.IsoTime"),
        "uid": named("string", "io.debezium.data.Uuid"),
        "doc": named("string", "io.debezium.data.Json"),
        "other": named("string", "io.debezium.time.Date"),
    }
    kind = avro_type(envelopes_of(schema(envelope_schema(of))))["after"].dataType
    assert {field.name: field.dataType.simpleString() for field in kind} == {
        "day": "date",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "milli": "timestamp_ntz",
        "nano": "bigint",
        "connect": "timestamp_ntz",
        "time": "string",
        "price": "decimal(20,5)",
        "numeric": "string",
        "again": "string",
        "days": "array<date>",
        "iso_day": "date",
        "iso_local": "timestamp_ntz",
        "iso_time": "string",
        "uid": "string",
        "doc": "string",
        "other": "string",
    }


@pytest.mark.parametrize("op", ["c", "u", "r", "d", "t"])
def test_a_change_tells_its_sources_table(op: str) -> None:
    assert reported(envelope(op, 20, ROW if op in "cur" else None)).source == "shop.public.customers"
