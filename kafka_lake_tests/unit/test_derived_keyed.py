"""Queries by key: where rows meet, they are equal in the key, or the query is refused when definitions load."""

import pytest

from kafka_lake_tests.unit.test_derived_query import problems

HOURLY = {"hour": "date_trunc('hour', at)", "store": "store"}
STORE = {"store": "store"}
# Rows of the SELECT that a table's own * is in may have nothing of that table.
OTHER_SIDE = "SELECT o.* FROM orders o RIGHT JOIN refunds r USING (store)"


@pytest.mark.parametrize(
    ("key", "sql"),
    [
        (HOURLY, "SELECT date_trunc('HOUR', o.at) AS hour, o.store, sum(total) FROM orders o GROUP BY ALL"),
        (HOURLY, "SELECT date_trunc('hour', at) AS hour, store, sum(total) FROM orders GROUP BY 1, 2"),
        (HOURLY, "SELECT date_trunc('hour', at) AS hour, store, sum(total) FROM orders GROUP BY hour, store"),
        (HOURLY, "SELECT (date_trunc('hour', at)) hour, Store, sum(total) FROM orders GROUP BY at, store"),
        (
            STORE,
            "WITH o AS (SELECT store, total FROM orders), p AS (SELECT store, sum(total) t FROM o GROUP BY "
            "store) SELECT p.store, t FROM p",
        ),
        (
            STORE,
            "SELECT store, x FROM (SELECT store, row_number() OVER w AS x FROM orders WINDOW w AS (PARTITION BY "
            "store ORDER BY at)) WHERE x = 1",
        ),
        (
            STORE,
            "SELECT o.store, count(*) FROM orders o LEFT JOIN refunds r ON o.store = r.store AND o.id = r.id "
            "GROUP BY o.store",
        ),
        (STORE, "SELECT store, count(*) FROM orders o FULL JOIN refunds r USING (store) GROUP BY store"),
        (
            STORE,
            "SELECT store, sum(x) FROM (SELECT store, x FROM orders UNION ALL SELECT store, -x FROM refunds) "
            "GROUP BY store",
        ),
        (STORE, "SELECT DISTINCT store, city FROM orders"),
        (STORE, "SELECT DISTINCT * FROM orders"),
        (STORE, "SELECT s.city, o.store, count(*) FROM orders o JOIN stores s ON s.id = o.store GROUP BY ALL"),
        (
            {"w": "window(at, '1 hour').start"},
            "SELECT window(at, '1 hour').start AS w, count(*) FROM orders GROUP BY 1",
        ),
        ({"x": "s.x"}, "SELECT s.x, count(*) FROM orders GROUP BY s.x"),
        ({"x": "s.x"}, "SELECT orders.s.x AS x, count(*) FROM orders GROUP BY ALL"),
        (STORE, "SELECT store, collect_list(x) FILTER (WHERE x > 1), count(DISTINCT y) FROM orders GROUP BY store"),
        (STORE, "SELECT store, sum(sum(x)) OVER (PARTITION BY store ORDER BY d) FROM orders GROUP BY store, d"),
        (STORE, "SELECT store, i, count(*) FROM orders LATERAL VIEW explode(items) t AS i GROUP BY store, i"),
        (
            STORE,
            "SELECT o.store, max(o.x) FROM orders o LEFT SEMI JOIN refunds r ON o.store <=> r.store GROUP BY o.store",
        ),
        (STORE, "SELECT o.store FROM orders o, refunds r WHERE o.store = r.store AND o.x > 3"),
        (STORE, "FROM orders |> AGGREGATE sum(x) AS x GROUP BY store"),
        (STORE, "SELECT store, x FROM orders"),
        (STORE, "SELECT * FROM (SELECT *, rank() OVER (PARTITION BY store, y ORDER BY x) r FROM orders) WHERE r < 3"),
    ],
)
def test_rows_of_a_key_depend_on_rows_of_that_key_alone(key: dict[str, str], sql: str) -> None:
    assert problems(sql, "aggregate", key=key) == ""


@pytest.mark.parametrize(
    ("key", "sql", "why"),
    [
        (
            HOURLY,
            "SELECT date_trunc('hour', at) AS hour, store, sum(total) / sum(sum(total)) OVER (PARTITION BY "
            "date_trunc('hour', at)) FROM orders GROUP BY ALL",
            "PARTITION BY of OVER lacks store",
        ),
        (
            {"store": "store", "day": "to_date(at)"},
            "SELECT store, max(to_date(at)) AS day, sum(total) FROM orders GROUP BY store",
            "GROUP BY lacks day (to_date(at))",
        ),
        (STORE, "SELECT lower(store) AS store, count(*) FROM orders GROUP BY 1", "GROUP BY lacks store"),
        (
            STORE,
            "WITH o AS (SELECT * FROM orders), p AS (SELECT count(*) AS k FROM o) SELECT store, k FROM orders "
            "CROSS JOIN p",
            "count() without GROUP BY is over the rows of all keys",
        ),
        (
            STORE,
            "SELECT store, count(*) FROM orders GROUP BY ROLLUP(store)",
            "ROLLUP, CUBE and GROUPING SETS give totals over several keys",
        ),
        (
            STORE,
            "SELECT store, count(*) FROM orders GROUP BY store WITH ROLLUP",
            "ROLLUP, CUBE and GROUPING SETS give totals over several keys",
        ),
        (
            STORE,
            "SELECT store, count(*) FROM orders GROUP BY store GROUPING SETS ((store), ())",
            "ROLLUP, CUBE and GROUPING SETS give totals over several keys",
        ),
        (
            STORE,
            "SELECT a.store, count(*) FROM orders a JOIN orders b ON a.id = b.id GROUP BY a.store",
            "tables of from: are joined without store being equal",
        ),
        (
            STORE,
            "SELECT store, x FROM orders WHERE x > (SELECT avg(x) FROM orders)",
            "a subquery in an expression reads a table of from:",
        ),
        (
            STORE,
            "WITH m AS (SELECT avg(x) a FROM orders) SELECT store, x FROM orders WHERE x > (SELECT a FROM m)",
            "a subquery in an expression reads a table of from:",
        ),
        (
            STORE,
            "SELECT store, sum(sum(x)) OVER (PARTITION BY d) FROM orders GROUP BY store, d",
            "PARTITION BY of OVER lacks store",
        ),
        (
            STORE,
            "SELECT s.store, count(o.x) FROM stores s LEFT JOIN orders o ON s.store = o.store GROUP BY s.store",
            "LEFT JOIN gives rows that no row of a table of from: is behind",
        ),
        (
            STORE,
            "SELECT r.store, count(*) FROM orders o LEFT JOIN refunds r ON o.store = r.store GROUP BY r.store",
            "GROUP BY lacks store",
        ),
        (STORE, "SELECT store FROM orders EXCEPT SELECT x FROM orders", "EXCEPT lacks store"),
        (STORE, "SELECT DISTINCT city FROM orders", "DISTINCT lacks store"),
        (STORE, "SELECT store, n FROM (SELECT DISTINCT city AS store, 1 AS n FROM orders)", "DISTINCT lacks store"),
        (
            STORE,
            "SELECT store, count(*) FROM orders GROUP BY store UNION ALL SELECT id, 0 FROM stores",
            "a part of UNION reads no table of from:",
        ),
        (STORE, "SELECT city AS store, count(*) FROM orders GROUP BY city", "GROUP BY lacks store"),
        (
            STORE,
            "SELECT store, ntile(4) OVER (ORDER BY sum(x)) FROM orders GROUP BY store",
            "OVER without PARTITION BY lacks store",
        ),
        (
            STORE,
            "SELECT store, count(*) FROM orders TABLESAMPLE (3 ROWS) GROUP BY store",
            "TABLESAMPLE lets rows of a key depend on others",
        ),
        (
            STORE,
            "SELECT store, sum(sum(x)) OVER (PARTITION BY store), count(*) FROM orders",
            "count() without GROUP BY is over the rows of all keys",
        ),
        (
            {"store": "coalesce(store, '-')"},
            "SELECT store, count(*) FROM orders GROUP BY store",
            "column store of the result can't be seen to be coalesce(store, '-')",
        ),
        (
            {"d": "current_date()"},
            "SELECT current_date() AS d, count(*) FROM orders GROUP BY 1",
            "key: d: current_date(): current_date() isn't told by one row",
        ),
        (
            STORE,
            "SELECT store, count(*) FROM orders WHERE at > TIMESTAMP 'today' GROUP BY store",
            "'today' gives other values each time, and only keys of new rows are computed again",
        ),
        (
            STORE,
            "SELECT o.store, count(*) FROM orders o LEFT ANTI JOIN refunds r ON o.id = r.id GROUP BY o.store",
            "tables of from: are joined without store being equal",
        ),
        (STORE, "SELECT t.store, count(*) FROM orders AS t(city, store) GROUP BY t.store", "GROUP BY lacks store"),
        (
            STORE,
            "WITH o(city, store) AS (SELECT store, city FROM orders) SELECT store, count(*) FROM o GROUP BY store",
            "GROUP BY lacks store",
        ),
        (
            STORE,
            "SELECT * REPLACE (upper(store) AS store) FROM orders",
            "column store of the result can't be seen to be store",
        ),
        (
            STORE,
            "SELECT * EXCEPT (store), city AS store FROM orders",
            "column store of the result can't be seen to be store",
        ),
        (
            STORE,
            "SELECT x.store, y.n FROM orders x NATURAL JOIN (SELECT city, count(*) n FROM orders GROUP BY city) y",
            "GROUP BY lacks store",
        ),
        (
            STORE,
            "SELECT store, count(*) FROM orders FULL JOIN stores USING (store) GROUP BY store",
            "FULL JOIN gives rows that no row of a table of from: is behind",
        ),
        (
            {"a": "a", "b": "b"},
            "SELECT b AS a, a AS b, count(*) FROM orders GROUP BY a, b",
            "column a of the result can't be seen to be a",
        ),
        (STORE, OTHER_SIDE, "column store of the result can't be seen to be store"),
    ],
)
def test_queries_whose_keys_depend_on_rows_of_others(key: dict[str, str], sql: str, why: str) -> None:
    assert why in problems(sql, "aggregate", key=key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("session_window(at, '5 minutes').start", "session_window() isn't told by one row"),
        ("window(at, '1 hour', '5 minutes').start", "window() with a slide isn't told by one row"),
        ("rand()", "rand() isn't told by one row"),
        ("max(at)", "max() isn't told by one row"),
        ("(SELECT max(x) FROM stores)", "has a subquery"),
    ],
)
def test_a_key_is_told_by_one_row(key: str, why: str) -> None:
    sql = f"SELECT {key} AS k, count(*) FROM orders GROUP BY 1"
    assert why in problems(sql, "aggregate", key={"k": key})


def test_a_key_that_is_no_expression_is_told() -> None:
    assert "key: k: 1 + can't be understood" in problems("SELECT k FROM orders", "aggregate", key={"k": "1 +"})
