"""The commands ``demo`` and ``live``."""

from typing import Annotated

import typer

from examples.pizza_shop.demo import Extras, run_demo
from examples.pizza_shop.up import check_project, start_demo
from kafka_lake.cli import output
from kafka_lake.cli.commands.up import stay_up
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


def live(
    rate: Annotated[float, typer.Option(min=0.01, help="Orders per second.")] = 5.0,
    s3: Annotated[
        bool, typer.Option("--s3", help="Keep the tables in an embedded S3 store with a REST catalog.")
    ] = False,
) -> None:
    """Run the stack of `kafka-lake up` with a broker, and produce records until Ctrl-C."""
    check_project()
    stay_up(Ports.from_env(), output.note, lambda stack: start_demo(stack, rate, output.note), s3=s3)
