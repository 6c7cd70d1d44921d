"""Rules that Spark evaluates: one query counts, and a second one names the refused records."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.common.text import seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.quality.result import Refused, RuleResult, count_result
from kafka_lake.quality.row_rules import find_column, rule_error
from kafka_lake.quality.task.rules import PLACE, Path
from kafka_lake.quality.validation import (
    BROADCAST_ROWS,
    ReferencedTable,
    Validation,
    ValidationResult,
    partition_and_offset,
    refused_by,
)
from kafka_lake.spec.rule import WHOLE_TABLE, Rule
from kafka_lake.spec.sql_text import unsafe_condition

_UNRESOLVED = re.compile(r"with name (`.+?`(?:\.`.+?`)*) cannot be resolved|No such struct field (`.+?`)")
_T = TypeVar("_T")


def evaluate_in_spark(validation: Validation) -> ValidationResult:
    """Evaluate rules; raises a ConfigurationError if one doesn't fit the columns."""
    rows = _Rows(
        validation.subject,
        validation.rows,
        validation.declared,
        unchanged=validation.unchanged,
        tables=validation.tables,
    )
    evaluation = _Evaluation(validation, [rows.condition(rule) for rule in validation.rules])
    result = ValidationResult(evaluation.results())
    if not result.refuses_rows:
        return result
    refused = evaluation.refused()
    # A row that breaks several rules is counted for each.
    counts = {r.rule: refused.by_rule.get(r.rule.name, 0) for r in result.results if r.rule.on_failure == "dead_letter"}
    results = tuple(replace(r, failed=counts.get(r.rule, r.failed)) for r in result.results)
    return ValidationResult(results, refused if len(refused) else None)


def column_at(path: Path) -> Column:
    """Return the column or field at a path."""
    return F.col(".".join(map(quoted, path)))


@dataclass(frozen=True)
class _Condition:
    """A rule as a condition.

    Args:
        kept: Whether a row keeps the rule; null if unknown. For a `foreign_key`: true if no column is null.
        unknown: Columns that the rule names and the table lacks.
    """

    rule: Rule
    kept: Column
    unique: tuple[Column, ...] = ()
    foreign_key: tuple[Column, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Rows:
    """Rows on which conditions are evaluated; the fields are those of `Validation`."""

    subject: str
    frame: DataFrame
    declared: bool
    unchanged: str | None = None
    tables: Mapping[str, ReferencedTable] = field(default_factory=dict)

    def condition(self, rule: Rule) -> _Condition:
        """Return the condition of a rule; raises a ConfigurationError if it doesn't fit the columns."""
        if rule.kind == "expression":
            return self._expression(rule)
        if rule.kind == "row_count":
            return _Condition(rule, F.lit(True))
        columns = [find_column(self.frame.schema, name) for name in rule.columns]
        unknown = tuple(name for name, column in zip(rule.columns, columns, strict=True) if column is None)
        if unknown and self.declared:
            raise self._error(rule, f"the table has no column {', '.join(unknown)}")
        values = [F.lit(None) if column is None else column_at(column[0]) for column in columns]
        has_values = F.when(reduce(and_, [value.isNotNull() for value in values]), F.lit(True))
        keys = () if unknown else tuple(values)
        if rule.kind == "unique":
            return _Condition(rule, has_values, unique=keys, unknown=unknown)
        if keys:
            self._check_types(rule, [column[1] for column in columns if column is not None])
        return _Condition(rule, has_values, foreign_key=keys, unknown=unknown)

    def _check_types(self, rule: Rule, kinds: Sequence[T.DataType]) -> None:
        """Refuse a foreign key whose columns have other types than those of the referenced table."""
        foreign_key = rule.entry.foreign_key
        assert foreign_key is not None, "the caller checked it"
        table = foreign_key.table
        targets = {column.name.lower(): column.dataType for column in self.tables[table].rows.schema}
        if missing := [name for name in foreign_key.target if name.lower() not in targets]:
            raise self._error(rule, f"table {table} has no column {', '.join(missing)}")
        for name, kind, target in zip(rule.columns, kinds, foreign_key.target, strict=True):
            other = targets[target.lower()]
            are_numbers = isinstance(kind, T.NumericType) and isinstance(other, T.NumericType)
            if not are_numbers and kind.simpleString() != other.simpleString():
                types = f"{name} is {kind.simpleString()}, and {target} of {table} is {other.simpleString()}"
                raise self._error(rule, types)

    def _expression(self, rule: Rule) -> _Condition:
        """Return the condition of an `expression`; columns that the table doesn't have yet are null in it."""
        text = str(rule.entry.expression)
        if unsafe := unsafe_condition(text):
            raise self._error(rule, f"{text!r} isn't a condition on the rows: {unsafe}")
        frame, unknown = self.frame, list[str]()
        while True:
            try:
                # Connect analyses the condition only when the schema is requested.
                frame.filter(F.expr(text)).schema  # noqa: B018
            except AnalysisException as error:
                column, nested = _unresolved(error)
                missing = [*unknown, *([nested] if nested else [])]
                if missing and column is None and not self.declared:
                    # The condition has no value without the column's type.
                    return _Condition(rule, F.lit(None).cast("boolean"), unknown=tuple(missing))
                if self.declared or column is None or column in frame.columns:
                    problem = f"{text!r} isn't a condition on the rows: {_reason(error)}"
                    raise self._error(rule, problem) from error
                frame, unknown = frame.withColumn(column, F.lit(None)), [*unknown, column]
            else:
                return _Condition(rule, F.expr(text), unknown=tuple(unknown))

    def _error(self, rule: Rule, problem: str) -> ConfigurationError:
        names = [name for name in self.frame.columns if name != self.unchanged]
        return rule_error(self.subject, rule, problem, names)


def _unresolved(error: AnalysisException) -> tuple[str | None, str | None]:
    """Return the missing column, or the missing field, that an error names."""
    match = _UNRESOLVED.search(str(error))
    if match is None:
        return None, None
    column, nested = match.groups()
    if nested is not None or "`.`" in column:
        return None, (nested or column.replace("`.`", ".")).strip("`")
    return column[1:-1].replace("``", "`"), None


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")


class _Evaluation:
    """Conditions on rows. The frame has the rows' places, the conditions' values, and the columns that are compared."""

    def __init__(self, validation: Validation, conditions: Sequence[_Condition]) -> None:
        self._validation = validation
        self._conditions = list(enumerate(conditions))
        # Spark pushes a count down to the table, and fails on a constant null. This filter prevents that.
        frame = validation.rows.filter(F.spark_partition_id() >= 0)
        expressions = [condition for condition in conditions if condition.rule.kind == "expression"]
        for name in dict.fromkeys(name for condition in expressions for name in condition.unknown):
            frame = frame.withColumn(name, F.lit(None))
        compared = [(n, condition.unique or condition.foreign_key) for n, condition in self._conditions]
        self._frame = frame.select(
            *validation.places(),
            *[condition.kept.alias(_kept(n)) for n, condition in self._conditions],
            *[key.alias(name) for n, keys in compared for name, key in zip(_keys(n, keys), keys, strict=True)],
        )
        for n, condition in self._conditions:
            if condition.foreign_key:
                self._frame = self._with_foreign_key(n, condition)

    def _with_foreign_key(self, n: int, condition: _Condition) -> DataFrame:
        """Return the rows with the result of a foreign key, by a join."""
        foreign_key = condition.rule.entry.foreign_key
        assert foreign_key is not None, "the caller checked it"
        keys = _keys(n, condition.foreign_key)
        targets = [f"target_{name}" for name in keys]
        table = self._validation.tables[foreign_key.table].keys(foreign_key.target, targets)
        same = reduce(and_, [F.col(key) == F.col(target) for key, target in zip(keys, targets, strict=True)])
        kept = F.when(F.col(_kept(n)), F.coalesce(F.col("has_target"), F.lit(False)))
        joined = self._frame.join(table.withColumn("has_target", F.lit(True)), same, "left")
        return joined.withColumn(_kept(n), kept).drop("has_target", *targets, *keys)

    def results(self) -> tuple[RuleResult, ...]:
        """Count in one query; each `unique` takes another one."""
        aggregates = [F.count(F.lit(1)).alias("rows")]
        for n, _ in self._conditions:
            kept = F.col(_kept(n))
            aggregates += [F.count(kept).alias(f"known_{n}"), F.count_if(kept).alias(f"kept_{n}")]
            aggregates.append(F.min(F.when(~kept, partition_and_offset())).alias(f"first_{n}"))
        counts = self._run(lambda: self._frame.agg(*aggregates).collect())[0]
        self._count = counts["rows"]
        return tuple(self._result(n, condition, counts) for n, condition in self._conditions)

    def _result(self, n: int, condition: _Condition, counts: Row) -> RuleResult:
        rule, rows, known = condition.rule, counts["rows"], counts[f"known_{n}"]
        failed, first = known - counts[f"kept_{n}"], counts[f"first_{n}"]
        if not rule.is_of_rows:
            return replace(count_result(rule, rows), unknown=condition.unknown)
        if condition.unique:
            aggregates = [F.count(F.lit(1)), F.min(partition_and_offset())]
            failed, first = self._run(lambda: self._duplicates(n, condition).agg(*aggregates).collect())[0]
        foreign_key = rule.entry.foreign_key
        snapshot = None if foreign_key is None else self._validation.tables[foreign_key.table].snapshot
        first = self._validation.first_place(first)
        return RuleResult(rule, rows, failed, rows - known, first=first, unknown=condition.unknown, snapshot=snapshot)

    def _duplicates(self, n: int, condition: _Condition) -> DataFrame:
        """Return the rows whose key the table has, or an earlier row of the commit that no other rule refuses."""
        keys = _keys(n, condition.unique)
        rows = self._frame.filter(F.col(_kept(n)).isNotNull()).select(
            *PLACE,
            *keys,
            self._broken_conditions().alias("broken"),
            F.when(self._is_refused(), F.lit(0)).otherwise(F.lit(1)).alias("stays"),
        )
        existing = self._existing_rows(condition.rule)
        if existing is None:
            # Only the rows of repeated keys are sorted.
            repeated = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("times")).filter(F.col("times") > 1)
            rows, exists = rows.join(repeated.drop("times"), keys, "left_semi"), F.lit(False)
        else:
            existing = existing.select(*[key.alias(name) for key, name in zip(condition.unique, keys, strict=True)])
            batch_keys = rows.select(*keys).distinct()
            batch_keys = F.broadcast(batch_keys) if self._count <= BROADCAST_ROWS else batch_keys
            # Rows of the table with other keys are never shuffled.
            existing = existing.join(batch_keys, keys, "left_semi").distinct()
            rows = rows.join(existing.withColumn("exists", F.lit(True)), keys, "left")
            exists = F.coalesce("exists", F.lit(False))
        before = Window.partitionBy(*keys).orderBy("partition", "offset").rowsBetween(Window.unboundedPreceding, -1)
        follows = F.coalesce(F.sum("stays").over(before), F.lit(0)) > 0
        return rows.withColumn("is_duplicate", exists | follows).filter("is_duplicate").select(*PLACE, "broken")

    def _existing_rows(self, rule: Rule) -> DataFrame | None:
        """Return the rows of earlier commits that a `unique` includes."""
        validation, within = self._validation, rule.entry.within
        if within is None or validation.earlier is None:
            return validation.existing
        if within == WHOLE_TABLE or validation.column is None:
            return validation.earlier
        timestamp = F.col(f"`{validation.column}`")["timestamp"]
        oldest = validation.rows.agg(F.min(timestamp)).collect()[0][0]
        since = F.lit(oldest) - F.make_dt_interval(secs=F.lit(Decimal(str(seconds_of(within)))))
        return validation.earlier.filter(timestamp >= since)

    def _broken_conditions(self) -> Column:
        """Return the numbers of the rules that a row breaks, without `unique`, as text."""
        numbers = [n for n, condition in self._conditions if condition.rule.is_of_rows and not condition.unique]
        return F.concat_ws(",", *[F.when(~F.col(_kept(n)), F.lit(str(n))) for n in numbers])

    def _is_refused(self) -> Column:
        """Return whether a row breaks a rule with dead letters, without `unique`."""
        broken = [
            F.coalesce(~F.col(_kept(n)), F.lit(False))
            for n, condition in self._conditions
            if condition.rule.is_of_rows and not condition.unique and condition.rule.on_failure == "dead_letter"
        ]
        return reduce(or_, broken) if broken else F.lit(False)

    def refused(self) -> Refused:
        """Return the records that become dead letters, each with all rules that it breaks."""
        parts = [self._frame.filter(self._is_refused()).select(*PLACE, self._broken_conditions().alias("broken"))]
        for n, condition in self._conditions:
            if condition.unique and condition.rule.on_failure == "dead_letter":
                also = F.concat_ws(",", F.nullif("broken", F.lit("")), F.lit(str(n)))
                parts.append(self._duplicates(n, condition).withColumn("broken", also))
        whole = reduce(DataFrame.union, parts)
        if len(parts) > 1:
            whole = whole.groupBy(*PLACE).agg(F.concat_ws(",", F.collect_list("broken")).alias("broken"))
        rules = [condition.rule for _, condition in self._conditions]

        def broken_rules(numbers: str) -> list[Rule]:
            return [rules[n] for n in sorted({int(n) for n in numbers.split(",")})]

        return refused_by(self._run(whole.toArrow), broken_rules)

    def _run(self, query: Callable[[], _T]) -> _T:
        """Run a query; raises a ConfigurationError if a rule makes it fail."""
        try:
            return query()
        except Exception as error:
            # An invalid regular expression fails in a task.
            pattern = re.search(r"PatternSyntaxException: ([^\n]+)", str(error))
            if not isinstance(error, AnalysisException) and pattern is None:
                raise
            names = ", ".join(condition.rule.name for _, condition in self._conditions)
            raise ConfigurationError(
                f"{self._validation.subject}: rules: {names}: Spark can't evaluate it: "
                f"{pattern[1] if pattern else _reason(error)}.",
                "Nothing was published. Correct the rule.",
            ) from error


def _keys(n: int, columns: Sequence[Column]) -> list[str]:
    return [f"key_{n}_{i}" for i in range(len(columns))]


def _kept(n: int) -> str:
    return f"kept_{n}"
