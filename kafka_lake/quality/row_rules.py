"""Rules of single rows as tests for Arrow; values of the settings are converted to the columns' types. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any

from pyspark.sql import types as T

from kafka_lake.errors import ConfigurationError
from kafka_lake.quality.result import RuleResult
from kafka_lake.quality.task.rules import Answer, Path, RuleTest
from kafka_lake.spec.rule import Rule

_ENOUGH_DIGITS = 100
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True)
class RowRules:
    """The rules of single rows of a table.

    Args:
        unknown: Columns that the table lacks, by rule.
    """

    rules: tuple[Rule, ...] = ()
    tests: tuple[RuleTest, ...] = ()
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def results(self, rows: int, answers: Mapping[str, Answer]) -> tuple[RuleResult, ...]:
        """Return the results for so many rows and their answers."""
        return tuple(self._result(rule, rows, *answers.get(rule.name, (0, 0, None))) for rule in self.rules)

    def _result(self, rule: Rule, rows: int, failed: int, nulls: int, first: tuple[int, int] | None) -> RuleResult:
        return RuleResult(rule, rows, failed, nulls, first=first, unknown=self.unknown.get(rule.name, ()))


def row_rules(subject: str, rules: Iterable[Rule], columns: T.StructType, declared: bool) -> RowRules:
    """Return the rules that Arrow evaluates, of all rules of a table."""
    row_rules = tuple(rule for rule in rules if rule.is_in_tasks)
    tests, unknown = list[RuleTest](), dict[str, tuple[str, ...]]()
    for rule in row_rules:
        column = find_column(columns, rule.columns[0])
        try:
            if column is None and declared:
                raise _MismatchError(f"the table has no column {rule.columns[0]}")
            path, argument = ((), None) if column is None else (column[0], _argument(rule, column[1]))
        except _MismatchError as error:
            raise rule_error(subject, rule, str(error), columns.names) from error
        if column is None:
            unknown[rule.name] = rule.columns
        tests.append((rule.name, rule.description, rule.error_class, (rule.kind, path, argument)))
    return RowRules(row_rules, tuple(tests), unknown)


def find_column(columns: T.StructType, path: str) -> tuple[Path, T.DataType] | None:
    """Return the exact path and the type of a column, or of a column within one; None if it isn't there."""
    return _at(columns, [path]) or _at(columns, path.split("."))


def _at(columns: T.StructType, path: Iterable[str]) -> tuple[Path, T.DataType] | None:
    kind: T.DataType = columns
    names: list[str] = []
    for part in path:
        fields = [f for f in kind if f.name.lower() == part.lower()] if isinstance(kind, T.StructType) else []
        exact = [f for f in fields if f.name == part] or fields
        if not exact:
            return None
        kind = exact[0].dataType
        names.append(exact[0].name)
    # A column without a type has only nulls so far.
    return None if isinstance(kind, T.NullType) else (tuple(names), kind)


def rule_error(subject: str, rule: Rule, problem: str, columns: Iterable[str]) -> ConfigurationError:
    """Return the error for a rule that doesn't fit a table's columns."""
    return ConfigurationError(
        f"{subject}: rules: {rule.name}: {problem}.",
        f"Nothing was published. Correct the rule; the table's columns are {', '.join(columns)}.",
    )


class _MismatchError(Exception):
    pass


def _argument(rule: Rule, kind: T.DataType) -> Any:
    """Return a rule's values in the column's type."""
    entry, column, type_name = rule.entry, rule.columns[0], kind.simpleString()
    if entry.pattern is not None:
        if not isinstance(kind, T.StringType):
            raise _MismatchError(f"{column} is {type_name}, and a pattern is for text")
        return entry.pattern.regex
    if entry.accepted_values is not None:
        return list(_values(column, entry.accepted_values.values, kind))
    if entry.range is not None:
        if isinstance(kind, T.StringType | T.BooleanType):
            raise _MismatchError(f"{column} is {type_name}, and a range is for numbers and times")
        bounds = ((entry.range.min, ROUND_CEILING), (entry.range.max, ROUND_FLOOR))
        return tuple(None if bound is None else _value(column, bound, kind, rounding) for bound, rounding in bounds)
    return None


def _values(column: str, values: Iterable[Any], kind: T.DataType) -> Iterator[Any]:
    """Yield values in a column's type, without numbers that the type can't hold exactly."""
    for setting in values:
        value = _value(column, setting, kind, ROUND_FLOOR)
        is_rounded = isinstance(setting, float) and isinstance(value, int | Decimal) and value != Decimal(repr(setting))
        if not is_rounded:
            yield value


def _value(column: str, value: Any, kind: T.DataType, rounding: str) -> Any:
    """Return a value of the settings in a column's type."""
    found: Any = None
    if isinstance(kind, T.BooleanType):
        found = value if isinstance(value, bool) else None
    elif isinstance(kind, T.NumericType):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        found = _number(value, kind, rounding) if is_number else None
    elif isinstance(value, str) and isinstance(kind, (T.StringType, *_TIMES)):
        found = _text(value) if isinstance(kind, T.StringType) else _time(value, kind)
    if found is None:
        raise _MismatchError(f"{column} is {kind.simpleString()}, and {value!r} isn't a value of this type")
    return found


def _number(value: float, kind: T.NumericType, rounding: str) -> int | float | Decimal | None:
    try:
        if isinstance(kind, T.DoubleType | T.FloatType):
            return float(value)
        scale = kind.scale if isinstance(kind, T.DecimalType) else 0
        exact = Context(_ENOUGH_DIGITS, rounding)
        number = exact.quantize(Decimal(repr(value)), Decimal(1).scaleb(-scale))
    except (OverflowError, InvalidOperation):
        return None
    if isinstance(kind, T.DecimalType):
        return number if len(number.as_tuple().digits) <= kind.precision else None
    bits = 63 if isinstance(kind, T.LongType) else 31
    return int(number) if -(2**bits) <= number < 2**bits else None


def _text(value: str) -> str | None:
    # YAML can contain half of a surrogate pair.
    return None if any("\ud800" <= character <= "\udfff" for character in value) else value


def _time(text: str, kind: T.DataType) -> date | datetime | None:
    """Return a date or a time; None if the column's type can't hold the text."""
    try:
        time = datetime.fromisoformat(text)
        if isinstance(kind, T.TimestampType):
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    if time.tzinfo is not None:
        return None
    if isinstance(kind, T.DateType):
        return time.date() if time == datetime(time.year, time.month, time.day) else None
    return time
