"""The oracle finds each lie that a decoder once told, and the generator makes inputs of each kind."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from kafka_lake_tests.fuzz.generate import CORPUS, payload
from kafka_lake_tests.fuzz.json_fuzz import DECLARED, VERSIONED, column
from kafka_lake_tests.fuzz.oracle import Column, Letter, NotStrictError, Reported, Row, judge, levels, parse

EMPTY = dict.fromkeys([item.name for item in DECLARED])
YEAR_10000 = 253_402_300_800_000_000
NOON = 1_767_323_045_123_456
DECLARES = Reported(all_fields=False)


def row(**values: Any) -> Row:
    return Row({**EMPTY, **values})


LIES: dict[str, Row] = {
    "field twice": row(l=1),
    "declared field twice": row(l=2),
    "single quotes": row(l=1),
    "twice within an object": row(st={"a": 2, "b": None, "c": None}),
    "new field in the object of a misfit": row(),
    "dotted twin": row(),
    "65 levels": row(),
    "name with half a surrogate": row(),
    "text with half a surrogate": row(t="?"),
    "internal names": row(),
    "long name": row(),
    "time of day": row(ts=NOON, tn=NOON),
    "epoch milliseconds": row(ts=1_767_323_045_123_000_000),
    "year 0": row(ts=-62_167_219_200_000_000),
    "year 10000": row(ts=YEAR_10000),
    "date with garbage": row(da=date(2026, 1, 2)),
    "date with time": row(da=date(2026, 1, 2)),
    "nanoseconds": row(ts=NOON),
    "beyond 2^53": row(d=9007199254740992.0, f=16777216.0),
    "long fraction": row(d=0.12345678901234568),
    "infinity": row(d=float("inf"), f=float("inf")),
    "nothing": row(d=0.0),
    "38 digits": row(d=1.2345678901234568e37),
    "text that is no number": row(d=float("nan")),
    "digits beyond the scale": row(de=Decimal("12.35")),
    "empty": row(),
    "two objects": row(l=1),
    "byte order mark": row(l=1),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_found(name: str) -> None:
    assert judge(CORPUS[name], DECLARED, LIES[name], Reported())


TRUTHS: list[tuple[bytes, Row | Letter]] = [
    (b'{"l":1,"d":0.10,"f":0.1,"de":12.30,"d0":1e3}',
     row(l=1, d=0.1, f=0.10000000149011612, de=Decimal("12.30"), d0=Decimal(1000))),
    (b'{"t":"NaN"}', row(t="NaN")),
    (b'{"t":{"a":[1.50,null]}}', row(t='{"a":[1.50,null]}')),
    (b'{"ts":"2026-01-02T03:04:05.123456Z","tn":"2026-01-02 03:04:05.123456"}', row(ts=NOON, tn=NOON)),
    (b'{"da":"2026-01-02Z"}', row(da=date(2026, 1, 2))),
    (b'{"da":"2026-01-02z"}', Letter("wrong_type")),
    (b'{"m":{"":1},"li":[1,null]}', row(m=[("", 1.0)], li=[1, None])),
    (b'{"d":1e400}', Letter("wrong_type")),
    (b'{"l":1,"l":2}', Letter("not_json")),
    (b'{"unknown":1}', row()),
]  # fmt: skip


@pytest.mark.parametrize(("content", "outcome"), TRUTHS)
def test_the_truth_is_let_pass(content: bytes, outcome: Row | Letter) -> None:
    assert judge(content, DECLARED, outcome, DECLARES) == []


@pytest.mark.parametrize(
    ("content", "columns", "outcome"),
    [
        (b'{"l":1}', DECLARED, row(l=2)),
        (b'{"l":1}', DECLARED, row()),
        (b'{"l":1}', DECLARED, row(l=1, d=1.0)),
        (b'{"l":1}', DECLARED, row(l=True)),
        (b'{"bo":true}', DECLARED, row(bo=1)),
        (b'{"t":1.50}', DECLARED, row(t="1.5")),
        (b'{"t":"a"}', DECLARED, row(t='"a"')),
        (b'{"li":[1,2]}', DECLARED, row(li=[1])),
        (b'{"m":{"a":1,"b":2}}', DECLARED, row(m=[("a", 1.0), ("a", 2.0)])),
        (b'{"l":1}', DECLARED, Letter("wrong_type")),
        (b'{"l":"x"}', DECLARED, Letter("not_json")),
        (b"{", DECLARED, row()),
        (CORPUS["cases"], VERSIONED, Row({**dict.fromkeys([c.name for c in VERSIONED]), "i_d": "2", "ID": "1"})),
        (b'{"s":{"a":1,"new":2}}', (column("s", ("struct", (column("a", "long"),))),), Row({"s": {"a": 1}})),
    ],
)
def test_oracle_finds_lost_altered_or_moved_values(
    content: bytes, columns: tuple[Column, ...], outcome: Row | Letter
) -> None:
    assert judge(content, columns, outcome, Reported())


def test_oracle_accepts_reported_values() -> None:
    named = Reported(
        lambda path, _: path == ("new",), lambda path: path == ("ts",), rounded=lambda path: path == ("d",)
    )
    at = b'{"new":1,"ts":"2026-01-02T03:04:05.123456789Z","d":9007199254740993}'
    assert judge(at, DECLARED, row(ts=NOON, d=2.0**53), named) == []
    assert judge(at, DECLARED, row(ts=NOON, d=2.0**53 - 1), named) != []


def test_the_generator_repeats_itself_and_makes_all_kinds() -> None:
    contents = [payload(3, index) for index in range(6000)]
    assert contents == [payload(3, index) for index in range(6000)]
    assert len(set(contents)) > 5000
    strict = 0
    for content in contents:
        try:
            parse(content)
            strict += 1
        except NotStrictError:
            pass
    assert 0.5 < strict / len(contents) < 0.9
    for needed in (b"\\ud800", b'"a.b"', b'""', b"1e400", b"9007199254740993", b"NaN", b"\xef\xbb\xbf", b"0000-01-01"):
        assert any(needed in content for content in contents), needed
    assert {64, 65} <= {levels(content) for content in contents}
