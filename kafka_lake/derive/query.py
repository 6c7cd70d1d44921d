"""The text of a query: what it reads, its fingerprint, and the column that names the record of a row. Pure."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.derive.derived_table import DerivedTable

ORIGIN = "_kafka"
"""The metadata column, which names the record of a row. Queries know it by this name, whatever the topic calls it."""
_DIALECT = "spark"
_UNSTABLE = frozenset(
    "rand random randn randstr uniform uuid shuffle now curdate monotonically_increasing_id".split()  # noqa: SIM905
)
_BARE = frozenset({"current_date", "current_time", "current_timestamp", "localtimestamp"})


def parsed(sql: str) -> exp.Query:
    """Return a query as a tree.

    Raises:
        ConfigurationError: If the text isn't one query.
    """
    statements = _parsed("sql:", sql)
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        kinds = ", ".join(each.key.upper() for each in statements) or "nothing"
        raise ConfigurationError(f"sql: is {kinds}, and must be one query.", "Write one SELECT in Spark SQL.")
    return statements[0]


def parsed_key(name: str, text: str) -> exp.Expr:
    """Return the expression of a key's column as a tree.

    Raises:
        ConfigurationError: If the text isn't one expression.
    """
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


def tables_read(query: exp.Expr) -> set[str]:
    """Return the names of the tables that a query reads, without its own common table expressions.

    >>> sorted(tables_read(parsed("WITH a AS (SELECT * FROM b) SELECT * FROM a JOIN c.d USING (id)")))
    ['b', 'c.d']
    """
    return set(_tables(query, frozenset()))


def _tables(node: exp.Expr, known: frozenset[str]) -> Iterator[str]:
    if isinstance(node, exp.Query):
        for each in _with_of(node):
            name = each.alias.lower()
            # Inside an expression, its own name still means the table of that name, unless it is recursive.
            is_recursive = isinstance(each.parent, exp.With) and each.parent.args.get("recursive")
            yield from _tables(each.this, known | {name} if is_recursive else known)
            known |= {name}
    for child in node.iter_expressions():
        if isinstance(child, exp.Table) and isinstance(child.this, exp.Identifier):
            name = ".".join(part.name for part in child.parts)
            if name.lower() not in known:
                yield name
        if not isinstance(child, exp.With):
            yield from _tables(child, known)


def result_columns(query: exp.Query) -> set[str] | None:
    """Return the names of a query's columns in lower case; None if the text alone doesn't name all of them.

    >>> sorted(result_columns(parsed("SELECT a.B, 1 AS c FROM a")) or ())
    ['b', 'c']
    """
    selected = query.selects
    if not selected or any(each.is_star or not each.alias_or_name for each in selected):
        return None
    return {each.alias_or_name.lower() for each in selected}


def unstable_in(sql: str) -> str:
    """Return a function of a query whose value differs from run to run; empty if there is none.

    >>> unstable_in("SELECT id, current_date AS day FROM orders"), unstable_in("SELECT now FROM orders")
    ('current_date()', '')
    """
    for token, following in pairwise([*_tokens(sql), Token(TokenType.SEMICOLON, "")]):
        name = token.text.lower()
        is_called = following.token_type == TokenType.L_PAREN and name in _UNSTABLE
        if is_called or (name in _BARE and token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER)):
            return f"{name}()"
    return ""


def fingerprint(spec: DerivedTable) -> str:
    """Return a text that changes when the rows of the table may change, but not with spaces and comments.

    Raises:
        ConfigurationError: If the query can't be read.
    """
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
    # sqlglot's own rendering would change with its version.
    return " ".join(sql[each.start : each.end + 1] for each in _tokens(sql) if each.token_type != TokenType.SEMICOLON)


def _tokens(sql: str) -> list[Token]:
    try:
        return list(sqlglot.tokenize(sql, read=_DIALECT))
    except SqlglotError as error:
        raise ConfigurationError(f"sql: can't be understood: {error}.", "Write one SELECT in Spark SQL.") from error


def with_origin(sql: str, upstream: Collection[str]) -> str:
    """Return a query whose result has the metadata column.

    A SELECT from an upstream table gets it added; the rest of the text stays as it is. Queries of other shapes must
    select it themselves: Spark's columns show whether they do.

    >>> with_origin("SELECT id FROM orders o", ["orders"])
    'SELECT `o`._kafka AS _kafka,  id FROM orders o'
    """
    query = parsed(sql)
    if not isinstance(query, exp.Select) or _may_select_origin(query):
        return sql
    begins = query.args.get("from_")
    tables = [begins.this, *(join.this for join in query.args.get("joins") or ())] if begins is not None else []
    names = {each.lower() for each in upstream} - {each.alias.lower() for each in _with_of(query)}
    read = [each for each in tables if isinstance(each, exp.Table) and each.name.lower() in names and not each.db]
    at = _select_at(sql)
    return f"{sql[:at]} `{read[0].alias_or_name}`.{ORIGIN} AS {ORIGIN}, {sql[at:]}" if read and at else sql


def _may_select_origin(select: exp.Select) -> bool:
    for each in select.expressions:
        if each.is_star:
            star = each.this if isinstance(each, exp.Column) else each
            if not any(one.name.lower() == ORIGIN for one in star.args.get("except_") or ()):
                return True
        elif each.alias_or_name.lower() == ORIGIN:
            return True
    return False


def _select_at(sql: str) -> int:
    """Return where the list of the outermost SELECT begins; 0 if nothing can be added there."""
    depth, tokens = 0, _tokens(sql)
    for token, following in pairwise(tokens):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.SELECT and not depth:
            is_special = following.token_type in (TokenType.HINT, TokenType.DISTINCT, TokenType.ALL)
            return 0 if is_special else token.end + 1
    return 0


def _with_of(query: exp.Expr) -> list[exp.Expr]:
    with_ = query.args.get("with_")
    return list(with_.expressions) if with_ is not None else []


def over_views(sql: str, views: Mapping[str, str]) -> str:
    """Return the query over views in the place of tables; its text stays as it is."""
    named = ", ".join(f"`{table}` AS (SELECT * FROM `{view}`)" for table, view in views.items())
    # The line's end closes a comment.
    return f"WITH {named}\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n)"
