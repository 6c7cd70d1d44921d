"""The SQL text of a query: its tables, its fingerprint, and the metadata column. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
from sqlglot.optimizer.scope import traverse_scope
from sqlglot.tokenizer_core import Token, TokenType

from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ConfigurationError

_DIALECT = "spark"


def parsed(sql: str) -> exp.Query:
    """Return a query as a tree."""
    statements = _parsed("sql:", sql)
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        kinds = ", ".join(statement.key.upper() for statement in statements) or "nothing"
        raise ConfigurationError(f"sql: is {kinds}, and must be one query.", "Write one SELECT in Spark SQL.")
    return statements[0]


def parsed_key(name: str, text: str) -> exp.Expr:
    """Return the expression of a key's column as a tree."""
    statements = _parsed(f"key: {name}: {text}", f"SELECT {text}")
    if len(statements) != 1 or len(statements[0].selects) != 1:
        raise ConfigurationError(f"key: {name}: {text} isn't one expression.", "Write an expression in Spark SQL.")
    tree: exp.Expr = statements[0].selects[0]
    return tree


def _parsed(what: str, sql: str) -> list[Any]:
    try:
        return [statement for statement in sqlglot.parse(sql, read=_DIALECT) if statement is not None]
    except (SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(". ")
        raise ConfigurationError(f"{what} can't be parsed: {reason}.", "Write Spark SQL.") from error


def tables_read(query: exp.Query) -> set[str]:
    """Return the names of the tables that a query reads, in lower case, without its own common table expressions.

    >>> sorted(tables_read(parsed("WITH a AS (SELECT * FROM B) SELECT * FROM A JOIN c.d USING (id)")))
    ['b', 'c.d']
    """
    try:
        scopes = traverse_scope(normalize_identifiers(query.copy(), dialect=_DIALECT))
    except SqlglotError as error:
        raise ConfigurationError(f"sql: {error}.", "Rename one of them with AS.") from error
    sources = [source for scope in scopes for source in scope.sources.values()]
    tables = [table for table in sources if isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier)]
    return {".".join(part.name for part in table.parts) for table in tables}


def result_columns(query: exp.Query) -> set[str] | None:
    """Return the names of a query's columns in lower case; None if the text alone doesn't name all of them.

    >>> sorted(result_columns(parsed("SELECT a.B, 1 AS c FROM a")) or ())
    ['b', 'c']
    """
    columns = query.selects
    if not columns or any(column.is_star or not column.alias_or_name for column in columns):
        return None
    return {column.alias_or_name.lower() for column in columns}


def fingerprint(spec: DerivedTable) -> str:
    """Return a fingerprint that changes when the rows of the table may change, but not with spaces and comments."""
    parts = {
        "write": spec.write,
        "from": sorted(map(list, spec.upstream.items())),
        "join": sorted(map(list, spec.joined.items())),
        "sql": spec.sql and _normal(spec.sql),
        "transform": spec.transform,
        "key": sorted((name, _normal(text)) for name, text in spec.key.items()),
        "order_by": spec.order_by,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _normal(sql: str) -> str:
    # Text that sqlglot writes would change with its version.
    return " ".join(sql[t.start : t.end + 1] for t in _tokens(sql) if t.token_type != TokenType.SEMICOLON)


def _tokens(sql: str) -> list[Token]:
    try:
        return list(sqlglot.tokenize(sql, read=_DIALECT))
    except SqlglotError as error:
        raise ConfigurationError(f"sql: can't be parsed: {error}.", "Write one SELECT in Spark SQL.") from error


def with_origin(sql: str, upstream: str) -> str:
    """Add the metadata column to a plain SELECT from the upstream table; other queries must select it themselves."""
    query = parsed(sql)
    if not isinstance(query, exp.Select) or any(query.args.get(name) for name in ("distinct", "hint")):
        return sql
    if any(column.is_star or column.alias_or_name.lower() == METADATA_COLUMN for column in query.expressions):
        return sql
    joins = [join.this for join in query.args.get("joins") or ()]
    tables = [t for t in (getattr(query.args.get("from_"), "this", None), *joins) if isinstance(t, exp.Table)]
    read = next((table for table in tables if table.name.lower() == upstream.lower() and not table.db), None)
    if read is None or upstream.lower() in {cte.alias.lower() for cte in query.ctes}:
        return sql
    depth = 0
    for token in _tokens(sql):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.SELECT and not depth:
            at = token.end + 1
            return f"{sql[:at]} `{read.alias_or_name}`.{METADATA_COLUMN} AS {METADATA_COLUMN}, {sql[at:]}"
    return sql


def over_views(sql: str, views: Mapping[str, str]) -> str:
    """Return the query over views instead of tables, its text unchanged."""
    named = ", ".join(f"`{table}` AS (SELECT * FROM `{view}`)" for table, view in views.items())
    # The line break closes a comment.
    return f"WITH {named}\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n)"
