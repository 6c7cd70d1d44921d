"""The command line, ``kafka-lake …``. Decides nothing: each command calls one function and shows what it returns."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from dotenv import load_dotenv
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from kafka_lake.errors import KafkaLakeError

# Engines, clients and Dagster take seconds to import: each command imports what it needs, so that help is instant.

_out = Console()
_err = Console(stderr=True)


class _Group(TyperGroup):
    """Shows an error that a user can mend as its message, and ends with exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaLakeError as error:
            _err.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Kafka topics become Apache Iceberg tables, exactly once, under Dagster.",
)


@app.callback()
def _load_environment() -> None:
    load_dotenv(".env")


@app.command()
def demo(
    records: Annotated[int, typer.Option(min=1, help="Orders to produce.")] = 50_000,
) -> None:
    """Run the whole path once, from an embedded broker to filled tables, show what came of it and stop."""
    from kafka_lake.demo.demo import run_demo
    from kafka_lake.demo.ports import Ports

    run_demo(records, Ports.from_env(), _out)


@app.command()
def up(
    demo: Annotated[bool, typer.Option("--demo", help="With an embedded broker and a trickle of orders.")] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="Orders per second of that trickle.")] = 5.0,
) -> None:
    """Keep Dagster and a warm Spark Connect server up until Ctrl-C."""
    from kafka_lake.demo.ports import Ports
    from kafka_lake.demo.up import stay_up

    stay_up(Ports.from_env(), demo, rate, _err.print)


@app.command()
def ingest(topic: Annotated[str, typer.Argument(help="The Kafka topic.")]) -> None:
    """Bring one topic's table up to date, in this process."""
    from kafka_lake.cli_render import ingest_with_progress
    from kafka_lake.cli_topics import topic_tables
    from kafka_lake.demo.ports import Ports
    from kafka_lake.demo.stack import broker_at_hand
    from kafka_lake.kafka.resource import KafkaResource
    from kafka_lake.lake.resource import CatalogResource
    from kafka_lake.status import collect

    specs = topic_tables(topic)
    with broker_at_hand(Ports.from_env(), _err.print):
        for spec, before in zip(
            specs, collect(specs, KafkaResource().cluster(), CatalogResource().open()), strict=True
        ):
            report = ingest_with_progress(spec, before.lag, _err)
            _out.print(
                f"{report.table}: {report.total('rows')} rows in {len(report.commits)} commits, "
                f"{report.total('dead_letters')} dead letters, {report.seconds:.1f} s"
            )


@app.command()
def status(
    topic: Annotated[str | None, typer.Argument(help="The Kafka topic; all of them by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show per topic and partition how far its table is."""
    from kafka_lake.cli_render import status_table
    from kafka_lake.cli_topics import topic_tables
    from kafka_lake.demo.ports import Ports
    from kafka_lake.demo.stack import broker_at_hand
    from kafka_lake.kafka.resource import KafkaResource
    from kafka_lake.lake.resource import CatalogResource
    from kafka_lake.status import collect

    specs = topic_tables(topic)
    with broker_at_hand(Ports.from_env(), _err.print):
        found = collect(specs, KafkaResource().cluster(), CatalogResource().open())
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            _out.print(status_table(each))
    if any(each.error for each in found):
        raise typer.Exit(1)


@app.command()
def doctor() -> None:
    """Examine everything that a run needs; exit code 1 if anything is red."""
    from kafka_lake.cli_render import diagnosis_table
    from kafka_lake.demo.ports import Ports
    from kafka_lake.demo.stack import broker_at_hand
    from kafka_lake.doctor import examine

    ports = Ports.from_env()
    with _err.status("Examining") as working:
        diagnoses = examine(lambda: broker_at_hand(ports, _err.print), working.update)
    _out.print(diagnosis_table(diagnoses))
    if not all(each.healthy for each in diagnoses):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line."""
    app()
