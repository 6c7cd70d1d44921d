"""A comparison of a database with a table finds each row that isn't the same, and no other."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from examples.pizza_shop.compare import compare

ROWS = st.dictionaries(st.integers(0, 9), st.fixed_dictionaries({"n": st.integers(0, 3), "text": st.text(max_size=2)}))


def rows_of(found):
    return [{"id": key, **values} for key, values in found.items()]


@given(ROWS, st.randoms())
def test_the_same_rows_in_any_order_do_not_differ(database, chance):
    rows = rows_of(database)
    chance.shuffle(shuffled := [{**row, "_kafka": {"offset": 1}} for row in rows])
    found = compare(["id"], rows, shuffled)
    assert (found.wanted, found.found, found.differences) == (len(rows), len(rows), 0)


@given(ROWS, ROWS)
def test_each_key_that_differs_is_found_and_no_other(database, table):
    found = compare(["id"], rows_of(database), rows_of(table))
    assert set(found.missing) == {(key,) for key in database.keys() - table.keys()}
    assert set(found.unexpected) == {(key,) for key in table.keys() - database.keys()}
    assert set(found.different) == {(key,) for key in database.keys() & table.keys() if database[key] != table[key]}


def test_a_row_that_is_there_twice_is_unexpected():
    row = {"id": 1, "n": 2}
    found = compare(["id"], [row], [row, row])
    assert (found.unexpected, found.differences, found.found) == (((1,),), 1, 2)


def test_the_columns_that_differ_are_told_and_a_column_that_is_missing_is_null():
    found = compare(["id"], [{"id": 1, "n": 2, "new": "x"}], [{"id": 1, "n": 3}])
    assert found.different == {(1,): ("n", "new")}


def test_a_moment_is_the_same_in_any_zone_and_a_number_by_its_value():
    there = {"id": datetime(2026, 11, 25, 3, tzinfo=UTC), "price": Decimal("1.50")}
    here = {"id": datetime(2026, 11, 25, 5, tzinfo=timezone(timedelta(hours=2))), "price": Decimal("1.5")}
    assert compare(["id"], [there], [here]).differences == 0
