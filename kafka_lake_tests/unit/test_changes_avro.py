"""Debezium's envelope in Avro: rows cut out of it as the bytes that they are, in Python alone."""

import io
import json
import struct
from itertools import count
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.executors.changes.avro_spans import Types
from kafka_lake.executors.changes.change import DELETE, NOTHING, READ, TRUNCATE, UPSERT
from kafka_lake.executors.changes.debezium_avro import AvroEnvelopes
from kafka_lake.executors.error_classes import MALFORMED, NO_OLD_KEY, NO_ORDER, NOT_A_CHANGE, OTHER_KEY
from kafka_lake.ingest.decode.avro.debezium import of_keys, of_rows
from kafka_lake.ingest.decode.writer import avro_type, inlined
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

ENVELOPE, KEY, OTHER = 7, 8, 9
COLUMNS = {"id": "long", "name": optional("string")}
ROW = {"id": 1, "name": "ada"}


def schema(of: Any, id_: int = ENVELOPE) -> WriterSchema:
    return WriterSchema("AVRO", json.dumps(of), id=id_)


def written(of: Any, value: Any, id_: int = ENVELOPE) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(json.loads(json.dumps(of))), value)
    return struct.pack(">bI", 0, id_) + out.getvalue()


def read(of: WriterSchema, data: bytes | None) -> Any:
    assert data is not None
    assert int.from_bytes(data[1:5], "big") == of.id
    rest = io.BytesIO(data[5:])
    found = schemaless_reader(rest, parse_schema(json.loads(of.text)), None)
    assert rest.read() == b""
    return found


def told(value: Any, key: Any = {"id": 1}, columns: Any = ("id",), of_record: bool = True, **more: Any) -> Any:  # noqa: B006
    row, keys = envelope_schema(COLUMNS), key_schema({"id": "long"} if "id" in (key or {}) else {"other": "long"})
    schemas = {ENVELOPE: inlined(schema(row)), KEY: inlined(schema(keys, KEY))}
    if "of" in more:
        row = more["of"]
        schemas[ENVELOPE] = inlined(schema(row))
    value = written(row, value) if isinstance(value, dict) else value
    return AvroEnvelopes(schemas).change_of(key and written(keys, key, KEY), value, columns, of_record)


PRIMITIVES: dict[str, Any] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
}


@st.composite
def types(draw: Any, depth: int = 2) -> tuple[Any, Any]:
    """Return a type as JSON has it, and what gives its values."""
    names = list(PRIMITIVES)
    kind = draw(st.sampled_from([*names, *(["array", "map", "record", "fixed", "enum", "null"] if depth else [])]))
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    if kind == "null":
        inner, values = draw(types(depth - 1).filter(lambda each: not isinstance(each[0], list)))
        return ["null", inner], st.none() | values
    number = next(draw(st.shared(st.builds(count), key="names")))
    if kind == "fixed":
        size = draw(st.integers(1, 20))
        return {"type": "fixed", "name": f"F{number}", "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        return {"type": "enum", "name": f"E{number}", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    inner, values = draw(types(depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=3), values, max_size=3)
    return (
        {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": inner}]},
        st.fixed_dictionaries({"a": values}),
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_cut_out_is_the_row_whatever_its_types(data: Any) -> None:
    kinds = data.draw(st.lists(types(), min_size=1, max_size=5))
    columns = {f"c{number}": kind for number, (kind, _) in enumerate(kinds)}
    rows = st.fixed_dictionaries({f"c{number}": values for number, (_, values) in enumerate(kinds)})
    before, after = data.draw(st.none() | rows), data.draw(rows)
    of = envelope_schema(columns)
    change = told(envelope("u", 20, after, before, commit=10), of=of)
    assert (change.does, change.order, change.error_class) == (UPSERT, (10, 20), "")
    assert read(of_rows(schema(of)), change.row) == after


@pytest.mark.parametrize("marker", ["first", "true", "last_in_data_collection", "incremental"])
def test_a_row_that_a_snapshot_has_read_tells_which_of_them_it_is(marker: str) -> None:
    assert told(envelope("r", 7, ROW, snapshot=marker)).snapshot == marker
    assert told(envelope("c", 7, ROW, snapshot="false")).snapshot == ""


@pytest.mark.parametrize(("op", "does"), [("c", UPSERT), ("u", UPSERT), ("r", READ), ("d", DELETE), ("t", TRUNCATE)])
def test_an_operation(op: str, does: str) -> None:
    change = told(envelope(op, 20, ROW if op in "cur" else None, commit=10))
    assert (change.does, change.error_class, change.at) == (does, "", 1)
    assert change.order == ((10, 0) if op == "r" else (10, 20))
    if op == "d":
        assert read(of_keys(schema(key_schema({"id": "long"}), KEY)), change.row) == {"id": 1}
    elif op != "t":
        assert read(of_rows(schema(envelope_schema(COLUMNS))), change.row) == ROW


def test_a_tombstone_deletes_the_row_of_its_key() -> None:
    change = told(None)
    assert (change.does, change.order) == (DELETE, None)
    assert read(of_keys(schema(key_schema({"id": "long"}), KEY)), change.row) == {"id": 1}
    assert told(None, {"other": 1}, of_record=False).does == NOTHING


def test_a_key_that_is_not_the_records_is_told_by_the_row_before() -> None:
    change = told(envelope("d", 20, None, ROW), columns=("name",), of_record=False)
    assert read(of_rows(schema(envelope_schema(COLUMNS))), change.row) == ROW


def test_update_of_a_key_that_is_not_the_records_tells_the_row_before() -> None:
    change = told(envelope("u", 20, ROW, {**ROW, "id": 7}), columns=("name",), of_record=False)
    assert read(of_rows(schema(envelope_schema(COLUMNS))), change.old) == {**ROW, "id": 7}
    assert told(envelope("u", 20, ROW, {**ROW, "id": 7})).old is None
    assert told(envelope("u", 20, ROW), columns=("name",), of_record=False).error_class == NO_OLD_KEY


def test_values_that_were_not_sent_are_named() -> None:
    columns = {"id": "long", "big": ["null", "string"], "days": {"type": "array", "items": ["null", "int"]}, "n": "int"}
    text = "__debezium_unavailable_value"
    row = {"id": 1, "big": text, "days": [*text.encode()], "n": 1}
    assert told(envelope("u", 20, row), of=envelope_schema(columns)).unavailable == ("big", "days")
    assert told(envelope("u", 20, {**row, "big": "x"}), of=envelope_schema(columns)).unavailable == ("days",)
    assert told(envelope("u", 20, ROW)).unavailable == ()


def test_key_columns_that_the_row_lacks_are_in_the_records_key() -> None:
    lacking = envelope_schema({"name": ["null", "string"]})
    change = told(envelope("u", 20, {"name": "ada"}), of=lacking)
    assert read(of_keys(schema(key_schema({"id": "long"}), KEY)), change.key) == {"id": 1}
    assert told(envelope("u", 20, ROW)).key is None
    assert told(envelope("d", 20, None), of=lacking).key is None


def test_a_key_of_other_columns_is_told_with_both() -> None:
    change = told(envelope("u", 20, ROW), {"other": 1})
    assert change.error_class == OTHER_KEY
    assert "other, the table's key has id." in change.error_message


@pytest.mark.parametrize(
    ("of", "value", "says"),
    [
        (HEARTBEAT, {"ts_ms": 1}, "heartbeat"),
        (TRANSACTION, {"status": "BEGIN", "id": "1", "event_count": None, "ts_ms": 1}, "transaction"),
        (SCHEMA_CHANGE, {"ts_ms": 1, "databaseName": None, "ddl": "create"}, "schema"),
        (key_schema({"id": "long"}), {"id": 1}, "leave out envelope:"),
        ("string", "x", "no envelope"),
    ],
)
def test_what_is_no_envelope_says_what_it_is(of: Any, value: Any, says: str) -> None:
    change = told(written(of, value), of=of)
    assert change.error_class == NOT_A_CHANGE
    assert says in change.error_message
    with pytest.raises(SchemaNotSupportedError, match="schema id 7 is no envelope of Debezium's"):
        of_rows(schema(of))


def test_a_source_without_a_position_has_no_order() -> None:
    change = told(envelope("c", None, ROW, sequence=None))
    assert change.error_class == NO_ORDER
    assert "postgresql" in change.error_message
    assert told(envelope("m", 1, ROW)).error_class == NOT_A_CHANGE


def test_bytes_that_are_no_whole_envelope_are_malformed() -> None:
    whole = written(envelope_schema(COLUMNS), envelope("u", 20, ROW, ROW))
    for data in (*(whole[:end] for end in range(5, len(whole))), whole + b"\x00"):
        assert told(data).error_class == MALFORMED
    assert told(whole[:5] + b"\xff" * 200).error_class == MALFORMED


def test_a_type_that_a_union_does_not_have_is_malformed() -> None:
    whole = written(envelope_schema(COLUMNS), envelope("u", 20, ROW, ROW))
    for number in (b"\x01", b"\x04"):
        assert told(whole[:5] + number + whole[6:]).error_class == MALFORMED


def test_a_value_of_no_known_schema_is_handed_on() -> None:
    for data in (b"", b"\x00\x00", b'{"op": "c"}', struct.pack(">bI", 0, OTHER) + b"x"):
        change = told(data)
        assert (change.does, change.row, change.error_class) == ("", data, "")


def test_many_elements_in_few_bytes_end_at_once() -> None:
    of = envelope_schema({"a": {"type": "array", "items": "int"}, "m": {"type": "map", "values": "long"}})
    billions = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    head = struct.pack(">bI", 0, ENVELOPE)
    for row in (billions, b"\x00" + billions, b"\x01\x02" + billions):
        assert told(head + b"\x00\x02" + row, of=of).error_class == MALFORMED


def test_blocks_that_tell_their_size_are_passed_over() -> None:
    types = Types({"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}]})
    (field,) = types.fields(types.root) or ()
    # Two elements of two bytes, and their size before them.
    data = bytes([0x03, 0x04, 0x02, 0x04, 0x00])
    assert field.skip(data, 0) == len(data)


def test_the_types_of_rows_are_those_that_connect_names() -> None:
    columns = {
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
    kind = avro_type(of_rows(schema(envelope_schema(columns))))
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
    assert told(envelope(op, 20, ROW if op in "cur" else None)).source == "shop.public.customers"
