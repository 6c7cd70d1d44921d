"""Suites of other tools as rules of ours."""

from pyspark.sql import DataFrame

from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.by_expectations import ask_expectations
from kafka_lake.ingest.rules.by_pandera import ask_schema
from kafka_lake.ingest.rules.result import RuleResult
from kafka_lake.ingest.rules.suite import Shown


def ask_suite(rule: Rule, rows: DataFrame, count: int, *, metadata_column: str | None, shown: Shown) -> RuleResult:
    """Ask a suite or a schema of rows.

    Args:
        rule: Of one of the kinds `OF_SUITES`.
        rows: Those of a commit.
        count: How many they are. Of none, nothing is asked.
        metadata_column: The one among them that says which record a row came from; None if there is none.
        shown: What may be shown of their values.

    Raises:
        ConfigurationError: If the tool isn't installed, or there is no such suite or schema.
    """
    if not count:
        return RuleResult(rule, 0, 0)
    if rule.entry.expectations is not None:
        found = ask_expectations(rule.entry.expectations, rows, shown)
    else:
        assert rule.entry.pandera is not None, "there are two kinds"
        found = ask_schema(rule.entry.pandera, rows, metadata_column, shown)
    return RuleResult(rule, count, int(bool(found.failed)), suite=found)
