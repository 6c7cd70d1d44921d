"""The text of a query: its tables, its fingerprint, and the metadata column. Pure."""

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

from kafka_lake.derived.derived_table import DerivedTable
from kafka_lake.errors import ConfigurationError

ORIGIN = "_kafka"
"""The metadata column's name in queries, whatever the topic calls it."""
_DIALECT = "spark"


def parsed(sql: str) -> exp.Query:
    """Return a query as a tree."""
    statements = _parsed("sql:", sql)
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        kinds = ", ".join(each.key.upper() for each in statements) or "nothing"
        raise ConfigurationError(f"sql: is {kinds}, and must be one query.", "Write one SELECT in Spark SQL.")
    return statements[0]


def parsed_key(name: str, text: str) -> exp.Expr:
    """Return the expression of a key's column as a tree."""
    found = _parsed(f"key: {name}: {text}", f"SELECT {text}")
    if len(found) != 1 or len(found[0].selects) != 1:
        raise ConfigurationError(f"key: {name}: {text} isn't one expression.", "Write an expression in Spark SQL.")
    tree: exp.Expr = found[0].selects[0]
    return tree


def _parsed(what: str, sql: str) -> list[Any]:
    try:
        return [each for each in sqlglot.parse(sql, read=_DIALECT) if each is not None]
    except (SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(". ")
        raise ConfigurationError(f"{what} can't be understood: {reason}.", "Write Spark SQL.") from error


def tables_read(query: exp.Query) -> set[str]:
    """Return the names of the tables that a query reads, in lower case, without its own common table expressions.

    >>> sorted(tables_read(parsed("WITH a AS (SELECT * FROM B) SELECT * FROM A JOIN c.d USING (id)")))
    ['b', 'c.d']
    """
    try:
        scopes = traverse_scope(normalize_identifiers(query.copy(), dialect=_DIALECT))
    except SqlglotError as error:
        raise ConfigurationError(f"sql: {error}.", "Give one of them another name by AS.") from error
    sources = (each for scope in scopes for each in scope.sources.values())
    tables = (each for each in sources if isinstance(each, exp.Table) and isinstance(each.this, exp.Identifier))
    return {".".join(part.name for part in each.parts) for each in tables}


def result_columns(query: exp.Query) -> set[str] | None:
    """Return the names of a query's columns in lower case; None if the text alone doesn't name all of them.

    >>> sorted(result_columns(parsed("SELECT a.B, 1 AS c FROM a")) or ())
    ['b', 'c']
    """
    selected = query.selects
    if not selected or any(each.is_star or not each.alias_or_name for each in selected):
        return None
    return {each.alias_or_name.lower() for each in selected}


def fingerprint(spec: DerivedTable) -> str:
    """Return a fingerprint that changes when the rows of the table may change, but not with spaces and comments."""
    parts = {
        "write": spec.write,
        "from": sorted(map(list, spec.upstream.items())),
        "join": sorted(map(list, spec.joined.items())),
        "sql": spec.sql and _normal(spec.sql),
        "transform": spec.transform,
        "key": sorted((name, _normal(each)) for name, each in spec.key.items()),
        "order_by": spec.order_by,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _normal(sql: str) -> str:
    # Rendering by sqlglot would change with its version.
    return " ".join(sql[each.start : each.end + 1] for each in _tokens(sql) if each.token_type != TokenType.SEMICOLON)


def _tokens(sql: str) -> list[Token]:
    try:
        return list(sqlglot.tokenize(sql, read=_DIALECT))
    except SqlglotError as error:
        raise ConfigurationError(f"sql: can't be understood: {error}.", "Write one SELECT in Spark SQL.") from error


def with_origin(sql: str, upstream: str) -> str:
    """Add the metadata column to a plain SELECT from the upstream table; other queries must select it themselves."""
    query = parsed(sql)
    if not isinstance(query, exp.Select) or any(query.args.get(each) for each in ("distinct", "hint")):
        return sql
    if any(each.is_star or each.alias_or_name.lower() == ORIGIN for each in query.expressions):
        return sql
    joins = [join.this for join in query.args.get("joins") or ()]
    tables = [each for each in (getattr(query.args.get("from_"), "this", None), *joins) if isinstance(each, exp.Table)]
    read = next((each for each in tables if each.name.lower() == upstream.lower() and not each.db), None)
    if read is None or upstream.lower() in {each.alias.lower() for each in query.ctes}:
        return sql
    depth = 0
    for token in _tokens(sql):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.SELECT and not depth:
            at = token.end + 1
            return f"{sql[:at]} `{read.alias_or_name}`.{ORIGIN} AS {ORIGIN}, {sql[at:]}"
    return sql


def over_views(sql: str, views: Mapping[str, str]) -> str:
    """Return the query over views instead of tables, its text unchanged."""
    named = ", ".join(f"`{table}` AS (SELECT * FROM `{view}`)" for table, view in views.items())
    # The line break closes a comment.
    return f"WITH {named}\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n)"
