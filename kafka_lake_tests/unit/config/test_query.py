"""Queries of derived tables: what their text shows, and the column that names the record of a row."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.config.query import fingerprint, over_views, parsed, tables_read, with_origin
from kafka_lake.spec.settings import located, message

TABLES = ("orders", "refunds", "stores")


def settings_of(sql: str | None, write: str = "append", **more: Any) -> dict[str, Any]:
    read = [name for name in TABLES if sql and name in sql]
    given_: dict[str, Any] = {
        "table": "t",
        "write": write,
        "sql": sql,
        "sources": tuple(name for name in read if name != "stores") or ("orders",),
        "join": tuple(name for name in read if name == "stores"),
        "key": {"k": "k"} if write in ("upsert", "aggregate") else {},
    }
    return {**given_, **more}


def table(sql: str | None, write: str = "append", **more: Any) -> DerivedTable:
    return DerivedTable(**settings_of(sql, write, **more))


def problems(**settings: Any) -> str:
    try:
        DerivedTable(**settings)
    except ValidationError as error:
        return "; ".join(located(detail["loc"], message(detail)) for detail in error.errors())
    return ""


@pytest.mark.parametrize(
    ("sql", "write", "why"),
    [
        ("SELECT a, s.b FROM orders o LEFT JOIN stores s ON o.x = s.x WHERE a > 1", "append", ""),
        ("WITH orders AS (SELECT * FROM orders WHERE a > 1) SELECT a, _kafka FROM orders", "append", ""),
        ("SELECT a FROM orders UNION ALL SELECT a FROM refunds", "replace", ""),
        (
            "SELECT a, _kafka FROM orders UNION ALL SELECT a, _kafka FROM refunds",
            "append",
            "takes one table under from",
        ),
        ("WITH A AS (SELECT max(b) AS k FROM Orders) SELECT k FROM a", "aggregate", ""),
        ("SELECT sum(b) AS s FROM orders", "aggregate", "key: k isn't a column of the result"),
        ("SELECT sum(b) OVER () AS k FROM orders", "aggregate", ""),
    ],
)
def test_the_text_shows_tables_and_columns(sql: str, write: str, why: str) -> None:
    found = problems(**settings_of(sql, write))
    assert (why in found) if why else not found


@pytest.mark.parametrize("key", ["sum(a)", "rank() OVER (ORDER BY a)", "(SELECT max(a) FROM orders)", "a b c"])
def test_a_key_is_an_expression_over_one_row(key: str) -> None:
    assert "key: k: " in problems(**settings_of("SELECT a AS k FROM orders", "aggregate", key={"k": key}))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sql": None}, "needs exactly one of sql: and transform:"),
        ({"transform": "a:b"}, "exactly one of sql: and transform:"),
        ({"sql": "SELECT FROM WHERE"}, "can't be parsed"),
        ({"sql": "DELETE FROM orders"}, "must be one query"),
        ({"sql": "SELECT a FROM orders; SELECT 2"}, "must be one query"),
        ({"sql": "SELECT a FROM shop.orders"}, "Write orders"),
        ({"sql": "SELECT a FROM others"}, "neither in from: nor in join:"),
        ({"join": ("refunds",)}, "doesn't read refunds"),
        ({"sources": ("orders", "shop.orders")}, "have orders twice"),
        ({"key": {"a": "a"}}, "key: has no effect"),
        ({"write": "upsert"}, "needs key:"),
        ({"write": "upsert", "key": {"a": "a + 1"}}, "list columns of the result"),
        ({"order_by": ("a",)}, "order_by: has no effect"),
        ({"write": "replace", "on_change": "forward"}, "on_change: forward has no effect"),
    ],
)
def test_settings_that_can_not_go_together(settings: dict[str, Any], why: str) -> None:
    whole = {"table": "t", "sources": ("orders",), "write": "append", "sql": "SELECT a FROM orders"} | settings
    assert why in problems(**whole)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM orders o", "SELECT `o`._kafka AS _kafka,  a FROM orders o"),
        ("SELECT a, b._kafka FROM orders b", "SELECT a, b._kafka FROM orders b"),
        ("SELECT * FROM orders", "SELECT * FROM orders"),
        ("SELECT s.*, o.* FROM orders o JOIN stores s", "SELECT s.*, o.* FROM orders o JOIN stores s"),
    ],
)
def test_the_metadata_column_is_selected_and_nothing_else_is_touched(sql: str, expected: str) -> None:
    assert with_origin(sql, "orders") == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT /*+ COALESCE(1) */ a FROM orders",
        "(SELECT a FROM orders)",
        "SELECT a FROM orders UNION ALL SELECT a FROM refunds",
        "SELECT a FROM (SELECT * FROM orders)",
    ],
)
def test_a_query_of_another_shape_must_select_it(sql: str) -> None:
    assert with_origin(sql, "orders") == sql


def test_a_query_reads_views_under_the_names_of_its_tables() -> None:
    text = over_views("WITH a AS (SELECT * FROM orders) SELECT * FROM a -- all;", {"orders": "v1"})
    assert tables_read(parsed(text)) == {"v1"}


SPACES = st.text(" \n\t", min_size=1, max_size=3)


@given(st.lists(SPACES, min_size=6, max_size=6), st.sampled_from(["", "-- c\n", "/* c */ "]))
def test_spaces_and_comments_change_no_fingerprint(spaces: list[str], comment: str) -> None:
    words = ["SELECT", "a", ",", "'x  y'", "FROM", "orders"]
    sql = comment + "".join(word + space for word, space in zip(words, spaces, strict=True)) + ";"
    assert fingerprint(table(sql)) == fingerprint(table("SELECT a, 'x  y' FROM orders"))


@pytest.mark.parametrize(
    "other",
    [
        table("SELECT a, 'x y' FROM orders"),
        table("SELECT b, 'x  y' FROM orders"),
        table("SELECT a, 'x  y' FROM orders", "replace"),
        table("SELECT a, 'x  y' FROM orders", "upsert", key="a"),
        table("SELECT a, 'x  y' FROM orders", sources=("shop.orders",)),
        table("SELECT a, 'x  y' FROM orders").model_copy(update={"join": ("b",)}),
        table(None, transform="a:b"),
    ],
)
def test_whatever_the_rows_depend_on_changes_the_fingerprint(other: DerivedTable) -> None:
    assert fingerprint(other) != fingerprint(table("SELECT a, 'x  y' FROM orders"))
