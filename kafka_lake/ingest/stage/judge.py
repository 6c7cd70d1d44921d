"""A staged batch before the topic's rules."""

import json
from dataclasses import replace

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.record_keys import metadata_column_of
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.by_statistics import BY_STATISTICS, kept_by_statistics
from kafka_lake.ingest.rules.evaluate import Asked, Verdict
from kafka_lake.ingest.rules.refused import Refused
from kafka_lake.ingest.rules.result import RuleResult, commit_result
from kafka_lake.ingest.stage.dead_letter_rows import added_rows
from kafka_lake.ingest.stage.rebase import added_files
from kafka_lake.ingest.stage.staged import StagedTable

REFUSED = "kafka-lake.refused-by-rules"
"""In a snapshot's summary: how many of its records each rule made dead letters of, as JSON, if there are any."""


def refused_mark(refused: Refused) -> str:
    """Return what a snapshot's summary tells of the records that rules refused."""
    return json.dumps({name: count for name, count in refused.by_rule.items() if count})


def judge(context: Context, plan: Plan, staged: StagedTable, declared: bool) -> Verdict:
    """Ask the topic's rules of the rows that a commit adds.

    Args:
        context: Of the run.
        plan: The commit.
        staged: Its rows.
        declared: Whether the settings declare all columns.

    Raises:
        ConfigurationError: If a rule can't be asked of the table's columns.
    """
    rules = _rules(context, plan)
    if not rules:
        return Verdict()
    if not staged.rows:
        return Verdict(tuple(_of_no_rows(rule, plan) for rule in rules))
    known = {rule: commit_result(rule, staged.rows) for rule in rules if rule.kind == "row_count"}
    known |= _known(rules, staged)
    verdict = Verdict()
    if left := tuple(rule for rule in rules if rule not in known):
        verdict = context.decoding.evaluate(_asked(context, plan, staged, left, declared=declared))
    known |= {result.rule: result for result in verdict.results}
    context.observer.step_done("rules evaluated")
    return Verdict(tuple(known[rule] for rule in rules), verdict.refused)


def _known(rules: tuple[Rule, ...], staged: StagedTable) -> dict[Rule, RuleResult]:
    """Return what the statistics of the files tell of rules: those that they answer are kept by all rows."""
    table = staged.branch.staged or staged.state.table.refresh()
    snapshot = table.snapshot_by_id(staged.appended)
    if snapshot is None or table.format_version != 2 or not any(rule.kind in BY_STATISTICS for rule in rules):
        return {}
    files = added_files(table, snapshot)
    if sum(file.record_count for file in files) != staged.rows:
        return {}
    found = {rule: kept_by_statistics(rule, table.schema(), files) for rule in rules}
    return {rule: result for rule, result in found.items() if result is not None}


def _asked(context: Context, plan: Plan, staged: StagedTable, rules: tuple[Rule, ...], *, declared: bool) -> Asked:
    spec, others = context.spec, None
    if plan.kind == "dead_letter_replay" and staged.state.head is not None:
        # What a duplicate is one of has been published by another commit. By the columns of today: those of the head
        # lack what this commit has added, and have old names.
        others = context.connections.spark().table(context.connections.catalog.spark_name(spec.identifier))
    return Asked(
        topic=spec.topic,
        rules=rules,
        rows=added_rows(context, spec.identifier, staged),
        column=metadata_column_of(spec),
        declared=declared or spec.transform is not None,
        others=others,
    )


def _rules(context: Context, plan: Plan) -> tuple[Rule, ...]:
    """Return the rules that a commit is asked."""
    rules = context.spec.named_rules
    if plan.undecodable is not None or plan.kind in ("reset", "adopt") or (plan.share and plan.share.refused):
        return ()
    if plan.kind == "dead_letter_replay":
        # It is no release of a producer's, and has as many rows as were bad before.
        return tuple(replace(rule, fail_above=None) for rule in rules if rule.is_of_rows)
    return rules


def _of_no_rows(rule: Rule, plan: Plan) -> RuleResult:
    # A commit that holds a position and nothing else is not the one that somebody counts.
    its_records = plan.share.records if plan.share else plan.records_at_most
    if rule.is_of_rows or not its_records:
        return RuleResult(rule, 0, 0)
    return commit_result(rule, 0)
