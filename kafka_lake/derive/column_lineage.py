"""Which columns of the tables that a query reads each column of its result is made of, as the text tells. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage

How = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION"]


@dataclass(frozen=True, order=True)
class Origin:
    """A column that another one is made of.

    Args:
        table: The table's name in the query.
        column: The column, as the table has it.
        how: Whether it is that column, is computed from it, or from it in several rows.
    """

    table: str
    column: str
    how: How


def origins_of(sql: str, columns: Sequence[str], tables: Mapping[str, Sequence[str]]) -> dict[str, list[Origin]]:
    """Return for each column of a query's result those that it is made of; those that nobody can tell are left out.

    What decides which rows there are (JOIN, WHERE, GROUP BY) is no origin of a column.

    Args:
        sql: The query.
        columns: Of its result.
        tables: The tables that it reads and their columns, by their names in the query.

    >>> origins_of("SELECT id, sum(total * 2) AS t, 1 AS one FROM orders", ["id", "one"], {"orders": ["Id", "total"]})
    {'id': [Origin(table='orders', column='Id', how='IDENTITY')]}
    """
    known = {table.lower(): (table, {each.lower(): each for each in there}) for table, there in tables.items()}
    schema = {table: dict.fromkeys(there, "string") for table, (_, there) in known.items()}
    found: dict[str, list[Origin]] = {}
    for column in columns:
        try:
            # By their names in lower case, as Spark takes them for the same.
            node = lineage(f"`{column.lower()}`", sql, schema=schema, dialect="spark")
        except (SqlglotError, ValueError, KeyError, RecursionError):
            continue
        origins = set[Origin]()
        for table, name, how in _leaves(node, "IDENTITY"):
            written, there = known.get(table, ("", {}))
            if name in there:
                origins.add(Origin(written, there[name], how))
        if origins:
            found[column] = sorted(origins)
    return found


def _leaves(node: Node, how: How) -> list[tuple[str, str, How]]:
    """Return table, column and way of what a column is made of in the end."""
    if isinstance(node.expression, exp.Table):
        return [(node.expression.name.lower(), node.name.rpartition(".")[2].strip("`").lower(), how)]
    inner = node.expression.unalias() if isinstance(node.expression, exp.Expr) else node.expression
    if how != "AGGREGATION" and isinstance(inner, exp.Expr) and not isinstance(inner, exp.Query):
        if inner.find(exp.AggFunc):
            how = "AGGREGATION"
        elif not isinstance(inner, exp.Column):
            how = "TRANSFORMATION"
    return [leaf for each in node.downstream for leaf in _leaves(each, how)]
