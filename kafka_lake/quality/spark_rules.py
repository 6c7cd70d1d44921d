"""Rules as Spark conditions: one pass counts, and a second one names the refused records."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from kafka_lake.common.sql_text import unsafe_condition
from kafka_lake.common.text import seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.quality.result import Refused, RuleResult, commit_result
from kafka_lake.quality.row_rules import cant_be_asked, find
from kafka_lake.quality.task.rules import PLACE, Path
from kafka_lake.quality.validation import (
    BROADCAST_ROWS,
    ReferencedTable,
    Validation,
    ValidationResult,
    first_place,
    places,
    refused_by,
    where,
)
from kafka_lake.spec.rule import WHOLE_TABLE, Rule

_UNRESOLVED = re.compile(r"with name (`.+?`(?:\.`.+?`)*) cannot be resolved|No such struct field (`.+?`)")


@dataclass(frozen=True)
class Condition:
    """A rule as a condition.

    Args:
        kept: Whether a row keeps the rule; null if that is unknown. Of a `foreign_key`: true if no column is null.
        keys: Columns of a `unique`.
        refers: Columns of a `foreign_key`.
        unknown: Columns that the rule names and the table lacks.
    """

    rule: Rule
    kept: Column
    keys: tuple[Column, ...] = ()
    refers: tuple[Column, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Rows on which conditions are evaluated; the fields are those of `Validation`."""

    subject: str
    frame: DataFrame
    declared: bool
    untold: str | None = None
    tables: Mapping[str, ReferencedTable] = field(default_factory=dict)

    def condition(self, rule: Rule) -> Condition:
        """Return the condition of a rule; raises a ConfigurationError if it doesn't fit the columns."""
        if rule.kind == "expression":
            return self._expression(rule)
        if rule.kind == "row_count":
            return Condition(rule, F.lit(True))
        found = [find(self.frame.schema, name) for name in rule.columns]
        unknown = tuple(name for name, each in zip(rule.columns, found, strict=True) if each is None)
        if unknown and self.declared:
            raise self._refused(rule, f"the table has no column {', '.join(unknown)}")
        columns = [F.lit(None) if each is None else column_at(each[0]) for each in found]
        if rule.kind == "null_share":
            there = columns[0].isNotNull()
            if self.untold is not None and found[0] is not None:
                there = F.when(~F.array_contains(F.col(self.untold), found[0][0][0]), there)
            return Condition(rule, there, unknown=unknown)
        there = F.when(reduce(and_, [column.isNotNull() for column in columns]), F.lit(True))
        keys = () if unknown else tuple(columns)
        if rule.kind == "unique":
            return Condition(rule, there, keys=keys, unknown=unknown)
        if keys:
            self._check_types(rule, [each[1] for each in found if each is not None])
        return Condition(rule, there, refers=keys, unknown=unknown)

    def _check_types(self, rule: Rule, kinds: Sequence[T.DataType]) -> None:
        """Refuse a foreign key whose columns have other types than those of the other table."""
        given = rule.entry.foreign_key
        assert given is not None, "the caller checked it"
        others = {each.name.lower(): each.dataType for each in self.tables[given.table].rows.schema}
        if missing := [name for name in given.target if name.lower() not in others]:
            raise self._refused(rule, f"table {given.table} has no column {', '.join(missing)}")
        for name, kind, target in zip(rule.columns, kinds, given.target, strict=True):
            other = others[target.lower()]
            numbers = isinstance(kind, T.NumericType) and isinstance(other, T.NumericType)
            if not numbers and kind.simpleString() != other.simpleString():
                here, there = kind.simpleString(), other.simpleString()
                raise self._refused(rule, f"{name} is {here}, and {target} of {given.table} is {there}")

    def _expression(self, rule: Rule) -> Condition:
        """Return a custom condition; columns that the table doesn't have yet are null in it."""
        frame, unknown = self.frame, list[str]()
        if unsafe := unsafe_condition(str(rule.entry.expression)):
            raise self._refused(rule, f"{rule.entry.expression!r} isn't a condition on the rows: {unsafe}")
        while True:
            try:
                # Connect analyses the condition only when the schema is requested.
                frame.filter(F.expr(str(rule.entry.expression))).schema  # noqa: B018
            except AnalysisException as error:
                name, field = _unresolved(error)
                missing = [*unknown, *filter(None, [field])]
                if missing and name is None and not self.declared:
                    # Without the column's type there is no answer.
                    return Condition(rule, F.lit(None).cast("boolean"), unknown=tuple(missing))
                if self.declared or name is None or name in frame.columns:
                    reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
                    problem = f"{rule.entry.expression!r} isn't a condition on the rows: {reason}"
                    raise self._refused(rule, problem) from error
                frame, unknown = frame.withColumn(name, F.lit(None)), [*unknown, name]
            else:
                return Condition(rule, F.expr(str(rule.entry.expression)), unknown=tuple(unknown))

    def _refused(self, rule: Rule, problem: str) -> ConfigurationError:
        names = [name for name in self.frame.columns if name != self.untold]
        return cant_be_asked(self.subject, rule, problem, names)


def column_at(path: Path) -> Column:
    """Return the column or field at a path."""
    return F.col(".".join(map(quoted, path)))


def _unresolved(error: AnalysisException) -> tuple[str | None, str | None]:
    """Return the missing column, or the missing field, that an error names."""
    found = _UNRESOLVED.search(str(error))
    if found is None:
        return None, None
    name, field = found.groups()
    if field is not None or "`.`" in name:
        return None, (field or name.replace("`.`", ".")).strip("`")
    return name[1:-1].replace("``", "`"), None


_KEY = "key_{}_{}"
Found = TypeVar("Found")


def by_spark(asked: Validation) -> ValidationResult:
    """Evaluate rules; raises a ConfigurationError if one doesn't fit the columns."""
    rows = Rows(asked.subject, asked.rows, asked.declared, untold=asked.untold, tables=asked.tables)
    conditions = [rows.condition(rule) for rule in asked.rules]
    evaluation = _Evaluation(asked, conditions)
    results = evaluation.counted()
    if any(each.fails for each in results) or not any(each.refuses_rows for each in results):
        return ValidationResult(results)
    refused = evaluation.refused()
    told = [
        each.with_failed(refused.by_rule.get(each.rule.name, 0)) if each.rule.on_failure == "dead_letter" else each
        for each in results
    ]
    return ValidationResult(tuple(told), refused if len(refused) else None)


class _Evaluation:
    def __init__(self, asked: Validation, conditions: Sequence[Condition]) -> None:
        self._asked = asked
        self._conditions = list(enumerate(conditions))
        self._unique = [(n, each) for n, each in self._conditions if each.keys]
        # Without a filter that no table can evaluate, Spark pushes the count down, and fails on a constant null.
        frame = asked.rows.filter(F.spark_partition_id() >= 0)
        for name in dict.fromkeys(name for _, each in self._conditions for name in _unknown_names(each)):
            frame = frame.withColumn(name, F.lit(None))
        compared = [(n, each.keys or each.refers) for n, each in self._conditions]
        self._frame = frame.select(
            *places(asked.column),
            *[each.kept.alias(_kept(n)) for n, each in self._conditions],
            *[key.alias(_KEY.format(n, i)) for n, keys in compared for i, key in enumerate(keys)],
        )
        for n, each in self._conditions:
            if each.refers:
                self._frame = self._referring(n, each)

    def _referring(self, n: int, condition: Condition) -> DataFrame:
        """Return the rows with the result of a foreign key, by a join."""
        given = condition.rule.entry.foreign_key
        assert given is not None, "the caller checked it"
        keys, held = _keys(n, condition.refers), [f"held_{name}" for name in _keys(n, condition.refers)]
        others = self._asked.tables[given.table].keys(given.target, held).withColumn("is_held", F.lit(True))
        same = reduce(and_, [F.col(key) == F.col(other) for key, other in zip(keys, held, strict=True)])
        kept = F.when(F.col(_kept(n)), F.coalesce(F.col("is_held"), F.lit(False)))
        return self._frame.join(others, same, "left").withColumn(_kept(n), kept).drop("is_held", *held, *keys)

    def counted(self) -> tuple[RuleResult, ...]:
        """Count in one pass over the rows; each `unique` takes another one."""
        aggregates = [F.count(F.lit(1)).alias("rows")]
        for n, _ in self._conditions:
            aggregates += [F.count(_kept(n)).alias(f"told_{n}"), F.count_if(F.col(_kept(n))).alias(f"yes_{n}")]
            aggregates.append(F.min(F.when(~F.col(_kept(n)), where())).alias(f"first_{n}"))
        found = self._collected(lambda: self._frame.agg(*aggregates).collect())[0]
        self._count = found["rows"]
        return tuple(self._result(n, each, found) for n, each in self._conditions)

    def _result(self, n: int, condition: Condition, counted: Row) -> RuleResult:
        rule, rows, told = condition.rule, counted["rows"], counted[f"told_{n}"]
        failed, first = told - counted[f"yes_{n}"], counted[f"first_{n}"]
        if not rule.is_of_rows:
            return replace(commit_result(rule, rows, failed), unknown=condition.unknown)
        if condition.keys:
            several = [F.count(F.lit(1)), F.min(where())]
            failed, first = self._collected(lambda: self._twice(n, condition).agg(*several).collect())[0]
        given, snapshot = rule.entry.foreign_key, None
        if given is not None:
            snapshot = self._asked.tables[given.table].snapshot
        first = first_place(self._asked, first)
        return RuleResult(rule, rows, failed, rows - told, first=first, unknown=condition.unknown, snapshot=snapshot)

    def _twice(self, n: int, condition: Condition) -> DataFrame:
        """Return the rows whose key the table has, or an earlier row of the commit that no other rule refuses."""
        keys = _keys(n, condition.keys)
        keyed = self._frame.filter(F.col(_kept(n)).isNotNull()).select(
            *PLACE,
            *keys,
            self._broken_alone().alias("broken"),
            F.when(self._is_refused(), F.lit(0)).otherwise(F.lit(1)).alias("stays"),
        )
        others = self._others(condition.rule)
        if others is None:
            # Only the rows of repeated keys are sorted.
            several = keyed.groupBy(*keys).agg(F.count(F.lit(1)).alias("times")).filter(F.col("times") > 1)
            keyed, there = keyed.join(several.drop("times"), keys, "left_semi"), F.lit(False)
        else:
            held = others.select(*[key.alias(name) for key, name in zip(condition.keys, keys, strict=True)])
            here = keyed.select(*keys).distinct()
            # Rows of the table with other keys are never shuffled.
            held = held.join(F.broadcast(here) if self._count <= BROADCAST_ROWS else here, keys, "left_semi").distinct()
            keyed = keyed.join(held.withColumn("held", F.lit(True)), keys, "left")
            there = F.coalesce("held", F.lit(False))
        before = Window.partitionBy(*keys).orderBy("partition", "offset").rowsBetween(Window.unboundedPreceding, -1)
        earlier = F.coalesce(F.sum("stays").over(before), F.lit(0)) > 0
        return keyed.withColumn("twice", there | earlier).filter("twice").select(*PLACE, "broken")

    def _others(self, rule: Rule) -> DataFrame | None:
        """Return the rows of earlier commits that a `unique` includes."""
        asked, within = self._asked, rule.entry.within
        if within is None or asked.earlier is None:
            return asked.others
        if within == WHOLE_TABLE or asked.column is None:
            return asked.earlier
        at = F.col(f"`{asked.column}`")["timestamp"]
        oldest = asked.rows.agg(F.min(at).alias("oldest")).collect()[0]["oldest"]
        since = F.lit(oldest) - F.make_dt_interval(secs=F.lit(Decimal(str(seconds_of(within)))))
        return asked.earlier.filter(at >= since)

    def _broken_alone(self) -> Column:
        """Return the numbers of the rules that a row breaks, without `unique`, as text."""
        alone = [n for n, each in self._conditions if each.rule.is_of_rows and not each.keys]
        return F.concat_ws(",", *[F.when(~F.col(_kept(n)), F.lit(str(n))) for n in alone])

    def _is_refused(self) -> Column:
        """Return whether a row breaks a rule with dead letters, without `unique`."""
        broken = [
            F.coalesce(~F.col(_kept(n)), F.lit(False))
            for n, each in self._conditions
            if each.rule.is_of_rows and not each.keys and each.rule.on_failure == "dead_letter"
        ]
        return reduce(or_, broken) if broken else F.lit(False)

    def refused(self) -> Refused:
        """Return the records that become dead letters, each with all rules that it breaks."""
        parts = [self._frame.filter(self._is_refused()).select(*PLACE, self._broken_alone().alias("broken"))]
        for n, each in self._unique:
            if each.rule.on_failure == "dead_letter":
                also = F.concat_ws(",", F.nullif("broken", F.lit("")), F.lit(str(n)))
                parts.append(self._twice(n, each).withColumn("broken", also))
        whole = reduce(DataFrame.union, parts)
        if len(parts) > 1:
            whole = whole.groupBy(*PLACE).agg(F.concat_ws(",", F.collect_list("broken")).alias("broken"))
        rules = [each.rule for _, each in self._conditions]

        def broken(text: str) -> list[Rule]:
            return [rules[n] for n in sorted({int(n) for n in text.split(",")})]

        return refused_by(self._collected(whole.toArrow), broken)

    def _collected(self, action: Callable[[], Found]) -> Found:
        """Run a query; raises a ConfigurationError if a rule makes it fail."""
        try:
            return action()
        except Exception as error:
            # An invalid regular expression fails in a task.
            if isinstance(error, AnalysisException) or "PatternSyntaxException" in str(error):
                raise self._unanswered(error) from error
            raise

    def _unanswered(self, error: Exception) -> ConfigurationError:
        found = re.search(r"PatternSyntaxException: ([^\n]+)", str(error))
        said = found[1] if found else str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        names = ", ".join(each.rule.name for _, each in self._conditions)
        return ConfigurationError(
            f"{self._asked.subject}: rules: {names}: Spark can't ask that: {said}.",
            "Nothing was published. Correct the rule.",
        )


def _keys(n: int, columns: Sequence[Column]) -> list[str]:
    return [_KEY.format(n, i) for i in range(len(columns))]


def _unknown_names(condition: Condition) -> Iterator[str]:
    if condition.rule.kind == "expression":
        yield from condition.unknown


def _kept(n: int) -> str:
    return f"kept_{n}"
