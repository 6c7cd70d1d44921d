"""The text of a query: what it reads, its fingerprint, and the column that tells where a row came from. Pure."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.derive.derived_table import DerivedTable

ORIGIN = "_kafka"
"""The metadata column, by which a row tells its record: the query knows it by this name, whatever it is called."""
_DIALECT = "spark"


def parsed(sql: str) -> exp.Query:
    """Return a query as a tree.

    Raises:
        ConfigurationError: If it is no query, or more than one.
    """
    try:
        statements = [each for each in sqlglot.parse(sql, read=_DIALECT) if each is not None]
    except (SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(". ")
        raise ConfigurationError(f"sql: can't be understood: {reason}.", "Write one SELECT in Spark SQL.") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        kinds = ", ".join(each.key.upper() for each in statements) or "nothing"
        raise ConfigurationError(f"sql: is {kinds}, and must be one query.", "Write one SELECT in Spark SQL.")
    return statements[0]


def parsed_key(name: str, text: str) -> exp.Expr:
    """Return the expression of a key's column as a tree.

    Raises:
        ConfigurationError: If it is none.
    """
    try:
        return sqlglot.parse_one(text, read=_DIALECT)
    except (SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(". ")
        raise ConfigurationError(
            f"key: {name}: {text} can't be understood: {reason}.", "Write an expression in Spark SQL."
        ) from error


def tables_read(query: exp.Expr) -> set[str]:
    """Return the tables that a query reads, as it names them; its own common table expressions are none.

    >>> sorted(tables_read(parsed("WITH a AS (SELECT * FROM b) SELECT * FROM a JOIN c.d USING (id)")))
    ['b', 'c.d']
    """
    return {name for name, _ in _tables(query, frozenset())}


def _tables(node: exp.Expr, known: frozenset[str]) -> Iterator[tuple[str, exp.Table]]:
    if isinstance(node, exp.Query):
        for each in with_of(node):
            name = each.alias.lower()
            # What an expression of this name reads by its own name is what was known before, if it isn't recursive.
            is_recursive = isinstance(each.parent, exp.With) and each.parent.args.get("recursive")
            yield from _tables(each.this, known | {name} if is_recursive else known)
            known |= {name}
    for child in _children(node):
        if isinstance(child, exp.Table) and isinstance(child.this, exp.Identifier):
            name = ".".join(part.name for part in child.parts)
            if name.lower() not in known:
                yield name, child
        if not isinstance(child, exp.With):
            yield from _tables(child, known)


def _children(node: exp.Expr) -> Iterator[exp.Expr]:
    for value in node.args.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, exp.Expr):
                yield each


def fingerprint(spec: DerivedTable) -> str:
    """Return what is another one if the rows of the table may be others, and the same if only spaces or comments are.

    Raises:
        ConfigurationError: If the query can't be read.
    """
    told = {
        "write": spec.write,
        "from": sorted(map(list, spec.upstream.items())),
        "join": sorted(map(list, spec.joined.items())),
        "sql": spec.sql and _normal(spec.sql),
        "transform": spec.transform,
        "key": sorted((name, _normal(each)) for name, each in spec.key.items()),
        "order_by": spec.order_by,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _normal(sql: str) -> str:
    # Not sqlglot's own rendering, which another version of it writes in another way.
    return " ".join(sql[each.start : each.end + 1] for each in tokens_of(sql) if each.token_type != TokenType.SEMICOLON)


def tokens_of(sql: str) -> list[Token]:
    """Return the words and signs of a query, comments apart.

    Raises:
        ConfigurationError: If it can't be read.
    """
    try:
        return list(sqlglot.tokenize(sql, read=_DIALECT))
    except SqlglotError as error:
        raise ConfigurationError(f"sql: can't be understood: {error}.", "Write one SELECT in Spark SQL.") from error


def with_origin(sql: str, upstream: Collection[str]) -> str:
    """Return a row-wise query whose result has the metadata column.

    It has it already if it selects it, or everything. Else it is added to what each outermost SELECT selects; nothing
    else of the text is touched.

    Args:
        sql: The query.
        upstream: Names of the tables whose rows it reads.

    Raises:
        ConfigurationError: If an outermost SELECT reads an upstream table by way of a subquery and doesn't select it.
    """
    selects, text = list(_outermost(parsed(sql))), sql
    places = _select_tokens(sql)
    needed = [(number, select) for number, select in enumerate(selects) if not _has_origin(select, upstream)]
    if not needed:
        return sql
    for number, select in reversed(needed):
        alias = _direct(select, upstream)
        if alias is None or len(places) != len(selects):
            raise ConfigurationError(
                f"sql: the result has no column {ORIGIN}, which tells the record of a row, and a SELECT that reads a "
                "subquery isn't given it automatically.",
                f"Select {ORIGIN} in the query, and in its subqueries.",
            )
        at = places[number]
        text = f"{text[:at]} {alias}.{ORIGIN} AS {ORIGIN}, {text[at:]}"
    return text


def _outermost(node: exp.Expr) -> Iterator[exp.Select]:
    if isinstance(node, exp.SetOperation):
        yield from _outermost(node.left)
        yield from _outermost(node.right)
    elif isinstance(node, exp.Select):
        yield node
    elif isinstance(node, exp.Subquery):
        yield from _outermost(node.this)


def _select_tokens(sql: str) -> list[int]:
    """Return where the lists of the outermost SELECTs begin."""
    places, depth, tokens = [], 0, tokens_of(sql)
    for number, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif token.token_type == TokenType.SELECT and not depth:
            following = tokens[number + 1].token_type if number + 1 < len(tokens) else None
            if following in (TokenType.HINT, TokenType.DISTINCT, TokenType.ALL):
                return []
            places.append(token.end + 1)
    return places


def _has_origin(select: exp.Select, upstream: Collection[str]) -> bool:
    for each in select.expressions:
        star = each.this if isinstance(each, exp.Column) else each
        if isinstance(star, exp.Star):
            if any(one.name.lower() == ORIGIN for one in star.args.get("except_") or ()):
                continue
            owner = each.table if isinstance(each, exp.Column) else ""
            alias = _direct(select, upstream)
            # Of a subquery nobody knows here what it selects: Spark will tell.
            if alias is None or not owner or owner.lower() == alias.strip("`").lower():
                return True
        elif each.alias_or_name.lower() == ORIGIN:
            return True
    return False


def with_of(query: exp.Expr) -> list[exp.Expr]:
    """Return the common table expressions that a query begins with."""
    with_ = query.args.get("with_") or query.args.get("with")
    return list(with_.expressions) if with_ is not None else []


def sources_of(select: exp.Select) -> list[exp.Expr]:
    """Return what a SELECT reads, what is behind its FROM first."""
    begins = select.args.get("from_") or select.args.get("from")
    first = [begins.this] if begins is not None else []
    return [*first, *(join.this for join in select.args.get("joins") or ())]


def _direct(select: exp.Select, upstream: Collection[str]) -> str | None:
    """Return the quoted name of an upstream table in a SELECT that reads it directly; None if it doesn't."""
    names = {each.lower() for each in upstream}
    names -= {each.alias.lower() for each in with_of(select)}
    for each in sources_of(select):
        if isinstance(each, exp.Table) and each.name.lower() in names and not each.db:
            return f"`{each.alias_or_name}`"
    return None


def over_views(sql: str, views: Mapping[str, str]) -> str:
    """Return the query with the names of tables standing for views; its text is as it was.

    Args:
        sql: The query.
        views: The view of each table, by the table's name.
    """
    named = ", ".join(f"`{table}` AS (SELECT * FROM `{view}`)" for table, view in views.items())
    # The line's end closes a comment.
    return f"WITH {named}\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n)"
