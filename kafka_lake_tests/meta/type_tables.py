"""The tables of `docs/formats.md`: what each type becomes, and what the JSON decoder does with examples."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from kafka_lake.common.text import table
from kafka_lake.formats import ERROR_CLASSES
from kafka_lake.formats.columns import spark_type
from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.json.task.text import parse
from kafka_lake.formats.json.task.types import kind_of, merged, settled
from kafka_lake.formats.task.columns import Rules

AVRO_TYPES: tuple[tuple[str, str, str, str, str], ...] = (
    ("null", "", "", "", "No column. As a map's value: string, always null. An array of it is refused."),
    ("boolean", "", "boolean", "boolean", ""),
    ("int", "", "int", "int", ""),
    ("int", "date", "date", "date", ""),
    ("int", "time-millis", "string", "string", "`HH:MM:SS.ffffff`, which sorts by time: Spark has no such type."),
    ("long", "", "bigint", "long", ""),
    ("long", "time-micros", "string", "string", "`HH:MM:SS.ffffff`, which sorts by time."),
    ("long", "timestamp-millis", "timestamp", "timestamptz", ""),
    ("long", "timestamp-micros", "timestamp", "timestamptz", ""),
    ("long", "local-timestamp-millis", "timestamp_ntz", "timestamp", ""),
    ("long", "local-timestamp-micros", "timestamp_ntz", "timestamp", ""),
    ("float", "", "float", "float", ""),
    ("double", "", "double", "double", ""),
    ("string", "", "string", "string", "Bytes that are not UTF-8 make the record malformed."),
    ("bytes", "", "binary", "binary", ""),
    ("bytes, fixed", "decimal", "decimal(p, s)", "decimal(p, s)", "Up to 38 digits."),
    ("bytes, fixed", "decimal", "string", "string", "Beyond 38 digits: all as text, `-12.50`; of at most 128 bytes."),
    ("fixed", "", "binary", "binary", ""),
    ("enum", "", "string", "string", "The symbol."),
    ("record", "", "struct<…>", "struct<…>", "A field's doc becomes the column's comment. At the root: the columns."),
    ("record without fields", "", "struct<_set: boolean>", "struct<_set: boolean>",
     "`_set` is true where there is one. Fields that it gets later join the struct. An array of them is refused."),
    ("array", "", "array<…>", "list<…>", ""),
    ("map", "", "map<string, …>", "map<string, …>", "Of a key that is there twice, the last counts."),
    ("union of null and T", "", "T", "T", "A union of one type is that type."),
    ("union of several", "", "struct<…>", "struct<…>",
     "A field for each type, named by it: `int`, `map`, a record's, enum's or fixed's name without its namespace, "
     "and with it where that is ambiguous. One of them is set."),
    ("a type that contains itself", "", "", "", "Refused: no table can hold it. Take the topic with `format: bytes`."),
)  # fmt: skip
"""What each Avro type becomes: Avro type, logical type, Spark type, Iceberg type, what else there is to know.

Every column, element and value is nullable, whatever the schema says: a table outlives the schema of one writer.
Logical types that are unknown, or not valid for their type, count as absent, as the specification says.
"""

PROTOBUF_TYPES: tuple[tuple[str, str, str], ...] = (
    ("int32 f, sint32 f, sfixed32 f", "f: int", ""),
    ("int64 f, sint64 f, sfixed64 f", "f: bigint", ""),
    ("uint32 f, fixed32 f", "f: bigint", "Tables have no unsigned types; the next larger one holds all of it."),
    ("uint64 f, fixed64 f", "f: decimal(20,0)", "As above."),
    ("bool f", "f: boolean", ""),
    ("float f", "f: float", ""),
    ("double f", "f: double", ""),
    ("string f", "f: string", "A proto2 string that isn't UTF-8 is an error, as it always is in proto3."),
    ("bytes f", "f: binary", ""),
    (
        "Color f",
        "f: string",
        "An enum is the name of its value, the first of aliases; or the digits.",
    ),
    ("Line f", "f: struct<sku:string,count:int>", "A message is a struct, null if unset. Groups are refused."),
    (
        "Nothing f",
        "f: struct<_set:boolean>",
        "A message without fields: `_set` is true if it is set, else the struct is null. Fields that it gets later "
        "join the struct.",
    ),
    ("repeated Line f", "f: array<struct<sku:string,count:int>>", "Empty if unset. Elements of any type."),
    ("map<int32, Color> f", "f: map<int,string>", "Empty if unset. Values of any type."),
    (
        "google.protobuf.Timestamp f",
        "f: timestamp, f__nanos: int",
        "Spark's timestamps have microseconds; the nanoseconds beyond them, 0 to 999, are in the second column. "
        "A time outside of the years 1 to 9999 is an error.",
    ),
    (
        "repeated google.protobuf.Timestamp f",
        "f: array<timestamp>, f__nanos: array<int>",
        "Likewise, element by element; in maps, key by key.",
    ),
    ("google.protobuf.Duration f", "f: decimal(21,9)", "Seconds, exact. More than 10,000 years are an error."),
    (
        "google.protobuf.Struct f, google.protobuf.Value f, google.protobuf.ListValue f",
        "f: string",
        "JSON, keys sorted. A number that isn't finite is an error.",
    ),
    ("google.protobuf.Any f", "f: struct<type_url:string,value:binary>", "The message within is left as bytes."),
    ("google.protobuf.Int32Value f", "f: int", "Wrappers are what they wrap, null if unset."),
    ("google.protobuf.UInt32Value f, google.protobuf.Int64Value f", "f: bigint", ""),
    ("google.protobuf.UInt64Value f", "f: decimal(20,0)", ""),
    ("google.protobuf.BoolValue f", "f: boolean", ""),
    ("google.protobuf.FloatValue f", "f: float", ""),
    ("google.protobuf.DoubleValue f", "f: double", ""),
    ("google.protobuf.StringValue f", "f: string", ""),
    ("google.protobuf.BytesValue f", "f: binary", ""),
    (
        "confluent.type.Decimal f [(confluent.field_meta).params = {key: 'precision', value: '9'}, "
        "(confluent.field_meta).params = {key: 'scale', value: '2'}]",
        "f: decimal(9,2)",
        "As Confluent's serializers write it. A number that doesn't fit is an error.",
    ),
    ("confluent.type.Decimal f", "f: string", "Without precision and scale: text as of Java's BigDecimal."),
    ("google.type.LatLng f", "f: struct<latitude:double,longitude:double>", "Other known messages are like any other."),
)
"""Fields of a message; the columns that they become; what else is to be known."""

PROTOBUF_RULES: tuple[tuple[str, str], ...] = (
    ("proto3 field without `optional`", "Its default value where it is unset: the encoding has no difference."),
    ("proto3 `optional`, `oneof`, proto2 `optional`", "Null where it is unset, also where proto2 declares a default."),
    ("proto2 `required`", "A record that lacks it is a dead letter."),
    ("names", "As in the .proto file."),
    (
        "a message that contains itself",
        "Columns where it is first, within itself Protobuf's JSON as text: fields by name, bytes as base64, enums as "
        "numbers. What isn't set is left out.",
    ),
    ("a record's message without fields", "Refused: a table has columns."),
    ("unknown fields, extensions", "No columns: the schema that the record names doesn't have them."),
    ("unknown numbers of a closed enum", "Their digits, as in an open enum."),
)
"""What holds for fields of any type."""

JSON_SCHEMA_TYPES: tuple[tuple[str, str, str], ...] = (
    ('{"type": "string"}', "string", ""),
    ('{"type": "integer"}', "bigint", "One beyond 64 bits doesn't fit."),
    ('{"type": "number"}', "double", ""),
    ('{"type": "boolean"}', "boolean", ""),
    ('{"type": "string", "format": "date-time"}', "timestamp", ""),
    ('{"type": "string", "format": "date"}', "date", ""),
    ('{"type": "string", "format": "time"}', "string", "Any other format too, `uuid` and `byte` among them, as it is."),
    ('{"type": "string", "contentEncoding": "base64"}', "string", "As it is."),
    ('{"type": ["integer", "null"]}', "bigint", "Every column may be null, however the schema says so."),
    ('{"anyOf": [{"type": "null"}, {"type": "integer"}]}', "bigint", ""),
    ('{"enum": ["small", "large", null]}', "string", "`enum` and `const` have the type of their values."),
    ('{"const": 3}', "bigint", ""),
    (
        '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}',
        "struct<a:bigint,b:string>",
        "`description` becomes the column's comment.",
    ),
    ('{"type": "object", "additionalProperties": {"type": "number"}}', "map<string,double>", "Without `properties`."),
    ('{"type": "object", "patternProperties": {"^x": {"type": "number"}}}', "map<string,double>", "Likewise."),
    ('{"type": "array", "items": {"type": "date"}}', "array<string>", "An unknown type is JSON text."),
    ('{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]}', "array<double>", "See `anyOf`."),
    (
        '{"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]}',
        "struct<a:bigint,b:string>",
        "Fields of all; of two types for one field the narrower. `$ref` beside other keywords likewise.",
    ),
    (
        '{"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "number"}, '
        '"b": {"type": "string"}}}]}',
        "struct<a:double,b:string>",
        "Fields of any; of two numeric types for one field the wider. `anyOf`, `then` and `else` likewise.",
    ),
    ('{"oneOf": [{"type": "integer"}, {"type": "string"}]}', "string", "Types that have no type in common: JSON text."),
    ('{"type": "object"}', "string", "An object of which no fields are known: JSON text."),
    ('{"type": "array"}', "array<string>", "Elements of which nothing is known: JSON text."),
    ("true", "string", "JSON text."),
    ('{"type": "null"}', "string", "Always null."),
    (
        '{"type": "integer", "connect.type": "int32"}',
        "int",
        "As Kafka Connect writes it; int8 and int16 too.",
    ),
    ('{"type": "number", "connect.type": "float32"}', "float", "Likewise."),
    (
        '{"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "2", '
        '"connect.decimal.precision": "9"}}',
        "decimal(9,2)",
        "Likewise; without a precision it is 38.",
    ),
)
"""Schemas, the types that they become, and what else is to be known."""
_LIST, _MAP = ("list", ("long",)), ("map", ("long",))
_RULES: tuple[tuple[str, Any, str, tuple[str, ...]], ...] = (
    ("boolean", ("boolean",), "`true` and `false`.", ("true", '"true"', "1")),
    (
        "tinyint, smallint, int, bigint",
        ("long",),
        "Whole numbers without fraction and exponent, in the type's range.",
        ("-7", "9223372036854775807", "9223372036854775808", "1.0", "1e3", '"7"'),
    ),
    (
        "double, float",
        ("double",),
        "Numbers within the type's range. One with more digits than the type holds is rounded to the nearest that it "
        "holds, and counted in the check `schema_evolution`.",
        ("1.50", "1E+2", "0.30000000000000004", "9007199254740992", "9007199254740993", "0.1000000000000000055",
         "1e400", "1e-400", '"NaN"'),
    ),
    (
        "decimal(10,2)",
        ("decimal", 10, 2),
        "Numbers, also as text, with no more digits than the type has on either side of the point. None is rounded.",
        ("1.5", '"12.50"', "1e3", "1.555", "123456789"),
    ),
    (
        "string",
        ("string",),
        "Text as it is; all else as its JSON, numbers as they were written.",
        ('"7"', "7.50", "true", '{"a": [1.0, "x"]}'),
    ),
    ("binary", ("binary",), "Text that is base64.", ('"AP8="', '"AP8"')),
    (
        "date",
        ("date",),
        "Text `YYYY-MM-DD`, of the years 0001 to 9999. A `Z` may follow, as in XML Schema and Debezium's `isostring`.",
        ('"2026-01-02"', '"2026-01-02Z"', '"2026-01-02+01:00"', '"2026-01-02T00:00:00Z"', '"2026-02-30"',
         '"0000-01-01"'),
    ),
    (
        "timestamp",
        ("timestamp",),
        "Text by RFC 3339, with `T` or one space, of the years 0001 to 9999; without an offset it is UTC. Digits "
        "beyond microseconds are cut, and counted in the check `schema_evolution`. "
        "Numbers by `timestamp_unit: s`, `ms`, `us` or `ns` only.",
        ('"2026-01-02T03:04:05Z"', '"2026-01-02 03:04:05.1234567+01:00"', '"2026-01-02T03:04Z"', '"2026-01-02"',
         '"03:04:05"', '"10000-01-01T00:00:00Z"', "1767323045"),
    ),
    (
        "timestamp_ntz",
        ("timestamp_ntz",),
        "Likewise, without an offset.",
        ('"2026-01-02T03:04:05"', '"2026-01-02T03:04:05Z"'),
    ),
    ("array", _LIST, "Lists whose elements all fit or are null.", ("[1, null]", "[]", '[1, "x"]', "1")),
    ("map", _MAP, "Objects whose values all fit or are null.", ('{"a": 1}', "{}", '{"a": "x"}')),
    (
        "struct",
        ("struct", (("a", ("long",), ("a",), False, ""),)),
        "Objects; fields that are missing are null.",
        ('{"a": 1}', "{}", '{"a": "x"}', "[1]"),
    ),
)  # fmt: skip
_INFERENCE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("true", "null"), ""),
    (("1", "9223372036854775807"), ""),
    (("1", "9223372036854775808"), "Rounded, and counted. `columns: a decimal(38,0)` keeps all digits."),
    (("1", "2.5"), "A whole number beyond 2^53 beside a fraction is rounded, and counted."),
    (("1.0",), ""),
    (("0.12345678901234567890",), "Rounded, and counted. `columns: a decimal(38,20)` keeps all digits."),
    (('"x"', "1"), "Types that have none in common: JSON text."),
    (('{"a": 1}', '{"b": [2]}'), "Fields in the order in which they first appear."),
    (("null", "[]"), "No column yet; the check `schema_evolution` names what is empty."),
)


def _json_values() -> Iterator[tuple[str, str, str, str]]:
    """Give for each type of columns its name, the rule, what examples become, and which examples don't fit."""
    for name, kind, rule, examples in _RULES:
        decoder = JsonDecoder((("v", kind, ("v",), False, name),), Rules())
        made = decoder.decode(pa.array([b'{"v": %b}' % each.encode() for each in examples], pa.binary()))
        rows = made.rows.to_pylist()
        fit = [f"`{e}` → `{_shown(r['v'], kind[0])}`" for e, r in zip(examples, rows, strict=True) if r is not None]
        wrong = [f"`{e}`" for e, r in zip(examples, rows, strict=True) if r is None]
        yield name, rule, ", ".join(fit), ", ".join(wrong)


def _json_inference() -> Iterator[tuple[str, str, str]]:
    """Give values that a field has together, the type of the column that they get, and why."""
    for texts, remark in _INFERENCE:
        seen: Any = None
        for text in texts:
            seen = merged(seen, kind_of(parse(text.encode())))
        known = settled(seen, False)
        kind = "" if known is None else spark_type(known).simpleString()
        yield ", ".join(f"`{text}`" for text in texts), f"`{kind}`" if kind else "none", remark


def _shown(value: Any, kind: str) -> str:
    if isinstance(value, bytes):
        return "X'" + value.hex().upper() + "'"
    if kind == "map":
        value = dict(value)
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def tables() -> Mapping[str, str]:
    """Return the tables as Markdown, by the name that their place in the page has."""
    return {
        "avro": table(("Avro", "logical type", "Spark", "Iceberg", ""), AVRO_TYPES, code=4),
        "protobuf": table(("Protobuf", "columns, as Spark calls them", ""), PROTOBUF_TYPES, code=2),
        "protobuf-rules": table(("", ""), PROTOBUF_RULES),
        "json-schema": table(("JSON Schema", "Spark", ""), JSON_SCHEMA_TYPES, code=2),
        "json": table(("column", "what fits", "becomes", "doesn't fit"), _json_values(), code=1),
        "json-inference": table(("values of a new field", "its column", ""), _json_inference()),
        "dead-letter-classes": table(("class", "meaning"), ERROR_CLASSES.items(), code=1),
    }
