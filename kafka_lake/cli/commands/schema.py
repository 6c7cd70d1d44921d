"""``kafka-lake schema``: a table's columns, and what the next run would do to them."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson, Topic


def schema(
    topic: Topic,
    sample: Annotated[
        int, typer.Option(min=0, help="Newest records to read, to tell what the next run would change; 0 for none.")
    ] = 1000,
    history: Annotated[
        bool, typer.Option("--history", help="Show how the table's columns have changed instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a table's columns, and what the next run would do to them. Nothing is changed.

    Exit code 1 if the next run would fail.
    """
    from kafka_lake.cli import schema as cli_schema
    from kafka_lake.cli.project import connections_at_hand, topic_tables

    specs = topic_tables(topic)
    refused = False
    told: list[Any] = []
    looks = not history and sample > 0
    with connections_at_hand(
        console.err.print, with_broker=looks, with_spark=looks, cluster=specs[0].cluster
    ) as connections:
        for spec, its_topic in ((table, each) for each in specs for table in each.tables):
            if history:
                versions = cli_schema.history_of(spec, connections)
                told.append(cli_schema.history_as_json(versions))
                shown = [cli_schema.history_table(spec, versions)]
            else:
                with console.err.status(f"Looking at the newest records of {topic}"):
                    found = cli_schema.topic_schema(spec, connections, sample, its_topic)
                refused |= bool(found.preview and found.preview.refused)
                told.append(asdict(found))
                shown = cli_schema.schema_tables(found)
            if not as_json:
                console.out.print(*shown, sep="\n", highlight=False)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    if refused:
        raise typer.Exit(1)
