"""A staged batch is checked by the rules of its table."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.cdc.task.change import READ, UPSERT
from kafka_lake.quality.result import RuleResult, commit_result
from kafka_lake.quality.validation import ReferencedTable, Validation, ValidationResult, referenced_tables
from kafka_lake.quality.volume import SECONDS, VolumeFound, starts_before, volume_of
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import at_version, metadata_column_of
from kafka_lake.spec.rule import BY_ARROW, Rule
from kafka_lake.writers.dead_letters import added_rows
from kafka_lake.writers.staged import StagedTable
from kafka_lake.writers.upsert.keys import INTERNAL, OPERATION, UNCHANGED, quoted

_MOST_CACHED = 1000
_volumes: dict[tuple[str, str, int], VolumeFound] = {}


def check_rows(context: Context, plan: Plan, staged: StagedTable, declared: bool) -> ValidationResult:
    """Check the rows that a commit adds."""
    rules = _rules(context, plan)
    if not rules:
        return ValidationResult()
    known = {rule: _volume(context, plan, staged, rule) for rule in rules if rule.kind == "volume"}
    known |= {result.rule: result for result in staged.rules or ()}
    if not any(rule.kind in BY_ARROW and rule not in known for rule in rules):
        # No other rule takes rows away before these are asked.
        known |= {rule: commit_result(rule, staged.rows) for rule in rules if rule.kind == "row_count" and staged.rows}
    left, verdict = tuple(rule for rule in rules if rule not in known), ValidationResult()
    if not staged.rows:
        known |= {rule: _of_no_rows(rule, plan) for rule in left}
    elif left:
        verdict = context.decoding.evaluate(_asked(context, plan, staged, left, declared=declared))
    known |= {result.rule: result for result in verdict.results}
    context.observer.step_done("rules evaluated")
    # A commit that fails makes no dead letters.
    refused = None if any(each.fails for each in known.values()) else verdict.refused
    return ValidationResult(tuple(known[rule] for rule in rules), refused)


def _volume(context: Context, plan: Plan, staged: StagedTable, rule: Rule) -> RuleResult:
    if plan.kind != "append":
        return RuleResult(rule, staged.rows, 0)
    found = _volume_of(context, rule, staged)
    return RuleResult(rule, staged.rows, int(found.is_broken), volume=found)


def check_changes(context: Context, plan: Plan, changes: DataFrame, *, declared: bool) -> ValidationResult:
    """Check the changes of an upsert table or history that bring a row; deletes aren't checked.

    A column that a change leaves unchanged counts as null, which `not_null` doesn't refuse.
    """
    rules = _rules(context, plan)
    if not rules:
        return ValidationResult()
    brings = changes.filter(F.col(OPERATION).isin(UPSERT, READ))
    if brings.isEmpty():
        return ValidationResult(tuple(_of_no_rows(rule, plan) for rule in rules))
    untold = {
        name: F.when(~F.array_contains(F.col(UNCHANGED), name), F.col(quoted(name)))
        for name in brings.columns
        if not name.startswith(INTERNAL)
    }
    asked = Validation(
        topic=context.spec.topic,
        rules=rules,
        rows=brings.select(*[column.alias(name) for name, column in untold.items()], UNCHANGED),
        column=metadata_column_of(context.spec),
        declared=declared,
        untold=UNCHANGED,
        tables=_referred(context, rules),
        samples=context.spec.samples,
        mask=context.spec.mask,
    )
    verdict = context.decoding.evaluate(asked)
    context.observer.step_done("rules evaluated")
    return verdict


def _asked(context: Context, plan: Plan, staged: StagedTable, rules: tuple[Rule, ...], *, declared: bool) -> Validation:
    spec, others, earlier = context.spec, None, None
    if staged.state.head is not None:
        # Another commit has published the row that a duplicate repeats. The table's columns of now are read: the
        # head's lack those that this commit has added, and have old names.
        rows = context.connections.spark().table(context.connections.catalog.spark_name(spec.identifier))
        if plan.kind == "dead_letter_replay":
            others = rows
        if any(rule.entry.within is not None for rule in rules):
            earlier = _without_read_again(rows, plan, metadata_column_of(spec))
    return Validation(
        topic=spec.topic,
        rules=rules,
        rows=added_rows(context, spec.identifier, staged),
        column=metadata_column_of(spec),
        declared=declared or spec.transform is not None,
        others=others,
        earlier=earlier,
        tables=_referred(context, rules),
        samples=context.spec.samples,
        mask=context.spec.mask,
    )


def _referred(context: Context, rules: tuple[Rule, ...]) -> Mapping[str, ReferencedTable]:
    return referenced_tables(context.connections, rules, f"Topic {context.spec.topic}")


def _without_read_again(rows: DataFrame, plan: Plan, column: str) -> DataFrame:
    """Return the rows of a table without those whose records are read again."""
    if plan.kind != "replace":
        return rows
    place, topic_id = F.col(quoted(column)), plan.after.identity.topic_id or None
    here = place["topic_id"].eqNullSafe(F.lit(topic_id))
    for each in plan.ranges:
        within = place["offset"].between(each.start, each.end - 1)
        rows = rows.filter(~(here & (place["partition"] == each.partition) & within))
    return rows


def _rules(context: Context, plan: Plan) -> tuple[Rule, ...]:
    """Return the rules that a commit is checked by."""
    rules = context.spec.named_rules
    if plan.undecodable is not None or plan.kind in ("reset", "adopt"):
        return ()
    if plan.kind == "dead_letter_replay":
        # The number of its rows says nothing about the producer.
        asked = [rule for rule in rules if rule.is_of_rows or rule.kind == "check"]
        return tuple(replace(rule, fail_above=None) for rule in asked)
    return rules


def _of_no_rows(rule: Rule, plan: Plan) -> RuleResult:
    # A commit without records is none that somebody counts rows of.
    its_records = plan.share.records if plan.share else plan.records_at_most
    if rule.is_of_rows or rule.kind in ("volume", "check") or not its_records:
        return RuleResult(rule, 0, 0)
    return commit_result(rule, 0)


def _volume_of(context: Context, rule: Rule, staged: StagedTable) -> VolumeFound:
    """Return what a volume rule finds of the last complete period.

    A period that is as expected is counted once in a process: that is a query over one column of its rows.
    """
    given = rule.entry.volume
    assert given is not None, "the caller has looked"
    starts = starts_before(time.time(), given.per, given.days)
    key = (str(staged.state.table.metadata.table_uuid), rule.name, starts[0])
    if (known := _volumes.get(key)) is not None:
        return known
    found = volume_of(_counts(context, staged, starts, SECONDS[given.per]), starts, given.deviations)
    if not found.is_broken:
        # A table that is behind may get the missing rows by the next commit.
        if len(_volumes) >= _MOST_CACHED:
            _volumes.clear()
        _volumes[key] = found
    return found


def _counts(context: Context, staged: StagedTable, starts: list[int], seconds: int) -> dict[int, int]:
    spark, name = context.connections.spark(), context.connections.catalog.spark_name(context.spec.identifier)
    at = F.col(quoted(metadata_column_of(context.spec)))["timestamp"]
    # By literals: files of other times are skipped by their statistics.
    within = reduce(or_, [(at >= _literal(start)) & (at < _literal(start + seconds)) for start in starts])
    period = (F.floor(F.unix_seconds(at) / seconds) * seconds).alias("start")
    found = at_version(spark, name, staged.snapshot).filter(within).groupBy(period).count().collect()
    return {int(row["start"]): row["count"] for row in found}


def _literal(seconds: int) -> Column:
    return F.timestamp_seconds(F.lit(seconds))
