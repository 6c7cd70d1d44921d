"""Commands about what is around the tables: ``init``, ``env``, ``discover``, ``doctor`` and ``topics``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson


def env(
    secrets: Annotated[bool, typer.Option("--secrets", help="Print passwords, keys and tokens too.")] = False,
) -> None:
    """Print the variables that tell other tools where brokers, catalog and Spark are.

    In a shell: eval "$(kafka-lake env --secrets)"
    """
    from kafka_lake.cli import env as cli_env
    from kafka_lake.cli.project import configured_clusters, connections_at_hand

    brokers = {name: kafka.cluster().bootstrap_servers for name, (kafka, _) in configured_clusters().items()}
    with connections_at_hand(console.err.print, with_broker=False) as connections:
        found = cli_env.variables(connections.catalog, brokers)
    for line in cli_env.lines(found, secrets):
        typer.echo(line)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the new project; its name is the Python package's.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="A topic to make a table of; repeatable.")
    ] = None,
    bootstrap_servers: Annotated[
        str, typer.Option(help="Kafka's brokers, for the project's .env; by default the environment's.")
    ] = "",
    registry: Annotated[
        str, typer.Option(help="The schema registry, for the project's .env; by default the environment's.")
    ] = "",
) -> None:
    """Make a new Dagster project with the cluster, and with a table for each named topic.

    Existing files are never overwritten. Without --topic, on a terminal, it asks which topics to take.
    """
    from kafka_lake.cli.init import Request, run
    from kafka_lake.devstack.running import name_servers

    name_servers(bootstrap_servers, registry)
    run(Request(folder, topic or (), bootstrap_servers, registry), console.out, console.err)


def discover(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Kafka topics, as orders or eu/orders; all by default.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write a defs.yaml for each topic named. Without a name it asks which.")
    ] = False,
    into: Annotated[Path | None, typer.Option(help="Folder to write to; the project's defs by default.")] = None,
    sample: Annotated[int, typer.Option(min=1, max=1000, help="Newest records of each topic to read.")] = 20,
    internal: Annotated[
        bool, typer.Option("--all", help="Show internal topics too, whose names begin with _.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the cluster's topics with a guess of their format, and write YAML documents for the chosen ones.

    Offsets count from the start of the log to its end; compaction and transactions leave gaps between the records. The
    size is an estimate from the sampled records: before compression, of one replica. No consumer group is involved, and
    no file is ever overwritten.
    """
    from kafka_lake.cli.discover import Request, run

    request = Request(topics=topics or (), sample=sample, internal=internal, write=write, into=into, as_json=as_json)
    if not run(request, console.out, console.err):
        raise typer.Exit(1)


def doctor() -> None:
    """Check every system that a run needs. Exit code 1 if anything is red."""
    from kafka_lake.cli.doctor import examine
    from kafka_lake.cli.output import diagnosis_table
    from kafka_lake.cli.project import configured_catalog, configured_clusters, topics_if_any
    from kafka_lake.devstack.running import Ports
    from kafka_lake.devstack.stack import broker_at_hand

    ports = Ports.from_env()
    with console.err.status("Examining") as working:
        diagnoses = examine(
            lambda: broker_at_hand(ports, console.err.print, starts=False),
            working.update,
            clusters=configured_clusters,
            catalog=configured_catalog,
            tables=topics_if_any,
        )
    console.out.print(diagnosis_table(diagnoses))
    if not all(each.healthy for each in diagnoses):
        raise typer.Exit(1)


topics_app = typer.Typer(
    no_args_is_help=True, help="Show and refresh the topics that KafkaTopics match, and tables by value."
)


@topics_app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """Show which topics match, which tables they have, and which ones are new or gone. Nothing is changed.

    Below them are the tables that values of topics with tables_by have.
    """
    from kafka_lake.cli.topics import known_topics, tables_by_value, topics_table, values_table

    found, values = known_topics(console.err.print), tables_by_value(console.err.print)
    if as_json:
        console.out.print_json(json.dumps([*map(asdict, found), *map(asdict, values)]))
        return
    if found:
        console.out.print(topics_table(found))
    if values:
        console.out.print(values_table(values))


@topics_app.command()
def refresh() -> None:
    """Ask the clusters for their topics, so that new ones that match get tables when the definitions load again.

    Topics that are gone from Kafka lose their assets. Their tables stay. Tables that values of topics with tables_by
    have got are asked of the catalog.
    """
    from kafka_lake.cli.topics import known_topics, tables_by_value, topics_table, values_table

    changed = [each for each in known_topics(console.err.print, refresh=True) if each.state != "known"]
    values = [each for each in tables_by_value(console.err.print, refresh=True) if each.state != "known"]
    if not changed and not values:
        console.out.print("Nothing has changed.")
        return
    if changed:
        console.out.print(topics_table(changed))
    if values:
        console.out.print(values_table(values))
    console.out.print(
        "Known now. Where Dagster runs, reload the code location: `kafka-lake reload`, or the page Deployment.",
        highlight=False,
    )
