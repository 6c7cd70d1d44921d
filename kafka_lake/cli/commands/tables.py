"""Commands about a table: ``ingest``, ``status``, ``clean``, ``query``, ``history`` and ``schema``."""

import json
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import uuid4

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AnyTopic, AsJson, Topic
from kafka_lake.errors import KafkaError


def ingest(topic: Topic) -> None:
    """Bring one topic's table up to date, in this process."""
    from kafka_lake.cli.output import followed, run_line
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.cli.status import collect
    from kafka_lake.ingest import run

    specs = topic_tables(topic)
    with connections_at_hand(
        console.err.print, with_spark=True, cluster=specs[0].cluster, starts_broker=True
    ) as connections:
        for spec in specs:
            before = collect([spec], connections.cluster, connections.catalog)[0]
            with followed(topic, console.err, before.lag) as observer:
                report = run.ingest(spec, connections, str(uuid4()), observer=observer)
            for each in spec.tables:
                console.out.print(run_line(report.of(each.identifier)))


def status(
    topic: AnyTopic = None,
    as_json: AsJson = False,
    wait: Annotated[
        str | None, typer.Option(help="Wait until the tables have all records, at most for this time: 90s, 5m.")
    ] = None,
) -> None:
    """Show how far each topic's table is, in a line; with a topic's name, in a line for each Kafka partition.

    Of a topic that lags, also why its last run failed if it did. Exit code 1 if a topic can't be read, or if --wait
    ended before the tables had all records.
    """
    from kafka_lake.cli.output import overview, status_table
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.cli.status import awaited, clusters_of, collect, unanswered
    from kafka_lake.common.text import seconds_of
    from kafka_lake.errors import EmbeddedBrokerStoppedError
    from kafka_lake.orchestration.keys import work_name
    from kafka_lake.orchestration.runs import failed_runs

    seconds = None if wait is None else seconds_of(wait)
    specs, found, untold = topic_tables(topic), [], False
    deadline = time.monotonic() + (seconds or 0)
    for cluster in clusters_of(specs):
        of_cluster = [spec for spec in specs if spec.cluster == cluster]
        try:
            with connections_at_hand(console.err.print, cluster=cluster) as connections:
                if seconds is None:
                    found += collect(of_cluster, connections.cluster, connections.catalog)
                else:
                    with console.err.status("Waiting for the tables"):
                        left = deadline - time.monotonic()
                        found += awaited(of_cluster, connections.cluster, connections.catalog, left)
        except EmbeddedBrokerStoppedError as stopped:
            with connections_at_hand(console.err.print, with_broker=False, cluster=cluster) as connections:
                found += unanswered(of_cluster, stopped, connections.catalog)
        except KafkaError as error:
            if cluster is None:
                raise
            # The topics of the other clusters can be told of.
            untold = True
            console.err.print(f"Kafka cluster {cluster}: {error}", style="red", markup=False, soft_wrap=True)
    names = {(spec.cluster, spec.topic): work_name(spec) for spec in specs}
    failures = failed_runs(specs)
    found = [replace(each, last_failure=failures.get(names.get((each.cluster, each.topic), ""))) for each in found]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    elif found:
        console.out.print(*(map(status_table, found) if topic else overview(found, datetime.now(UTC))), sep="\n")
    else:
        console.out.print("No topic has a table here. `kafka-lake discover TOPIC --write` gives it one.")
    told = {each.topic: each.last_failure for each in found if each.lag and each.last_failure}
    for name, failure in told.items():
        console.err.print(failure.line(name), style="red", markup=False, soft_wrap=True)
    if untold or any(each.error or (wait and each.lag) for each in found):
        raise typer.Exit(1)


def clean(
    topic: AnyTopic = None,
    older_than: Annotated[str, typer.Option(help="Keep what is younger than this: 30m, 24h, 7d.")] = "24h",
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without this option they are only shown.")] = False,
) -> None:
    """Show the branches and files that dead runs left behind, and remove them with --yes.

    The files are in no snapshot of any table. Younger files and branches are kept, since a run or a compaction may
    still be writing them. 0s keeps nothing, and is safe only while nothing else writes to the tables.
    """
    from kafka_lake.cli.output import cleaned_lines
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.common.text import seconds_of
    from kafka_lake.maintenance.clean import clean as clean_table
    from kafka_lake.spec.topic_table import once_each

    seconds = seconds_of(older_than)
    specs, found = topic_tables(topic), False
    with connections_at_hand(console.err.print, with_broker=False) as connections:
        for spec in once_each(specs):
            with console.err.status(f"Cleaning {'.'.join(spec.identifier)}"):
                cleaned = clean_table(spec, connections, seconds, dry_run=not yes)
            console.out.print(
                *cleaned_lines(spec, cleaned, yes), sep="\n", soft_wrap=True, highlight=False, markup=False
            )
            found |= bool(cleaned.branches or cleaned.files)
    if found and not yes:
        console.out.print("Nothing was removed. The same command with --yes removes what it finds.")


def query(
    topic: Topic,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help='A query in Spark\'s SQL, as in "SELECT count(*) FROM this".')
    ],
    limit: Annotated[int, typer.Option(min=1, help="Rows to show at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Query a topic's table with Spark SQL; the query can only read.

    The table has its own name, and also the name this. Other tables are namespace.table.
    """
    from kafka_lake.cli import query as cli_query
    from kafka_lake.cli.project import connections_at_hand, topic_tables

    spec = topic_tables(topic)[0]
    with (
        connections_at_hand(console.err.print, with_broker=False, cluster=spec.cluster) as connections,
        console.err.status("Asking Spark"),
    ):
        answer = cli_query.ask(spec, connections, sql=sql, limit=limit, as_json=as_json)
    if as_json:
        typer.echo(cli_query.answer_json(answer.rows))
    else:
        console.out.print(cli_query.answer_table(answer))


Table = Annotated[
    str, typer.Argument(help="A topic, for its table; or a table: orders, shop.orders, shop.orders__dead_letters.")
]


def history(
    table: Table,
    limit: Annotated[int, typer.Option(min=1, help="Commits to show at most, the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show who committed what to a table and when, newest first, from its snapshots alone.

    Neither Spark nor Kafka is needed. Maintenance tells only its engine, and expiry leaves no snapshot.
    """
    from kafka_lake.cli.history import commit_table, history_json, history_of, identifier_of, last_lines
    from kafka_lake.cli.project import connections_at_hand, topics_if_any

    identifier = identifier_of(table, topics_if_any())
    with connections_at_hand(console.err.print, with_broker=False) as connections:
        found = history_of(connections.catalog, identifier, limit)
    if as_json:
        typer.echo(json.dumps(history_json(found), indent=2))
        return
    console.out.print(commit_table(found))
    for line in last_lines(found):
        console.out.print(line, markup=False, highlight=False, soft_wrap=True)


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
