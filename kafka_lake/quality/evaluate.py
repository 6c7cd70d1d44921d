"""Evaluate rules: first by Arrow those of single rows, then by Spark the others on the rows that stay."""

from dataclasses import replace
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.task_frames import task_function
from kafka_lake.quality.custom_check import run_check
from kafka_lake.quality.result import Refused, RuleResult
from kafka_lake.quality.row_rules import row_rules
from kafka_lake.quality.spark_rules import by_spark, column_at
from kafka_lake.quality.task.rules import BROKEN, LEFT_OUT, UNANSWERED, ask
from kafka_lake.quality.validation import Validation, ValidationResult, first_place, places, refused_by, where
from kafka_lake.spec.rule import BY_ARROW, Rule

_ANSWERED = T.StructType(
    [
        T.StructField("topic_id", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField(BROKEN, T.LongType()),
        T.StructField(UNANSWERED, T.LongType()),
    ]
)


def by_arrow(asked: Validation) -> ValidationResult:
    """Evaluate rules of single rows; raises as `row_rules`."""
    columns = T.StructType([column for column in asked.rows.schema if column.name != asked.untold])
    rules = row_rules(asked.subject, asked.rules, columns, asked.declared)
    paths = {path: f"column_{n}" for n, (*_, (_, path, _)) in enumerate(rules.tests) if path}
    left_out = [] if asked.untold is None else [F.col(asked.untold).alias(LEFT_OUT)]
    given = asked.rows.select(
        *places(asked.column), *[column_at(path).alias(name) for path, name in paths.items()], *left_out
    )
    answered = given.mapInArrow(task_function(ask, {"tests": rules.tests, "columns": paths}), _ANSWERED)
    counted = answered.agg(F.count(F.lit(1)).alias("rows"), *_counts(len(rules.tests))).collect()[0]
    answers = {
        rule.name: (counted[f"failed_{n}"], counted[f"nulls_{n}"], first_place(asked, counted[f"first_{n}"]))
        for n, rule in enumerate(rules.rules)
    }
    results = rules.results(counted["rows"], answers)
    if any(each.fails for each in results) or not any(each.refuses_rows for each in results):
        return ValidationResult(results)
    refusing = sum(1 << n for n, rule in enumerate(rules.rules) if rule.error_class)
    found = answered.filter(F.col(BROKEN).bitwiseAND(F.lit(refusing)) != 0).toArrow()

    def broken(code: int) -> list[Rule]:
        return [rule for n, rule in enumerate(rules.rules) if code >> n & 1]

    return ValidationResult(results, refused_by(found, broken))


def _counts(count: int) -> list[Column]:
    found = []
    for n in range(count):
        broken, unanswered = (F.col(name).bitwiseAND(F.lit(1 << n)) != 0 for name in (BROKEN, UNANSWERED))
        first = F.min(F.when(broken, where()))
        found += [F.count_if(broken).alias(f"failed_{n}"), F.count_if(unanswered).alias(f"nulls_{n}")]
        found.append(first.alias(f"first_{n}"))
    return found


_BY_SPARK = ("expression", "unique", "foreign_key", "row_count", "null_share")


def evaluate(asked: Validation) -> ValidationResult:
    """Evaluate rules, each kind by its engine."""
    results, refused = dict[Rule, RuleResult](), list[Refused]()
    for engine, kinds in ((by_arrow, BY_ARROW), (by_spark, _BY_SPARK), (_by_checks, ("check",))):
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
    return ValidationResult(found, None if fails or not refused else reduce(Refused.and_, refused))


def _by_checks(asked: Validation) -> ValidationResult:
    """Call custom checks with the rows that the other rules leave, if there are any."""
    rows = asked.rows if asked.untold is None else asked.rows.drop(asked.untold)
    count = rows.count()
    if not count:
        return ValidationResult(tuple(RuleResult(rule, 0, 0) for rule in asked.rules))
    found = {rule: run_check(str(rule.entry.check), rows, asked.samples, asked.mask) for rule in asked.rules}
    return ValidationResult(
        tuple(RuleResult(rule, count, int(bool(c.failures)), checked=c) for rule, c in found.items())
    )
