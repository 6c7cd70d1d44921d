"""Conditions of Spark SQL as those that Arrow asks: comparisons, where Spark converts nothing. Pure."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import sqlglot
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from sqlglot import exp
from sqlglot.errors import SqlglotError

from kafka_lake.executors.writing.rules import Test

# Iceberg's types that are compared as whole numbers, and as times.
WHOLE, TIMES = (IntegerType, LongType), (DateType, TimestampType, TimestamptzType)
_COMPARISONS: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
EXACT = 2**53
"""Up to here, each whole number is a double."""
_DIGITS = 17
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9 _.:-]*")
# What sqlglot takes and Spark refuses, or may read differently: a comment goes on in the next line after a backslash,
# and what is in double quotes may be a name.
_UNLIKE_SPARK = re.compile(
    r"--|/\*|[;{\\\x22]|[^\x00-\x7f]|\b(?:isnull|notnull|asymmetric)\b|(?<!\bis)\s+not\s+null\b", re.IGNORECASE
)


class Columns:
    """The columns that have one name, however it is spelled, and a type without parts.

    Args:
        schema: Of the rows.
    """

    def __init__(self, schema: Schema) -> None:
        names = [field.name.lower() for field in schema.fields]
        self._types = {
            field.name: field.field_type
            for field in schema.fields
            if isinstance(field.field_type, PrimitiveType) and names.count(field.name.lower()) == 1
        }

    def type_of(self, name: str) -> PrimitiveType | None:
        """Return the type of a column by its exact name; None if it is none of them."""
        return self._types.get(name)


def by_expression(text: str, columns: Columns) -> Test | None:
    """Return a condition of Spark SQL as what Arrow asks; None if Spark might say otherwise, or refuse it.

    Args:
        text: The condition.
        columns: That it may be about.
    """
    try:
        return None if _UNLIKE_SPARK.search(text) else _condition(sqlglot.parse_one(text, read="spark"), columns)
    except (SqlglotError, RecursionError):
        return None


def _condition(tree: exp.Expr | None, columns: Columns) -> Test | None:
    """Return a condition of comparisons; None if there is anything else in it."""
    if isinstance(tree, exp.Paren):
        return _condition(tree.this, columns)
    if isinstance(tree, exp.And | exp.Or):
        left, right = _condition(tree.left, columns), _condition(tree.right, columns)
        word = "and" if isinstance(tree, exp.And) else "or"
        return None if left is None or right is None else (word, left, right)
    if isinstance(tree, exp.Not):
        given = _condition(tree.this, columns)
        return None if given is None else ("not", given)
    if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
        name = _name(tree.this, columns)
        return None if name is None else ("not", ("told", name))
    if isinstance(tree, exp.Between) and not tree.args.get("symmetric"):
        low, high = tree.args["low"], tree.args["high"]
        left, right = (_comparison(word, tree.this, other, columns) for word, other in ((">=", low), ("<=", high)))
        return None if left is None or right is None else ("and", left, right)
    if not isinstance(tree, exp.Binary) or type(tree) not in _COMPARISONS:
        return None
    return _comparison(_COMPARISONS[type(tree)], tree.left, tree.right, columns)


def _comparison(word: str, left: exp.Expr, right: exp.Expr, columns: Columns) -> Test | None:
    """Return a comparison of a column with a literal or with another column; None if Spark might convert one."""
    name, other = _name(left, columns), _name(right, columns)
    if name is None and other is not None:
        return _comparison(_TURNED.get(word, word), right, left, columns)
    kind = columns.type_of(name) if name is not None else None
    if kind is None or not _group(kind):
        return None
    if other is not None:
        same = _group(kind) == _group(columns.type_of(other))
        return (word, name, ("column", other)) if same else None
    value = _literal(right, kind)
    if value is None or (isinstance(value, str) and word not in ("=", "<>")):
        return None
    return (word, name, ("value", value))


def _group(kind: PrimitiveType | None) -> str:
    """Return a name for types that are compared as they are; none for those that Spark may convert."""
    if isinstance(kind, WHOLE):
        return "whole"
    return type(kind).__name__ if isinstance(kind, (DoubleType, StringType, *TIMES)) else ""


def _name(tree: exp.Expr, columns: Columns) -> str | None:
    """Return the column that a tree is; None if it is anything else."""
    plain = isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier) and len(tree.parts) == 1
    return tree.name if plain and columns.type_of(tree.name) is not None else None


def _literal(tree: exp.Expr, kind: PrimitiveType) -> Any:
    negative = isinstance(tree, exp.Neg)
    literal = tree.this if negative else tree
    if not isinstance(literal, exp.Literal):
        return None
    text = literal.this
    if literal.is_string:
        fits = isinstance(kind, StringType) and not negative and _PLAIN_TEXT.fullmatch(text)
        return text if fits else None
    try:
        number = Decimal(text) * (-1 if negative else 1)
    except InvalidOperation:
        return None
    if "e" in text.lower() or len(text) > _DIGITS or abs(number) > EXACT:
        return None
    if isinstance(kind, WHOLE):
        return int(number) if number == int(number) else None
    return float(number) if isinstance(kind, DoubleType) else None
