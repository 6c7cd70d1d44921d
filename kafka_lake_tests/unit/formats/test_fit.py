"""Records of one shape become a table's columns: by name, promoted, or an error that names the column."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_lake.formats.task.columns import arrow_type
from kafka_lake.formats.task.decoded import ANOTHER_TYPE, NOTHING, small_enough
from kafka_lake.formats.task.fit import Fit, fits

LONG, INT, TEXT, DOUBLE = ("long",), ("int",), ("string",), ("double",)


def column(name: str, kind: Any, *sources: str, required: bool = False, shown: str = "") -> Any:
    return name, kind, sources or (name,), required, shown or kind[0]


def struct(*columns: Any) -> Any:
    return "struct", tuple(columns)


def fit(have: Any, *columns: Any) -> Fit:
    return Fit(pa.struct(have), columns, "schema id 7")


def rows(have: Any, values: list[Any], *columns: Any) -> tuple[list[Any], dict[int, tuple[str, str]]]:
    made, errors = fit(have, *columns).rows(pa.array(values, pa.struct(have)))
    assert made.type == arrow_type(("struct", columns))
    made.validate(full=True)
    return made.to_pylist(maps_as_pydicts="strict"), errors


def test_records_that_are_as_the_columns_pass_as_they_are():
    have = [("a", pa.int64()), ("s", pa.struct([("x", pa.string())])), ("l", pa.list_(pa.int32()))]
    records = pa.array([{"a": 1, "s": {"x": "y"}, "l": [1, None]}], pa.struct(have))
    columns = column("a", LONG), column("s", struct(column("x", TEXT))), column("l", ("list", INT))
    made, errors = fit(have, *columns).rows(records)
    assert (made is records, errors) == (True, {})


def test_fields_go_by_name_and_missing_ones_are_null():
    have = [("b", pa.string()), ("a", pa.int32()), ("more", pa.int32())]
    made, errors = rows(have, [{"b": "x", "a": 1, "more": 2}], column("a", LONG), column("b", TEXT), column("c", INT))
    assert (made, errors) == ([{"a": 1, "b": "x", "c": None}], {})


PROMOTIONS = [
    (pa.int8(), ("short",), 5, 5),
    (pa.int16(), INT, 5, 5),
    (pa.int32(), LONG, -5, -5),
    (pa.float32(), DOUBLE, 0.5, 0.5),
    (pa.decimal128(5, 2), ("decimal", 9, 2), None, None),
    (pa.null(), TEXT, None, None),
    (pa.list_(pa.int32()), ("list", LONG), [1, None], [1, None]),
    (pa.map_(pa.string(), pa.int32()), ("map", LONG), {"k": 1, "n": None}, {"k": 1, "n": None}),
    (pa.map_(pa.int32(), pa.int32()), ("map", LONG, LONG), {7: 1}, {7: 1}),
]


@pytest.mark.parametrize(("have", "want", "value", "made"), PROMOTIONS)
def test_promotions_of_iceberg_keep_the_value(have, want, value, made):
    assert fits(have, want)
    given = list(value.items()) if isinstance(value, dict) else value
    records = [{"a": given}, {"a": None}]
    assert rows([("a", have)], records, column("a", want)) == ([{"a": made}, {"a": None}], {})


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.int64(), INT), (pa.float64(), ("float",)), (pa.int32(), DOUBLE),
        (pa.decimal128(9, 2), ("decimal", 5, 2)), (pa.decimal128(5, 1), ("decimal", 9, 2)), (pa.string(), ("binary",)),
        (pa.timestamp("us"), ("timestamp",)), (pa.date32(), ("timestamp",)),
        (pa.map_(pa.int32(), pa.int32()), ("map", INT)),
    ],
)  # fmt: skip
def test_what_may_lose_something_fits_no_column(have, want):
    assert not fits(have, want)


def test_what_fits_no_column_fails_its_record_alone():
    have = [("a", pa.int64()), ("b", pa.struct([("x", pa.string())]))]
    records = [{"a": None, "b": None}, {"a": 1, "b": None}, {"a": 2, "b": {"x": "y"}}, {"a": None, "b": {"x": None}}]
    columns = column("a", INT), column("b", struct(column("x", LONG, shown="bigint")), shown="struct<x:bigint>")
    made, errors = rows(have, records, *columns)
    a, x = "Column a (int) got bigint.", "Column b.x (bigint) got string."
    assert errors == {
        1: ("wrong_type", f"Written with schema id 7. {a} {ANOTHER_TYPE}"),
        2: ("wrong_type", f"Written with schema id 7. {a} {x} {ANOTHER_TYPE}"),
    }
    assert (made[0], made[3]) == ({"a": None, "b": None}, {"a": None, "b": {"x": None}})


def test_elements_that_do_not_fit_are_said_once():
    inner = pa.struct([("x", pa.string()), ("y", pa.string()), ("z", pa.int32())])
    want = struct(column("x", INT), column("y", INT), column("z", LONG))
    have = [("l", pa.list_(inner)), ("m", pa.map_(pa.string(), pa.int64()))]
    records = [
        {"l": None, "m": None},
        {"l": [None, {"x": None, "y": None, "z": 3}], "m": [("k", None)]},
        {"l": [{"z": 1}, {"x": "a", "y": "b"}], "m": []},
        {"l": [], "m": [("k", 1)]},
    ]
    made, errors = rows(have, records, column("l", ("list", want)), column("m", ("map", INT)))
    shown = "struct<x:int,y:int,z:bigint>"
    assert {number: message.split(". ")[1] for number, (_, message) in errors.items()} == {
        2: f"Column l.element has an element that doesn't fit {shown}",
        3: "Column m.value has an element that doesn't fit int",
    }
    assert made[:2] == [{"l": None, "m": None}, {"l": [None, {"x": None, "y": None, "z": 3}], "m": {"k": None}}]


def test_the_first_column_that_fits_takes_the_field():
    columns = column("a", INT, "a"), column("a__v2", LONG, "a"), column("a__v3", TEXT, "a")
    records = [{"a": 1}]
    assert rows([("a", pa.int64())], records, *columns)[0] == [{"a": None, "a__v2": 1, "a__v3": None}]
    assert rows([("a", pa.int32())], records, *columns)[0] == [{"a": 1, "a__v2": None, "a__v3": None}]
    _, errors = rows([("a", pa.bool_())], [{"a": True}], *columns)
    assert errors[0][1].startswith("Written with schema id 7. Column a (int) got boolean.")


def test_a_struct_goes_to_a_column_that_is_one_if_none_fits():
    have = [("s", pa.struct([("x", pa.int64()), ("y", pa.string())]))]
    columns = column("s", TEXT), column("s__v2", struct(column("x", INT), column("y", TEXT)), "s")
    made, errors = rows(have, [{"s": {"x": None, "y": "z"}}, {"s": {"x": 1}}], *columns)
    assert made[0] == {"s": None, "s__v2": {"x": None, "y": "z"}}
    assert list(errors) == [1]


def test_a_column_of_two_fields_has_the_one_value_that_they_have():
    have = [("old", pa.int32()), ("new", pa.int64())]
    records = [{"old": 1, "new": None}, {"old": 1, "new": 2}, {"old": None, "new": 3}, {"old": 4, "new": 4}, {}]
    made, errors = rows(have, records, column("n", LONG, "new", "old"))
    assert [made[number]["n"] for number in (0, 2, 3, 4)] == [1, 3, 4, None]
    assert errors == {
        1: ("wrong_type", f"Written with schema id 7. Column n got different values of old and new. {ANOTHER_TYPE}")
    }


def test_structs_of_two_fields_are_compared_as_a_whole():
    kind = pa.struct([("x", pa.list_(pa.float64()))])
    records = [{"old": {"x": [1.0, float("nan")]}, "new": {"x": [1.0, x]}} for x in (float("nan"), 2.0)]
    want = struct(column("x", ("list", DOUBLE)))
    assert list(rows([("old", kind), ("new", kind)], records, column("s", want, "new", "old"))[1]) == [1]


def test_names_that_swap_places_are_followed_in_lists_too():
    have = [("l", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int32())])))]
    want = struct(column("a", INT, "b"), column("b", INT, "a"))
    assert rows(have, [{"l": [{"a": 1, "b": 2}]}], column("l", ("list", want)))[0] == [{"l": [{"a": 2, "b": 1}]}]


def test_names_that_differ_in_case_alone_are_two():
    have = [("a", pa.int32()), ("A", pa.int32())]
    assert rows(have, [{"a": 1, "A": 2}], column("A", INT), column("a_1", LONG, "a"))[0] == [{"A": 2, "a_1": 1}]


def test_nulls_in_required_columns_are_named():
    columns = column("a", LONG, required=True), column("b", TEXT, required=True), column("c", INT)
    have = [("a", pa.int32()), ("c", pa.int64())]
    _, errors = rows(have, [{"a": 1, "c": None}, {"a": None, "c": None}, {"a": 2, "c": 3}], *columns)
    assert [errors[number] for number in (0, 1)] == [
        ("null_in_required_column", "Required, but null or missing: b."),
        ("null_in_required_column", "Required, but null or missing: a, b."),
    ]
    assert errors[2][0] == "wrong_type"


def test_slices_and_gaps_are_read_where_they_are():
    have = pa.list_(pa.int32())
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 5]), pa.array(range(5), pa.int32()), have, mask=pa.array([False, True, False])
    )
    records = pa.StructArray.from_arrays([lists], fields=[pa.field("l", have)])
    made, errors = fit([("l", have)], column("l", ("list", LONG))).rows(records.slice(1))
    assert (made.to_pylist(), errors) == ([{"l": None}, {"l": [3, 4]}], {})


def test_the_result_has_the_rows_and_the_errors_in_their_places():
    values = pa.array([b"a", None, b"bb", b"ccc", b"d"])
    errors: dict[int, tuple[str, str]] = {}
    places = small_enough(values, 2, errors)
    assert places.tolist() == [0, 2, 4]
    records = pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int32())]))
    errors[4] = "malformed", "Bad."
    done = fit([("a", pa.int32())], column("a", LONG, required=True)).decoded(records, places[:2], errors, 5, NOTHING)
    assert (done.made.to_pylist(), done.places.tolist()) == ([{"a": 1}], [0])
    assert done.error_class.to_pylist() == [None, None, "null_in_required_column", "too_large", "malformed"]
    assert done.error_message.to_pylist()[3] == "The value has 3 bytes, the limit is 2."
    assert done.rows.to_pylist() == [{"a": 1}, None, None, None, None]
    assert isinstance(done.places, np.ndarray)
