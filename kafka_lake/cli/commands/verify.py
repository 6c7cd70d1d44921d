"""``kafka-lake verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_lake.cli import project
from kafka_lake.cli.arguments import OFFSETS, AsJson
from kafka_lake.cli.output import Output
from kafka_lake.cli.progress import Bar
from kafka_lake.common.text import limit_of
from kafka_lake.errors import ConfigurationError


def verify(
    table: Annotated[str, typer.Argument(help="Table of a topic; with its namespace if the name is ambiguous.")],
    since: Annotated[str, typer.Option(help=f"Start of the verified records: {OFFSETS}.")] = "earliest",
    sample: Annotated[str, typer.Option(help="Share of records whose values are compared.")] = "1%",
    as_json: AsJson = False,
) -> None:
    """Prove that a table has each record exactly once, up to the table's position.

    Exit code 0: proven. 1: problems. 2: the table couldn't be verified.
    """
    from kafka_lake.routing.by_value import find_table, find_topic
    from kafka_lake.verify.run import verify as compare

    share = limit_of(sample, "--sample")
    if not isinstance(share, float):
        raise ConfigurationError(
            f"--sample: {sample!r} is not a share.", "Write for example 1%; 0% compares no values."
        )
    topic = find_topic(project.topic_tables(), table)
    output, bar = Output(as_json), Bar(as_json)
    with (
        project.open_connections(cluster=topic.cluster) as connections,
        bar.shown(f"Verifying {table}"),
    ):
        spec = find_table(topic, table, connections.catalog)
        report = compare(topic, spec, connections, since=since, sample=share, progress=bar.update)
    if since != "earliest" and not any(
        end > start for parts in report.ranges.values() for start, end in parts.values()
    ):
        raise ConfigurationError(
            f"--since: table {report.table} hasn't read any record at or after {since}.",
            "Name an earlier time or offset.",
        )
    output.json(report.document())
    output.lines(*report.lines())
    if report.problems:
        raise typer.Exit(1)
