"""Queries of derived tables: which class one is, and the column that tells where a row came from."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.derive.classify import query_problems
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.parts import AGGREGATES
from kafka_lake.derive.query import fingerprint, over_views, parsed, tables_read, with_origin

TABLES = ("orders", "refunds", "stores")


def table(sql: str | None, write: str = "append", **more: Any) -> DerivedTable:
    read = [name for name in TABLES if sql and name in sql]
    given_: dict[str, Any] = {
        "table": "t",
        "write": write,
        "sql": sql,
        "sources": tuple(name for name in read if name != "stores") or ("orders",),
        "join": tuple(name for name in read if name == "stores"),
        "key": {"k": "k"} if write in ("upsert", "aggregate") else {},
    }
    return DerivedTable(**{**given_, **more})


def problems(sql: str, write: str = "append", **more: Any) -> str:
    return " ".join(query_problems(table(sql, write, **more)))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM orders",
        "SELECT * FROM orders;",
        "FROM orders SELECT a",
        "SELECT a, s.b FROM orders o LEFT JOIN stores s ON o.x = s.x WHERE a > 1",
        "SELECT a, s.b FROM stores s JOIN orders o ON o.x = s.x",
        "SELECT a, s.b FROM stores s CROSS JOIN orders",
        "SELECT a FROM orders o LEFT SEMI JOIN stores s ON o.x = s.x",
        "SELECT a FROM orders o LEFT ANTI JOIN stores s ON o.x = s.x",
        "SELECT a FROM orders WHERE a IN (SELECT max(a) FROM stores)",
        "WITH o AS (SELECT *, 1 AS x FROM orders) SELECT a, _kafka FROM o",
        "WITH orders AS (SELECT * FROM orders WHERE a > 1) SELECT a, _kafka FROM orders",
        "SELECT o.a FROM orders o JOIN (SELECT id, max(x) AS m FROM stores GROUP BY id) s ON s.id = o.id",
        "SELECT a FROM orders UNION ALL SELECT a FROM refunds",
        "SELECT a, _kafka FROM (SELECT a, _kafka FROM orders WHERE b LIKE ANY ('x', 'y'))",
        "SELECT a, explode(items) AS i FROM orders",
        "SELECT a, i FROM orders LATERAL VIEW explode(items) t AS i",
        "SELECT greatest(a, b), array_max(c), aggregate(c, 0, (x, y) -> x + y), current_timestamp() FROM orders",
        "SELECT my_udf(a) FROM orders",
        "SELECT a, x.b FROM orders, LATERAL (SELECT orders.a + 1 AS b) x",
        "SELECT * EXCEPT (_kafka) FROM orders",
    ],
)
def test_row_wise_queries(sql: str) -> None:
    assert problems(sql) == ""
    assert problems(sql, "upsert") == ""


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT DISTINCT a FROM orders", "DISTINCT"),
        ("SELECT a FROM orders LIMIT 3", "LIMIT"),
        ("SELECT a FROM orders ORDER BY a", "ORDER BY"),
        ("SELECT a FROM orders SORT BY a", "SORT BY"),
        ("SELECT a FROM orders TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("SELECT a, count(*) FROM orders GROUP BY a", "GROUP BY"),
        ("SELECT max(a) FROM orders", "max()"),
        ("SELECT regr_slope(a, b) FROM orders", "regr_slope()"),
        ("SELECT my_agg(a) FROM orders", "my_agg()"),
        ("SELECT row_number() OVER (PARTITION BY a ORDER BY b) FROM orders", "window function"),
        ("SELECT a FROM (SELECT * FROM orders LIMIT 3)", "LIMIT"),
        ("WITH o AS (SELECT a, _kafka FROM orders GROUP BY ALL) SELECT a, _kafka FROM o", "GROUP BY"),
        ("SELECT a FROM orders WHERE a IN (SELECT max(a) FROM orders)", "a subquery in an expression"),
        ("SELECT a, (SELECT max(a) FROM refunds) FROM orders", "a subquery in an expression"),
        ("SELECT a FROM stores s LEFT JOIN orders o ON o.x = s.x", "LEFT JOIN gives rows"),
        ("SELECT a FROM stores s LEFT ANTI JOIN orders o ON o.x = s.x", "ANTI JOIN gives rows"),
        ("SELECT a FROM orders o RIGHT JOIN stores s ON o.x = s.x", "RIGHT JOIN gives rows"),
        ("SELECT a FROM orders o FULL OUTER JOIN stores s ON o.x = s.x", "FULL OUTER JOIN gives rows"),
        ("SELECT o.a FROM orders o JOIN orders p ON p.id = o.id", "joins tables of from:"),
        ("SELECT o.a FROM orders o JOIN refunds p ON p.id = o.id", "joins tables of from:"),
        ("SELECT a FROM orders UNION SELECT a FROM refunds", "UNION ALL"),
        ("SELECT a FROM orders EXCEPT SELECT a FROM refunds", "EXCEPT"),
        ("SELECT a FROM orders UNION ALL SELECT b FROM stores", "reads no table of from:"),
        ("SELECT a FROM (SELECT a FROM orders)", "has no column _kafka"),
        ("WITH o AS (SELECT * FROM orders) SELECT a FROM o", "has no column _kafka"),
        ("WITH o AS (SELECT *, a > (SELECT max(a) FROM orders) FROM orders) SELECT _kafka FROM o", "in an expression"),
        ("SELECT x._kafka FROM stores s, LATERAL (SELECT _kafka FROM orders LIMIT 1) x", "a LATERAL subquery"),
        ("SELECT a, _kafka FROM (stores s LEFT JOIN orders o ON s.x = o.x)", "JOIN within parentheses"),
        ("SELECT o.a FROM orders o JOIN stores s JOIN refunds r ON r.x = s.x ON s.x = o.x", "its ON behind another"),
        ("SELECT o.a FROM orders o JOIN IDENTIFIER('orders') p ON o.a = p.a", "IDENTIFIER(…)"),
        ("SELECT a FROM orders, my_function(TABLE(orders))", "TABLE(…)"),
        ("SELECT TRANSFORM (a) USING 'sort' AS (b) FROM orders", "TRANSFORM"),
        ("SELECT a FROM orders VERSION AS OF 3", "leave VERSION"),
        ("SELECT any(a > 1) FROM orders", "any()"),
        ("SELECT a, named_struct('offset', 1) AS _kafka FROM orders", "another value gets its name"),
        ("WITH RECURSIVE r AS (SELECT * FROM orders UNION ALL SELECT * FROM r) SELECT * FROM r", "RECURSIVE"),
    ],
)
def test_queries_that_are_not_row_wise(sql: str, why: str) -> None:
    assert why in problems(sql)
    assert why in problems(sql, "upsert")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, sum(x) FROM orders GROUP BY ALL",
        "SELECT k, sum(x) FROM orders o JOIN refunds USING (k) GROUP BY k HAVING sum(x) > 3 ORDER BY k",
        "SELECT k, unix_timestamp(x) AS u FROM orders GROUP BY k, u",
        "SELECT k, sum(x) OVER (PARTITION BY k ORDER BY d) AS s FROM (SELECT k, d, sum(x) x FROM orders GROUP BY k, d)",
        "SELECT o.k, s.m FROM orders o CROSS JOIN (SELECT max(x) AS m FROM stores LIMIT 1) s",
    ],
)
def test_queries_by_key(sql: str) -> None:
    assert problems(sql, "aggregate") == ""


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT k, sum(x) FROM orders GROUP BY k LIMIT 3", "LIMIT"),
        ("SELECT sum(x) AS k FROM orders", "sum() without GROUP BY"),
        ("SELECT k, sum(x) OVER (ORDER BY y) FROM orders", "OVER without PARTITION BY"),
        ("SELECT k, count(*) FROM orders WHERE at > current_date - INTERVAL 30 DAYS GROUP BY k", "current_date()"),
        ("SELECT k, max(now()) FROM orders GROUP BY k", "now()"),
        ("SELECT k, sum(rand()) FROM orders GROUP BY k", "rand()"),
    ],
)
def test_queries_whose_keys_depend_on_more_than_their_rows(sql: str, why: str) -> None:
    assert why in problems(sql, "aggregate")
    assert problems(sql, "replace") == ""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sql": None}, "sql: or transform: is needed"),
        ({"transform": "a:b"}, "one of them only"),
        ({"sql": "SELECT FROM WHERE"}, "can't be understood"),
        ({"sql": "DELETE FROM orders"}, "must be one query"),
        ({"sql": "SELECT a FROM orders; SELECT 2"}, "must be one query"),
        ({"sql": "SELECT a FROM shop.orders"}, "write orders"),
        ({"sql": "SELECT a FROM others"}, "neither in from: nor in join:"),
        ({"sources": ("orders", "refunds")}, "doesn't read refunds"),
        ({"sources": ("orders", "shop.orders")}, "have orders twice"),
        ({"sources": ("lake.orders",), "table": "orders"}, "is made from itself"),
        ({"key": {"a": "a"}}, "key: has no effect"),
        ({"write": "upsert"}, "needs key:"),
        ({"write": "upsert", "key": {"a": "a + 1"}}, "list them"),
        ({"order_by": ("a",)}, "order_by: has no effect"),
        ({"lookback": "2d"}, "lookback: needs time:"),
        ({"time": "at"}, "time: needs lookback:"),
        ({"write": "replace", "lookback": "2d", "time": "at"}, "lookback: has no effect"),
        ({"write": "replace", "on_change": "forward"}, "on_change: forward has no effect"),
    ],
)
def test_settings_that_can_not_go_together(settings: dict[str, Any], why: str) -> None:
    spec = DerivedTable(
        **{"table": "t", "sources": ("orders",), "write": "append", "sql": "SELECT a FROM orders"} | settings
    )
    assert why in " ".join(query_problems(spec))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM orders o", "SELECT `o`._kafka AS _kafka,  a FROM orders o"),
        ("SELECT a, b._kafka FROM orders b", "SELECT a, b._kafka FROM orders b"),
        ("SELECT * FROM orders", "SELECT * FROM orders"),
        ("SELECT s.*, o.* FROM orders o JOIN stores s", "SELECT s.*, o.* FROM orders o JOIN stores s"),
        ("SELECT s.* FROM orders o JOIN stores s", "SELECT `o`._kafka AS _kafka,  s.* FROM orders o JOIN stores s"),
        (
            "SELECT a -- b\nFROM orders UNION ALL SELECT (SELECT 1) FROM refunds",
            "SELECT `orders`._kafka AS _kafka,  a -- b\nFROM orders UNION ALL SELECT `refunds`._kafka AS _kafka,  "
            "(SELECT 1) FROM refunds",
        ),
    ],
)
def test_the_metadata_column_is_selected_and_nothing_else_is_touched(sql: str, expected: str) -> None:
    assert with_origin(sql, ["orders", "refunds"]) == expected


@pytest.mark.parametrize("sql", ["SELECT /*+ COALESCE(1) */ a FROM orders", "(SELECT a FROM orders)"])
def test_where_it_has_no_place_it_is_asked_for(sql: str) -> None:
    with pytest.raises(ConfigurationError, match="Select _kafka"):
        with_origin(sql, ["orders"])


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
        table("SELECT a, 'x  y' FROM orders", "upsert"),
        table("SELECT a, 'x  y' FROM orders", sources=("shop.orders",)),
        table("SELECT a, 'x  y' FROM orders", join=("b",)),
        table(None, transform="a:b"),
    ],
)
def test_whatever_the_rows_depend_on_changes_the_fingerprint(other: DerivedTable) -> None:
    assert fingerprint(other) != fingerprint(table("SELECT a, 'x  y' FROM orders"))


@pytest.mark.parametrize("name", sorted(AGGREGATES - {"grouping", "grouping_id"}))
def test_each_aggregate_of_spark_is_known(name: str) -> None:
    told = [problems(f"SELECT {name}({arguments}) FROM orders") for arguments in ("a", "a, b")]
    assert any("depends on other rows" in each for each in told), told
