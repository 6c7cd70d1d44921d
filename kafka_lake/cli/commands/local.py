"""``kafka-lake demo``, ``up``, ``reload`` and ``metrics``: the local stack, and what Prometheus asks for."""

from importlib.util import find_spec
from typing import Annotated

import typer

from kafka_lake.cli import console
from kafka_lake.common.files import home
from kafka_lake.common.text import counted
from kafka_lake.devstack.running import running
from kafka_lake.errors import ConfigurationError, KafkaLakeError


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
    from kafka_lake.demo.demo import Extras, run_demo
    from kafka_lake.devstack.running import Ports

    run_demo(records, Extras(avro, cdc, many), Ports.from_env(), console.out)


DEMO = (demo,) if find_spec("kafka_lake.demo") else ()
"""The command, where the pizza shop is installed: the wheel has the library alone."""


def up(
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Start an embedded broker and registry too, and produce records all the time.",
            hidden=not DEMO,
        ),
    ] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="Orders per second, with --demo.", hidden=not DEMO)] = 5.0,
    s3: Annotated[
        bool, typer.Option("--s3", help="Keep the tables in an embedded S3 store with a REST catalog.")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Serve metrics for Prometheus, too.")] = False,
) -> None:
    """Run Dagster and a Spark Connect server until Ctrl-C; an embedded broker too, if nothing names brokers."""
    from kafka_lake.cli.up import stay_up
    from kafka_lake.devstack.running import Ports

    tell_user = console.err.print
    if not demo:
        return stay_up(Ports.from_env(), tell_user, s3=s3, metrics=metrics)
    if not DEMO:
        raise ConfigurationError("The demo is not installed.", "It is part of the repository: `make dev`.")
    from kafka_lake.demo.up import check_project, demo_trickles

    check_project()
    return stay_up(
        Ports.from_env(), tell_user, lambda stack: demo_trickles(stack, rate, tell_user), s3=s3, metrics=metrics
    )


def reload() -> None:
    """Reload the definitions in the Dagster of `kafka-lake up`. The sensor then starts runs for new topics."""
    from kafka_lake.cli.project import topic_tables
    from kafka_lake.devstack.dagster_runs import reload_definitions
    from kafka_lake.spec.topic_table import once_each

    stack = running()
    if stack is None or not stack.ui_url:
        raise KafkaLakeError(
            f"No local stack with Dagster runs in {home()}.",
            "`kafka-lake up` starts one. The UI of a Dagster of your own has the button Reload definitions.",
        )
    # What is wrong with them is told with file and line here.
    specs = topic_tables()
    with console.err.status("Loading definitions"):
        reload_definitions(stack.ui_url)
    console.out.print(f"Dagster has loaded the tables of {counted(len(specs), 'topic')}:", highlight=False)
    for spec in once_each(specs):
        console.out.print(f"  {stack.ui_url}/assets/{'/'.join(spec.identifier)}", soft_wrap=True, highlight=False)


metrics_app = typer.Typer(
    no_args_is_help=True, help="Metrics for Prometheus: lag, rows, dead letters, the health of tables."
)


@metrics_app.callback()
def _group() -> None:
    """Keep `serve` a command of its own, though it is the only one."""


@metrics_app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen at. 0.0.0.0 lets other machines ask; there is no password.")
    ] = "127.0.0.1",
    interval: Annotated[str, typer.Option(help="Pause between two collections: 15s, 1m.")] = "15s",
) -> None:
    """Serve metrics of all topics and their tables at /metrics until Ctrl-C.

    They come from the brokers and the tables: neither Dagster nor a run needs to be there. Values that the brokers or
    the catalog no longer give vanish, and kafka_lake_scrape_success is 0.
    """
    from kafka_lake.cli import metrics
    from kafka_lake.common.text import seconds_of
    from kafka_lake.errors import ConfigurationError

    seconds = seconds_of(interval)
    if seconds < 1:
        raise ConfigurationError(f"--interval {interval} is too short.", "Give a second at least, as 15s.")
    metrics.serve(host, port, seconds, lambda line: console.err.print(line, markup=False, soft_wrap=True))
