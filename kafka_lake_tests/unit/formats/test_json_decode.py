"""What becomes of JSON records: rows whose values are the very ones that were written, or errors that say why."""

import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_lake.engine.interop import packed
from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import ANOTHER_TYPE, Decoded

SCALARS = ["boolean", "byte", "short", "int", "long", "float", "double", "string", "binary", "date", "timestamp",
           "timestamp_ntz"]  # fmt: skip


def column(name: str, kind: Any, *sources: str, required: bool = False) -> Any:
    kind = (kind,) if isinstance(kind, str) else kind
    return (name, kind, sources or (name,), required, kind[0])


FIELDS = (
    column("id", "long"),
    column("n", "int"),
    column("x", "double"),
    column("name", "string"),
    column("ok", "boolean"),
    column("at", "timestamp"),
    column("tags", ("list", ("string",))),
    column("who", ("struct", (column("first", "string"), column("age", "long")))),
    column("points", ("list", ("struct", (column("y", "double"),)))),
)


def decoded(values: Sequence[bytes | None], infer: bool = True, columns: Any = FIELDS, **settings: Any) -> Decoded:
    fast = settings.pop("fast", True)
    limit = settings.pop("max_bytes", None)
    return JsonDecoder(columns, Rules(infer, **settings), limit, fast).decode(pa.array(values, pa.binary()))


@cache
def decoder_of(kind: Any, fast: bool, settings: Any) -> JsonDecoder:
    return JsonDecoder((column("v", kind),), Rules(True, **dict(settings)), fast=fast)


def one(value: Any, kind: Any, **settings: Any) -> Any:
    """Return what a column has of a value, both ways; the error's class if it has nothing.

    In a batch that is long enough for DuckDB, and stops Arrow's parser.
    """
    content = value if isinstance(value, bytes) else b'{"v": %s}' % value.encode()
    found = []
    for fast in (True, False):
        batch = [content, *[b'{"w": 1}'] * (100 if fast else 0)]
        made = decoder_of(kind, fast, tuple(settings.items())).decode(pa.array(batch, pa.binary()))
        found.append(made.error_class[0].as_py() or made.rows[0].as_py()["v"])
    assert repr(found[0]) == repr(found[1])
    return found[0]


def test_what_fits_becomes_rows_in_order() -> None:
    values = [json.dumps({"id": n, "tags": ["a", None], "who": {"age": n}}).encode() for n in range(100)]
    made = decoded(values)
    assert made.error_class.null_count == 100
    assert [(r["id"], r["tags"], r["who"]) for r in made.rows.to_pylist()] == [
        (n, ["a", None], {"first": None, "age": n}) for n in range(100)
    ]


NOT_JSON = [
    b"", b" ", b"5", b"null", b"[]", b'[{"id": 1}]', b'"{}"', b"{", b"}", b'{"id": 1', b'{"id": 1}}',
    b'{"id": 1}{"id": 2}', b'{"id": 1} {"id": 2}', b'{"id": 1},{"id": 2}', b'{"id": 1,}', b"{'id': 1}", b"{id: 1}",
    b'{"id": 1 /* one */}', b'{"id": 01}', b'{"id": +1}', b'{"x": .5}', b'{"x": 1.}', b'{"id": 1, "id": 2}',
    b'{"who": {"age": 1, "age": 1}}', b'{"x": NaN}', b'{"x": -Infinity}', b'{"points": [{"y": NaN}]}',
    b'{"name": "\xff"}', b'{"name": "\xed\xa0\x80"}', b'{"name": "\\ud800"}', b'{"name": "\\udc00\\ud800"}',
    b'{"name": "a\nb"}', b'{"name": "\x01"}', b'{"name": "\\q"}', b"\xef\xbb\xbf{}", b"{}\x00", b"{}\x0b",
]  # fmt: skip
WRONG_TYPE = [
    b'{"id": "1"}', b'{"id": 1.0}', b'{"id": 1e2}', b'{"id": 9223372036854775808}', b'{"id": true}',
    b'{"n": 2147483648}', b'{"x": 1e999}', b'{"x": "1.5"}', b'{"ok": 1}', b'{"ok": "true"}', b'{"at": 5}',
    b'{"at": "yesterday"}',
    b'{"at": "2026-02-30T00:00:00Z"}', b'{"at": "2026-02-03T24:00:00Z"}', b'{"at": "03:04:05"}',
    b'{"at": "2026-02-03"}', b'{"at": "0000-01-01T00:00:00Z"}', b'{"at": "10000-01-01T00:00:00Z"}', b'{"tags": "a"}',
    b'{"who": {"age": "old"}}', b'{"who": [1]}', b'{"points": [{"y": 1}, {"y": "1"}]}',
]  # fmt: skip


@pytest.mark.parametrize("infer", [True, False])
@pytest.mark.parametrize(
    ("error", "value"), [("not_json", v) for v in NOT_JSON] + [("wrong_type", v) for v in WRONG_TYPE]
)
def test_what_does_not_fit_fails_alone(value: bytes, error: str, infer: bool) -> None:
    good = [json.dumps({"id": n}).encode() for n in range(100)]
    made = decoded([*good[:40], value, *good[40:]], infer)
    assert [(n, e) for n, e in enumerate(made.error_class.to_pylist()) if e] == [(40, error)]
    assert made.error_message[40].as_py()
    assert [r and r["id"] for r in made.rows.to_pylist()] == [*range(40), None, *range(40, 100)]


def test_broken_value_that_duckdb_cuts_within_a_character_fails_alone() -> None:
    broken = '{"ca"\n\t:\n\t"€ba€[}a ,ü€}"\n\t}'.encode() * 2
    made = decoded([broken, *[b'{"w": 1}'] * 100])
    assert made.error_class.to_pylist() == ["not_json", *[None] * 100]


def test_two_broken_values_do_not_make_up_for_each_other() -> None:
    for values in ([b'{"id": 1}{"id": 2}', b" ", b'{"id": 3'], [b'{"tags": ["a"', b'"b"]}'], [b'{"name": "}', b'{"}']):
        assert decoded(values).error_class.to_pylist() == ["not_json"] * len(values)


@pytest.mark.parametrize("space", [b" ", b"\n", b"\r\n", b"\t", b" \n "])
def test_white_space_does_not_matter(space: bytes) -> None:
    value = b"{%s}" % space.join([b"", b'"id"', b":", b"1", b""])
    made = decoded([b'{"id": 0}', value, value + space, space + value, b'{"id": 2}'])
    assert [r["id"] for r in made.rows.to_pylist()] == [0, 1, 1, 1, 2]


def test_fields_beside_declared_columns_are_counted() -> None:
    odd = b'{"id": 1, "more": {"a": [1]}, "z": 1, "z": 2, "who": {"age": 2, "b": 3}}'
    plain = [
        b'{"id": %d, "more": [%d], "points": [{"y": 1, "w": {}}, {"w": {}}], "no": null}' % (n, n) for n in range(9)
    ]
    for values in ([*plain, odd], [odd, *plain]):
        made = decoded(values, infer=False)
        assert sorted(row["id"] for row in made.rows.to_pylist()) == sorted([*range(9), 1])
        assert made.seen.unmapped == {"more": 10, "z": 1, "who.b": 1, "points.element.w": 18}


IN_ANY_CASE = (
    column("vbeln", "string"),
    column("netwr", "double"),
    column("item", ("struct", (column("posnr", "long"),))),
    column("rows", ("list", ("struct", (column("menge", "int"),)))),
)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("infer", [True, False])
def test_columns_take_fields_in_another_case(infer: bool, fast: bool) -> None:
    upper = b'{"VBELN": "%d", "NETWR": 1.5, "ITEM": {"POSNR": %d}, "ROWS": [{"MENGE": %d}, {"MENGE": null}], "X": 1}'
    decoder = JsonDecoder(IN_ANY_CASE, Rules(infer, any_case=True), fast=fast)
    for _ in range(3):
        made = decoder.decode(pa.array([upper % (n, n, n) for n in range(20)], pa.binary()))
        assert made.rows.to_pylist() == [
            {"vbeln": str(n), "netwr": 1.5, "item": {"posnr": n}, "rows": [{"menge": n}, {"menge": None}]}
            for n in range(20)
        ]
        assert made.seen.unmapped == {"X": 20}
        assert made.seen.new_fields == ({"new": {"X": "long"}} if infer else {})


def test_names_in_another_case_go_the_fast_path_soon() -> None:
    decoder = JsonDecoder(IN_ANY_CASE, Rules(any_case=True))
    values = pa.array([b'{"VBELN": "%d", "ITEM": {"POSNR": %d}, "X": 1}' % (n, n) for n in range(120)], pa.binary())
    decoder.decode(values)
    made = decoder.decode(values)
    assert [(r["vbeln"], r["item"]) for r in made.rows.to_pylist()] == [(str(n), {"posnr": n}) for n in range(120)]
    assert not made.seen.slow
    # Now the column's own name is the one that is looked at.
    made = decoder.decode(
        pa.array([b'{"vbeln": "a", "VBELN": "b"}', b'{"vbeln": "c"}', b'{"VBELN": "d"}'], pa.binary())
    )
    assert [r["vbeln"] for r in made.rows.to_pylist()] == ["a", "c", "d"]
    assert made.seen.unmapped == {"VBELN": 1}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    ("value", "expected", "aside"),
    [
        (b'{"vbeln": "a", "VBELN": "b"}', "a", {"VBELN": 1}),
        (b'{"vbeln": null, "VBELN": "b"}', "b", {}),
        (b'{"VBELN": "a", "Vbeln": "b"}', None, {"VBELN": 1, "Vbeln": 1}),
        (b'{"VBELN": "a", "Vbeln": null}', "a", {}),
        (b'{"VBELN": "a", "VBELN": "b"}', "not_json", {}),
        (b'{"VBELN": "a", "NETWR": "b"}', "wrong_type", {}),
    ],
)
def test_a_name_in_another_case_counts_if_it_is_unique(value: bytes, expected: Any, aside: Any, fast: bool) -> None:
    decoder = JsonDecoder(IN_ANY_CASE, Rules(any_case=True), fast=fast)
    for before in (b'{"vbeln": "x"}', b'{"VBELN": "x"}', b'{"Vbeln": "x"}'):
        decoder.decode(pa.array([before] * 3, pa.binary()))
        made = decoder.decode(pa.array([value], pa.binary()))
        assert (made.error_class[0].as_py() or made.rows[0].as_py()["vbeln"]) == expected
        assert made.seen.unmapped == aside
        said = f'Column netwr (double) got "b". {ANOTHER_TYPE}'
        assert expected != "wrong_type" or made.error_message[0].as_py() == said


def test_columns_that_differ_in_case_take_their_own_fields() -> None:
    columns = (column("a", "long"), column("A__2", "long", "A"), column("b", "long", "b", "c"))
    values = [b'{"a": 1, "A": 2, "B": 3}', b'{"A": 4, "C": 5}']
    made = decoded(values, columns=columns, any_case=True)
    assert [list(row.values()) for row in made.rows.to_pylist()] == [[1, 2, 3], [None, 4, 5]]


# What a column has of a value: the table of docs/formats.md, by examples. A name alone is an error's class.
VALUES: list[tuple[str, Any, Any]] = [
    ("long", "9223372036854775807", 2**63 - 1),
    ("long", "-0", 0),
    ("byte", "127", 127),
    ("byte", "128", "wrong_type"),
    ("short", "-32769", "wrong_type"),
    ("double", "9007199254740992", 2.0**53),
    ("double", "9007199254740993", 2.0**53),
    ("double", "1E+2", 100.0),
    ("double", "0.30000000000000004", 0.1 + 0.2),
    ("double", "0.300000000000000041", 0.1 + 0.2),
    ("double", "9888772466541748947e-21", 0.009888772466541749),
    ("double", "9888772466541748e-1", 988877246654174.8),
    ("double", "1.50", 1.5),
    ("double", "5e-324", 5e-324),
    ("double", "3e-324", 5e-324),
    ("double", "1e400", "wrong_type"),
    ("double", "1" + "0" * 400, "wrong_type"),
    ("double", "4.9E-324", 5e-324),
    ("double", "4.94E-324", 5e-324),
    ("double", "4.8E-324", 5e-324),
    ("double", "2.0E-323", 2e-323),
    ("double", "4.940656458412465441765687E-324", 5e-324),
    ("double", "-0.0", -0.0),
    ("double", '"NaN"', "wrong_type"),
    ("float", "0.1", pytest.approx(0.1)),
    ("float", "3.14159265", pytest.approx(3.1415927, abs=1e-7)),
    ("float", "16777217", 16777216.0),
    ("float", "1e39", "wrong_type"),
    (("decimal", 10, 2), "12345678.90", Decimal("12345678.90")),
    (("decimal", 10, 2), '"-0.5"', Decimal("-0.50")),
    (("decimal", 10, 2), "1.555", "wrong_type"),
    (("decimal", 10, 2), "123456789", "wrong_type"),
    (("decimal", 38, 0), "9" * 38, Decimal("9" * 38)),
    (("decimal", 38, 0), "1" + "0" * 38, "wrong_type"),
    ("string", '"NaN"', "NaN"),
    ("string", "12345678901234567890.10", "12345678901234567890.10"),
    ("string", '{"a": [1.0, "x"], "b": null}', '{"a":[1.0,"x"],"b":null}'),
    ("string", '{"a": 1, "a": 2}', "not_json"),
    ("binary", '"AP8="', b"\x00\xff"),
    ("binary", '"AP8"', "wrong_type"),
    ("date", '"2026-01-02"', date(2026, 1, 2)),
    ("date", '"2026-01-02Z"', date(2026, 1, 2)),
    ("date", '"2026-02-30Z"', "wrong_type"),
    ("date", '"2026-01-02z"', "wrong_type"),
    ("date", '"2026-01-02ZZ"', "wrong_type"),
    ("date", '"2026-01-02+00:00"', "wrong_type"),
    ("date", '"2026-01-02T00:00:00Z"', "wrong_type"),
    ("date", '"2026-01-02 garbage"', "wrong_type"),
    ("date", '"0000-12-31"', "wrong_type"),
    ("timestamp", '"2026-01-02 03:04:05"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("timestamp", '"2026-01-02t03:04:05.5+01:00"', datetime(2026, 1, 2, 2, 4, 5, 500_000, tzinfo=UTC)),
    ("timestamp", '"2026-01-02T03:04:05.1234567Z"', datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
    ("timestamp", '"0001-01-01T00:00:00+01:00"', "wrong_type"),
    ("timestamp", '"2026-01-02T03:04Z"', "wrong_type"),
    ("timestamp", '"2026-01-02  03:04:05"', "wrong_type"),
    ("timestamp_ntz", '"2026-01-02T03:04:05"', datetime(2026, 1, 2, 3, 4, 5)),
    ("timestamp_ntz", '"2026-01-02T03:04:05Z"', "wrong_type"),
    (("map", ("long",)), '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
    (("map", ("long",)), '{"a": "x"}', "wrong_type"),
    (("list", ("date",)), '["2026-01-02", null]', [date(2026, 1, 2), None]),
    (("list", ("date",)), '["2026-01-02", "x"]', "wrong_type"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES)
def test_a_value_is_what_was_written_or_none(kind: Any, value: str, expected: Any) -> None:
    found = one(value, kind)
    assert found == expected
    assert repr(found) == repr(expected) or not isinstance(expected, float)


@pytest.mark.parametrize(
    ("unit", "number", "expected"),
    [
        ("s", "1767323045", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("s", "1767323045.25", datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)),
        ("ms", "1767323045678", datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)),
        ("ms", "1767323045678000", "wrong_type"),
        ("ns", "1767323045678000001", datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)),
        ("us", "-1", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("us", '"2026-01-02T03:04:05Z"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_numbers_are_times_by_a_unit_only(unit: str, number: str, expected: Any) -> None:
    assert one(number, "timestamp", timestamp_unit=unit) == expected
    assert number.startswith('"') or one(number, "timestamp") == "wrong_type"


def test_digits_beyond_microseconds_are_cut_and_counted() -> None:
    values = [b'{"at": "2026-01-02T03:04:05.123456%s"}' % digits for digits in (b"Z", b"7Z", b"0Z", b"0001Z")]
    made = decoded(values)
    assert made.error_class.null_count == 4
    assert made.seen.truncated == {"at": 2}


@pytest.mark.parametrize("fast", [True, False])
def test_rounded_numbers_are_counted_by_column(fast: bool) -> None:
    numbers = ["9007199254740993", "0.1234567890123456789", "1e-999", "1.50", "9007199254740992", "0.1", "2"]
    points = '[{"y": 0.1}, {"y": 12345678901234567}]'
    made = decoded([f'{{"x": {number}, "points": {points}}}'.encode() for number in numbers], fast=fast)
    assert [row["x"] for row in made.rows.to_pylist()] == [float(number) for number in numbers]
    assert made.seen.rounded == {"x": 3, "points.element.y": 7}


def test_number_of_a_dead_letter_is_not_counted_as_rounded() -> None:
    made = decoded([b'{"x": 9007199254740993, "id": "a"}', b'{"x": 0.1}'])
    assert (made.error_class[0].as_py(), made.seen.rounded) == ("wrong_type", {})


def test_fields_without_a_column_are_seen_where_they_are() -> None:
    made = decoded([b'{"id": 1, "new": 2.5, "who": {"n": [1]}, "points": [{"z": "a"}, {"z": null}]}', b'{"new": 1}'])
    assert made.seen.new_fields == {
        "new": {"new": "double"},
        "in": {
            "who": {"new": {"n": ["list", "long"]}},
            "points": {"in": {"element": {"new": {"z": "text"}}}},
        },
    }


def test_of_a_record_that_fails_nothing_is_seen_but_what_does_not_fit() -> None:
    made = decoded([b'{"id": "x", "n": 1, "new": 5, "who": {"first": "a", "age": {"b": 1}}}'])
    assert (
        made.error_message[0].as_py()
        == f'Column id (long) got "x". Column who (struct) got {{"first":"a","age":{{"b":1}}}}. {ANOTHER_TYPE}'
    )
    assert made.seen.new_fields == {}
    assert made.seen.type_errors == ["struct", {"id": "text", "who": ["struct", {"age": ["struct", {"b": "long"}]}]}]


@pytest.mark.parametrize("count", [1, 300])
def test_fields_that_are_always_empty_cost_nothing_and_are_named(count: int) -> None:
    value = b'{"id": 1, "nothing": null, "who": {"l": []}, "o": {"p": {}, "q": null}, "points": [{"m": [null]}]}'
    made = decoded([value] * count)
    assert made.error_class.null_count == count
    assert made.seen.empty == {"who.l", "o", "points.element.m"}


def test_columns_of_one_field_take_what_fits_them_first() -> None:
    columns = (
        column("s", ("struct", (column("a", "long"), column("a__v2", "string", "a")))),
        column("s__v2", "string", "s"),
        column("t", "long"),
        column("t__v2", ("struct", (column("b", "long"),)), "t"),
    )
    made = decoded([b'{"s": {"a": "x", "n": 1}}', b'{"s": [1]}', b'{"t": {"b": 1, "n": true}}'], columns=columns)
    rows = made.rows.to_pylist()
    assert [(r["s"], r["s__v2"]) for r in rows[:2]] == [({"a": None, "a__v2": "x"}, None), (None, "[1]")]
    assert (rows[2]["t"], rows[2]["t__v2"]) == (None, {"b": 1})
    assert made.seen.new_fields == {"in": {"s": {"new": {"n": "long"}}, "t__v2": {"new": {"n": "boolean"}}}}


def test_a_column_of_two_fields_has_one_value() -> None:
    columns = (column("price", "long", "cost", "price"),)
    made = decoded(
        [b'{"cost": 1}', b'{"price": 2}', b'{"price": 3, "cost": 3}', b'{"price": 4, "cost": 5}'], columns=columns
    )
    assert [r and r["price"] for r in made.rows.to_pylist()] == [1, 2, 3, None]
    assert made.error_message[3].as_py() == f"Column price got different values of price and cost. {ANOTHER_TYPE}"
    wrong = decoded([b'{"PRICE": "a", "cost": 5}'], columns=columns, any_case=True)
    assert wrong.error_message[0].as_py() == f'Column price (long) got "a". {ANOTHER_TYPE}'


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("infer", [True, False])
def test_levels_without_end_do_no_harm(infer: bool, fast: bool) -> None:
    def deep(levels: int) -> bytes:
        return b'{"id": null, "deep": %s%s}' % (b"[" * levels, b"]" * levels)

    made = decoded([deep(200_000), deep(64), deep(63), b'{"id": 1, "deep": null}'], infer, fast=fast)
    assert made.error_class.to_pylist() == ["too_deep", "too_deep", None, None]


def test_names_that_engines_can_not_have_are_names() -> None:
    odd = {"a.b": 1, "a": {"b": 2}, "": 3, "_kafka": 4, "decoded": 5, "x" * 70_000: 6, "\x00": 7}
    (value, text) = (json.dumps(odd).encode(), dict.fromkeys(odd, "long") | {"a": ["struct", {"b": "long"}]})
    assert decoded([value], columns=()).seen.new_fields == {"new": text}
    columns = tuple(column(f"c{n}", "string", name) for n, name in enumerate(odd))
    for made in (decoded([value], columns=columns), decoded([value] * 200, columns=columns)):
        assert list(made.rows[0].as_py().values()) == [
            v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for v in odd.values()
        ]


def test_what_nobody_thought_of_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = JsonDecoder.decode.__globals__
    parse = names["parse_object"]

    def odd(content: bytes) -> Any:
        if b"13" in content:
            raise RuntimeError("a bug")
        return parse(content)

    monkeypatch.setitem(names, "parse_object", odd)
    values = [b'{"id": %d}' % n for n in range(20)]
    made = decoded(values, columns=(column("id", "long"),), fast=False)
    failed = {n: made.error_class[n].as_py() for n in range(20) if made.error_class[n].is_valid}
    assert failed == {13: "undecodable"}
    assert made.error_message[13].as_py() == "RuntimeError: a bug"
    assert [r["id"] for r in made.rows.to_pylist() if r] == [n for n in range(20) if n not in failed]


MANY = [
    (b'{"n": "x%d"}', "wrong_type"),
    (b'{"n": 1.%d5}', "wrong_type"),
    (b'{"n": %d999999999999}', "wrong_type"),
    (b'{"who": {"age": "%d"}}', "wrong_type"),
    (b'{"who": [%d]}', "wrong_type"),
    (b'{"ok": %d}', "wrong_type"),
    (b'{"tags": "%d"}', "wrong_type"),
    (b'{"at": {"s": %d}}', "wrong_type"),
    (b'{"points": [{"y": "%d"}]}', "wrong_type"),
]


@pytest.mark.parametrize("infer", [True, False])
@pytest.mark.parametrize(("value", "error"), MANY)
def test_values_of_a_wrong_type_alone_go_the_strict_path(value: bytes, error: str, infer: bool) -> None:
    values = [
        value % n if n % 10 == 3 else json.dumps({"id": n, "n": n, "who": {"age": n}}).encode() for n in range(1000)
    ]
    decoder = JsonDecoder(FIELDS, Rules(infer))
    for _ in range(2):
        made = decoder.decode(pa.array(values, pa.binary()))
        assert made.error_class.to_pylist() == [error if n % 10 == 3 else None for n in range(1000)]
        assert [row and row["id"] for row in made.rows.to_pylist()] == [None if n % 10 == 3 else n for n in range(1000)]
        assert sum(made.seen.slow.values()) == 100


@pytest.mark.parametrize("fresh", ['"more": %d', '"who": {"more": %d}', '"points": [{"y": 1, "more": %d}]'])
def test_a_field_without_a_column_leaves_no_record_to_the_strict_path(fresh: str) -> None:
    values = [b'{"id": %d%b}' % (n, b", " + fresh.encode() % n if n % 10 == 3 else b"") for n in range(1000)]
    decoder = JsonDecoder(FIELDS, Rules(infer=True))
    for _ in range(2):
        made = decoder.decode(pa.array(values, pa.binary()))
        assert [row["id"] for row in made.rows.to_pylist()] == [*range(1000)]
        assert not made.seen.slow
        assert "'more': 'long'" in str(made.seen.new_fields)
        assert list(made.seen.unmapped.values()) == [100]


@pytest.mark.parametrize("name", ["n", 'a"b', "a\\b", "é", "a.b", "[]", "a/b", "a (b) changed from x"])
def test_names_of_every_kind_are_found_or_stop_the_parser_one_by_one(name: str) -> None:
    good, bad = ([json.dumps({name: value}).encode()] for value in (1, "x"))
    made = JsonDecoder((column("v", "int", name),), Rules()).decode(
        pa.array([*good, *bad * 30, *good] * 3, pa.binary())
    )
    assert made.error_class.to_pylist() == [None, *["wrong_type"] * 30, None] * 3
    assert [row and row["v"] for row in made.rows.to_pylist()] == [1, *[None] * 30, 1] * 3


@pytest.mark.parametrize(("kind", "bits"), [("byte", 7), ("short", 15), ("int", 31), ("long", 63)])
def test_whole_numbers_at_the_borders_fit_beside_others_that_do_not(kind: str, bits: int) -> None:
    numbers = [0, -1, 10, 99, 100, 2**bits - 1, -(2**bits), 10 ** (len(str(2**bits)) - 1), 2**bits, -(2**bits) - 1]
    values = [b'{"v": %d}' % n for n in numbers] + [b'{"v": 1.5}', b'{"v": null}']
    made = JsonDecoder((column("v", kind),), Rules()).decode(pa.array(values, pa.binary()))
    fit = [n if -(2**bits) <= n < 2**bits else None for n in numbers]
    assert [row and row["v"] for row in made.rows.to_pylist()] == [*fit, None, None]
    assert [n for n, error_class in enumerate(made.error_class.to_pylist()) if error_class] == [8, 9, 10]


draws = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.sampled_from([*(field[0] for field in FIELDS), "other"]), draws, max_size=4)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(objects, max_size=15), st.booleans(), st.integers(0, 3))
def test_both_ways_agree_and_rows_say_what_their_objects_say(
    values: list[dict[str, Any]], infer: bool, seed: int
) -> None:
    draw = random.Random(seed)
    texts = [json.dumps(v).encode() for v in values]
    texts = [t[: draw.randrange(len(t))] if draw.random() < 0.05 else t for t in texts]
    quick, slow = decoded(texts, infer), decoded(texts, infer, fast=False)
    assert repr(quick.rows.to_pylist()) == repr(slow.rows.to_pylist())
    assert quick.error_class == slow.error_class
    assert quick.error_message == slow.error_message
    for row, value, error in zip(quick.rows.to_pylist(), values, quick.error_class.to_pylist(), strict=True):
        assert (row is None) == (error is not None)
        for name in ("id", "n", "x", "ok") if row else ():
            assert row[name] == value.get(name)


@pytest.mark.parametrize("number", ["12345678901234561e-4", "9007199254740993e-1", "1234567890123456789012345e-20"])
def test_number_that_no_double_holds_is_rounded(number: str) -> None:
    assert one(number, "double") == float(number)


@pytest.mark.parametrize(
    "text", ["+1.5", ".5", "5.", "5.e0", "+.5e1", ".", "+", "e5", ".e5", "1e", "1_0", "0x1", "--1", "1.5 "]
)
def test_text_is_a_decimal_for_both_ways_or_for_none(text: str) -> None:
    found = one(json.dumps(text), ("decimal", 10, 2))
    assert found == "wrong_type" or found == Decimal(text)


@pytest.mark.parametrize("kind", [("decimal", 38, 0), ("decimal", 10, 2), ("decimal", 38, 38)])
@pytest.mark.parametrize(
    "number", ["1e-39", "9.862e-38", "0.001E-100", "1e-320", '"-5e-77"', '"5.e-077"', '"1\\u0065-77"']
)
def test_a_number_that_is_too_small_for_a_decimal_is_not_zero(kind: Any, number: str) -> None:
    assert one(number, kind) == "wrong_type"


@pytest.mark.parametrize("scale", [1, 2, 9, 18, 37, 38])
def test_a_number_with_too_many_digits_for_a_decimal_does_not_become_another_one(scale: int) -> None:
    draw = random.Random(scale)
    lengths = [digits for digits in range(39 - scale, 40) for _ in range(20)]
    numbers = [draw.randrange(10 ** (digits - 1), 10**digits) for digits in lengths]
    columns = (column("v", ("decimal", 38, scale)),)
    for plain in (True, False):
        made = decoded([b'{"v": %d}' % number for number in numbers * 3], columns=columns, fast=plain)
        assert set(made.error_class.to_pylist()) == {"wrong_type"}
    assert one("9" * (38 - scale) or "0", ("decimal", 38, scale)) == Decimal("9" * (38 - scale) or "0")


def test_a_decimal_may_have_all_its_digits_behind_the_point() -> None:
    assert one("0.25", ("decimal", 38, 38)) == Decimal("0.25")
    assert one("1", ("decimal", 38, 38)) == "wrong_type"


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_least_number_of_64_bits_is_no_time(unit: str) -> None:
    assert one(str(-(2**63)), "timestamp", timestamp_unit=unit) == "wrong_type"


def test_digits_of_an_epoch_time_are_cut_and_counted_however_far_behind() -> None:
    for number in ("1767323044.99999999999999999999999999999", "1767323044.99999900000000000000000000001"):
        made = decoded([b'{"at": %s}' % number.encode()], timestamp_unit="s")
        assert made.rows[0].as_py()["at"] == datetime(2026, 1, 2, 3, 4, 4, 999_999, UTC)
        assert made.seen.truncated == {"at": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        b'{"id": 1, "id": 2, %s}' % b",".join(b'"k%d": 1' % n for n in range(200_000)),
        b'{"id": "%s", "name": "%s' % (b"[" * 65, b'\\"' * 1_000_000),
        b'{"id": "%s", "name": "%s\\' % (b"[" * 65, b'\\"' * 1_000_000),
        b'{"id": 1, "new": [%s]}' % b",".join(b'{"k%d": 1}' % n for n in range(200_000)),
        b'{"points": [%s]}' % b",".join(b'{"new": {"k%d": 1}}' % n for n in range(200_000)),
    ],
    ids=[
        "a field twice",
        "text without an end",
        "text that ends in a backslash",
        "list of objects",
        "nested new field",
    ],
)
def test_a_value_of_some_megabytes_takes_seconds(value: bytes) -> None:
    began = time.process_time()
    decoded([value])
    # By the square of the length it would be minutes.
    assert time.process_time() - began < 20


def test_a_decoder_travels_after_this_process_has_decoded() -> None:
    assert len(JsonTexts().valid(pa.array(["{}"]))) == 1
    assert packed(JsonDecoder)
