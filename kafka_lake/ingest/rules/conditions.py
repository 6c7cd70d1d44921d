"""A rule as a condition of Spark SQL on a table's rows: true where it is kept, null where nothing can be said."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.sql_text import unsafe_condition
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.referred import Referred

_MOST_DIGITS = 38
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_UNRESOLVED = re.compile(r"with name (`.+?`(?:\.`.+?`)*) cannot be resolved|No such struct field (`.+?`)")


@dataclass(frozen=True)
class Condition:
    """A rule that can be asked.

    Args:
        rule: The rule.
        kept: Whether a row keeps it; null where nothing can be said.
        keys: Of a `unique`: its columns.
        refers: Of a `foreign_key`: its columns. Whether a row keeps the rule, a join tells; `kept` is true where
            nothing is null.
        unknown: Columns that it names and the table doesn't have.
    """

    rule: Rule
    kept: Column
    keys: tuple[Column, ...] = ()
    refers: tuple[Column, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """What rules are asked of.

    Args:
        subject: The topic or table, for errors.
        frame: The rows.
        declared: Whether the settings declare all columns: then one that isn't there never comes.
        untold: The column that names those which a row doesn't tell; None if each row tells all of them.
        tables: Those that foreign keys refer to.
    """

    subject: str
    frame: DataFrame
    declared: bool
    untold: str | None = None
    tables: Mapping[str, Referred] = field(default_factory=dict)

    def condition(self, rule: Rule) -> Condition:
        """Return what to ask for a rule.

        Raises:
            ConfigurationError: If it names a column that can't be there, or asks of one what its type doesn't allow.
        """
        if rule.kind == "expression":
            return self._expression(rule)
        found = [self._find(name) for name in rule.columns]
        unknown = tuple(name for name, each in zip(rule.columns, found, strict=True) if each is None)
        if unknown and self.declared:
            self._refuse(rule, f"the table has no column {', '.join(unknown)}")
        columns = [F.lit(None) if each is None else each[0] for each in found]
        if rule.kind == "row_count":
            return Condition(rule, F.lit(True))
        if rule.kind in ("not_null", "null_share"):
            return Condition(rule, self._if_told(rule.columns[0], columns[0].isNotNull()), unknown=unknown)
        if rule.kind in ("unique", "foreign_key"):
            there = F.when(reduce(and_, [column.isNotNull() for column in columns]), F.lit(True))
            keys = () if unknown else tuple(columns)
            if rule.kind == "unique":
                return Condition(rule, there, keys=keys, unknown=unknown)
            if keys:
                self._check_types(rule, [each[1] for each in found if each is not None])
            return Condition(rule, there, refers=keys, unknown=unknown)
        if found[0] is None:
            return Condition(rule, F.lit(None).cast("boolean"), unknown=unknown)
        return Condition(rule, self._value_rule(rule, *found[0]))

    def _check_types(self, rule: Rule, kinds: Sequence[T.DataType]) -> None:
        """Refuse a foreign key whose columns can't be compared with those of the other table."""
        given = rule.entry.foreign_key
        assert given is not None, "the caller has looked"
        others = {each.name.lower(): each.dataType for each in self.tables[given.table].rows.schema}
        if missing := [name for name in given.target if name.lower() not in others]:
            self._refuse(rule, f"table {given.table} has no column {', '.join(missing)}")
        for name, kind, target in zip(rule.columns, kinds, given.target, strict=True):
            other = others[target.lower()]
            numbers = isinstance(kind, T.NumericType) and isinstance(other, T.NumericType)
            if not numbers and kind.simpleString() != other.simpleString():
                here, there = kind.simpleString(), other.simpleString()
                self._refuse(rule, f"{name} is {here}, and {target} of {given.table} is {there}")

    def _if_told(self, path: str, kept: Column) -> Column:
        """Return a condition, null in rows that don't tell its column."""
        names = (path.lower(), path.split(".")[0].lower())
        found = [name for name in self.frame.columns if name.lower() in names]
        if self.untold is None or not found:
            return kept
        return F.when(~F.array_contains(F.col(self.untold), found[0]), kept)

    def _value_rule(self, rule: Rule, column: Column, kind: T.DataType) -> Column:
        entry = rule.entry
        if entry.pattern is not None:
            if not isinstance(kind, T.StringType):
                self._refuse(rule, f"{rule.columns[0]} is {kind.simpleString()}, and a pattern is for text")
            return column.rlike(entry.pattern.regex)
        if entry.accepted_values is not None:
            values = [self._literal(rule, value, kind) for value in entry.accepted_values.values]
            return column.isin(*values)
        assert entry.range is not None, "that is the last kind"
        if isinstance(kind, T.StringType | T.BooleanType):
            self._refuse(rule, f"{rule.columns[0]} is {kind.simpleString()}, and a range is for numbers and times")
        kept = F.lit(True)
        if entry.range.min is not None:
            kept = column >= self._literal(rule, entry.range.min, kind)
        if entry.range.max is not None:
            below = column <= self._literal(rule, entry.range.max, kind)
            kept = below if entry.range.min is None else kept & below
        return kept

    def _literal(self, rule: Rule, value: Any, kind: T.DataType) -> Column:
        """Return a value of the settings as one that a column of a type is compared with."""
        wrong = f"{rule.columns[0]} is {kind.simpleString()}, and {value!r} is no such value"
        if isinstance(kind, T.BooleanType):
            fits = isinstance(value, bool)
        elif isinstance(kind, T.NumericType):
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        else:
            fits = isinstance(value, str) and isinstance(kind, (T.StringType, *_TIMES))
        literal = None
        if fits:
            literal = _time(value, kind) if isinstance(kind, _TIMES) else _number(value, kind)
        if literal is None:
            self._refuse(rule, wrong)
        return literal

    def _expression(self, rule: Rule) -> Condition:
        """Return a condition of the user's own; columns that the table doesn't have yet are null in it."""
        frame, unknown = self.frame, list[str]()
        if unsafe := unsafe_condition(str(rule.entry.expression)):
            self._refuse(rule, f"{rule.entry.expression!r} is no condition on the rows: {unsafe}")
        while True:
            try:
                # A filter takes nothing but a condition on single rows; Connect looks at it when the schema is asked.
                frame.filter(F.expr(str(rule.entry.expression))).schema  # noqa: B018
            except AnalysisException as error:
                name, field = _unresolved(error)
                missing = [*unknown, *filter(None, [field])]
                if missing and name is None and not self.declared:
                    # Of what type it is when it comes, nobody knows: until then there is no answer.
                    return Condition(rule, F.lit(None).cast("boolean"), unknown=tuple(missing))
                if self.declared or name is None or name in frame.columns:
                    reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
                    self._refuse(rule, f"{rule.entry.expression!r} is no condition on the rows: {reason}", error)
                frame, unknown = frame.withColumn(name, F.lit(None)), [*unknown, name]
            else:
                return Condition(rule, F.expr(str(rule.entry.expression)), unknown=tuple(unknown))

    def _find(self, path: str) -> tuple[Column, T.DataType] | None:
        """Return the column of a name, or the field of a path, and its type; None if there is none."""
        kind: T.DataType = self.frame.schema
        whole = [field for field in self.frame.schema if field.name.lower() == path.lower()]
        parts, names = ([path] if whole else path.split(".")), list[str]()
        for part in parts:
            fields = [f for f in kind if f.name.lower() == part.lower()] if isinstance(kind, T.StructType) else []
            exact = [field for field in fields if field.name == part] or fields
            if not exact:
                return None
            kind = exact[0].dataType
            names.append(f"`{exact[0].name.replace('`', '``')}`")
        return F.col(".".join(names)), kind

    def _refuse(self, rule: Rule, problem: str, cause: Exception | None = None) -> NoReturn:
        columns = ", ".join(name for name in self.frame.columns if name != self.untold)
        raise ConfigurationError(
            f"{self.subject}: rules: {rule.name}: {problem}.",
            f"Nothing was published. Correct the rule; the table's columns are {columns}.",
        ) from cause


def _time(text: str, kind: T.DataType) -> Column | None:
    """Return a date or a time; None if the text is none that a column of a type can have."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    if time.tzinfo is not None and isinstance(kind, T.TimestampNTZType):
        # Spark would leave its zone out.
        return None
    # Spark knows fewer ways to write it than ISO 8601 has.
    return F.lit(time.isoformat(" ")).cast(kind)


def _number(value: Any, kind: T.DataType) -> Column | None:
    """Return a value that is no time, such that Spark compares it exactly; None if no column has such a number."""
    if isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return F.lit(value)
    try:
        float(value)
    except OverflowError:
        return None
    if isinstance(kind, T.FloatType):
        # What is written as 0.1 is, as a double, another number than the float.
        return F.lit(float(value)).cast(kind)
    if isinstance(kind, T.DoubleType) or not math.isfinite(value):
        return F.lit(float(value))
    # Beside a double, Spark would make doubles of whole numbers and of decimals.
    exact, held = Decimal(repr(value)), kind if isinstance(kind, T.DecimalType) else T.DecimalType(19, 0)
    exponent = int(exact.as_tuple().exponent)
    whole = max(held.precision - held.scale, len(exact.as_tuple().digits) + exponent)
    fits = whole + max(held.scale, -exponent) <= _MOST_DIGITS
    return F.lit(exact) if fits else F.lit(float(value))


def _unresolved(error: AnalysisException) -> tuple[str | None, str | None]:
    """Return the column, or the field of a struct, that an error says there is none of; nothing for other errors."""
    found = _UNRESOLVED.search(str(error))
    if found is None:
        return None, None
    name, field = found.groups()
    if field is not None or "`.`" in name:
        return None, (field or name.replace("`.`", ".")).strip("`")
    return name[1:-1].replace("``", "`"), None
