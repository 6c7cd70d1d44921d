"""Rules that rows are asked by Arrow while they are written: those of which it says what Spark would. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    LongType,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from kafka_lake.executors.writing.rules import MOST_RULES, Answer, RuleTest, Test
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.arrow_expression import EXACT, TIMES, WHOLE, Columns, by_expression
from kafka_lake.ingest.rules.re2 import as_re2
from kafka_lake.ingest.rules.result import SAMPLES, RuleResult, commit_result

_SURROGATE = re.compile(r"[\ud800-\udfff]")


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
    columns = Columns(schema)
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


def _test(rule: Rule, columns: Columns) -> Test | None:
    entry = rule.entry
    if entry.expression is not None:
        return by_expression(entry.expression, columns)
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
        return isinstance(kind, WHOLE) and -(2**bits) <= value < 2**bits
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
    if isinstance(kind, TIMES):
        return _time(bound, kind) if isinstance(bound, str) else None
    if isinstance(bound, (bool, str)) or not abs(bound) <= EXACT:
        return None
    if isinstance(kind, WHOLE):
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
