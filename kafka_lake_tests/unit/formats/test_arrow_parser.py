"""Fields without a column don't keep records from Arrow's parser, and what is said of them stays the same."""

import json
import random
import resource
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import Decoded
from kafka_lake_tests.unit.formats.test_json_decode import FIELDS, column

PLAIN = {"id": 1, "name": "a", "who": {"first": "b"}, "points": [{"y": 1.5}, {"y": None}]}


def in_batches(batches: Sequence[Sequence[Any]], rules: Rules, fast: bool = True) -> list[Decoded]:
    decoder = JsonDecoder(FIELDS, rules, fast=fast)
    return [decoder.decode(pa.array([json.dumps(v).encode() for v in values], pa.binary())) for values in batches]


def without_duckdb(make: Callable[[], list[Decoded]]) -> list[Decoded]:
    """Return what a new thread makes, in which no DuckDB has begun; fail if one does."""
    made: list[Any] = []

    def run() -> None:
        made.extend((make(), JsonTexts().begun))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    decoded, begun = made
    assert not begun
    return decoded


def said(made: Decoded) -> tuple[Any, ...]:
    seen = made.seen
    return made.rows.to_pylist(), made.error_class.to_pylist(), seen.new_fields, seen.unmapped, seen.empty


@pytest.mark.parametrize("infer", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"gone": None},
        {"gone": None, "who": {"first": "b", "gone": None}, "points": [{"y": 2.5, "gone": None}]},
        {"none": [], "empty": {}, "deep": {"a": {"b": None}, "c": [[]]}},
        {"points": [{"y": 2.5, "none": []}, {"y": 3.5}], "who": {"first": "b", "deep": {"a": None}}},
    ],
)
def test_fields_without_values_need_no_duckdb(more: dict[str, Any], infer: bool) -> None:
    batches = [[PLAIN | more] * 150, [PLAIN, PLAIN | more, PLAIN] * 50]
    quick = without_duckdb(lambda: in_batches(batches, Rules(infer)))
    assert list(map(said, quick)) == list(map(said, in_batches(batches, Rules(infer), fast=False)))
    assert all(made.rows.to_pylist()[0]["who"]["first"] == "b" for made in quick)


def test_a_field_without_values_is_new_when_it_gets_one() -> None:
    batches = [[PLAIN | {"late": None}] * 150, [PLAIN | {"late": None}, PLAIN | {"late": 7}] * 75]
    first, second = in_batches(batches, Rules(infer=True))
    assert (first.seen.new_fields, second.seen.new_fields) == ({}, {"new": {"late": "long"}})
    assert second.seen.unmapped == {"late": 75}


def test_fields_that_are_not_declared_are_counted_without_duckdb() -> None:
    def more(n: int) -> dict[str, Any]:
        return {
            "at": "2026-01-01T00:00:00Z",
            "n": n if n % 2 else n + 0.5,
            "tags": [{"k": "v", "w": None}],
            "deep": {"a": {"b": n}},
            **({"some": True} if n % 3 else {"some": None}),
        }

    # These names have no column.
    batches = [
        [PLAIN | {f"x_{name}": v for name, v in more(n + begin).items()} for n in range(150)] for begin in (0, 9)
    ]
    quick = without_duckdb(lambda: in_batches(batches, Rules()))
    assert [made.seen.unmapped for made in quick] == [
        {"x_at": 150, "x_n": 150, "x_tags": 150, "x_deep": 150, "x_some": 100}
    ] * 2
    assert list(map(said, quick)) == list(map(said, in_batches(batches, Rules(), fast=False)))


def test_unwanted_fields_are_neither_new_nor_need_duckdb() -> None:
    batches = [[PLAIN | {"email": f"{n}@example.org", "more": {"a": [n]}} for n in range(150)]] * 2
    rules = Rules(infer=True, unwanted=("email", "more"))
    for made in without_duckdb(lambda: in_batches(batches, rules)):
        assert (made.error_class.null_count, made.seen.new_fields, made.seen.empty) == (150, {}, frozenset())
    [made] = in_batches([[PLAIN | {"who": {"email": "x"}}] * 150], rules)
    assert made.seen.new_fields == {"in": {"who": {"new": {"email": "text"}}}}


@pytest.mark.parametrize("infer", [True, False])
def test_names_that_are_data_do_not_gather(infer: bool) -> None:
    rules = Rules(infer, max_columns=10)
    batches = [[PLAIN | {f"{b}-{n}": None, "more": {f"{b}-{n}": None}} for n in range(100)] for b in range(12)]
    quick, slow = (in_batches(batches, rules, fast=fast) for fast in (True, False))
    assert list(map(said, quick)) == list(map(said, slow))
    assert len(quick[-1].rows) == 100


def _objects(draw: random.Random, depth: int = 3) -> Any:
    scalars = [None, True, draw.randrange(9), 0.5, "x", "2026-01-01 00:00:00", [], {}, [None, None], float("nan")]
    if depth == 0 or draw.random() < 0.6:
        return draw.choice(scalars)
    if draw.random() < 0.5:
        return [_objects(draw, depth - 1) for _ in range(draw.randrange(3))]
    return {draw.choice("abcId"): _objects(draw, depth - 1) for _ in range(draw.randrange(3))}


@pytest.mark.parametrize("infer", [True, False])
@pytest.mark.parametrize("value", ["[null, null]", "[[null, null]]", '[{"a": [null, null]}]', "NaN", "[-Infinity]"])
def test_what_arrow_reads_wrongly_is_left_to_the_strict_path(value: str, infer: bool) -> None:
    values = [b'{"id": 1, "q": %s, "who": {"q": %s}}' % (value.encode(), value.encode())] * 3
    rules = Rules(infer, unwanted=("q",))
    quick, slow = (JsonDecoder(FIELDS, rules, fast=f).decode(pa.array(values, pa.binary())) for f in (True, False))
    assert said(quick) == said(slow)
    assert quick.error_class.null_count == (3 if "null" in value else 0)


def test_one_nan_leaves_no_other_record_to_the_strict_path() -> None:
    values = [b'{"id": 1, "q": {"y": [2.5]}}'] * 299 + [b'{"id": 1, "q": {"y": [NaN]}}']
    made = JsonDecoder(FIELDS, Rules(infer=False)).decode(pa.array(values, pa.binary()))
    assert made.error_class.null_count == 299
    assert made.seen.slow == {"not_json": 1}


def test_empty_fields_of_earlier_and_failed_records_are_not_reported() -> None:
    columns = (*FIELDS, column("must", "long", required=True))
    decoder = JsonDecoder(columns, Rules(infer=True))
    first, second = (
        decoder.decode(pa.array(values, pa.binary()))
        for values in (
            [b'{"must": 1, "q": {"a": []}}'] * 3,
            [b'{"must": 1, "q": {}}', b'{"must": null, "y": {}, "q": {"b": []}}'],
        )
    )
    assert (first.seen.empty, second.seen.empty) == ({"q"}, {"q"})
    assert second.seen.unmapped == {"q": 1}


def test_new_fields_keep_the_order_of_the_records() -> None:
    names = ["zeta", "alpha", "mid", "beta", "other"]
    rounded = {"x": 0.12345678901234567}
    values = [{name: [] for name in names}, rounded | {name: [1] for name in names}]
    [made] = in_batches([values], Rules(infer=True))
    assert list(made.seen.new_fields["new"]) == names


@pytest.mark.parametrize("infer", [True, False])
def test_records_with_many_names_of_their_own_stay_cheap(infer: bool) -> None:
    # The first ones fill a part of the batch that is looked at.
    values = [PLAIN] * 300 + [PLAIN | {"m": {f"{n}-{name}": 1 for name in range(1000)}} for n in range(60)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [made] = in_batches([values], Rules(infer, max_columns=10))
    assert len(made.rows) == 360
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


@pytest.mark.slow
@pytest.mark.parametrize("rules", [Rules(True), Rules(), Rules(any_case=True), Rules(True, unwanted=("a",))], ids=str)
def test_batches_of_any_other_fields_say_what_the_strict_path_says(rules: Rules) -> None:
    draw = random.Random(str(rules))
    for _ in range(12):
        others = [_objects(draw) for _ in range(3)]
        batches = []
        for _ in range(4):
            # Mostly the same shape, and now and then another one.
            shapes = others if draw.random() < 0.7 else [_objects(draw)]
            batches.append(
                [
                    PLAIN
                    | {name: draw.choice(shapes) for name in draw.sample(["a", "b", "Id", "c"], 2)}
                    | ({"who": {"first": "b", "a": draw.choice(shapes)}} if draw.random() < 0.5 else {})
                    for _ in range(20)
                ]
            )
        assert list(map(said, in_batches(batches, rules))) == list(map(said, in_batches(batches, rules, fast=False)))
