"""``kafka-lake verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kafka_lake.cli import project
from kafka_lake.cli.arguments import OFFSETS, AsJson
from kafka_lake.cli.output import Output, working
from kafka_lake.common.text import limit_of
from kafka_lake.errors import ConfigurationError

if TYPE_CHECKING:
    from kafka_lake.spec.topic_table import TopicTable


def verify(
    table: Annotated[str, typer.Argument(help="Table of a topic; with its namespace if the name is ambiguous.")],
    since: Annotated[str, typer.Option(help=f"Verify only records from here on: {OFFSETS}.")] = "earliest",
    sample: Annotated[str, typer.Option(help="Share of records whose values are compared.")] = "1%",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted verification.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a table has every record in Kafka before the table's position exactly once.

    Exit code 0: proven. 1: problems. 2: the table couldn't be verified.
    """
    from kafka_lake.verify.run import VerifyOptions
    from kafka_lake.verify.run import verify as compare

    share = limit_of(sample, "--sample")
    if not isinstance(share, float):
        raise ConfigurationError(
            f"--sample: {sample!r} is not a share.", "Write for example 1%; 0% compares no values."
        )
    topic, spec = _table(table)
    output = Output(as_json)
    with (
        project.open_connections(cluster=spec.cluster, starts_broker=True) as connections,
        working(f"Verifying {table}") as status,
    ):
        report = compare(topic, spec, connections, VerifyOptions(since, share, resume), progress=status.update)
    output.json(report.document())
    output.lines(*report.lines())
    if report.problems:
        raise typer.Exit(1)


def _table(named: str) -> tuple[TopicTable, TopicTable]:
    """Return the settings of a table's topic, and of the table."""
    known = {spec.identifier: (topic, spec) for topic in project.topic_tables() for spec in topic.tables}
    chosen = [found for (namespace, table), found in known.items() if named in (table, f"{namespace}.{table}")]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"{'Several tables of topics have' if chosen else 'No table of a topic has'} the name {named}.",
            f"Name one of them: {', '.join('.'.join(identifier) for identifier in sorted(known)) or 'there are none'}.",
        )
    return chosen[0]
