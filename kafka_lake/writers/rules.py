"""Check the rules of a table on a staged batch."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.cdc.task.change import READ, UPSERT
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.quality.result import RuleResult, count_result
from kafka_lake.quality.validation import ReferencedTable, Validation, ValidationResult, referenced_tables
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.rule import Rule
from kafka_lake.writers.dead_letters import added_rows
from kafka_lake.writers.staged import StagedTable
from kafka_lake.writers.upsert.keys import INTERNAL, OPERATION, UNCHANGED


def check_rows(context: Context, plan: Plan, staged: StagedTable, declared: bool) -> ValidationResult:
    """Check the rows that a commit appends."""
    rules = _rules(context, plan)
    if not rules:
        return ValidationResult()
    results = {result.rule: result for result in staged.rules or ()}
    if staged.rows and not any(rule.is_in_tasks and rule not in results for rule in rules):
        # No rule that is still to be checked can refuse rows before they are counted.
        results |= {rule: count_result(rule, staged.rows) for rule in rules if rule.counts_rows}
    left, validation = tuple(rule for rule in rules if rule not in results), ValidationResult()
    if not staged.rows:
        results |= {rule: _without_rows(rule, plan) for rule in left}
    elif left:
        validation = context.decoding.evaluate(_validation(context, plan, staged, left, declared=declared))
    results |= {result.rule: result for result in validation.results}
    context.observer.step_done("rules evaluated")
    # A commit that fails makes no dead letters.
    refused = None if any(result.fails for result in results.values()) else validation.refused
    return ValidationResult(tuple(results[rule] for rule in rules), refused)


def check_events(context: Context, plan: Plan, events: DataFrame, *, declared: bool) -> ValidationResult:
    """Check the change events that have a row; deletes aren't checked.

    A column that an event leaves unchanged counts as null, which `not_null` doesn't refuse.
    """
    rules = _rules(context, plan)
    if not rules:
        return ValidationResult()
    with_row = events.filter(F.col(OPERATION).isin(UPSERT, READ))
    if with_row.isEmpty():
        return ValidationResult(tuple(_without_rows(rule, plan) for rule in rules))
    columns = [
        F.when(~F.array_contains(F.col(UNCHANGED), name), F.col(quoted(name))).alias(name)
        for name in with_row.columns
        if not name.startswith(INTERNAL)
    ]
    validation = Validation(
        topic=context.spec.topic,
        rules=rules,
        rows=with_row.select(*columns, UNCHANGED),
        column=METADATA_COLUMN,
        declared=declared,
        unchanged=UNCHANGED,
        tables=_referenced_tables(context, rules),
        samples=context.spec.samples,
        mask=context.spec.mask,
    )
    result = context.decoding.evaluate(validation)
    context.observer.step_done("rules evaluated")
    return result


def _validation(
    context: Context, plan: Plan, staged: StagedTable, rules: tuple[Rule, ...], *, declared: bool
) -> Validation:
    spec, existing, earlier = context.spec, None, None
    if staged.state.head is not None:
        # The table's current columns are read: its head lacks columns that this commit has added or renamed.
        rows = context.connections.spark().table(context.connections.catalog.spark_name(spec.identifier))
        if plan.replays_dead_letters:
            # An earlier commit has published the row that a duplicate repeats.
            existing = rows
        if any(rule.entry.within is not None for rule in rules):
            earlier = _without_replayed(rows, plan)
    return Validation(
        topic=spec.topic,
        rules=rules,
        rows=added_rows(context, spec.identifier, staged),
        column=METADATA_COLUMN,
        declared=declared or spec.transform is not None,
        existing=existing,
        earlier=earlier,
        tables=_referenced_tables(context, rules),
        samples=spec.samples,
        mask=spec.mask,
    )


def _referenced_tables(context: Context, rules: tuple[Rule, ...]) -> Mapping[str, ReferencedTable]:
    return referenced_tables(context.connections, rules, f"Topic {context.spec.topic}")


def _without_replayed(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows of a table without those whose records are replayed."""
    if not plan.replaces:
        return rows
    place, topic_id = F.col(quoted(METADATA_COLUMN)), plan.after.identity.topic_id or None
    same_topic = place["topic_id"].eqNullSafe(F.lit(topic_id))
    for replayed in plan.ranges:
        is_within = place["offset"].between(replayed.start, replayed.end - 1)
        rows = rows.filter(~(same_topic & (place["partition"] == replayed.partition) & is_within))
    return rows


def _rules(context: Context, plan: Plan) -> tuple[Rule, ...]:
    """Return the rules that a commit is checked by."""
    rules = context.spec.named_rules
    if plan.undecodable is not None or plan.kind in ("reset", "adopt"):
        return ()
    if plan.replays_dead_letters:
        # The number of replayed rows says nothing about the producer.
        return tuple(replace(rule, fail_above=None) for rule in rules if not rule.counts_rows)
    return rules


def _without_rows(rule: Rule, plan: Plan) -> RuleResult:
    records = plan.share.records if plan.share else plan.records_at_most
    if not rule.counts_rows or not records:
        return RuleResult(rule, 0, 0)
    return count_result(rule, 0)
