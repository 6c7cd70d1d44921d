"""Protobuf without an engine: schemas in every form, the documented types, values at their limits, hostile bytes."""

import base64
import io
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from kafka_lake.engine.interop import packed, task_function
from kafka_lake.errors import ConfigurationError, SchemaNotSupportedError
from kafka_lake.formats.json.task.decoder import json_decoder
from kafka_lake.formats.protobuf import schema
from kafka_lake.formats.protobuf.schema import ProtobufMessage, message_of
from kafka_lake.formats.protobuf.task.decoder import MessageReader, ProtobufDecoder
from kafka_lake.formats.protobuf.task.schema import arrow_type
from kafka_lake.formats.registered import protobuf_type, writer_of
from kafka_lake.formats.task import batches as task
from kafka_lake.formats.task.decoders import unpack_decoder
from kafka_lake.formats.task.framing import message_indexes
from kafka_lake.formats.task.registered import RegisteredDecoder
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.meta.type_tables import PROTOBUF_TYPES as TYPES

IMPORTS = "".join(
    f'import "{name}.proto";\n'
    for name in [
        *(f"google/protobuf/{file}" for file in ("any", "duration", "empty", "field_mask", "struct", "timestamp")),
        "google/protobuf/wrappers",
        "google/type/latlng",
        "confluent/meta",
        "confluent/type/decimal",
    ]
)  # fmt: skip
OTHERS = """
enum Color { RED = 0; BLUE = 1; }
message Line { string sku = 1; int32 count = 2; }
message Nothing {}
"""


def proto3(body: str) -> str:
    return f'syntax = "proto3";\npackage shop;\n{IMPORTS}{body}'


def message(text: str, references: Mapping[str, str] | None = None, **which: Any) -> ProtobufMessage:
    return message_of(WriterSchema("PROTOBUF", text, references or {}, id=7), **which)


def writer(described: ProtobufMessage) -> Any:
    """Return the message's class, as the protobuf package makes it from the same descriptors."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(described.files).file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(described.name))


def outcomes(described: ProtobufMessage, *payloads: Any) -> list[dict[str, Any]]:
    """Return what becomes of messages."""
    raw = [p if isinstance(p, bytes) else p.SerializePartialToString() for p in payloads]
    reader = reader_of(described)
    rows, places, errors = reader.read(pa.array(raw, pa.binary()))
    rows.validate(full=True)
    assert rows.type == reader.type == arrow_type(described.files, described.name)
    assert sorted([*places.tolist(), *errors]) == list(range(len(raw)))
    made = dict(zip(places.tolist(), rows.to_pylist(), strict=True))
    return [{"decoded": made.get(number), "error": errors.get(number)} for number in range(len(raw))]


@cache
def reader_of(described: ProtobufMessage) -> MessageReader:
    return MessageReader(described.files, described.name)


def decoded(described: ProtobufMessage, *payloads: Any) -> list[Any]:
    found = outcomes(described, *payloads)
    assert [row["error"] for row in found] == [None] * len(payloads)
    return [row["decoded"] for row in found]


def columns(described: ProtobufMessage) -> str:
    return protobuf_type(described).simpleString().removeprefix("struct<").removesuffix(">")


def test_types_are_as_documented() -> None:
    fields = [
        (field, column.replace(" ", ""))
        for declarations, column, _ in TYPES
        for field in re.findall(r"(?:map<.*?>|[\w. ])+ f(?: \[.*\])?", declarations)
    ]
    assert len(fields) > len(TYPES)
    numbered = [re.sub(r" f\b", " f = 1", field) for field, _ in fields]
    schema = proto3(OTHERS + "".join(f"message M{n} {{ {field}; }}\n" for n, field in enumerate(numbered)))
    found = {field: columns(message(schema, name=f"M{n}")) for n, (field, _) in enumerate(fields)}
    assert found == dict(fields)
    assert all(remark == "" or remark.endswith(".") for _, _, remark in TYPES)


def test_the_nanoseconds_say_what_they_are() -> None:
    kind = protobuf_type(message(proto3("message M { google.protobuf.Timestamp at = 1; int32 n = 2; }")))
    assert [field.metadata for field in kind] == [
        {},
        {"comment": "Nanoseconds beyond the microseconds of at, 0 to 999."},
        {},
    ]
    assert all(field.nullable for field in kind)


SCALARS = proto3(
    OTHERS
    + """message M {
  int32 i32 = 1; int64 i64 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6; fixed32 f32 = 7;
  fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10; bool b = 11; float f = 12; double d = 13; string s = 14;
  bytes y = 15; Color color = 16; repeated int32 list = 17; map<string, int32> map = 18; optional int32 maybe = 19;
  oneof one { int32 left = 20; Line right = 21; Nothing none = 22; } Line line = 23; repeated Line lines = 24;
}"""
)


def test_scalars_at_their_limits() -> None:
    described = message(SCALARS, name="M")
    low = {"i32": -(2**31), "i64": -(2**63), "s32": -(2**31), "s64": -(2**63), "sf32": -(2**31), "sf64": -(2**63)}
    high = {
        "i32": 2**31 - 1,
        "i64": 2**63 - 1,
        "s32": 2**31 - 1,
        "s64": 2**63 - 1,
        "sf32": 2**31 - 1,
        "sf64": 2**63 - 1,
    }
    high |= {
        "u32": 2**32 - 1,
        "u64": 2**64 - 1,
        "f32": 2**32 - 1,
        "f64": 2**64 - 1,
        "b": True,
        "d": 1.7976931348623157e308,
    }
    high |= {"f": 3.4028234663852886e38, "s": "\0ü𝄞" * 3, "y": b"\0\xff"}
    make = writer(described)
    for expected, found in zip([low, high], decoded(described, make(**low), make(**high)), strict=True):
        assert {name: found[name] for name in expected} == expected
    odd = make(d=float("nan"), f=-0.0)
    (found,) = decoded(described, odd)
    assert str(found["d"]) == "nan"
    assert str(found["f"]) == "-0.0"


def test_unset_fields_of_proto3() -> None:
    described = message(SCALARS, name="M")
    (found,) = decoded(described, b"")
    numbers = dict.fromkeys(["i32", "i64", "u32", "s32", "s64", "f32", "sf32", "sf64", "u64", "f64", "f", "d"], 0)
    assert found == numbers | {
        "b": False,
        "s": "",
        "y": b"",
        "color": "RED",
        "list": [],
        "map": [],
        "maybe": None,
        "left": None,
        "right": None,
        "none": None,
        "line": None,
        "lines": [],
    }


def test_presence_is_kept() -> None:
    described = message(SCALARS, name="M")
    make = writer(described)
    messages = [make(maybe=0, left=0), make(right={}), make(none={}), make(line={"sku": "x"}, lines=[{}, {"count": 2}])]
    names = ["maybe", "left", "right", "none", "line", "lines"]
    assert [[found[name] for name in names] for found in decoded(described, *messages)] == [
        [0, 0, None, None, None, []],
        [None, None, {"sku": "", "count": 0}, None, None, []],
        [None, None, None, {"_set": True}, None, []],
        [None, None, None, None, {"sku": "x", "count": 0}, [{"sku": "", "count": 0}, {"sku": "", "count": 2}]],
    ]


PROTO2 = """
syntax = "proto2";
package old;
enum Size { option allow_alias = true; SMALL = 1; LITTLE = 1; LARGE = -2; }
enum Kind { NONE = 0; SOME = 1; }
message Inner { required int32 must = 1; optional string text = 2; }
message M {
  required int64 id = 1;
  optional int32 number = 2 [default = 5];
  optional Size size = 3 [default = LARGE];
  repeated Size sizes = 4;
  repeated Size packed = 5 [packed = true];
  map<int32, Kind> by_kind = 6;
  optional Inner inner = 9;
  repeated string texts = 10;
  map<string, string> by_text = 11;
  extensions 100 to 200;
}
extend M { optional string more = 100; optional Size more_size = 101; }
message Free { optional Inner inner = 1; optional Free2 other = 2; }
message Free2 { optional int32 x = 1; }
"""


def test_proto2() -> None:
    described = message(PROTO2, name="M")
    assert columns(described) == (
        "id:bigint,number:int,size:string,sizes:array<string>,packed:array<string>,by_kind:map<int,string>,"
        "inner:struct<must:int,text:string>,"
        "texts:array<string>,by_text:map<string,string>"
    )
    full = writer(described)(id=1, size=1, sizes=[1, -2], packed=[-2], by_kind={3: 1})
    empty = {
        "number": None,
        "size": None,
        "sizes": [],
        "packed": [],
        "by_kind": [],
        "inner": None,
        "texts": [],
        "by_text": [],
    }
    found = decoded(described, writer(described)(id=0), full)
    assert found[0] == {"id": 0, **empty}
    assert found[1] == {
        "id": 1,
        **empty,
        "size": "SMALL",
        "sizes": ["SMALL", "LARGE"],
        "packed": ["LARGE"],
        "by_kind": [(3, "SOME")],
    }


def test_groups_are_refused() -> None:
    with pytest.raises(SchemaNotSupportedError, match="part is a group, which is not supported; write it as a message"):
        message('syntax = "proto2"; message M { optional group Part = 7 { optional string name = 1; } }')


def test_numbers_that_a_closed_enum_does_not_name_are_kept() -> None:
    described = message(PROTO2, name="M")
    unknown = b"\x18\x09" + b"\x20\x07\x20\x01" + b"\x2a\x02\x08\x01" + b"\x32\x04\x08\x03\x10\x63"
    negative = b"\x18" + b"\xff" * 9 + b"\x01"
    found = decoded(described, b"\x08\x01" + unknown, b"\x08\x01" + negative)
    assert [found[0][name] for name in ("size", "sizes", "packed", "by_kind")] == [
        "9",
        ["7", "SMALL"],
        ["8", "SMALL"],
        [(3, "99")],
    ]
    assert found[1]["size"] == "-1"


def test_what_is_required_is_named_if_it_is_missing() -> None:
    described = message(PROTO2, name="M")
    make = writer(described)
    found = outcomes(
        described, make(number=1), make(id=1, inner={"text": "x"}), make(id=1), make(id=2, inner={"must": 1})
    )
    assert [row["error"] for row in found] == [
        "Required, but missing: id.",
        "Required, but missing: inner.must.",
        None,
        None,
    ]
    assert [row["decoded"] and row["decoded"]["id"] for row in found] == [None, None, 1, 2]
    # Deeper down alone, and where nothing is required at all.
    free = message(PROTO2, name="Free")
    assert outcomes(free, writer(free)(inner={}))[0]["error"] == "Required, but missing: inner.must."
    assert decoded(message(PROTO2, name="Free2"), b"") == [{"x": None}]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x4a\x05\x08\x01\x12\x01\xff",
        b"\x52\x01\xc3",
        b"\x5a\x06\x0a\x01\xff\x12\x01a",
        b"\x5a\x06\x0a\x01a\x12\x01\xff",
    ],
)
def test_proto2_text_that_is_no_text(payload: bytes) -> None:
    good = b"\x08\x01"
    found = outcomes(message(PROTO2, name="M"), good, good + payload, good)
    assert [row["error"] for row in found] == [None, "A text in it is not UTF-8, or it can't be read.", None]
    assert found[1]["decoded"] is None


def test_proto3_text_that_is_no_text() -> None:
    found = outcomes(message(SCALARS, name="M"), b"\x72\x01\xff")
    assert found == [{"decoded": None, "error": "The bytes do not parse as shop.M."}]


TIMES = proto3("""message M {
  google.protobuf.Timestamp at = 1; repeated google.protobuf.Timestamp ats = 2;
  map<string, google.protobuf.Timestamp> by = 3; google.protobuf.Duration took = 4; In in = 5;
  message In { google.protobuf.Timestamp at = 1; } map<int32, In> ins = 6;
}""")


def test_times_to_the_nanosecond() -> None:
    described = message(TIMES)
    assert columns(described) == (
        "at:timestamp,at__nanos:int,ats:array<timestamp>,ats__nanos:array<int>,by:map<string,timestamp>,"
        "by__nanos:map<string,int>,took:decimal(21,9),in:struct<at:timestamp,at__nanos:int>,"
        "ins:map<int,struct<at:timestamp,at__nanos:int>>"
    )
    make = writer(described)
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    before = datetime(1969, 12, 31, 23, 59, 59, 123_456, tzinfo=UTC)
    times = [
        ({"seconds": -62_135_596_800}, first, 0),
        ({"seconds": 253_402_300_799, "nanos": 999_999_999}, last, 999),
        ({"seconds": -1, "nanos": 123_456_789}, before, 789),
        ({"nanos": 1}, datetime(1970, 1, 1, tzinfo=UTC), 1),
    ]
    found = decoded(described, *[make(at=given) for given, _, _ in times], make(ats=[t[0] for t in times]), make())
    assert [(row["at"], row["at__nanos"]) for row in found] == [*[t[1:] for t in times], (None, None), (None, None)]
    assert found[-2]["ats"] == [t[1] for t in times]
    assert found[-2]["ats__nanos"] == [t[2] for t in times]
    inside = dict(by={"k": {"nanos": 2_001}}, ins={3: {"at": {"seconds": 1}}, 4: {}}, **{"in": {}})
    (row,) = decoded(described, make(**inside))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert (row["by"], row["by__nanos"]) == ([("k", epoch + timedelta(microseconds=2))], [("k", 1)])
    assert row["in"] == {"at": None, "at__nanos": None}
    assert dict(row["ins"]) == {
        3: {"at": epoch + timedelta(seconds=1), "at__nanos": 0},
        4: {"at": None, "at__nanos": None},
    }


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"at": {"seconds": 2**40}}, "Field at is not a time of the years 1 to 9999."),
        ({"at": {"seconds": -(2**63)}}, "Field at is not a time of the years 1 to 9999."),
        ({"ats": [{}, {"nanos": -1}]}, "Field ats is not a time of the years 1 to 9999."),
        ({"ins": {1: {"at": {"nanos": 10**9}}}}, "Field ins.value.at is not a time of the years 1 to 9999."),
        ({"took": {"seconds": 315_576_000_001}}, "Field took is not a duration."),
        ({"took": {"nanos": -(10**9)}}, "Field took is not a duration."),
        ({"took": {"seconds": 1, "nanos": -1}}, "Field took is not a duration."),
    ],
)  # fmt: skip
def test_times_that_are_none(values: dict[str, Any], error: str) -> None:
    described = message(TIMES)
    make = writer(described)
    found = outcomes(described, make(at={}), make(**values), make())
    assert [row["error"] for row in found] == [None, error, None]
    assert found[1]["decoded"] is None
    assert found[0]["decoded"]["at"] == datetime(1970, 1, 1, tzinfo=UTC)


def test_durations_are_exact_seconds() -> None:
    described = message(TIMES)
    given = [(315_576_000_000, 999_999_999), (-315_576_000_000, -999_999_999), (0, -1), (0, 0)]
    found = decoded(described, *[writer(described)(took={"seconds": s, "nanos": n}) for s, n in given])
    assert [str(row["took"]) for row in found] == [
        "315576000000.999999999",
        "-315576000000.999999999",
        "-1E-9",
        "0E-9",
    ]


def test_bad_records_leave_the_others_alone() -> None:
    described = message(TIMES)
    make = writer(described)
    bad, broken = make(at={"nanos": -1}).SerializeToString(), b"\x0a\xff"
    good = [make(at={"seconds": n}).SerializeToString() for n in range(100)]
    strange = {3: bad, 4: bad, 5: broken, 98: broken, 99: bad}
    found = outcomes(described, *[strange.get(n, payload) for n, payload in enumerate(good)])
    for n, row in enumerate(found):
        if n in strange:
            assert row["decoded"] is None
            assert row["error"] is not None
        else:
            assert row["error"] is None
            assert row["decoded"]["at"] == datetime.fromtimestamp(n, UTC)
    assert outcomes(described) == []


KNOWN = proto3("""message M {
  google.protobuf.Struct struct = 1; google.protobuf.Value value = 2; google.protobuf.ListValue list = 3;
  google.protobuf.FieldMask mask = 4; google.protobuf.Any any = 5; google.protobuf.Empty empty = 6;
  google.protobuf.StringValue text = 7; google.protobuf.UInt64Value big = 8;
  repeated google.protobuf.Int32Value ints = 9;
  repeated google.protobuf.Value values = 10; map<string, google.protobuf.BoolValue> flags = 11;
  google.protobuf.NullValue null = 12;
}""")  # fmt: skip


def test_well_known_messages() -> None:
    described = message(KNOWN)
    make = writer(described)
    full = make(
        struct={"b": 1, "a": [True, None, "ü", 0.5, {}], "n": 2.0**60, "z": -0.0, "o": 0},
        list=[1, "x"],
        mask={"paths": ["a", "b.c"]},
        any={"type_url": "t/x", "value": b"\xff"},
        empty={},
        text={"value": ""},
        big={"value": 2**64 - 1},
        ints=[{"value": 3}, {}],
        flags={"x": {"value": True}, "y": {}},
    )
    full.values.add(null_value=0)
    full.values.add()
    full.value.list_value.values.add(string_value="<")
    unset, found = decoded(described, make(), full)
    assert unset == dict.fromkeys(["struct", "value", "list", "mask", "any", "empty", "text", "big"]) | {
        "ints": [],
        "values": [],
        "flags": [],
        "null": "NULL_VALUE",
    }
    assert found["struct"] == '{"a":[true,null,"ü",0.5,{}],"b":1,"n":1.152921504606847e+18,"o":0,"z":-0.0}'
    assert (found["value"], found["list"], found["values"]) == ('["<"]', '[1,"x"]', ["null", "null"])
    assert (found["mask"], found["any"]) == ({"paths": ["a", "b.c"]}, {"type_url": "t/x", "value": b"\xff"})
    assert (found["empty"], found["text"], found["big"]) == ({"_set": True}, "", 2**64 - 1)
    assert (found["ints"], dict(found["flags"])) == ([3, 0], {"x": True, "y": False})


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_survives(value: Any) -> None:
    described = message(KNOWN)
    (found,) = decoded(described, writer(described)(list=[value]))
    assert json.loads(found["list"]) == [value]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_such_numbers(number: float) -> None:
    described = message(KNOWN)
    (found,) = outcomes(described, writer(described)(struct={"a": [number]}))
    assert found == {
        "decoded": None,
        "error": "Field struct holds a number that isn't finite, which JSON can't write.",
    }


def test_a_well_known_message_may_be_the_record() -> None:
    described = message(KNOWN, name="google.protobuf.Struct")
    assert columns(described) == "fields:map<string,string>"
    assert decoded(described, writer(described)(fields={"a": {"number_value": 1}})) == [{"fields": [("a", "1")]}]


PARAM = "(confluent.field_meta).params = {key: '%s', value: '%s'}"
PARAMS = f"[{PARAM % ('precision', '%s')}, {PARAM % ('scale', '%s')}]"
DECIMALS = proto3(
    f"""message M {{
  confluent.type.Decimal price = 1 {PARAMS % (9, 2)}; confluent.type.Decimal wide = 2 {PARAMS % (38, 10)};
  confluent.type.Decimal free = 3 [(confluent.field_meta).doc = "any"];
  repeated confluent.type.Decimal many = 4 {PARAMS % (5, 0)};
  confluent.type.Decimal odd = 5 {PARAMS % (39, 2)}; confluent.type.Decimal odder = 6 {PARAMS % (2, 3)};
  confluent.type.Decimal oddest = 7 {PARAMS % ("x", "")}; confluent.type.Decimal none = 8 {PARAMS % (0, 0)};
}}"""
)


def decimal(unscaled: int, scale: int) -> dict[str, Any]:
    return {"value": unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True), "scale": scale}


def test_decimals_of_confluent() -> None:
    described = message(DECIMALS)
    assert columns(described) == (
        "price:decimal(9,2),wide:decimal(38,10),free:string,many:array<decimal(5,0)>,odd:string,odder:string,oddest:string,none:string"
    )
    make = writer(described)
    largest = 10**38 - 1
    messages = [
        make(price=decimal(-999_999_999, 2), wide=decimal(largest, 10), free=decimal(largest * 1000, 50)),
        make(
            price=decimal(1, 0),
            wide=decimal(-largest, 10),
            free=decimal(-1, -3),
            many=[decimal(12, -3), decimal(700, 2)],
        ),
        make(price={}, wide=decimal(0, 2**31 - 1), free=decimal(0, 2)),
    ]
    found = decoded(described, *messages)
    assert [(row["price"], row["wide"]) for row in found] == [
        (Decimal("-9999999.99"), Decimal("9999999999999999999999999999.9999999999")),
        (Decimal("1.00"), Decimal("-9999999999999999999999999999.9999999999")),
        (0, 0),
    ]
    assert [row["free"] for row in found] == ["9." + "9" * 37 + "000E-10", "-1E+3", "0.00"]
    assert found[1]["many"] == [12_000, 7]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"price": decimal(10**9, 2)}, "Field price doesn't fit decimal(9,2)."),
        ({"price": decimal(-1, 3)}, "Field price doesn't fit decimal(9,2)."),
        ({"price": decimal(1, -(2**31))}, "Field price doesn't fit decimal(9,2)."),
        ({"price": decimal(-7, 2**31 - 1)}, "Field price doesn't fit decimal(9,2)."),
        ({"many": [decimal(1, 0), decimal(100_000, 0)]}, "Field many doesn't fit decimal(5,0)."),
        ({"free": {"value": b"\x01" * 1025}}, "Field free is a decimal of 1025 bytes."),
    ],
)
def test_decimals_that_do_not_fit(values: dict[str, Any], error: str) -> None:
    described = message(DECIMALS)
    assert outcomes(described, writer(described)(**values)) == [{"decoded": None, "error": error}]


def test_options_of_others_are_no_trouble() -> None:
    imports = 'syntax = "proto3"; import "confluent/type/decimal.proto";'
    text = f"{imports} message M {{ confluent.type.Decimal f = 1 [deprecated = true]; }}"
    assert columns(message(text)) == "f:string"


def test_field_names_that_mean_something_to_python() -> None:
    names = ["HasField", "DESCRIPTOR", "FromString", "IsInitialized", "from", "class", "None", "self", "__class__"]
    fields = " ".join(f"optional string {name} = {n};" for n, name in enumerate(names, 1))
    described = message(f'syntax = "proto2"; message M {{ {fields} required int32 r = 99; message ByteSize {{}} }}')
    assert [field.name for field in protobuf_type(described)] == [*names, "r"]
    half = writer(described)(r=1, **{name: name for name in names[::2]})
    (found,) = decoded(described, half)
    assert found == {name: name if name in names[::2] else None for name in names} | {"r": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message_"),
    [
        exhaustive(
            "".join(f"message M{n} {{ {' '.join(f'M{m} m{m} = {m + 1};' for m in range(9))} }}\n" for n in range(9)),
            r"it has more than 20,000 nested messages, such as m",
        ),
        ("message M {}", "message shop.M has no fields"),
        (
            "message M { In in = 1; message In { google.protobuf.Timestamp at = 1; int32 at__nanos = 2; } }",
            "in.at__nanos is both a field and the column for a timestamp's nanoseconds",
        ),
        ("message M { int32 a = 1 }", 'protoc reports schema.proto:13:25: Expected ";"'),
        ("message M { Missing a = 1; }", 'protoc reports schema.proto:13:13: "Missing" is not defined'),
        ('import "absent.proto"; message M { int32 a = 1; }', "protoc reports absent.proto: File not found"),
        ("", r"there is no message at index \[0\]"),
    ],
)  # fmt: skip
def test_schemas_that_no_table_can_have(body: str, message_: str) -> None:
    with pytest.raises(
        SchemaNotSupportedError, match=f"^Schema id 7 can't be read: {message_}.*\\. Use `format: bytes`"
    ):
        message(proto3(body))


ANY_VALUE = """
message M { string name = 1; AnyValue body = 2; }
message AnyValue { oneof value { string s = 1; bool b = 2; int64 i = 3; double d = 4; ArrayValue array_value = 5;
  KeyValueList kvlist_value = 6; bytes y = 7; } }
message ArrayValue { repeated AnyValue values = 1; }
message KeyValueList { repeated KeyValue values = 1; }
message KeyValue { string key = 1; AnyValue value = 2; }
"""


def test_messages_within_themselves_are_json() -> None:
    """OpenTelemetry's values: columns where they are first, JSON from the second AnyValue on."""
    described = message(proto3(OTHERS + ANY_VALUE), name="M")
    assert columns(described).endswith("kvlist_value:struct<values:array<struct<key:string,value:string>>>,y:binary>")
    assert columns(message(proto3("message M { M next = 1; map<int32, M> more = 2; }"))) == (
        "next:string,more:map<int,string>"
    )
    made = writer(described)(name="n")
    first = made.body.kvlist_value.values.add(key="a")
    first.value.kvlist_value.values.add(key="ä").value.y = b"\x00\xff"
    (row,) = decoded(described, made)
    assert json.loads(row["body"]["kvlist_value"]["values"][0]["value"]) == {
        "kvlist_value": {"values": [{"key": "ä", "value": {"y": "AP8="}}]}
    }


def test_nesting_has_an_end() -> None:
    def nested(depth: int) -> str:
        outer = "".join(f"message M{n} {{ M{n + 1} m = 1; }}\n" for n in range(depth - 1))
        return f'syntax = "proto3"; {outer} message M{depth - 1} {{ int32 x = 1; }}'

    assert columns(message(nested(100))).count("struct") == 99
    with pytest.raises(SchemaNotSupportedError, match="is nested 100 messages deep"):
        message(nested(101))


def test_the_same_message_in_two_places_is_no_recursion() -> None:
    described = message(proto3(OTHERS + "message M { Line a = 1; Line b = 2; }"), name="M")
    assert columns(described) == "a:struct<sku:string,count:int>,b:struct<sku:string,count:int>"


LINE = """syntax = "proto3"; package parts; import "google/type/latlng.proto";
message Line { google.type.LatLng at = 1; Unit unit = 2; }
enum Unit { KG = 0; }
"""
BOX = 'syntax = "proto3"; package parts; import public "parts/line.proto"; message Box { repeated Line lines = 1; }'
ORDER = 'syntax = "proto3"; package shop; import "box.proto"; message Order { parts.Box box = 1; parts.Line line = 2; }'


def as_base64(text: str, name: str, references: Mapping[str, str]) -> str:
    """Return a schema as registries give it that were fed by confluent-kafka: its descriptor, in base64."""
    described = FileDescriptorSet.FromString(message(text, references).files).file[-1]
    described.name = f"other/{name}"
    return base64.standard_b64encode(described.SerializeToString()).decode()


@pytest.mark.slow
@pytest.mark.parametrize("forms", ["TTT", "TTB", "TBT", "BTT", "TBB", "BBB"])
def test_references_in_every_form(forms: str) -> None:
    line = LINE if forms[0] == "T" else as_base64(LINE, "line.proto", {})
    box = BOX if forms[1] == "T" else as_base64(BOX, "box.proto", {"parts/line.proto": LINE})
    references = {"parts/line.proto": LINE, "box.proto": BOX}
    order = ORDER if forms[2] == "T" else as_base64(ORDER, "order.proto", references)
    described = message(order, {"parts/line.proto": line, "box.proto": box})
    kind = "struct<at:struct<latitude:double,longitude:double>,unit:string>"
    assert described.name == "shop.Order"
    assert columns(described) == f"box:struct<lines:array<{kind}>>,line:{kind}"
    made = writer(described)(line={"at": {"latitude": 1}})
    assert decoded(described, made)[0]["line"] == {"at": {"latitude": 1.0, "longitude": 0.0}, "unit": "KG"}


def test_what_known_schemas_import_is_known_too() -> None:
    text = as_base64(DECIMALS, "decimals.proto", {})
    assert columns(message(text)) == columns(message(DECIMALS))
    own = 'syntax = "proto3"; package google.type; message LatLng { int32 own = 1; }'
    assert columns(message(LINE, {"google/type/latlng.proto": own})) == "at:struct<own:int>,unit:string"


def test_a_descriptor_may_leave_names_to_be_found() -> None:
    file = FileDescriptorProto.FromString(base64.b64decode(as_base64(PROTO2, "x", {})))
    size = next(field for field in file.message_type[1].field if field.name == "size")
    size.type_name = "Size"
    size.ClearField("type")
    described = message(base64.b64encode(file.SerializeToString()).decode(), name="M")
    assert decoded(described, b"\x08\x01\x18\x01")[0]["size"] == "SMALL"
    size.type_name = "Missing"
    with pytest.raises(SchemaNotSupportedError, match=r'protoc reports schema\.proto: "Missing" is not defined'):
        message(base64.b64encode(file.SerializeToString()).decode(), name="M")


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_a_damaged_descriptor_is_a_schema_or_refused(data: st.DataObject) -> None:
    raw = bytearray(base64.b64decode(as_base64(PROTO2, "x", {})))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        described = message(base64.b64encode(raw).decode(), indexes=[1])
    except SchemaNotSupportedError:
        return
    assert len(outcomes(described, b"\x08\x01", b"\x18\x01")) == 2


def test_a_reference_may_be_called_as_we_call_the_schema() -> None:
    line = LINE.replace("message Line", "message X {} message Line")
    text = ORDER.replace("box.proto", "schema.proto").replace("parts.Box box = 1;", "")
    assert message(text, {"schema.proto": line}).name == "shop.Order"


def test_references_that_are_not_imported_do_no_harm() -> None:
    twice = {"a.proto": as_base64(LINE, "a.proto", {}), "b.proto": as_base64(LINE, "b.proto", {}), "../c": "?"}
    text = 'syntax = "proto3"; import/**/"b.proto"; message M { parts.Unit unit = 1; }'
    assert columns(message(text, twice)) == "unit:string"


def test_references_that_are_missing_or_wrong() -> None:
    box = as_base64(BOX, "box.proto", {"parts/line.proto": LINE})
    for references, said in [
        ({"box.proto": BOX}, "protoc reports parts/line.proto: File not found"),
        ({"../box.proto": BOX}, "a reference has the name '../box.proto', which is not the name of a file to import"),
        ({"/tmp/box.proto": BOX}, "a reference has the name '/tmp/box.proto'"),
        ({"--version": BOX}, "a reference has the name '--version'"),
        ({"a//b.proto": BOX}, "a reference has the name 'a//b.proto'"),
        ({"box.proto": BOX, "parts/line.proto": ORDER}, "protoc reports box.proto:1:35: File recursively imports"),
    ]:
        (name,) = [reference for reference in references if reference != "parts/line.proto"]
        with pytest.raises(SchemaNotSupportedError, match=said):
            message(ORDER.replace("box.proto", name), references)
    order = as_base64(ORDER, "x", {"parts/line.proto": LINE, "box.proto": BOX})
    for references, said in [
        ({}, "protoc reports parts/line.proto: File not found"),
        ({"parts/line.proto": order, "box.proto": box}, 'protoc reports Symbol name "parts.Box" conflicts with'),
        ({"parts/line.proto": as_base64(PROTO2, "x", {})}, 'protoc reports schema.proto: ".parts.Line" is not defined'),
    ]:
        with pytest.raises(SchemaNotSupportedError, match=said):
            message(box, references)


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = proto3("message M { int32 compiled_once = 1; } message N { int32 n = 1; }")
    first = message(text)
    monkeypatch.setattr(subprocess, "run", None)
    assert message(text) == first
    assert message(text, indexes=[1]).name == "shop.N"
    assert hash(pickle.loads(pickle.dumps(first))) == hash(first)


NESTED = """
syntax = "proto3";
package shop;
message A { message B { int32 b = 1; message C { int32 c = 1; } } message D { int32 d = 1; } int32 a = 1; }
message E { message F { int32 f = 1; } map<string, int32> m = 1; message G { int32 g = 1; } message H { int32 h = 1; } }
"""


@pytest.mark.parametrize(
    ("indexes", "name"),
    [
        ([0], "A"), ([1], "E"), ([0, 0], "A.B"), ([0, 0, 0], "A.B.C"), ([0, 1], "A.D"), ([1, 0], "E.F"),
        # Only Java's serializers count so, only the others count so.
        ([1, 3], "E.H"),
    ],
)  # fmt: skip
def test_messages_by_index(indexes: list[int], name: str) -> None:
    assert message(NESTED, indexes=indexes).name == f"shop.{name}"


def test_messages_by_an_index_that_tells_nothing() -> None:
    for indexes in ([2], [0, 2], [0, 0, 0, 0], [1, 4]):
        with pytest.raises(SchemaNotSupportedError, match=re.escape(f"there is no message at index {indexes}")):
            message(NESTED, indexes=indexes)
    with pytest.raises(
        SchemaNotSupportedError, match=r"index \[1, 2\] is H as Java's serializers count and G as others do"
    ):
        message(NESTED, indexes=[1, 2])
    # What the others count as a map's entry can only be Java's.
    assert message(NESTED, indexes=[1, 1]).name == "shop.E.G"


def test_messages_by_name() -> None:
    for name in ("A.B", "shop.A.B"):
        assert message(NESTED, name=name).name == "shop.A.B"
    references = {"parts/line.proto": LINE, "box.proto": BOX}
    assert message(ORDER, references, name="parts.Line").name == "parts.Line"
    with pytest.raises(ConfigurationError, match=r"^Schema id 7 has no message 'X'\. It has shop\.A, .*shop\.E\.H\.$"):
        message(NESTED, name="X")
    with pytest.raises(ConfigurationError, match="MEntry"):
        message(NESTED, name="E.MEntry")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), st.binary(max_size=3))
def test_indexes_are_read_as_serializers_write_them(indexes: list[int], rest: bytes) -> None:
    buffer = io.BytesIO()
    ProtobufSerializer._encode_varints(buffer, indexes)
    assert message_indexes(buffer.getvalue() + rest) == (tuple(indexes), len(buffer.getvalue()))


@pytest.mark.parametrize(
    "raw", [b"", b"\x02", b"\x01", b"\x02\x01", b"\x80", b"\x80\x80\x80\x80\x80\x80", b"\xfe\xff\xff\xff\x0f\x00"]
)
def test_bytes_without_indexes(raw: bytes) -> None:
    with pytest.raises(ValueError, match="message indexes"):
        message_indexes(raw)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_bytes_are_rows_or_errors(payloads: list[bytes]) -> None:
    for described in (
        message(SCALARS, name="M"),
        message(PROTO2, name="M"),
        message(TIMES),
        message(KNOWN),
        message(DECIMALS),
    ):
        found = outcomes(described, *payloads)
        assert len(found) == len(payloads)
        assert all((row["decoded"] is None) != (row["error"] is None) for row in found)


def test_truncated_messages_are_rows_or_errors() -> None:
    described = message(KNOWN)
    whole = writer(described)(struct={"a": [1, {"b": "c"}]}, any={"type_url": "t", "value": b"v"}, ints=[{"value": 1}])
    raw = whole.SerializeToString()
    found = outcomes(described, *[raw[:end] for end in range(len(raw))])
    assert all((row["decoded"] is None) != (row["error"] is None) for row in found)
    assert sum(row["error"] is not None for row in found) > len(raw) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "missing"), [("protobuf", ["kafka_lake"]), ("json", ["kafka_lake", "ptars", "google.protobuf"])]
)
def test_tasks_run_where_only_their_packages_are(format_: str, missing: list[str]) -> None:
    columns = (("id", ("long",), ("id",), False, "bigint"),)
    described = writer_of(WriterSchema("PROTOBUF", ORDERS_AND_SHOPS, id=5))
    if format_ == "protobuf":
        work, value = described.for_tasks(columns), writer(described.message)(id=5).SerializeToString()
    else:
        work = {"decoder": packed(json_decoder), "columns": columns, "rules": {}, "max_bytes": None}
        value = b'{"id": 5}'
    record = {"key": pa.array([None], pa.binary()), "value": [value], "partition": [0], "offset": [1]}
    program = (
        f"import pickle, sys; sys.modules.update(dict.fromkeys({missing})); import pyarrow as pa\n"
        "run, record = pickle.load(sys.stdin.buffer)\n"
        "print(next(iter(run([pa.RecordBatch.from_pydict(record)]))).column('decoded').to_pylist())"
    )
    sent = cloudpickle.dumps((task_function(task.decode, work), record))
    run = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True)
    assert run.stdout.decode().strip() == "[{'id': 5}]"


def test_messages_of_a_schema_are_decoded_in_tasks() -> None:
    schema = WriterSchema("PROTOBUF", ORDERS_AND_SHOPS, id=5)
    columns = (("id", ("long",), ("id",), False, "bigint"), ("name", ("string",), ("name",), False, "string"))
    writers = {prefix: writer_of(schema, prefix) for prefix in (b"\x00", b"\x02\x02")}
    work = {
        "decoder": packed(RegisteredDecoder),
        "registry_kind": "",
        "columns": columns,
        "decoders": [item.for_tasks(columns) for item in writers.values()],
        "schemas": {(5, prefix): number for number, prefix in enumerate(writers)},
        "refused": {},
        "protobuf": (5,),
    }
    make_order, make_shop = (writer(writer_schema.message) for writer_schema in writers.values())
    values: list[bytes | None] = []
    for number in range(100):
        head = b"\x00\x00\x00\x00\x05"
        order = head + b"\x00" + make_order(id=number, at={"seconds": number}).SerializeToString()
        shop = head + b"\x02\x02" + make_shop(name=f"shop {number}").SerializeToString()
        values += [order, shop, head + b"\x00\x08", None]
    found = unpack_decoder(pickle.loads(pickle.dumps(work))).decode(pa.array(values, pa.binary()))
    assert found.rows.to_pylist() == [
        row for n in range(100) for row in ({"id": n, "name": None}, {"id": None, "name": f"shop {n}"}, None, None)
    ]
    assert found.error_class.to_pylist() == [None, None, "malformed", None] * 100


ORDERS_AND_SHOPS = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; google.protobuf.Timestamp at = 2; }
message Shop { string name = 1; }
"""


def test_what_becomes_of_the_values_of_a_batch() -> None:
    described = message(TIMES)
    make = writer(described)
    good, bad = make(at={"seconds": 1, "nanos": 5}), make(at={"nanos": -1})
    values = [None, good.SerializeToString(), bad.SerializeToString(), b"\x0a\xff", b"\x0a\x0f" + b"x" * 15, b""]
    columns = [
        ("at", ("timestamp",), ("at",), True, "timestamp"),
        ("at__nanos", ("long",), ("at__nanos",), False, "bigint"),
        ("more", ("string",), ("more",), False, "string"),
    ]
    decoder = ProtobufDecoder(described.files, described.name, columns, "schema id 7", max_bytes=15)
    made = decoder.decode(pa.array(values, pa.binary()))
    assert made.places.tolist() == [1]
    assert made.rows.to_pylist()[1] == {"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "at__nanos": 5, "more": None}
    assert list(zip(made.error_class.to_pylist(), made.error_message.to_pylist(), strict=True)) == [
        (None, None),
        (None, None),
        ("malformed", "The bytes don't decode with schema id 7. Field at is not a time of the years 1 to 9999."),
        ("malformed", "The bytes don't decode with schema id 7. The bytes do not parse as shop.M."),
        ("too_large", "The value has 17 bytes, the limit is 15."),
        ("null_in_required_column", "Required, but null or missing: at."),
    ]


DIFFERENT = proto3(
    OTHERS
    + """message M {
  int32 a = 1; oneof one { int32 left = 2; string right = 3; } map<string, int32> map = 4; repeated double many = 5;
  google.protobuf.Int64Value w = 6; google.protobuf.Timestamp at = 7; Line line = 8; double d = 9;
  map<int32, Line> m = 10;
}"""
)


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b"\x10\x01\x1a\x01x", {"left": None, "right": "x"}),
        (b"\x22\x05\x0a\x01k\x10\x01\x22\x05\x0a\x01k\x10\x02", {"map": [("k", 2)]}),
        (b"\x22\x07\x0a\x01k\x10\x01\x18\x09", {"map": []}),
        (b"\x22\x00", {"map": [("", 0)]}),
        (b"\x52\x02\x08\x05", {"m": [(5, {"sku": "", "count": 0})]}),
        (b"\x2a\x09" + bytes(9), None),
        (b"\x32\x02\x08\x05\x32\x00", {"w": 5}),
        (b"\x3a\x02\x08\x05\x3a\x03\x10\xe8\x07", {"at": datetime(1970, 1, 1, 0, 0, 5, 1, tzinfo=UTC)}),
        (b"\x42\x03\x0a\x01s\x42\x02\x10\x07", {"line": {"sku": "s", "count": 7}}),
        (b"\x08\x05\xf8\x07\x01", {"a": 5}),
        (b"\x88\x80\x00\x05", {"a": 5}),
        (b"\x88\x80\x80\x80\x80\x01\x05", None),
        (b"\x08\x85\x80\x00", {"a": 5}),
        (b"\x4a\x83\x80\x80\x80\x80\x80\x80\x80\x80\x02abc", {"a": 0}),
        (b"\x4a\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01" + bytes(9), None),
        (b"\x1a\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01" + bytes(9), None),
    ],
    ids=[
        "two of a oneof", "key twice", "unknown in an entry", "entry without key and value", "entry without value",
        "half a number in a list", "wrapper twice", "time twice", "message twice", "unknown field",
        "longer tag than need be", "tag of more than 32 bits", "longer number than need be", "length of 70 bits",
        "skipped length that wraps around", "length that wraps around",
    ],
)  # fmt: skip
def test_what_ptars_reads_otherwise_is_not_taken_from_it(payload: bytes, found: dict[str, Any] | None) -> None:
    described = message(DIFFERENT, name="M")
    assert certain(described, b"\x08\x01", payload) in ([True, False], [False, False])
    good, other = outcomes(described, b"\x08\x01", payload)
    assert good["error"] is None
    if found is None:
        assert other == {"decoded": None, "error": "The bytes do not parse as shop.M."}
    else:
        assert {name: other["decoded"][name] for name in found} == found


def certain(described: ProtobufMessage, *payloads: bytes) -> list[bool]:
    """Return which messages ptars reads alone, without Google's parser."""
    failed = MessageReader(described.files, described.name)._by_ptars(pa.array(payloads, pa.binary()))[1]
    return [number not in failed for number in range(len(payloads))]


def test_what_serializers_write_is_taken_from_ptars() -> None:
    described = message(SCALARS, name="M")
    make = writer(described)
    full = make(i32=-1, u64=2**64 - 1, b=True, f=0.1, d=-1.5, s="ü", y=b"\xff", color=7, list=[0, -1])
    full.map.update({"": 0, "a": 1})
    full.MergeFrom(make(maybe=0, right={}, line={"sku": "x"}, lines=[{}, {"count": 2}], s32=-5, f64=3, sf32=-3))
    known = message(KNOWN)
    make = writer(known)
    well = make(struct={"a": [1]}, list=[1], mask={"paths": ["a"]}, any={"type_url": "t"}, empty={}, big={})
    well.MergeFrom(make(ints=[{}, {"value": 1}], flags={"x": {"value": True}}, values=[{"null_value": 0}], text={}))
    for type_, made in ((described, [full]), (known, [make(), well])):
        assert all(certain(type_, *[answer.SerializeToString() for answer in made]))


def test_without_protoc_the_package_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "find_spec", lambda _: None)
    written = WriterSchema("PROTOBUF", 'syntax = "proto3"; message OnlyHere { string a = 1; }', {}, id=7)
    with pytest.raises(ConfigurationError, match=r"protoc, which is not installed.*kafka-lake\[protobuf\]"):
        message_of(written)
