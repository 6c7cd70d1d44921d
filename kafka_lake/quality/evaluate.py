"""Evaluate rules: first those of single rows in Arrow, then the others in Spark on the rows that stay."""

from dataclasses import replace
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.engine.interop import task_function
from kafka_lake.quality.custom_check import run_check
from kafka_lake.quality.result import Refused, RuleResult
from kafka_lake.quality.row_rules import row_rules
from kafka_lake.quality.spark_rules import column_at, evaluate_in_spark
from kafka_lake.quality.task.rules import BROKEN, UNANSWERED, UNCHANGED, check_frame
from kafka_lake.quality.validation import Validation, ValidationResult, partition_and_offset, refused_by
from kafka_lake.spec.rule import BY_ARROW, Rule

_IN_SPARK = ("expression", "unique", "foreign_key", "row_count")
_ANSWERS = T.StructType(
    [
        T.StructField("topic_id", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
        T.StructField(BROKEN, T.LongType()),
        T.StructField(UNANSWERED, T.LongType()),
    ]
)


def evaluate(validation: Validation) -> ValidationResult:
    """Evaluate rules; raises a ConfigurationError if one doesn't fit the columns."""
    results, refused = dict[Rule, RuleResult](), list[Refused]()
    engines = ((_evaluate_in_arrow, BY_ARROW), (evaluate_in_spark, _IN_SPARK), (_run_checks, ("check",)))
    for engine, kinds in engines:
        rules = tuple(rule for rule in validation.rules if rule.kind in kinds)
        if not rules:
            continue
        part = engine(replace(validation, rules=rules))
        results |= {result.rule: result for result in part.results}
        if part.refused is not None and validation.column is not None:
            refused.append(part.refused)
            validation = replace(validation, rows=part.refused.left(validation.rows, validation.column))
    whole = ValidationResult(tuple(results[rule] for rule in validation.rules))
    return whole if whole.fails or not refused else replace(whole, refused=reduce(Refused.and_, refused))


def _evaluate_in_arrow(validation: Validation) -> ValidationResult:
    columns = T.StructType([column for column in validation.rows.schema if column.name != validation.unchanged])
    rules = row_rules(validation.subject, validation.rules, columns, validation.declared)
    paths = {path: f"column_{number}" for number, (*_, (_, path, _)) in enumerate(rules.tests) if path}
    unchanged = [] if validation.unchanged is None else [F.col(validation.unchanged).alias(UNCHANGED)]
    rows = validation.rows.select(
        *validation.places(), *[column_at(path).alias(name) for path, name in paths.items()], *unchanged
    )
    answered = rows.mapInArrow(task_function(check_frame, {"tests": rules.tests, "columns": paths}), _ANSWERS)
    counts = answered.agg(F.count(F.lit(1)).alias("rows"), *_counts(len(rules.tests))).collect()[0]
    answers = {
        rule.name: (counts[f"failed_{n}"], counts[f"nulls_{n}"], validation.first_place(counts[f"first_{n}"]))
        for n, rule in enumerate(rules.rules)
    }
    result = ValidationResult(rules.results(counts["rows"], answers))
    if not result.refuses_rows:
        return result
    refusing = sum(1 << number for number, rule in enumerate(rules.rules) if rule.error_class)
    places = answered.filter(F.col(BROKEN).bitwiseAND(F.lit(refusing)) != 0).toArrow()

    def broken_rules(code: int) -> list[Rule]:
        return [rule for number, rule in enumerate(rules.rules) if code >> number & 1]

    return replace(result, refused=refused_by(places, broken_rules))


def _counts(count: int) -> list[Column]:
    aggregates = []
    for number in range(count):
        broken, unanswered = (F.col(name).bitwiseAND(F.lit(1 << number)) != 0 for name in (BROKEN, UNANSWERED))
        aggregates += [
            F.count_if(broken).alias(f"failed_{number}"),
            F.count_if(unanswered).alias(f"nulls_{number}"),
            F.min(F.when(broken, partition_and_offset())).alias(f"first_{number}"),
        ]
    return aggregates


def _run_checks(validation: Validation) -> ValidationResult:
    """Call custom checks with the rows that the other rules leave, if there are any."""
    rows = validation.rows if validation.unchanged is None else validation.rows.drop(validation.unchanged)
    count = rows.count()
    if not count:
        return ValidationResult(tuple(RuleResult(rule, 0, 0) for rule in validation.rules))
    results = []
    for rule in validation.rules:
        checked = run_check(str(rule.entry.check), rows, validation.samples, validation.mask)
        results.append(RuleResult(rule, count, int(bool(checked.failures)), checked=checked))
    return ValidationResult(tuple(results))
