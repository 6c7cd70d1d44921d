"""A topic's rules asked of its whole table, as its readers see it, at any time."""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import functions as F

from kafka_lake.common.errors import TableError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.rows import DELETED, change_columns
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.record_keys import metadata_column_of
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rule_finding import rule_finding
from kafka_lake.ingest.rules.asked import Asked
from kafka_lake.ingest.rules.evaluate import evaluate
from kafka_lake.ingest.rules.referred import referred
from kafka_lake.ingest.topic_table import TopicTable


def examine_rules(spec: TopicTable, connections: Connections, rules: Sequence[Rule]) -> list[Finding]:
    """Ask rules of all rows that a table has.

    Args:
        spec: The topic and its table.
        connections: Catalog and Spark; all rows are read, but only the columns that rules are about.
        rules: Those to be asked.

    Returns:
        One finding per rule. Rules that are about a commit pass: the table doesn't tell its commits apart.

    Raises:
        TableError: If there is no table yet.
        ConfigurationError: If a rule can't be asked of the table's columns.
    """
    if not rules:
        return []
    if connections.catalog.table(spec.identifier) is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} doesn't exist yet.", "Materialize it, and check then.")
    alone = [rule for rule in rules if rule.is_of_rows and rule.kind != "unique"]
    of_commits = [rule for rule in rules if rule not in alone]
    found = [Finding(rule.check, (), {"rule": rule.said, "asked": "of each commit only"}) for rule in of_commits]
    if alone:
        rows = connections.spark().table(connections.catalog.spark_name(spec.identifier))
        if DELETED in {field.name for field in change_columns(spec)}:
            rows = rows.filter(~F.coalesce(F.col(DELETED), F.lit(False)))
        # What is in the table already, no rule takes out: that it is there is the problem.
        strict = tuple(rule if rule.on_failure == "warn" else replace(rule, on_failure="fail") for rule in alone)
        tables = referred(connections, strict, f"Topic {spec.topic}")
        asked = Asked(topic=spec.topic, rules=strict, rows=rows, column=metadata_column_of(spec), tables=tables)
        found += [rule_finding(each) for each in evaluate(asked).results]
    return found
