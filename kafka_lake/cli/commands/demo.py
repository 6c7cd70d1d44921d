"""``kafka-lake demo``."""

from typing import Annotated

import typer

from kafka_lake.cli import output
from kafka_lake.demo.demo import Extras, run_demo
from kafka_lake.devstack.running import Ports


def demo(
    records: Annotated[int, typer.Option(min=1, help="Orders to produce.")] = 50_000,
    avro: Annotated[
        bool, typer.Option("--avro", help="Add a second topic, in Avro with a schema registry. Its schema changes.")
    ] = False,
    cdc: Annotated[
        bool,
        typer.Option("--cdc", help="Add a PostgreSQL that changes, captured by Debezium. At the end, compare both."),
    ] = False,
    many: Annotated[
        bool,
        typer.Option("--many", help="Add a topic with routes, topics that match a pattern, and tables from tables."),
    ] = False,
) -> None:
    """Run everything once, from an embedded broker to filled tables, show the result and stop."""
    run_demo(records, Extras(avro, cdc, many), Ports.from_env(), output.out)
