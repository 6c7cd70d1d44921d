"""Rules that rows are asked by Arrow while they are written: those of which it says what Spark would. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
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

from kafka_lake.executors.writing.rules import MOST_RULES, Answer, RuleTest, Test
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.result import SAMPLES, RuleResult, commit_result

_WHOLE, _TIMES = (IntegerType, LongType), (DateType, TimestampType, TimestamptzType)
_COMPARISONS: Mapping[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Up to here, each whole number is a double.
_EXACT = 2**53
_DIGITS = 17
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9 _.:-]*")
# What sqlglot takes and Spark refuses, or may read differently: a comment goes on in the next line after a backslash,
# and what is in double quotes may be a name.
_UNLIKE_SPARK = re.compile(
    r"--|/\*|[;{\\\x22]|[^\x00-\x7f]|\b(?:isnull|notnull|asymmetric)\b|(?<!\bis)\s+not\s+null\b", re.IGNORECASE
)

_CLASS = r"\[\^?(?:[A-Za-z0-9 _@,:;/%=!~'\"<>#.+*?(){}$|-]|\\[dw.^$|?*+()\[\]{}\\/@-])+\]"
_TOKENS = re.compile(
    rf"(?P<one>[A-Za-z0-9 _@,:;/%&=!~'\"<>#-]|\\[dw.^$|?*+()\[\]{{}}\\/@-]|{_CLASS}|\.|\))"
    r"|(?P<times>(?:[?*+]|\{\d+(?:,\d*)?\})\??)"
    r"|(?P<other>\(\?:|\(|\||\^|\$)"
)
_DOT = r"[^\n\r\x{85}\x{2028}\x{2029}]"


@dataclass(frozen=True)
class Answers:
    """What rows answered to rules while they were written.

    Args:
        rows: How many were asked, those that were set apart among them.
        by_rule: What they answered, by the rule's name, of rules that all of them could answer.
        set_apart: Whether those that are to be dead letters by the rules became no rows.
    """

    rows: int = 0
    by_rule: Mapping[str, Answer] = field(default_factory=dict)
    set_apart: bool = False

    def may_stay(self, rules: Iterable[Rule]) -> bool:
        """Return whether what became of the rows is what the rules ask for.

        Not where rows were set apart, and some of them couldn't answer all rules; nor where a rule fails the commit,
        whose records are no dead letters then.
        """
        if not self.set_apart or not self.rows:
            return True
        results = [self.result(rule) for rule in rules]
        return not any(each is None or each.fails for each in results)

    def refused(self, rules: Iterable[Rule]) -> dict[str, int]:
        """Return how many rows were set apart because of rules, by the rule's name; a row may break several."""
        found = {rule.name: self.result(rule) for rule in rules if self.set_apart and rule.error_class}
        return {name: each.failed for name, each in found.items() if each is not None and each.failed}

    def result(self, rule: Rule) -> RuleResult | None:
        """Return what a rule finds; None if only another look at the rows can tell."""
        if self.set_apart and rule.kind == "row_count":
            return commit_result(rule, self.rows)
        if rule.name not in self.by_rule:
            return None
        kept, nulls, firsts = self.by_rule[rule.name]
        if rule.kind == "null_share":
            return commit_result(rule, self.rows, self.rows - kept)
        failed = self.rows - kept - nulls
        if failed and not self.set_apart:
            # Of rows that go because of another rule, it is to be told that they break this one, too.
            return None
        return RuleResult(rule, self.rows, failed, nulls, samples=firsts[:SAMPLES])


def rules_for_arrow(rules: Iterable[Rule], schema: Schema) -> tuple[RuleTest, ...]:
    """Return the rules that Arrow can ask.

    Args:
        rules: Those of the table. Those aren't among them of which Spark might say otherwise, or which it might refuse.
        schema: Of the rows.
    """
    columns = _Columns(schema)
    found = [(rule, _test(rule, columns)) for rule in rules]
    return tuple((rule.name, rule.said, rule.error_class, test) for rule, test in found if test is not None)


def may_set_apart(rules: Sequence[Rule], tests: Sequence[RuleTest]) -> bool:
    """Return whether those who write rows can tell which are to be dead letters, and all rules that these break.

    Args:
        rules: Those of the table.
        tests: Those that they ask.
    """
    asked = {name for name, *_ in tests}
    told = all(rule.name in asked or rule.kind == "row_count" for rule in rules)
    return told and len(tests) <= MOST_RULES and any(rule.error_class for rule in rules)


class _Columns:
    """The columns that have one name, however it is spelled, and a type without parts."""

    def __init__(self, schema: Schema) -> None:
        names = [field.name.lower() for field in schema.fields]
        self._types = {
            field.name: field.field_type
            for field in schema.fields
            if isinstance(field.field_type, PrimitiveType) and names.count(field.name.lower()) == 1
        }

    def type_of(self, name: str) -> PrimitiveType | None:
        return self._types.get(name)


def _test(rule: Rule, columns: _Columns) -> Test | None:
    entry = rule.entry
    if entry.expression is not None:
        return _by_expression(entry.expression, columns)
    if len(rule.columns) != 1 or (kind := columns.type_of(rule.columns[0])) is None:
        return None
    name = rule.columns[0]
    if rule.kind in ("not_null", "null_share"):
        return ("told", name)
    if entry.accepted_values is not None:
        values = entry.accepted_values.values
        return ("in", name, values) if all(_is_of(value, kind) for value in values) else None
    if entry.pattern is not None:
        regex = as_re2(entry.pattern.regex) if isinstance(kind, StringType) else None
        return None if regex is None else ("matches", name, regex)
    if entry.range is not None:
        return _range(name, kind, entry.range.min, entry.range.max)
    return None


def _is_of(value: Any, kind: PrimitiveType) -> bool:
    if isinstance(value, bool):
        return isinstance(kind, BooleanType)
    if isinstance(value, int):
        bits = 63 if isinstance(kind, LongType) else 31
        return isinstance(kind, _WHOLE) and -(2**bits) <= value < 2**bits
    return isinstance(kind, StringType) and isinstance(value, str) and not _SURROGATE.search(value)


def _range(name: str, kind: PrimitiveType, least: Any, greatest: Any) -> Test | None:
    found: Test | None = None
    for comparison, bound in ((">=", least), ("<=", greatest)):
        if bound is None:
            continue
        value = _bound(bound, kind)
        if value is None:
            return None
        test = (comparison, name, ("value", value))
        found = test if found is None else ("and", found, test)
    return found


def _bound(bound: Any, kind: PrimitiveType) -> Any:
    """Return a bound as a column of a type is compared with it; None if Spark alone can say how."""
    if isinstance(kind, _TIMES):
        return _time(bound, kind) if isinstance(bound, str) else None
    if isinstance(bound, (bool, str)) or not abs(bound) <= _EXACT:
        return None
    if isinstance(kind, _WHOLE):
        return bound if isinstance(bound, int) else None
    return float(bound) if isinstance(kind, DoubleType) else None


def _time(text: str, kind: PrimitiveType) -> Any:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if isinstance(kind, TimestamptzType):
        # Rows are written by Arrow where the session's zone is UTC, and only there.
        offset = time.utcoffset() or timedelta()
        # Spark has no zones beyond these.
        if abs(offset) > timedelta(hours=18) or offset.microseconds:
            return None
        try:
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        except OverflowError:
            return None
    if time.tzinfo is not None:
        return None
    return time.date() if isinstance(kind, DateType) else time


def as_re2(regex: str) -> str | None:
    r"""Return a regular expression of Java's in RE2's words.

    One difference is left: to Java, ``$`` is also before a line break that ends the text.

    Args:
        regex: Of Java's.

    Returns:
        None if the two might understand it differently.

    >>> as_re2("^[^@]+@[a-z.]+$"), as_re2(r"\bword"), as_re2("a++")
    ('^[^@]+@[a-z.]+$', None, None)
    """
    said, at, before, depth = "", 0, "other", 0
    while at < len(regex):
        token = _TOKENS.match(regex, at)
        if token is None or token.lastgroup is None:
            return None
        if token.lastgroup == "times" and before != "one":
            return None
        if token[0] == "$" and not _nothing_follows(regex, token.end(), depth):
            return None
        depth += token[0].startswith("(") - (token[0] == ")")
        said += _DOT if token[0] == "." else token[0]
        at, before = token.end(), token.lastgroup
    try:
        pc.match_substring_regex(pa.array([""]), said)
    except pa.ArrowInvalid:
        return None
    return said


def _nothing_follows(regex: str, end: int, depth: int) -> bool:
    # What followed could take the line break.
    """Return whether a part that ends in a regular expression is the last of it, or of an alternative of the whole."""
    return not regex[end:].strip(")") or (depth == 0 and regex[end] == "|")


def _by_expression(text: str, columns: _Columns) -> Test | None:
    try:
        return None if _UNLIKE_SPARK.search(text) else _condition(sqlglot.parse_one(text, read="spark"), columns)
    except (SqlglotError, RecursionError):
        return None


def _condition(tree: exp.Expr | None, columns: _Columns) -> Test | None:
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


def _comparison(word: str, left: exp.Expr, right: exp.Expr, columns: _Columns) -> Test | None:
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
    if isinstance(kind, _WHOLE):
        return "whole"
    return type(kind).__name__ if isinstance(kind, (DoubleType, StringType, *_TIMES)) else ""


def _name(tree: exp.Expr, columns: _Columns) -> str | None:
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
    if "e" in text.lower() or len(text) > _DIGITS or abs(number) > _EXACT:
        return None
    if isinstance(kind, _WHOLE):
        return int(number) if number == int(number) else None
    return float(number) if isinstance(kind, DoubleType) else None
