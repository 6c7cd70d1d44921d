"""What users' SQL may call and read: what is refused, and what stays possible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.spec.sql_text import ALLOWED, REFUSED, unsafe_condition, unsafe_query

GETENV = "reflect('java.lang.System', 'getenv', 'HOME')"


@pytest.mark.parametrize(
    "text",
    [
        "error_class = 'wrong_type'",
        "partition = 0 AND offset BETWEEN 1 AND 2 OR offset <> 4711",
        "get_json_object(string(value), '$.type') like 'order%'",
        "email RLIKE '^[^@]+@[^@\\\\s]+$'",
        "exists(items, x -> x.price > 1.5) -- a comment",
        "try_cast(a AS decimal(10, 2)) > 1 /* another */",
        "failed_at < current_timestamp() - INTERVAL 1 DAY",
        "`größe` = 'größe' AND \"a\" <=> 'it''s'",
        "CASE WHEN a IN ('x', 'y') THEN (b) ELSE NOT (c) END",
        "extract(year FROM at) = 2026 AND a IS DISTINCT FROM b",
        "m['a'].b[0]::int % 2 = 0",
        "reflect = 'java_method'",
    ],
)
def test_plain_condition_is_safe(text: str) -> None:
    assert unsafe_condition(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        f"{GETENV} = 'a'",
        f"a = 1 OR {GETENV.replace('(', ' /* */ (', 1)} = 'a'",
        GETENV.upper().replace("REFLECT", "JAVA_METHOD"),
        GETENV.replace("reflect", "try_reflect"),
        GETENV.replace("reflect", "`reflect`"),
        GETENV.replace("reflect", "system.builtin.reflect"),
        GETENV.replace("reflect", "identifier('reflect')"),
        "'${env:HOME}' = 'a'",
        "a = '${system:user.home}'",
        "input_file_name() LIKE '%a%'",
        "lake.system.bucket(4, a) = 1",
        "a IN (SELECT 1)",
        "a IN (FROM other SELECT a)",
        "EXISTS (FROM csv.`/etc/passwd`)",
        "a = (TABLE other)",
        "a IN (VALUES (1))",
        "a IN (WITH b AS (SELECT 1) SELECT * FROM b)",
        "a IN (MAP a USING 'cat' FROM other)",
        f"a -- \\\n OR {GETENV}",
        f"a ://* {GETENV} */ = 1",
        f"a = r'\\' OR {GETENV} = '\\''",
        f'a = "\\" OR {GETENV} = \'"\'',
        f"a = $${GETENV}$$",
        f"a /* /* */ OR {GETENV} */",
        "a IN (\u017fELECT 1)",
        "a = 1; DROP TABLE b",
        "a = 1 |> SELECT *",
        "from_xml(a, 'b int', map('rowValidationXSDPath', '/etc/passwd')).b = 1",
        "a = 'open",
        "(" * 2000 + "a" + ")" * 2000,
        "",
    ],
)
def test_condition_that_reaches_beyond_the_row_is_unsafe(text: str) -> None:
    assert unsafe_condition(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, count(*) AS n FROM orders GROUP BY a HAVING count(*) > 1;",
        "WITH t(a, b) AS (SELECT * FROM orders) SELECT /*+ BROADCAST(t) */ a FROM t JOIN u USING (id)",
        "SELECT x.name FROM orders LATERAL VIEW explode(items) AS x",
        "SELECT * FROM (VALUES (1, 2)) AS t(a, b) -- it's\n",
        "SELECT sum(a) OVER (PARTITION BY b ORDER BY (c)) FROM orders TABLESAMPLE (10 PERCENT)",
    ],
)
def test_plain_query_is_safe(text: str) -> None:
    assert unsafe_query(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT {GETENV} FROM orders",
        "SELECT transform(a) USING 'cat' AS (b) FROM orders",
        "FROM orders MAP a USING 'cat'",
        "SELECT a FROM orders UNION ALL TABLE csv.`/etc/passwd`",
        "SELECT '${env:HOME}' FROM orders",
        "SELECT a FROM orders; DROP TABLE orders",
        "SELECT * FROM python_worker_logs()",
        "SELECT /*+ reflect('a') */ a FROM orders",
    ],
)
def test_query_that_runs_programs_or_reads_files_is_unsafe(text: str) -> None:
    assert unsafe_query(text)


def test_no_refused_function_is_allowed() -> None:
    refused = {name for names in REFUSED for name in names.split()}
    assert not refused & ALLOWED
    assert all(unsafe_condition(f"{name}(a) = 1") for name in refused)


PIECES = (
    "'",
    '"',
    "`",
    "--",
    "/*",
    "*/",
    "/*+",
    "\\",
    "\n",
    " ",
    ";",
    "$",
    "://",
    "r",
    "a",
    "(",
    ")",
    "''",
    ".",
    GETENV,
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_call_outside_of_quotes_is_always_unsafe(text: str) -> None:
    # Where nothing before the call can have opened a quote or a comment, it is a call, whatever follows.
    before = text.partition("reflect(")[0]
    if GETENV in text and not set(before) & set("'\"`-/*$\\"):
        assert unsafe_condition(text)
        assert unsafe_query(text)
