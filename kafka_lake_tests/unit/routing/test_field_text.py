"""The text of a route's field by a pattern: what it finds is what is written there."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_lake.routing.conditions import pattern_of

NAMES = st.sampled_from(["type", "Type", "typ", "type ", "a-b", "größe", "{", "", "\x7f"])
TEXTS = st.one_of(
    st.sampled_from(["order", "", "type", '"', "\\", "}", "é", "\ufffd", "\n", "😀"]), st.text(max_size=5)
)
SCALARS = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2))
SPACES = st.text(" \t\r\n", max_size=2)


def found(field: str, text: str) -> str | None:
    pattern = pattern_of(field)
    assert pattern is not None
    match = re.match(pattern, text)
    return match[1] if match else None


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.booleans(), st.data())
@example([("a-b", 1.5e300), ("type", "order"), ("type", "x")], False, None)
def test_what_is_found_is_the_text_of_the_first_field_of_that_name(
    fields: list[tuple[str, object]], ascii_only: bool, data: st.DataObject | None
) -> None:
    def space() -> str:
        return data.draw(SPACES) if data is not None else ""

    def written(value: object) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    parts = [f"{space()}{written(n)}{space()}:{space()}{written(value)}{space()}" for n, value in fields]
    text = f"{space()}{{{','.join(parts)}}}"
    for field in ("type", "a-b", "größe", "{"):
        its = next((value for name, value in fields if name == field), None)
        assert found(field, text) in (None, its)


@pytest.mark.parametrize(
    ("text", "its"),
    [
        ('{"type":"order"}', "order"),
        (
            '{"id": 1, "at": "x", "n": -0.5e-7, "ok": true, "no": null, "type" : "order", "more": {"type": "x"}}',
            "order",
        ),
        # The rest doesn't matter: what can't be parsed is a dead letter of the route's table.
        ('{"type":"order","id":', "order"),
        ('{"type":""}', ""),
        ('{"type":"größe"}', "größe"),
        ('{"type":"order', None),
        ('{"type":"order" "id":1}', None),
        ('{"type":1}', None),
        ('{"type":null,"type":"order"}', None),
        ('{"type":"or\\u0064er"}', None),
        ('{"t\\u0079pe":"x","type":"order"}', None),
        ('{"a":{"type":"order"}}', None),
        ('{"a":[],"type":"order"}', None),
        ('{"a":01,"type":"order"}', None),
        ('{\'a\':1,"type":"order"}', None),
        ('x{"type":"order"}', None),
        ('[{"type":"order"}]', None),
        ('{"a":"\ufffd","type":"order"}', None),
        ('{"a":"\n","type":"order"}', None),
    ],
)
def test_the_pattern_finds_what_can_be_read_in_one_way_only(text: str, its: str | None) -> None:
    assert found("type", text) == its


def test_some_fields_are_for_the_parser() -> None:
    assert [pattern_of(name) for name in ("source.table", 'a"b', "a\\b", "a\nb", "x" * 201)] == [None] * 5
    assert found("[$x] (a|b)*", '{"[$x] (a|b)*": "y"}') == "y"
