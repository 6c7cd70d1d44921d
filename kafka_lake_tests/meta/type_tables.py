"""Lists of `docs/formats.md`: what each type becomes, and what the JSON decoder does with examples."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from kafka_lake.formats import ERROR_CLASSES
from kafka_lake.formats.columns import spark_type
from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.json.task.text import parse
from kafka_lake.formats.json.task.types import kind_of, merged, settled
from kafka_lake.formats.task.columns import Rules

AVRO_TYPES: tuple[tuple[str, str, str, str, str], ...] = (
    ("null", "", "", "", "no column. In maps: `string`, always null. In arrays: refused."),
    ("boolean", "", "boolean", "boolean", ""),
    ("int", "", "int", "int", ""),
    ("int", "date", "date", "date", ""),
    ("int", "time-millis", "string", "string", "Text `HH:MM:SS.ffffff`: Spark has no time type."),
    ("long", "", "bigint", "long", ""),
    ("long", "time-micros", "string", "string", "Likewise."),
    ("long", "timestamp-millis", "timestamp", "timestamptz", ""),
    ("long", "timestamp-micros", "timestamp", "timestamptz", ""),
    ("long", "local-timestamp-millis", "timestamp_ntz", "timestamp", ""),
    ("long", "local-timestamp-micros", "timestamp_ntz", "timestamp", ""),
    ("float", "", "float", "float", ""),
    ("double", "", "double", "double", ""),
    ("string", "", "string", "string", "Invalid UTF-8 makes the record `malformed`."),
    ("bytes", "", "binary", "binary", ""),
    ("bytes, fixed", "decimal", "decimal(p, s)", "decimal(p, s)", "Up to 38 digits."),
    ("bytes, fixed", "decimal", "string", "string", "With more than 38 digits: text such as `-12.50`, of at most 128 "
    "bytes."),
    ("fixed", "", "binary", "binary", ""),
    ("enum", "", "string", "string", "The symbol."),
    ("record", "", "struct<…>", "struct<…>", "A field's `doc` becomes the column's comment. The root's fields "
    "are the table's columns."),
    ("record without fields", "", "struct<_set: boolean>", "struct<_set: boolean>",
     "`_set` is true if the record isn't null. Fields that are added later become fields of the column. Arrays of it "
     "are refused."),
    ("array", "", "array<…>", "list<…>", ""),
    ("map", "", "map<string, …>", "map<string, …>", "For duplicate keys, the last value wins."),
    ("union of null and T", "", "T", "T", "A union of one type is that type."),
    ("union of several", "", "struct<…>", "struct<…>",
     "One field per type, named after the type, such as `int` or `map`; one of them is set. Ambiguous names include "
     "the namespace."),
    ("a type that contains itself", "", "", "", "refused. Use `format: bytes` for the topic."),
)  # fmt: skip
"""What each Avro type becomes: Avro type, logical type, Spark type, Iceberg type, what else there is to know.

Every column, element and value is nullable, whatever the schema says: a table outlives the schema of one writer.
Logical types that are unknown, or not valid for their type, count as absent, as the specification says.
"""

PROTOBUF_TYPES: tuple[tuple[str, str, str], ...] = (
    ("int32 f, sint32 f, sfixed32 f", "f: int", ""),
    ("int64 f, sint64 f, sfixed64 f", "f: bigint", ""),
    ("uint32 f, fixed32 f", "f: bigint", "Iceberg has no unsigned types."),
    ("uint64 f, fixed64 f", "f: decimal(20,0)", ""),
    ("bool f", "f: boolean", ""),
    ("float f", "f: float", ""),
    ("double f", "f: double", ""),
    ("string f", "f: string", "Invalid UTF-8 makes the record `malformed`."),
    ("bytes f", "f: binary", ""),
    (
        "Color f",
        "f: string",
        "The name of the value (the first alias); digits for an unknown number.",
    ),
    ("Line f", "f: struct<sku:string,count:int>", "Null if unset. Groups are refused."),
    (
        "Nothing f",
        "f: struct<_set:boolean>",
        "`_set` is true if the message is set. Fields that are added later become fields of the column.",
    ),
    ("repeated Line f", "f: array<struct<sku:string,count:int>>", "Empty if unset."),
    ("map<int32, Color> f", "f: map<int,string>", "Empty if unset."),
    (
        "google.protobuf.Timestamp f",
        "f: timestamp, f__nanos: int",
        "The second column has the nanoseconds beyond microseconds. Only years 1 to 9999.",
    ),
    (
        "repeated google.protobuf.Timestamp f",
        "f: array<timestamp>, f__nanos: array<int>",
        "Likewise for each element; in maps, for each key.",
    ),
    ("google.protobuf.Duration f", "f: decimal(21,9)", "Exact seconds, at most 10,000 years."),
    (
        "google.protobuf.Struct f, google.protobuf.Value f, google.protobuf.ListValue f",
        "f: string",
        "JSON with sorted keys and finite numbers.",
    ),
    ("google.protobuf.Any f", "f: struct<type_url:string,value:binary>", "The inner message stays bytes."),
    ("google.protobuf.Int32Value f", "f: int", "All wrappers become the wrapped type, null if unset."),
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
        "",
    ),
    ("confluent.type.Decimal f", "f: string", "Without precision and scale: text, as in Java's `BigDecimal`."),
    (
        "google.type.LatLng f",
        "f: struct<latitude:double,longitude:double>",
        "Other well-known messages are ordinary messages.",
    ),
)
"""Fields of a message; the columns that they become; what else is to be known."""

PROTOBUF_RULES: tuple[tuple[str, str], ...] = (
    ("proto3 field without `optional`", "the default value if unset: the encoding has no null"),
    ("proto3 `optional`, `oneof`, proto2 `optional`", "null if unset, even if proto2 declares a default"),
    ("proto2 `required`", "a record without it is a dead letter"),
    ("names", "as in the `.proto` file"),
    (
        "a message that contains itself",
        "columns at the first level; inside, Protobuf's JSON as text",
    ),
    ("a value's message without fields", "refused, since a table needs columns"),
    ("unknown fields, extensions", "no columns"),
    ("unknown numbers of a closed enum", "their digits"),
)
"""What holds for fields of any type."""

JSON_SCHEMA_TYPES: tuple[tuple[str, str, str], ...] = (
    ('{"type": "string"}', "string", ""),
    ('{"type": "integer"}', "bigint", "Values beyond 64 bits don't fit."),
    ('{"type": "number"}', "double", ""),
    ('{"type": "boolean"}', "boolean", ""),
    ('{"type": "string", "format": "date-time"}', "timestamp", ""),
    ('{"type": "string", "format": "date"}', "date", ""),
    ('{"type": "string", "format": "time"}', "string", "Likewise other formats, such as `uuid`."),
    ('{"type": "string", "contentEncoding": "base64"}', "string", ""),
    ('{"type": ["integer", "null"]}', "bigint", "All columns are nullable."),
    ('{"anyOf": [{"type": "null"}, {"type": "integer"}]}', "bigint", ""),
    ('{"enum": ["small", "large", null]}', "string", "The type of the values; likewise `const`."),
    ('{"const": 3}', "bigint", ""),
    (
        '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}',
        "struct<a:bigint,b:string>",
        "`description` becomes the column's comment.",
    ),
    ('{"type": "object", "additionalProperties": {"type": "number"}}', "map<string,double>", ""),
    ('{"type": "object", "patternProperties": {"^x": {"type": "number"}}}', "map<string,double>", "Likewise."),
    ('{"type": "array", "items": {"type": "date"}}', "array<string>", "JSON text for an unknown type."),
    ('{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]}', "array<double>", ""),
    (
        '{"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]}',
        "struct<a:bigint,b:string>",
        "All fields; for two types of one field, the narrower one. Likewise `$ref` beside other keywords.",
    ),
    (
        '{"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "number"}, '
        '"b": {"type": "string"}}}]}',
        "struct<a:double,b:string>",
        "All fields; for two numeric types of one field, the wider one. Likewise `anyOf`, `then` and `else`.",
    ),
    ('{"oneOf": [{"type": "integer"}, {"type": "string"}]}', "string", "JSON text if the types have no common type."),
    ('{"type": "object"}', "string", "JSON text for an object without known fields."),
    ('{"type": "array"}', "array<string>", "JSON text for unknown elements."),
    ("true", "string", "JSON text."),
    ('{"type": "null"}', "string", "Always null."),
    (
        '{"type": "integer", "connect.type": "int32"}',
        "int",
        "Written by Kafka Connect; likewise `int8` and `int16`.",
    ),
    ('{"type": "number", "connect.type": "float32"}', "float", "Likewise."),
    (
        '{"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "2", '
        '"connect.decimal.precision": "9"}}',
        "decimal(9,2)",
        "Written by Kafka Connect. The default precision is 38.",
    ),
)
"""Schemas, the types that they become, and what else is to be known."""
_LIST, _MAP = ("list", ("long",)), ("map", ("long",))
_RULES: tuple[tuple[str, Any, str, tuple[str, ...]], ...] = (
    ("boolean", ("boolean",), "`true` and `false`.", ("true", '"true"', "1")),
    (
        "tinyint, smallint, int, bigint",
        ("long",),
        "Integers without fraction or exponent, in the type's range.",
        ("-7", "9223372036854775807", "9223372036854775808", "1.0", "1e3", '"7"'),
    ),
    (
        "double, float",
        ("double",),
        "Numbers in the type's range. A number with too many digits is rounded, and counted in the check "
        "`schema_evolution`.",
        ("1.50", "1E+2", "0.30000000000000004", "9007199254740992", "9007199254740993", "0.1000000000000000055",
         "1e400", "1e-400", '"NaN"'),
    ),
    (
        "decimal(10,2)",
        ("decimal", 10, 2),
        "Numbers, also as text, that fit without rounding.",
        ("1.5", '"12.50"', "1e3", "1.555", "123456789"),
    ),
    (
        "string",
        ("string",),
        "Text; other values as JSON, numbers as they were written.",
        ('"7"', "7.50", "true", '{"a": [1.0, "x"]}'),
    ),
    ("binary", ("binary",), "Base64 text.", ('"AP8="', '"AP8"')),
    (
        "date",
        ("date",),
        "Text `YYYY-MM-DD`, years 0001 to 9999, optionally with `Z`.",
        ('"2026-01-02"', '"2026-01-02Z"', '"2026-01-02+01:00"', '"2026-01-02T00:00:00Z"', '"2026-02-30"',
         '"0000-01-01"'),
    ),
    (
        "timestamp",
        ("timestamp",),
        "RFC 3339 text with `T` or a space, years 0001 to 9999; without an offset, UTC. Digits beyond microseconds "
        "are cut, and counted in the check `schema_evolution`. Numbers only with `timestamp_unit`.",
        ('"2026-01-02T03:04:05Z"', '"2026-01-02 03:04:05.1234567+01:00"', '"2026-01-02T03:04Z"', '"2026-01-02"',
         '"03:04:05"', '"10000-01-01T00:00:00Z"', "1767323045"),
    ),
    (
        "timestamp_ntz",
        ("timestamp_ntz",),
        "Likewise, without an offset.",
        ('"2026-01-02T03:04:05"', '"2026-01-02T03:04:05Z"'),
    ),
    ("array", _LIST, "Lists whose elements fit or are null.", ("[1, null]", "[]", '[1, "x"]', "1")),
    ("map", _MAP, "Objects whose values fit or are null.", ('{"a": 1}', "{}", '{"a": "x"}')),
    (
        "struct",
        ("struct", (("a", ("long",), ("a",), False, ""),)),
        "Objects. Missing fields are null.",
        ('{"a": 1}', "{}", '{"a": "x"}', "[1]"),
    ),
)  # fmt: skip
_INFERENCE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("true", "null"), ""),
    (("1", "9223372036854775807"), ""),
    (("1", "9223372036854775808"), "Rounded and counted; `columns: a decimal(38,0)` keeps all digits."),
    (("1", "2.5"), "Integers beyond 2^53 are rounded and counted."),
    (("1.0",), ""),
    (("0.12345678901234567890",), "Rounded and counted; `columns: a decimal(38,20)` keeps all digits."),
    (('"x"', "1"), "JSON text if the types have no common type."),
    (('{"a": 1}', '{"b": [2]}'), "Fields in order of appearance."),
    (("null", "[]"), "The check `schema_evolution` names such fields."),
)


def _json_values() -> Iterator[str]:
    """Give each type of columns with its rule, values that change, and values that don't fit."""
    for name, kind, rule, examples in _RULES:
        decoder = JsonDecoder((("v", kind, ("v",), False, name),), Rules())
        made = decoder.decode(pa.array([b'{"v": %b}' % example.encode() for example in examples], pa.binary()))
        rows = list(zip(examples, made.rows.to_pylist(), strict=True))
        shown = [(example, _shown(row["v"], kind[0])) for example, row in rows if row is not None]
        changed = ", ".join(f"`{example}` → `{value}`" for example, value in shown if value != example)
        wrong = ", ".join(f"`{example}`" for example, row in rows if row is None)
        parts = [f"- **`{name}`**: {rule}", f"{changed}." if changed else "", f"Not: {wrong}." if wrong else ""]
        yield " ".join(filter(None, parts))


def _json_inference() -> Iterator[str]:
    """Give values that a field has together, the type of the column that they get, and why."""
    for texts, remark in _INFERENCE:
        seen: Any = None
        for text in texts:
            seen = merged(seen, kind_of(parse(text.encode())))
        known = settled(seen, False)
        kind = "no column" if known is None else f"`{spark_type(known).simpleString()}`"
        yield _line(", ".join(f"`{text}`" for text in texts), kind, remark)


def _shown(value: Any, kind: str) -> str:
    if isinstance(value, bytes):
        return "X'" + value.hex().upper() + "'"
    if kind == "map":
        value = dict(value)
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')


def _line(what: str, becomes: str, remark: str) -> str:
    return f"- {what}: {becomes}" + (f". {remark}" if remark else "")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _avro() -> Iterator[str]:
    plain: dict[str, list[str]] = {}
    for avro, logical, spark, _, remark in AVRO_TYPES:
        if spark and not remark:
            plain.setdefault(spark, []).append(_code(avro) + (f" with `{logical}`" if logical else ""))
    yield from (_line(", ".join(types), _code(spark), "") for spark, types in plain.items())
    for avro, logical, spark, _, remark in AVRO_TYPES:
        what = (_code(avro) if avro.isalpha() else avro) + (f" with `{logical}`" if logical else "")
        if remark:
            yield _line(what, _code(spark), remark) if spark else f"- {what}: {remark}"


_PROTOBUF_NAMES = {
    "Color f": "enum",
    "Line f": "message",
    "Nothing f": "message without fields",
    "repeated Line f": "`repeated`",
    "map<int32, Color> f": "`map`",
}


def _protobuf() -> Iterator[str]:
    wrappers = 0
    for field, columns, remark in PROTOBUF_TYPES:
        wraps = re.match(r"google\.protobuf\.\w+Value f", field) is not None
        wrappers += wraps
        if wraps and wrappers > 1:
            continue
        if "field_meta" in field:
            name = "`confluent.type.Decimal` with `precision` and `scale`"
        else:
            name = _PROTOBUF_NAMES.get(field) or ", ".join(_code(name.removesuffix(" f")) for name in field.split(", "))
        yield _line(name, _code(columns.removeprefix("f: ") if "f__" not in columns else columns), remark)


def tables() -> Mapping[str, str]:
    """Return the lists as Markdown, by the names of their places in the pages."""
    lists: dict[str, Iterable[str]] = {
        "avro": _avro(),
        "protobuf": _protobuf(),
        "protobuf-rules": (f"- {what}: {meaning}" for what, meaning in PROTOBUF_RULES),
        "json-schema": (_line(_code(schema), _code(kind), remark) for schema, kind, remark in JSON_SCHEMA_TYPES),
        "json": _json_values(),
        "json-inference": _json_inference(),
        "dead-letter-classes": (f"- `{name}`: {meaning}" for name, meaning in ERROR_CLASSES.items()),
    }
    return {name: "\n".join(lines) for name, lines in lists.items()}
