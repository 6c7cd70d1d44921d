"""Rows that are compared: floats within a tolerance, all other values exactly, whatever the order."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from kafka_lake.derived.verify import differing

SCHEMA = (
    T.StructType().add("k", "string").add("n", "decimal(20,2)").add("x", "double")
    .add("f", "float").add("deep", T.ArrayType(T.StructType().add("y", "double").add("s", "string")))
    .add("m", T.MapType(T.StringType(), T.DoubleType()))
)  # fmt: skip
FLOATS = st.none() | st.sampled_from(["NaN", "Infinity"]) | st.integers(-9, 9).map(lambda item: item + 0.5)
DEEP = st.lists(st.none() | st.fixed_dictionaries({"y": FLOATS, "s": st.sampled_from(["", "a"])}), max_size=2)
ROWS = st.fixed_dictionaries(
    {
        "k": st.none() | st.sampled_from(["a", "b", "null"]), "n": st.none() | st.integers(0, 2), "x": FLOATS,
        "f": FLOATS, "deep": st.none() | DEEP,
        "m": st.none() | st.dictionaries(st.sampled_from(["p", "q"]), FLOATS, max_size=2),
    }
)  # fmt: skip


def nudged(value: Any) -> Any:
    """Return a value whose floats are a bit off, as another order of rows has them."""
    if isinstance(value, dict):
        return {name: nudged(element) for name, element in value.items()}
    if isinstance(value, list):
        return [nudged(element) for element in value]
    return value * (1 + 1e-12) if isinstance(value, float) else value


@given(st.lists(ROWS, max_size=6), st.randoms(use_true_random=False))
def test_the_same_rows_in_another_order_do_not_differ(rows: list[dict[str, Any]], chance: random.Random) -> None:
    others = [nudged(json.loads(json.dumps(row))) for row in chance.sample(rows, len(rows))]
    assert list(differing(others, rows, ["k"], SCHEMA)) == []


@given(st.lists(ROWS, min_size=1, max_size=6), ROWS)
def test_a_row_more_or_less_or_changed_is_found(rows: list[dict[str, Any]], other: dict[str, Any]) -> None:
    first = rows[0]
    ((key, one, two),) = differing(rows[1:], rows, ["k"], SCHEMA)
    assert (key, one, two and two["k"]) == (f"k = {json.dumps(first['k'])}", None, first["k"])
    ((_, one, two),) = differing([*rows, other], rows, ["k"], SCHEMA)
    assert (one and one["k"], two) == (other["k"], None)
    changed = {**first, "n": 7}
    ((_, one, two),) = differing([changed, *rows[1:]], rows, ["k"], SCHEMA)
    assert one == changed
    assert two is not None
    assert (two["k"], two["n"]) == (first["k"], first["n"])


@pytest.mark.parametrize(
    ("column", "one", "other", "same"),
    [
        ("x", 1e9, 1e9 + 0.1, True),
        ("x", 1.0, 1.00001, False),
        ("x", 0.0, 5e-17, True),
        ("x", None, 0.0, False),
        ("x", "NaN", 0.0, False),
        ("x", 1.0, 1.0000001, True),
        ("f", 1.0, 1.0000001, True),
        ("f", 1.0, 1.0001, False),
        ("n", 1e9, 1e9 + 0.01, False),
        ("k", "a", "A", False),
        ("m", {"p": 1.0}, {"q": 1.0}, False),
        ("deep", [{"y": 1.0, "s": "a"}], [{"y": 1.0, "s": "a"}, None], False),
    ],
)
def test_floats_have_a_tolerance_and_nothing_else(column: str, one: Any, other: Any, same: bool) -> None:
    assert (not list(differing([{column: one}], [{column: other}], [], SCHEMA))) is same


def test_a_record_is_named_by_its_place() -> None:
    row = {"_kafka": {"partition": 3, "offset": 7, "topic": "t"}, "k": "a"}
    (found,) = differing([row], [], ["_kafka"], SCHEMA)
    assert found == ("the record at partition 3, offset 7", row, None)
