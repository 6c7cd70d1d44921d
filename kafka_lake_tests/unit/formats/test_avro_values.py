"""Avro values: the reference encoder's bytes become the documented columns; other bytes are malformed."""

import io
import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from datetime import time as clock
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kafka_lake.formats.avro.task.decoder import AvroDecoder, read, row_type
from kafka_lake.formats.avro.task.schema import SchemaReader
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.fuzz.avro_values import (
    Maker,
    encode,
    listed,
    mapped,
    neat,
    record,
    typed,
    unscaled,
    varint,
)
from kafka_lake_tests.meta.type_tables import AVRO_TYPES as TYPES

END = bytes.fromhex("f4a3db95f4f4e4f05c")
MIB = 1 << 20


def decode(schema: Any, payloads: Sequence[bytes], **references: str) -> list[Any]:
    """Return what becomes of the payloads, as Python values; the type is as promised."""
    reader = SchemaReader("schema id 7", json.dumps(schema), references).root()
    found, good = read(reader, pa.array(payloads, pa.binary()))
    assert found.type == row_type(reader.type)
    well = found.filter(pa.array(good))
    well.validate(full=True)
    values = iter(well.to_pylist(maps_as_pydicts="strict"))
    rows = [next(values) if is_good else None for is_good in good]
    return rows if pa.types.is_struct(reader.type) else [row and row["value"] for row in rows]


# The types, one by one.

BORDERS = (
    datetime(1, 1, 1), datetime(1582, 10, 4), datetime(1582, 10, 14, 12, 30, 0, 1), datetime(1582, 10, 15),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
)  # fmt: skip
"""The first and the last time of a table, and those around the days that older calendars don't have."""
BORDERS_IN_MILLIS = tuple(at.replace(microsecond=at.microsecond // 1000 * 1000) for at in BORDERS)
LOGICAL: list[tuple[str, Any, list[tuple[Any, Any]]]] = [
    ("boolean", "boolean", [(True, True), (False, False)]),
    ("int", "int", [(-(2**31), -(2**31)), (2**31 - 1, 2**31 - 1)]),
    ("int date", typed("int", "date"), [
        (day, day) for day in (date.min, date(1582, 10, 4), date(1582, 10, 10), date(1582, 10, 14), date.max)
    ]),
    ("int time-millis", typed("int", "time-millis"), [
        (clock(0), "00:00:00.000000"), (clock(9, 5), "09:05:00.000000"), (clock(23, 59, 59, 999000), "23:59:59.999000")
    ]),
    ("long", "long", [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)]),
    ("long time-micros", typed("long", "time-micros"), [
        (clock(0, 0, 0, 1), "00:00:00.000001"), (clock(12), "12:00:00.000000"), (clock.max, "23:59:59.999999")
    ]),
    ("long timestamp-millis", typed("long", "timestamp-millis"), [
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        (1577836800123, datetime(2020, 1, 1, 0, 0, 0, 123000, UTC)),
        *((at.replace(tzinfo=UTC), at.replace(tzinfo=UTC)) for at in BORDERS_IN_MILLIS),
    ]),
    ("long timestamp-micros", typed("long", "timestamp-micros"), [
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        *((at.replace(tzinfo=UTC), at.replace(tzinfo=UTC)) for at in BORDERS),
    ]),
    ("long local-timestamp-millis", typed("long", "local-timestamp-millis"), [
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999000)), (1577836800123, datetime(2020, 1, 1, 0, 0, 0, 123000)),
        *((at, at) for at in BORDERS_IN_MILLIS),
    ]),
    ("long local-timestamp-micros", typed("long", "local-timestamp-micros"), [
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999999)), (datetime(2026, 3, 29, 2, 30), datetime(2026, 3, 29, 2, 30)),
        *((at, at) for at in BORDERS),
    ]),
    ("float", "float", [(1.5, 1.5), (-0.0, -0.0), (float("inf"), float("inf"))]),
    ("double", "double", [(1e308, 1e308), (5e-324, 5e-324), (float("-inf"), float("-inf"))]),
    ("string", "string", [("", ""), ("Zoë 🍕 \x00,", "Zoë 🍕 \x00,")]),
    ("bytes", "bytes", [(b"", b""), (b"\x00\xff,", b"\x00\xff,")]),
    ("bytes decimal", typed("bytes", "decimal", precision=38, scale=10), [
        (Decimal("-0.0000000001"), Decimal("-0.0000000001")), (unscaled(10**38 - 1), Decimal("9" * 28 + "." + "9" * 10))
    ]),
    ("bytes decimal 18", typed("bytes", "decimal", precision=18, scale=18), [
        (unscaled(10**18 - 1), Decimal("0." + "9" * 18)), (b"\xff" * 20, Decimal("-1e-18"))
    ]),
    ("bytes decimal 39", typed("bytes", "decimal", precision=300, scale=2), [
        (unscaled(number), text) for number, text in (
            (0, "0.00"), (1, "0.01"), (-1, "-0.01"), (-128, "-1.28"), (255, "2.55"), (-256, "-2.56"),
            (10**9, "10000000.00"), (2**32, "42949672.96"), (-(2**32), "-42949672.96"),
            (2**63, "92233720368547758.08"), (-(10**38), "-1" + "0" * 36 + ".00"), (10**300, "1" + "0" * 298 + ".00"),
        )
    ] + [(b"\xff" * 9 + b"\x85", "-1.23"), (b"\x00" * 9 + b"\x05", "0.05")]),
    ("fixed decimal", typed("fixed", "decimal", name="FD", size=9, precision=20, scale=2), [
        (Decimal("-123456789012345678.90"), Decimal("-123456789012345678.90")), (b"\x00" * 8 + b"\x05", Decimal("0.05"))
    ]),
    ("fixed decimal 39", {"type": "fixed", "name": "FW", "size": 20, "logicalType": "decimal", "precision": 40}, [
        ((-7).to_bytes(20, "big", signed=True), "-7"), ((10**40 - 1).to_bytes(20, "big"), "9" * 40)
    ]),
    ("fixed", {"type": "fixed", "name": "FX", "size": 3}, [(b"\x00\xff,", b"\x00\xff,")]),
    ("enum", {"type": "enum", "name": "EN", "symbols": ["A", "b"]}, [("A", "A"), ("b", "b")]),
    ("record", {"type": "record", "name": "RE", "fields": [
        {"name": "id", "type": "string"}, {"name": "none", "type": "null"},
        {"name": "one_null", "type": ["null"]}, {"name": "n", "type": ["null", "int"]}, {"name": "N", "type": "int"},
    ]}, [({"id": "x", "n": None, "N": 4}, {"id": "x", "n": None, "N": 4})]),
    ("record without fields", {**record(none="null"), "name": "RN"}, [({}, {"_set": True})]),
    ("array", listed(["null", listed(typed("int", "time-millis"))]),
     [([], []), ([None, [], [clock(1)]], [None, [], ["01:00:00.000000"]])]),
    ("map", mapped("string"), [({}, {}), ({"ü": "x"}, {"ü": "x"})]),
    ("map of nulls", mapped("null"), [({"k": None}, {"k": None})]),
    ("union of null and T", ["null", typed("long", "time-micros")],
     [(None, None), (clock(1), "01:00:00.000000")]),
    ("union of one", [{"type": "enum", "name": "UE", "symbols": ["A"]}], [("A", "A")]),
    ("union of types that are encoded alike", [typed("int", "time-millis"), typed("long", "time-micros")], [
        (("int", clock(1)), {"int": "01:00:00.000000", "long": None}),
        (("long", clock(2)), {"int": None, "long": "02:00:00.000000"}),
    ]),
    ("union of int and a logical type", ["int", typed("long", "timestamp-nanos")], [
        (("int", 5), {"int": 5, "long": None}), (("long", 5), {"int": None, "long": 5})
    ]),
    ("union of a logical type and long", [typed("int", "date"), "long"], [
        (date(2026, 1, 1), {"int": date(2026, 1, 1), "long": None}), (("long", 5), {"int": None, "long": 5})
    ]),
    ("record with a null", {**record(none=["null"], n="int"), "name": "RW"}, [({"none": None, "n": 1}, {"n": 1})]),
    ("union of several", [
        "null", "int", typed("long", "time-micros"), "string", "bytes",
        {"type": "fixed", "name": "a.X", "size": 1}, {"type": "enum", "name": "b.X", "symbols": ["A"]},
        {"type": "record", "name": "Ping", "fields": []},
        listed(["int", "string"]), mapped("int"),
    ], [
        (given, None if name is None else
         dict.fromkeys(("int", "long", "string", "bytes", "a_X", "b_X", "Ping", "array", "map")) | {name: expected})
        for given, name, expected in (
            (None, None, None), (("int", 1), "int", 1), (("long", 2), "long", "00:00:00.000002"),
            ("s", "string", "s"), (b"s", "bytes", b"s"), (("a.X", b"A"), "a_X", b"A"), (("b.X", "A"), "b_X", "A"),
            (("Ping", {}), "Ping", {"_set": True}), ({"k": 1}, "map", {"k": 1}),
            ([1, "x"], "array", [{"int": 1, "string": None}, {"int": None, "string": "x"}]),
        )
    ]),
]  # fmt: skip


@pytest.fixture(scope="module")
def decoded_types() -> dict[str, Any]:
    """Return what became of all values of `LOGICAL`, alone in a field and in a map, by one job."""
    fields, row = {}, {}
    for number, (_, kind, values) in enumerate(LOGICAL):
        fields[f"v{number}"], row[f"v{number}"] = kind, values[0][0]
        again = [name_of(branch) for branch in kind] if isinstance(kind, list) else name_of(kind)
        fields[f"m{number}"], row[f"m{number}"] = (
            mapped(again),
            {str(at): value for at, (value, _) in enumerate(values)},
        )
    schema = record(**fields)
    (found,) = decode(schema, encode(schema, row))
    return {name: (found[f"v{number}"], found[f"m{number}"]) for number, (name, _, _) in enumerate(LOGICAL)}


def name_of(kind: Any) -> Any:
    """Return the name of a type that has one, which is how it is mentioned a second time."""
    return kind["name"] if isinstance(kind, dict) and "name" in kind else kind


@pytest.mark.parametrize("name", [name for name, _, _ in LOGICAL])
def test_each_type_becomes_what_is_documented(name: str, decoded_types: dict[str, Any]) -> None:
    wanted = [expected for item, _, values in LOGICAL for _, expected in values if item == name]
    assert decoded_types[name] == (wanted[0], {str(at): item for at, item in enumerate(wanted)})


def test_every_documented_type_is_tried() -> None:
    tried = {name for name, _, _ in LOGICAL}
    for avro, logical, *_ in TYPES:
        for kind in avro.split(", "):
            if kind not in ("null", "a type that contains itself"):
                assert f"{kind} {logical}".strip() in tried


def test_roots_other_than_records() -> None:
    assert decode("long", [*encode("long", 7, -1), b"\x80", b""]) == [7, -1, None, None]
    times = mapped(typed("int", "time-millis"))
    assert decode(times, encode(times, {"k": clock(1)}, {})) == [{"k": "01:00:00.000000"}, {}]
    events = [record(a="int"), {**record(b="string"), "name": "S"}]
    payloads = encode(events, ("R", {"a": 1}), ("S", {"b": "x"}))
    assert decode(events, payloads) == [{"R": {"a": 1}, "S": None}, {"R": None, "S": {"b": "x"}}]


def test_nulls_are_told_from_malformed_bytes() -> None:
    empty = record(a=["null", "int"], b=["null", "string"])
    assert decode(empty, [b"\x00\x00", b"\x00"]) == [{"a": None, "b": None}, None]
    assert decode(["null", record(a="int")], [b"\x00", b"\x02\x02"]) == [None, {"a": 1}]
    assert decode(record(), [b"", b"\x00"]) == [{}, None]
    decoder = AvroDecoder('["null", "string"]', [("value", ("string",), ("value",), False, "string")], "schema id 7", 1)
    done = decoder.decode(pa.array([b"\x00", b"\x02", None, b"\x02\x02a"]))
    assert done.rows.to_pylist() == [{"value": None}, None, None, None]
    assert done.error_class.to_pylist() == [None, "malformed", None, "too_large"]
    assert done.error_message.to_pylist()[1] == "The bytes don't decode with schema id 7."


def test_types_of_references_and_their_namespaces() -> None:
    street = {"type": "record", "name": "Street", "namespace": "geo", "fields": [{"name": "name", "type": "string"}]}
    address = {
        "type": "record", "name": "geo.Address",
        "fields": [{"name": "street", "type": "Street"}, {"name": "other", "type": ["null", "geo.Street"]}],
    }  # fmt: skip
    order = {"type": "record", "name": "shop.Order", "fields": [
        {"name": "to", "type": "geo.Address"}, {"name": "from", "type": {"type": "geo.Address"}}
    ]}  # fmt: skip
    references = {"street.avsc": json.dumps(street), "address.avsc": json.dumps(address)}
    found = decode(order, [b"\x02a\x00\x02b\x02\x02c"], **references)
    assert found == [
        {"to": {"street": {"name": "a"}, "other": None}, "from": {"street": {"name": "b"}, "other": {"name": "c"}}}
    ]


# Schemas and records at random.


@pytest.mark.parametrize("seed", [*range(10), *(exhaustive(seed) for seed in range(10, 25))])
def test_random_records_of_random_schemas(seed: int) -> None:
    maker = Maker(seed)
    schema = maker.record(3) if seed % 5 else maker.kind(3)
    parsed = fastavro.parse_schema(schema)
    payloads = encode(schema, *(maker.value(schema) for _ in range(20)))
    read = [
        fastavro.schemaless_reader(io.BytesIO(payload), parsed, None, return_record_name=True, return_named_type=True)
        for payload in payloads
    ]
    cut = [payload[: maker.rnd.randrange(len(payload))] for payload in payloads if payload]
    longer = [payload + END[: maker.rnd.randrange(1, 9)] for payload in payloads]
    longer += [payload + maker.rnd.randbytes(1) for payload in payloads]
    wanted = [neat(maker.wanted(schema, value)) for value in read]
    cases = [*zip(payloads, wanted, strict=True), *((payload, None) for payload in [*cut, *longer])]
    maker.rnd.shuffle(cases)
    found = decode(schema, [payload for payload, _ in cases])
    assert [neat(value) for value in found] == [value for _, value in cases]


# Bytes that are none of the schema's.

EVERYTHING = {
    "type": "record", "name": "R", "fields": [
        {"name": "l", "type": "long"}, {"name": "s", "type": "string"}, {"name": "n", "type": ["null", "string"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}}, {"name": "d", "type": "double"},
        {"name": "b", "type": "bytes"}, {"name": "a", "type": listed("string")},
        {"name": "m", "type": mapped(listed("int"))},
        {"name": "t", "type": typed("long", "time-micros")},
        {"name": "u", "type": ["null", "string", {**record(x="int"), "name": "S"}]},
    ]
}  # fmt: skip
FULL = {
    "l": 2**40, "s": "some text", "n": "more", "e": "B", "d": 1.5, "b": b"\x00\x01", "a": ["x", "yz"],
    "m": {"k": [1, 2], "": []}, "t": clock(1, 2, 3, 4), "u": ("S", {"x": -5}),
}  # fmt: skip


def test_a_record_cut_anywhere_is_malformed() -> None:
    (whole,) = encode(EVERYTHING, FULL)
    found = decode(EVERYTHING, [whole[:length] for length in range(len(whole) + 1)])
    assert found[:-1] == [None] * len(whole)
    assert found[-1]["u"] == {"string": None, "S": {"x": -5}}


def test_what_goes_on_after_the_record_is_malformed() -> None:
    (whole,) = encode(EVERYTHING, FULL)
    tails = [b"\x00", b"\x80", b"\x00" * 9, whole, *(END[:size] for size in range(1, 9)), b"\x80" + END[:8]]
    assert decode(EVERYTHING, [whole + tail for tail in tails]) == [None] * len(tails)


MALFORMED: list[tuple[str, Any, bytes]] = [
    ("text that is no UTF-8", "string", b"\x02\xff"),
    ("text that is half a character", listed("string"), b"\x04\x02\xc3\x02\xa9\x00"),
    ("a key that is no UTF-8", mapped("int"), b"\x02\x02\xff\x00\x00"),
    ("a value that is no UTF-8", mapped("string"), b"\x02\x02k\x02\xff\x00"),
    ("text within", listed(["null", listed("string")]),
     b"\x04\x00\x02\x02\x02\xff\x00\x00"),
    ("a key within", listed(mapped("int")), b"\x02\x02\x02\xff\x00\x00\x00"),
    ("text of a branch", ["int", record(s="string")], b"\x02\x02\xff"),
    ("no symbol", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04"),
    ("no symbol before the first", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),
    ("no branch", ["null", "int"], b"\x04\x00"),
    ("no branch before the first", ["null", "int"], b"\x01"),
    ("a time after midnight", typed("int", "time-millis"), varint(86_400_000)),
    ("a time before midnight", typed("long", "time-micros"), varint(-1)),
    ("a time within", mapped(listed(typed("int", "time-millis"))),
     b"\x02\x02k\x02" + varint(-1) + b"\x00\x00"),
    ("a timestamp that microseconds can't count", typed("long", "timestamp-millis"), varint(2**62)),
    ("a date of the year 0", typed("int", "date"), varint(-719_163)),
    ("a date of the year 10000", typed("int", "date"), varint(2_932_897)),
    ("a date beyond all years", typed("int", "date"), varint(2**31 - 1)),
    ("a date within", mapped(listed(["null", typed("int", "date")])),
     b"\x02\x02k\x02\x02" + varint(-(2**31)) + b"\x00\x00"),
    ("milliseconds of the year 0", typed("long", "timestamp-millis"), varint(-62_135_596_800_001)),
    ("milliseconds of the year 10000", typed("long", "timestamp-millis"), varint(253_402_300_800_000)),
    ("microseconds of the year 0", typed("long", "timestamp-micros"), varint(-62_135_596_800_000_001)),
    ("microseconds of the year 10000", typed("long", "timestamp-micros"), varint(253_402_300_800_000_000)),
    ("local milliseconds of the year 0", typed("long", "local-timestamp-millis"), varint(-62_135_596_800_001)),
    ("local microseconds of the year 10000", typed("long", "local-timestamp-micros"), varint(253_402_300_800_000_000)),
    ("microseconds beyond all years", typed("long", "timestamp-micros"), varint(2**63 - 1)),
    ("an int that is a long", "int", varint(2**40)),
    ("a number that doesn't end", "long", b"\xff" * 12),
    ("a decimal of no bytes", typed("bytes", "decimal", precision=9), b"\x00"),
    ("a long decimal of no bytes", typed("bytes", "decimal", precision=50), b"\x00"),
    ("a decimal with too many digits", typed("bytes", "decimal", precision=2), b"\x02\x64"),
    ("a decimal of more than 64 bits", typed("bytes", "decimal", precision=9), b"\x12\x01" + b"\x00" * 8),
    ("a fixed decimal of more than 64 bits", typed("fixed", "decimal", name="F", size=9, precision=9), b"\x01" * 9),
    ("a decimal beyond all measure", typed("bytes", "decimal", precision=5000),
     encode("bytes", b"\x01" * 129)[0]),
    ("a string of negative length", "string", varint(-5) + b"abcde"),
    ("bytes of negative length", "bytes", varint(-(2**63))),
    ("an array of negative size", listed("int"), varint(-3) + varint(6) + varint(1)),
]  # fmt: skip


def test_bytes_that_no_writer_writes_are_malformed() -> None:
    taken = [name for name, kind, payload in MALFORMED if decode({**record(c=kind), "name": "Of"}, [payload]) != [None]]
    assert taken == []


def test_lengths_without_bytes_take_no_memory() -> None:
    fields = {f"s{number}": "string" for number in range(20)}
    schema = record(**fields, b="bytes", a=listed("string"), m=mapped("int"))
    (good,) = encode(schema, {**dict.fromkeys(fields, "x"), "b": b"", "a": ["y"], "m": {}})
    payloads = [good]
    for claim in (63 * MIB, 8 * MIB, 2**31 - 9, 2**31, 2**62, -(2**31), -(2**63)):
        payloads += [good[: 2 * number] + varint(claim) for number in (0, 10, 20)]
        payloads += [good[:41] + varint(claim), good[:41] + varint(claim) + varint(100), good[:45] + varint(claim)]
    payloads += [good[: 2 * number] + varint(63 * MIB) for number in range(20)] + [good]
    began = time.monotonic()
    found = decode(schema, payloads)
    assert [number for number, value in enumerate(found) if value is not None] == [0, len(payloads) - 1]
    assert time.monotonic() - began < 5


def test_random_bytes_are_values_or_malformed() -> None:
    rnd = random.Random(5)
    (whole,) = encode(EVERYTHING, FULL)
    payloads = [rnd.randbytes(rnd.randrange(40)) for _ in range(1500)]
    for _ in range(1500):
        changed = bytearray(whole)
        for _ in range(rnd.choice([1, 1, 3])):
            changed[rnd.randrange(len(changed))] = rnd.randrange(256)
        payloads.append(bytes(changed))
    found = decode(EVERYTHING, [*payloads, whole])
    assert found[-1]["s"] == "some text"
    parsed = fastavro.parse_schema(EVERYTHING)
    values = [(payload, value) for payload, value in zip(payloads, found[:-1], strict=True) if value is not None]
    assert 100 < len(values) < 1500
    for payload, value in values:
        source = io.BytesIO(payload)
        read = fastavro.schemaless_reader(source, parsed, None)
        assert source.read() == b""
        assert neat(value["m"]) == read["m"]
        assert neat(value["d"]) == neat(read["d"])
        assert {key: value[key] for key in "lsneba"} == {key: read[key] for key in "lsneba"}
        assert value["t"] == read["t"].strftime("%H:%M:%S.%f")


def test_a_thousand_columns_decode() -> None:
    names = [f"c{number}" for number in range(1000)]
    schema = record(**{name: "string" if number % 2 else "long" for number, name in enumerate(names)})
    row = {name: "x" if number % 2 else number for number, name in enumerate(names)}
    (payload,) = encode(schema, row)
    assert decode(schema, [payload, payload[:-1]]) == [row, None]
