"""Rules asked of staged rows: first by Arrow those of single rows, then by Spark the others of the rows that stay.

Each is one pass that counts, and where rows are refused another one that names their records.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.executors.writing.rules import BROKEN, LEFT_OUT, PLACE, UNANSWERED, ask
from kafka_lake.ingest.rule import BY_ARROW, WHOLE_TABLE, Rule
from kafka_lake.ingest.rules.check import run_check
from kafka_lake.ingest.rules.conditions import Condition, Rows, column_at
from kafka_lake.ingest.rules.referred import BROADCAST_ROWS, Referred
from kafka_lake.ingest.rules.refused import Refused
from kafka_lake.ingest.rules.result import RuleResult, commit_result, reason_of
from kafka_lake.ingest.rules.row_rules import row_rules
from kafka_lake.ingest.tasks import told

_KEY = "key_{}_{}"
_BY_CONDITIONS = ("expression", "unique", "foreign_key", "row_count", "null_share")
_ANSWERED = T.StructType(
    [
        T.StructField("topic_id", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField(BROKEN, T.LongType()),
        T.StructField(UNANSWERED, T.LongType()),
    ]
)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Asked:
    """What rules are asked of.

    Args:
        topic: The topic's name, for errors; or what else the rows are of, as `what` says.
        rules: The rules, in the order of the settings.
        rows: Rows of the table.
        column: The metadata column; None if rows don't tell records. Then no row can be named nor refused.
        declared: Whether the settings declare all columns.
        others: Rows that are in the table already, where each `unique` is to look at those too; None if it isn't.
        earlier: Rows that are in the table already, for a `unique` with `within`; None if there are none.
        what: What has the name, for errors.
        untold: The column that names those which a row doesn't tell; None if each row tells all of them.
        tables: Those that foreign keys refer to.
        samples: Whether messages of your own checks may be shown.
        mask: Regular expressions; ``***`` takes the place of what they find in those messages.
    """

    topic: str
    rules: tuple[Rule, ...]
    rows: DataFrame
    column: str | None
    declared: bool = False
    others: DataFrame | None = None
    what: str = "Topic"
    untold: str | None = None
    earlier: DataFrame | None = None
    tables: Mapping[str, Referred] = field(default_factory=dict)
    samples: bool = False
    mask: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return whose rows they are, for errors."""
        return f"{self.what} {self.topic}"


@dataclass(frozen=True)
class Verdict:
    """What became of it.

    Args:
        results: One for each rule.
        refused: The records whose rows are to become dead letters; None if there are none, or if a rule fails anyway.
    """

    results: tuple[RuleResult, ...] = ()
    refused: Refused | None = None


def evaluate(asked: Asked) -> Verdict:
    """Ask rules of rows.

    Returns:
        The verdict. It is found once: who asks again may get another one where an expression asks for the time.

    Raises:
        ConfigurationError: If a rule can't be asked of these columns.
    """
    results, refused = dict[Rule, RuleResult](), list[Refused]()
    for engine, kinds in ((_by_arrow, BY_ARROW), (_by_conditions, _BY_CONDITIONS), (_by_checks, ("check",))):
        rules = tuple(rule for rule in asked.rules if rule.kind in kinds)
        if not rules:
            continue
        verdict = engine(replace(asked, rules=rules))
        results |= {each.rule: each for each in verdict.results}
        if verdict.refused is not None and asked.column is not None:
            refused.append(verdict.refused)
            asked = replace(asked, rows=verdict.refused.left(asked.rows, asked.column))
    found = tuple(results[rule] for rule in asked.rules)
    fails = any(each.fails for each in found)
    return Verdict(found, None if fails or not refused else reduce(Refused.and_, refused))


def _by_arrow(asked: Asked) -> Verdict:
    """Ask rules of single rows."""
    columns = T.StructType([column for column in asked.rows.schema if column.name != asked.untold])
    rules = row_rules(asked.subject, asked.rules, columns, asked.declared)
    paths = {path: f"column_{n}" for n, (*_, (_, path, _)) in enumerate(rules.tests) if path}
    left_out = [] if asked.untold is None else [F.col(asked.untold).alias(LEFT_OUT)]
    given = asked.rows.select(
        *_places(asked.column), *[column_at(path).alias(name) for path, name in paths.items()], *left_out
    )
    answered = given.mapInArrow(told(ask, {"tests": rules.tests, "columns": paths}), _ANSWERED)
    counted = answered.agg(F.count(F.lit(1)).alias("rows"), *_counts(len(rules.tests))).collect()[0]
    answers = {
        rule.name: (counted[f"failed_{n}"], counted[f"nulls_{n}"], _first(asked, counted[f"first_{n}"]))
        for n, rule in enumerate(rules.rules)
    }
    results = rules.results(counted["rows"], answers)
    if any(each.fails for each in results) or not any(each.refuses_rows for each in results):
        return Verdict(results)
    refusing = sum(1 << n for n, rule in enumerate(rules.rules) if rule.error_class)
    found = answered.filter(F.col(BROKEN).bitwiseAND(F.lit(refusing)) != 0).toArrow()

    def broken(code: int) -> list[Rule]:
        return [rule for n, rule in enumerate(rules.rules) if code >> n & 1]

    return Verdict(results, _refused(found, broken))


def _counts(count: int) -> list[Column]:
    found = []
    for n in range(count):
        broken, unanswered = (F.col(name).bitwiseAND(F.lit(1 << n)) != 0 for name in (BROKEN, UNANSWERED))
        first = F.min(F.when(broken, _where()))
        found += [F.count_if(broken).alias(f"failed_{n}"), F.count_if(unanswered).alias(f"nulls_{n}")]
        found.append(first.alias(f"first_{n}"))
    return found


def _by_checks(asked: Asked) -> Verdict:
    """Call your own checks with the rows that the other rules leave; a commit without rows isn't checked."""
    rows = asked.rows if asked.untold is None else asked.rows.drop(asked.untold)
    count = rows.count()
    if not count:
        return Verdict(tuple(RuleResult(rule, 0, 0) for rule in asked.rules))
    found = {rule: run_check(str(rule.entry.check), rows, asked.samples, asked.mask) for rule in asked.rules}
    return Verdict(tuple(RuleResult(rule, count, int(bool(c.failures)), checked=c) for rule, c in found.items()))


def _by_conditions(asked: Asked) -> Verdict:
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
            *_places(asked.column),
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
            aggregates.append(F.min(F.when(~F.col(_kept(n)), _where())).alias(f"first_{n}"))
        found = self._collected(lambda: self._frame.agg(*aggregates).collect())[0]
        self._count = found["rows"]
        return tuple(self._result(n, each, found) for n, each in self._conditions)

    def _result(self, n: int, condition: Condition, counted: Row) -> RuleResult:
        rule, rows, told = condition.rule, counted["rows"], counted[f"told_{n}"]
        failed, first = told - counted[f"yes_{n}"], counted[f"first_{n}"]
        if not rule.is_of_rows:
            return replace(commit_result(rule, rows, failed), unknown=condition.unknown)
        if condition.keys:
            several = [F.count(F.lit(1)), F.min(_where())]
            failed, first = self._collected(lambda: self._twice(n, condition).agg(*several).collect())[0]
        given, snapshot = rule.entry.foreign_key, None
        if given is not None:
            snapshot = self._asked.tables[given.table].snapshot
        first = _first(self._asked, first)
        return RuleResult(rule, rows, failed, rows - told, first, unknown=condition.unknown, snapshot=snapshot)

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

        return _refused(self._collected(whole.toArrow), broken)

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


def _places(column: str | None) -> list[Column]:
    """Return where rows come from; in some order, if no column tells that."""
    if column is None:
        told = (F.lit(None).cast("string"), F.lit(0), F.monotonically_increasing_id())
    else:
        told = tuple(F.col(f"`{column}`")[name] for name in PLACE)
    return [each.alias(name) for each, name in zip(told, PLACE, strict=True)]


def _where() -> Column:
    return F.struct("partition", "offset")


def _keys(n: int, columns: Sequence[Column]) -> list[str]:
    return [_KEY.format(n, i) for i in range(len(columns))]


def _first(asked: Asked, place: Row | None) -> tuple[int, int] | None:
    return None if place is None or asked.column is None else (place["partition"], place["offset"])


def _refused(found: pa.Table, broken: Callable[[Any], list[Rule]]) -> Refused:
    """Return records that rules refuse.

    Args:
        found: Places of records, and in the column `BROKEN` what says which rules each breaks.
        broken: Returns the rules that it says, in the order of the settings.
    """
    codes = found.column(BROKEN).combine_chunks().dictionary_encode()
    rules = [broken(code) for code in codes.dictionary.to_pylist()]
    counts = {row["values"]: row["counts"] for row in codes.indices.value_counts().to_pylist()}
    by_rule = Counter[str]()
    for n, each in enumerate(rules):
        by_rule.update({rule.name: counts[n] for rule in each if rule.error_class})
    records = found.select(PLACE).append_column("reason", codes.indices.cast(pa.int32()))
    return Refused(records, tuple(map(reason_of, rules)), dict(by_rule))


def _unknown_names(condition: Condition) -> Iterator[str]:
    # The other kinds ask nothing of a column that isn't there.
    if condition.rule.kind == "expression":
        yield from condition.unknown


def _kept(n: int) -> str:
    return f"kept_{n}"
