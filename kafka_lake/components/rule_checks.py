"""The rules of a topic as checks of its table in Dagster."""

from collections.abc import Mapping, Sequence

import dagster as dg

from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.rule import Rule


def rule_check_spec(rule: Rule, table: dg.AssetKey) -> dg.AssetCheckSpec:
    """Return the check of a rule; it blocks unless the rule only warns."""
    return dg.AssetCheckSpec(
        rule.check, asset=table, blocking=rule.on_failure != "warn", description=f"Rule: {rule.said}."
    )


def with_all_rules(findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Return findings and one for each rule that was asked of nothing: without a commit, all rules hold."""
    known = {finding.check for finding in findings}
    return [*findings, *(Finding(rule.check, (), {}) for rule in rules if rule.check not in known)]


def share_metadata(finding: Finding) -> Mapping[str, float]:
    """Return which share of the rows breaks a rule, over all commits of a run."""
    evaluated, failed = (finding.facts.get(name) for name in ("evaluated", "failed"))
    if not finding.is_rule or not isinstance(evaluated, int) or not isinstance(failed, int):
        return {}
    return {"share_failed": round(failed / evaluated, 6) if evaluated else 0.0}
