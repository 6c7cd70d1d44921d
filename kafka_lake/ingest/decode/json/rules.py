"""The tables of docs/formats.md on JSON: rules in words, and beside them what the decoder does with examples."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from kafka_lake.executors.json.columns import Rules
from kafka_lake.executors.json.decoder import JsonDecoder
from kafka_lake.executors.json.text import parse
from kafka_lake.executors.json.types import kind_of, merged, settled
from kafka_lake.ingest.decode.json.columns import spark_type

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


def values() -> Iterator[tuple[str, str, str, str]]:
    """Give for each type of columns its name, the rule, what examples become, and which examples don't fit."""
    for name, kind, rule, examples in _RULES:
        decoder = JsonDecoder((("v", kind, ("v",), False, name),), Rules())
        made = decoder.decode(pa.array([b'{"v": %b}' % each.encode() for each in examples], pa.binary()))
        rows = made.rows.to_pylist()
        fit = [f"`{e}` → `{_shown(r['v'], kind[0])}`" for e, r in zip(examples, rows, strict=True) if r is not None]
        wrong = [f"`{e}`" for e, r in zip(examples, rows, strict=True) if r is None]
        yield name, rule, ", ".join(fit), ", ".join(wrong)


def inference() -> Iterator[tuple[str, str, str]]:
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
