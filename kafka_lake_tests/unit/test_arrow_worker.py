"""What Arrow takes of JSON records is what plainly fits; all else is handed back, in its place."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.ingest.arrow_worker import (
    Parser,
    Report,
    Span,
    Work,
    _dumped,
    _repetitive,
    _Spans,
    decode,
    loaded,
    shaped,
)
from kafka_lake.ingest.audit import partitions_of

FIELDS = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("first", pa.string()), ("age", pa.int64())])),
        ("points", pa.list_(pa.struct([("y", pa.float64())]))),
    ]
)


def parsed(values: Sequence[bytes], ignore: bool = False, fields: pa.Schema = FIELDS) -> tuple[list[Any], list[bool]]:
    table, fits = Parser(fields, ignore).parse(pa.array(values, pa.binary()))
    return table.to_pylist(), fits.tolist()


def test_what_fits_becomes_rows_in_order() -> None:
    values = [json.dumps({"id": n, "tags": ["a", None], "who": {"age": n}}).encode() for n in range(100)]
    rows, fits = parsed(values)
    assert all(fits)
    assert [(r["id"], r["tags"], r["who"]) for r in rows] == [
        (n, ["a", None], {"first": None, "age": n}) for n in range(100)
    ]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"5",
        b"null",
        b"[]",
        b'[{"id": 1}]',
        b'"{}"',
        b"{",
        b"}",
        b'{"id": 1',
        b'{"id": 1}}',
        b'{"id": 1}{"id": 2}',
        b'{"id": 1} {"id": 2}',
        b'{"id": 1},{"id": 2}',
        b'{"id": 1,}',
        b"{'id': 1}",
        b"{id: 1}",
        b'{"id": 1 /* one */}',
        b'{"id": 01}',
        b'{"id": 1, "id": 2}',
        b'{"id": "1"}',
        b'{"id": 1.0}',
        b'{"id": 1e2}',
        b'{"id": 9223372036854775808}',
        b'{"id": true}',
        b'{"n": 2147483648}',
        b'{"x": NaN}',
        b'{"x": -Infinity}',
        b'{"x": 1e999}',
        b'{"x": "1.5"}',
        b'{"points": [{"y": NaN}]}',
        b'{"name": 5}',
        b'{"name": {"a": 1}}',
        b'{"name": "\xff"}',
        b'{"name": "\xed\xa0\x80"}',
        b'{"name": "\\ud800"}',
        b'{"name": "a\nb"}',
        b'{"name": "\x01"}',
        b'{"name": "\\q"}',
        b'{"ok": 1}',
        b'{"ok": "true"}',
        b'{"at": 5}',
        b'{"at": "yesterday"}',
        b'{"at": "2026-02-30T00:00:00Z"}',
        b'{"at": "2026-02-03T00:00:00.1234567Z"}',
        b'{"at": "2026-02-03T24:00:00Z"}',
        b'{"tags": "a"}',
        b'{"tags": [1]}',
        b'{"who": {"age": "old"}}',
        b'{"who": [1]}',
        b"\xef\xbb\xbf{}",
        b"{}\x00",
        b"{}\x0b",
    ],
)
@pytest.mark.parametrize("ignore", [True, False])
def test_what_does_not_fit_is_handed_back_and_its_neighbours_are_not(value: bytes, ignore: bool) -> None:
    good = [json.dumps({"id": n}).encode() for n in range(100)]
    rows, fits = parsed([*good[:40], value, *good[40:]], ignore)
    assert not fits[40]
    taken = [n for n, fit in enumerate(fits) if fit]
    assert [r["id"] for r in rows] == [n - (n > 40) for n in taken]
    assert len(taken) >= 100 - 16, "more than the value's closest neighbours were handed back"


def test_two_broken_values_do_not_make_up_for_each_other() -> None:
    rows, fits = parsed([b'{"id": 1}{"id": 2}', b" ", b'{"id": 3}'])
    assert (rows, fits) == ([], [False] * 3)
    rows, fits = parsed([b'{"tags": ["a"', b'"b"]}'])
    assert (rows, fits) == ([], [False] * 2)
    rows, fits = parsed([b'{"name": "}', b'{"}'])
    assert (rows, fits) == ([], [False] * 2)


@pytest.mark.parametrize("space", [b" ", b"\n", b"\r\n", b"\t", b" \n "])
def test_white_space_does_not_matter(space: bytes) -> None:
    one = b"{%s}" % space.join([b"", b'"id"', b":", b"1", b""])
    rows, fits = parsed([b'{"id": 0}', one, one + space, space + one, b'{"id": 2}'])
    assert all(fits)
    assert [r["id"] for r in rows] == [0, 1, 1, 1, 2]


def test_other_fields_are_left_aside_if_columns_are_declared() -> None:
    rows, fits = parsed([b'{"id": 1, "more": {"a": [1]}, "who": {"age": 2, "b": 3}}'], ignore=True)
    assert fits == [True]
    assert (rows[0]["id"], rows[0]["who"]) == (1, {"first": None, "age": 2})


def test_other_fields_are_handed_back_unless_they_are_null() -> None:
    nulls = (
        b'{"id": 1, "more": null, "who": {"age": 2, "b": null}, "points": [{"y": 1, "z": null}, null], "tags": null}'
    )
    rows, fits = parsed([nulls] * 20 + [b'{"id": 2, "more": 5}'] * 20 + [b'{"id": 3, "who": {"b": 1}}'] * 20)
    assert all(fits[:15])
    assert not any(fits[20:])
    assert rows[0]["who"] == {"first": None, "age": 2}
    assert rows[0]["points"] == [{"y": 1.0}, None]
    assert (rows[0]["tags"], rows[0]["id"]) == (None, 1)


@pytest.mark.parametrize("ignore", [True, False])
def test_levels_without_end_do_no_harm(ignore: bool) -> None:
    deep = b'{"id": null, "deep": %s%s}' % (b"[" * 200_000, b"]" * 200_000)
    _, fits = parsed([deep, b'{"id": 1, "deep": null}'], ignore)
    assert fits == [ignore, ignore]


def test_levels_without_end_do_no_harm_once_types_are_inferred() -> None:
    parser = Parser(FIELDS, False)
    _, fits = parser.parse(pa.array([b'{"id": 1, "null": null}'], pa.binary()))
    assert fits.all()
    deep = b'{"id": 2, "deep": %s%s}' % (b"[" * 500_000, b"]" * 500_000)
    _, fits = parser.parse(pa.array([b'{"id": 3, "null": null}', deep], pa.binary()))
    assert not fits[1]


def test_many_broken_values_are_given_up_soon() -> None:
    parser = Parser(FIELDS, False)
    looked_at = 0
    parse = parser._parse

    def counted(values: pa.Array) -> pa.Table | None:
        nonlocal looked_at
        looked_at += len(values)
        return parse(values)

    parser._parse = counted  # type: ignore[method-assign]
    values = [b"{" if n % 20 == 0 else b'{"id": 1}' for n in range(10_000)]
    table, fits = parser.parse(pa.array(values, pa.binary()))
    assert looked_at <= 8 * len(values)
    assert len(table) == fits.sum()
    assert not any(fits[n] for n in range(0, 10_000, 20))


def work(**settings: Any) -> Work:
    given = {"metadata": "", "io": {}, "fields": FIELDS, "required": (), "ignore": True, "topic": "orders"}
    return Work(**{**given, "topic_id": "T", "metadata_column": "_kafka", "max_record_bytes": None, **settings})


def batch(values: Sequence[bytes | None], headers: Sequence[Any] | None = None) -> pa.RecordBatch:
    count = len(values)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None, b"k"] * count, pa.binary())[:count],
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(10, 10 + count), pa.int64()),
            "timestamp": pa.array([1_000_000 + n for n in range(count)], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0, 1, 7] * count, pa.int32())[:count],
            "headers": pa.array(headers or [[]] * count, header),
        }
    )


def test_rows_carry_where_they_came_from() -> None:
    given = batch([b'{"id": 1}', None, b'{"id": 2}'], [[], [], [{"key": "h", "value": b"v"}]])
    rows, kept, left = decode(given, work(), Parser(FIELDS, True))
    assert (len(kept), len(left)) == (2, 0)
    first, last = rows.column("_kafka").to_pylist()
    assert (first["topic"], first["topic_id"], first["partition"], first["offset"]) == ("orders", "T", 3, 10)
    assert (first["key"], first["headers"], first["timestamp_type"]) == (None, None, "CreateTime")
    assert (last["offset"], last["timestamp_type"]) == (12, None)
    assert last["headers"] == [{"key": "h", "value": b"v"}]


def test_required_nulls_and_long_values_are_handed_back() -> None:
    given = batch([b'{"id": 1}', b'{"id": null}', b"{}", b'{"id": 4, "name": "long enough"}', None, b'{"id": 6}'])
    rows, kept, left = decode(given, work(required=("id",), max_record_bytes=20), Parser(FIELDS, True))
    assert rows.column("id").to_pylist() == [1, 6]
    assert kept.column("offset").to_pylist() == [10, 15]
    assert left.column("offset").to_pylist() == [11, 12, 13]


def test_a_batch_of_tombstones_is_no_row() -> None:
    rows, kept, left = decode(batch([None, None]), work(max_record_bytes=5), Parser(FIELDS, False))
    assert (len(rows), len(kept), len(left)) == (0, 0, 0)


def test_a_report_arrives_as_it_was_sent() -> None:
    report = Report((), 7, 1, 2, 3, None, (Span(0, 4, 5, 9),))
    assert loaded(_dumped(report)) == report


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.sampled_from([*FIELDS.names, "other"]), json_values, max_size=4)


@given(st.lists(objects, max_size=40), st.booleans())
def test_rows_say_what_their_objects_say(values: list[dict[str, Any]], ignore: bool) -> None:
    rows, fits = parsed([json.dumps(v).encode() for v in values], ignore)
    assert len(rows) == sum(fits)
    for row, value in zip(rows, (v for v, fit in zip(values, fits, strict=True) if fit), strict=True):
        for name in ("id", "n", "x", "name", "ok", "tags"):
            assert row[name] == value.get(name)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 60_000), min_size=1, max_size=8)), max_size=8))
def test_spans_find_every_repetition(batches: list[tuple[int, list[int]]]) -> None:
    spans = _Spans()
    for partition, offsets in batches:
        spans.add(
            pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition] * len(offsets), pa.int32()), "offset": pa.array(offsets, pa.int64())}
            )
        )
    everything = [(p, o) for p, offsets in batches for o in offsets]
    found = {rows.partition: rows for rows in partitions_of(spans.all())}
    for partition in {p for p, _ in everything}:
        mine = [o for p, o in everything if p == partition]
        rows = found[partition]
        assert (rows.rows, rows.first, rows.last) == (len(mine), min(mine), max(mine))
        if len(set(mine)) < len(mine):
            assert rows.distinct < rows.rows


def test_spans_of_whole_ranges_are_distinct() -> None:
    spans = _Spans()
    for start in (200_000, 0, 5_000):
        offsets = np.arange(start, start + 5_000)
        spans.add(pa.RecordBatch.from_pydict({"partition": pa.array(np.zeros(5_000, np.int32)), "offset": offsets}))
    assert sorted(spans.all(), key=lambda s: s.first) == [Span(0, 10_000, 0, 9_999), Span(0, 5_000, 200_000, 204_999)]
    (rows,) = partitions_of(spans.all())
    assert (rows.rows, rows.distinct) == (15_000, 15_000)


def test_fields_are_matched_by_name_and_nulls_stay_null() -> None:
    have = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    want = pa.list_(pa.struct([("b", pa.string()), ("c", pa.float64()), ("a", pa.int64())]))
    lists = pa.array([[{"a": 9}], None, [], [None, {"a": 1, "b": "x"}]], have)
    expected = [None, [], [None, {"a": 1, "b": "x", "c": None}]]
    assert shaped(lists.slice(1), want).to_pylist() == expected
    structs = pa.StructArray.from_arrays([lists], ["l"], mask=pa.array([False, False, True, False]))
    made = shaped(structs.slice(1), pa.struct([("k", pa.binary()), ("l", want)])).to_pylist()
    assert made == [{"k": None, "l": None}, None, {"k": None, "l": expected[2]}]


@pytest.mark.parametrize("count", [5000, 20_000])
def test_values_that_are_all_different_get_no_dictionary(count: int) -> None:
    numbers = list(range(count))
    rows = pa.table(
        {
            "id": numbers,
            "store": [n % 7 for n in numbers],
            "nothing": pa.nulls(count, pa.string()),
            "tags": [[f"{n}"] for n in numbers],
            "_kafka": [{"offset": n, "topic": "pizzas", "inner": {"key": f"k{n}"}} for n in numbers],
            "pairs": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        }
    )
    with_dictionary = {"store", "nothing", "tags.list.element", "_kafka.topic"}
    with_dictionary |= {"pairs.key_value.key", "pairs.key_value.value"}
    assert set(_repetitive(rows) or ()) == with_dictionary
    assert _repetitive(rows.slice(0, 100)) is True
