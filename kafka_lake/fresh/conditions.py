"""Which records of a topic are a table's, and conditions of the settings, in DuckDB's SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from duckdb import Error as DuckDBError

from kafka_lake.errors import FreshReadError
from kafka_lake.runtime.snapshot_rows import Database, literal
from kafka_lake.spec.topic_table import TopicTable, When

if TYPE_CHECKING:
    from sqlglot import exp

_ALIKE = {
    "And", "Between", "Boolean", "Coalesce", "Column", "EQ", "GT", "GTE", "Identifier", "In", "Is", "LT", "LTE", "Like",
    "Literal", "Lower", "NEQ", "Neg", "Not", "Null", "Or", "Paren", "Upper",
}  # fmt: skip
"""Expressions that mean the same to Spark and to DuckDB."""
_VALUE = "TRY(decode(value))"


def in_duckdb(sql: str) -> str:
    """Return an expression of Spark's SQL in DuckDB's."""
    import sqlglot

    return sqlglot.transpile(sql, read="spark", write="duckdb")[0]


def _is_alike(node: exp.Expr) -> bool:
    # In LIKE, only Spark takes a backslash as an escape.
    kind = type(node).__name__
    return kind in _ALIKE and not (kind == "Like" and "\\" in node.sql())


def condition_of(sql: str, setting: str) -> str:
    """Return a condition of Spark's SQL in DuckDB's; null counts as false.

    Raises:
        FreshReadError: If it has an expression that DuckDB may evaluate differently.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        unsafe = sorted({type(node).__name__ for node in sqlglot.parse_one(sql, read="spark").walk()
                         if not _is_alike(node)})  # fmt: skip
    except SqlglotError as error:
        unsafe = [str(error).splitlines()[0]]
    if unsafe:
        raise FreshReadError(
            f"{setting} has {', '.join(unsafe)}, and fresh reads compare columns and literals only: {sql!r}.",
            "Query the table without its unread records.",
        )
    return f"coalesce({in_duckdb(sql)}, false)"


def condition_for(topic: TopicTable, table: TopicTable) -> str | None:
    """Return the condition of the records of one of a topic's tables; None if all records are the table's.

    Raises:
        FreshReadError: If a condition is by the schema's name, or can't be evaluated by DuckDB.
    """
    if not topic.has_routes:
        return None
    named = ".".join(table.identifier)
    number = [other.identifier for other in topic.tables].index(table.identifier) - 1
    settings = {**{n: route.when for n, route in enumerate(topic.routes)}, **({-1: topic.where} if topic.where else {})}
    if number in settings:
        return _holds(settings[number], named)
    if topic.route_by is not None and number < 0:
        raise FreshReadError(
            f"Table {named} takes the records whose value has no table. The next commit may create tables for them.",
            "Read the tables of the values, or query this table without its unread records.",
        )
    others = [f"NOT {_holds(when, named)}" for when in settings.values()]
    own = [] if number < 0 else [_holds(topic.every_route[number].when, named)]
    return " AND ".join([*others, *own]) or None


def holds(database: Database, rows: pa.Table, condition: str, setting: str) -> pa.Array:
    """Return for which rows a condition of `condition_of` holds.

    Raises:
        FreshReadError: If DuckDB can't evaluate it, as a number and a text that isn't one can't be compared.
    """
    with database.cursor() as cursor:
        cursor.register("rows", rows)
        try:
            return (
                cursor.sql(f"SELECT {condition} AS holds FROM rows").to_arrow_table().column("holds").combine_chunks()
            )
        except DuckDBError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            remedy = "Compare columns with values of their types, or query the table without its unread records."
            raise FreshReadError(f"{setting} can't be evaluated by DuckDB: {reason}.", remedy) from error


def _holds(when: When, table: str) -> str:
    kind, source = when.source
    if kind == "sql":
        return condition_of(source, f"where: of table {table}")
    if kind == "schema":
        raise FreshReadError(
            f"where: of table {table} uses schema:, which fresh reads don't support.",
            "Query the table without its unread records.",
        )
    values = ", ".join(map(literal, when.values))
    return f"coalesce({_text_of(kind, source)} IN ({values}), false)"


def _text_of(kind: str, source: str) -> str:
    if kind == "header":
        return f"TRY(decode(list_filter(headers, lambda h: h.key = {literal(source)})[-1].value))"
    if kind == "field":
        return _member("$" + "".join(f".{_quoted(part)}" for part in source.split(".")))
    # As Spark does: a converter with schemas.enable wraps the event.
    roots = ["$.source", "$.payload.source"] if source == "debezium" else ["$"]
    schemas = ("schema", "db") if source == "debezium" else ("database",)
    names = [
        f"coalesce({', '.join(_member(f'{root}.{name}') for name in schemas)}) || '.' || {_member(f'{root}.table')}"
        for root in roots
    ]
    return f"coalesce({', '.join(names)})"


def _member(path: str) -> str:
    return f"CASE WHEN json_valid({_VALUE}) THEN json_extract_string({_VALUE}, {literal(path)}) END"


def _quoted(part: str) -> str:
    escaped = part.replace('"', '\\"')
    return f'"{escaped}"'
