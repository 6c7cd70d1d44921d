"""A derived table's rules, asked of the rows that come with a commit, before anyone can read them."""

from pyspark.sql import DataFrame

from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.query import ORIGIN
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.rule_finding import rule_finding
from kafka_lake.ingest.rules.evaluate import Asked, evaluate
from kafka_lake.ingest.rules.referred import referred
from kafka_lake.ingest.rules.result import RuleResult, commit_result

_REMEDY = (
    "main is as it was. Correct the query or the upstream rows, or change the rule: its own settings, on_failure: or "
    "fail_above:. Then run again."
)


def ask_rules(engine: Engine, spec: DerivedTable, rows: DataFrame, count: int, *, whole: bool) -> tuple[Finding, ...]:
    """Ask a table's rules of the rows that a commit adds.

    Args:
        engine: Of the run.
        spec: The table.
        rows: The rows.
        count: How many they are.
        whole: Whether they are all rows of the table.

    Returns:
        A finding for each rule. Rules that warn are among those that are broken.

    Raises:
        ConfigurationError: If a rule can't be asked of the table's columns.
        GateFailedError: If a rule that fails is broken. The branch is the caller's to discard.
    """
    rules = spec.named_rules
    if not rules:
        return ()
    if count:
        column = ORIGIN if spec.is_row_wise else None
        tables = referred(engine, rules, f"Table {spec.name}")
        asked = Asked(
            topic=spec.name, rules=rules, rows=rows, column=column, declared=True, what="Table", tables=tables
        )
        results = evaluate(asked).results
    else:
        # A commit that takes rows away, or holds a position alone, is not the one that somebody counts.
        results = tuple(
            commit_result(rule, 0) if whole and rule.kind in ("row_count", "null_share") else RuleResult(rule, 0, 0)
            for rule in rules
        )
    findings = list(map(rule_finding, results))
    if failed := [each for each in findings if each.refuses]:
        reasons = "; ".join(f"{each.check}: {problem}" for each in failed for problem in each.problems)
        raise GateFailedError(f"Table {spec.name}: {reasons}.", findings, _REMEDY, spec.identifier)
    return tuple(findings)
