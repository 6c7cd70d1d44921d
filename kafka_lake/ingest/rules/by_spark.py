"""Rules that are conditions of Spark's: one pass that counts, and another one that names the refused records."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from kafka_lake.common.text import seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.executors.writing.rules import PLACE
from kafka_lake.ingest.rule import WHOLE_TABLE, Rule
from kafka_lake.ingest.rules.asked import Asked, Verdict, first_place, places, refused_by, where
from kafka_lake.ingest.rules.conditions import Condition, Rows
from kafka_lake.ingest.rules.referred import BROADCAST_ROWS
from kafka_lake.ingest.rules.result import Refused, RuleResult, commit_result

_KEY = "key_{}_{}"
Found = TypeVar("Found")


def by_spark(asked: Asked) -> Verdict:
    """Ask rules that are conditions.

    Raises:
        ConfigurationError: If a rule doesn't go with the columns of the rows.
    """
    rows = Rows(asked.subject, asked.rows, asked.declared, untold=asked.untold, tables=asked.tables)
    conditions = [rows.condition(rule) for rule in asked.rules]
    evaluation = _Evaluation(asked, conditions)
    results = evaluation.counted()
    if any(each.fails for each in results) or not any(each.refuses_rows for each in results):
        return Verdict(results)
    refused = evaluation.refused()
    told = [
        each.with_failed(refused.by_rule.get(each.rule.name, 0)) if each.rule.on_failure == "dead_letter" else each
        for each in results
    ]
    return Verdict(tuple(told), refused if len(refused) else None)


class _Evaluation:
    """Rules of which each can be asked."""

    def __init__(self, asked: Asked, conditions: Sequence[Condition]) -> None:
        self._asked = asked
        self._conditions = list(enumerate(conditions))
        self._unique = [(n, each) for n, each in self._conditions if each.keys]
        # Spark would let the table count, and fails by that if a condition is null by its text. It doesn't where there
        # is a filter that no table understands.
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
        """Return the rows, with what a join tells of a foreign key."""
        given = condition.rule.entry.foreign_key
        assert given is not None, "only those refer"
        keys, held = _keys(n, condition.refers), [f"held_{name}" for name in _keys(n, condition.refers)]
        others = self._asked.tables[given.table].keys(given.target, held).withColumn("is_held", F.lit(True))
        same = reduce(and_, [F.col(key) == F.col(other) for key, other in zip(keys, held, strict=True)])
        kept = F.when(F.col(_kept(n)), F.coalesce(F.col("is_held"), F.lit(False)))
        return self._frame.join(others, same, "left").withColumn(_kept(n), kept).drop("is_held", *held, *keys)

    def counted(self) -> tuple[RuleResult, ...]:
        """Count in one pass over the rows. A `unique` takes another one, and so do samples, if there are any."""
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
        """Return the rows whose key an earlier row has that the other rules don't refuse, or a row of the table."""
        keys = _keys(n, condition.keys)
        keyed = self._frame.filter(F.col(_kept(n)).isNotNull()).select(
            *PLACE,
            *keys,
            self._broken_alone().alias("broken"),
            F.when(self._is_refused(), F.lit(0)).otherwise(F.lit(1)).alias("stays"),
        )
        others = self._others(condition.rule)
        if others is None:
            # Most keys are there once. Only rows of the others are sorted.
            several = keyed.groupBy(*keys).agg(F.count(F.lit(1)).alias("times")).filter(F.col("times") > 1)
            keyed, there = keyed.join(several.drop("times"), keys, "left_semi"), F.lit(False)
        else:
            held = others.select(*[key.alias(name) for key, name in zip(condition.keys, keys, strict=True)])
            here = keyed.select(*keys).distinct()
            # The table may have many more rows than the commit: those with other keys are never shuffled.
            held = held.join(F.broadcast(here) if self._count <= BROADCAST_ROWS else here, keys, "left_semi").distinct()
            keyed = keyed.join(held.withColumn("held", F.lit(True)), keys, "left")
            there = F.coalesce("held", F.lit(False))
        before = Window.partitionBy(*keys).orderBy("partition", "offset").rowsBetween(Window.unboundedPreceding, -1)
        earlier = F.coalesce(F.sum("stays").over(before), F.lit(0)) > 0
        return keyed.withColumn("twice", there | earlier).filter("twice").select(*PLACE, "broken")

    def _others(self, rule: Rule) -> DataFrame | None:
        """Return the rows of earlier commits that a `unique` looks at; None if it looks at none."""
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
        """Return the numbers of the rules that a row breaks by itself, as text."""
        alone = [n for n, each in self._conditions if each.rule.is_of_rows and not each.keys]
        return F.concat_ws(",", *[F.when(~F.col(_kept(n)), F.lit(str(n))) for n in alone])

    def _is_refused(self) -> Column:
        """Return whether a row breaks a rule that makes dead letters, but for those that compare rows."""
        broken = [
            F.coalesce(~F.col(_kept(n)), F.lit(False))
            for n, each in self._conditions
            if each.rule.is_of_rows and not each.keys and each.rule.on_failure == "dead_letter"
        ]
        return reduce(or_, broken) if broken else F.lit(False)

    def refused(self) -> Refused:
        """Name the records of rows that break rules which make dead letters, and all that each breaks."""
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
        """Return what Spark computes; what it can't, because of a rule, is the settings' fault."""
        try:
            return action()
        except Exception as error:
            # A regular expression that is none fails in tasks, as an error of Java's.
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
    # The other kinds ask nothing of a column that isn't there.
    if condition.rule.kind == "expression":
        yield from condition.unknown


def _kept(n: int) -> str:
    return f"kept_{n}"
