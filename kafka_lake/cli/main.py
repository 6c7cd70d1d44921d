"""The command line, ``kafka-lake …``. Decides nothing: each command calls one function and shows what it returns."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from dotenv import load_dotenv
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from kafka_lake.cli import topic as cli_kafka
from kafka_lake.cli.logs import log_to_file, log_to_terminal
from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.common.home import home
from kafka_lake.local_stack.running import running

# Engines, clients and Dagster take seconds to import: each command imports what it needs, so that help is instant.

_STARTING = ("demo", "up")
_out = Console()
_err = Console(stderr=True)

_OWN_PROCESS = object()


class _Group(TyperGroup):
    """Shows an error that a user can mend as its message, and ends with exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaLakeError as error:
            told = str(error)
            logging.getLogger(__name__).info("The command failed", exc_info=error)
        except Exception as error:
            from kafka_lake.ingest.sentence import sentence

            told = sentence(error) or ""
            if not told:
                raise
            logging.getLogger(__name__).warning("The command failed", exc_info=error)
        _err.print(f"[bold red]Error:[/] {escape(told)}", soft_wrap=True, highlight=False)
        raise typer.Exit(1)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # Its traces show the values of variables, passwords among them.
    pretty_exceptions_enable=False,
    help="Kafka topics become Apache Iceberg tables, exactly once, under Dagster.",
)

app.add_typer(cli_kafka.app, name="topic")


@app.callback()
def _prepare(
    ctx: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", envvar="KAFKA_LAKE_VERBOSE", help="Show what libraries and servers log.")
    ] = False,
) -> None:
    load_dotenv(".env")
    if ctx.invoked_subcommand not in _STARTING and (stack := running()):
        stack.use()
    if verbose:
        log_to_terminal()
    elif ctx.obj is _OWN_PROCESS:
        log_to_file()


@app.command()
def demo(
    records: Annotated[int, typer.Option(min=1, help="Orders to produce.")] = 50_000,
    avro: Annotated[
        bool, typer.Option("--avro", help="With a second topic, in Avro by a schema registry, whose schema changes.")
    ] = False,
) -> None:
    """Run the whole path once, from an embedded broker to filled tables, show what came of it and stop."""
    from kafka_lake.demo.demo import run_demo
    from kafka_lake.local_stack.ports import Ports

    run_demo(records, avro, Ports.from_env(), _out)


@app.command()
def up(
    demo: Annotated[bool, typer.Option("--demo", help="With embedded broker and registry, and live records.")] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="Orders per second among them.")] = 5.0,
) -> None:
    """Keep Dagster and a warm Spark Connect server up until Ctrl-C."""
    from kafka_lake.demo.up import stay_up
    from kafka_lake.local_stack.ports import Ports

    stay_up(Ports.from_env(), demo, rate, _err.print)


Topic = Annotated[str, typer.Argument(help="The Kafka topic.")]
AnyTopic = Annotated[str | None, typer.Argument(help="The Kafka topic; all of them by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Partitions = Annotated[str | None, typer.Option(help="Only these Kafka partitions, as in 0,3.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]

_TARGETS = "earliest, latest, an offset, an ISO 8601 time, or offsets by partition as in 0:17,1:4"


@app.command()
def ingest(topic: Topic) -> None:
    """Bring one topic's table up to date, in this process."""
    from kafka_lake.cli.output import followed, run_line
    from kafka_lake.cli.project import systems_at_hand, topic_tables
    from kafka_lake.cli.status import collect
    from kafka_lake.ingest import pipeline

    specs = topic_tables(topic)
    with systems_at_hand(_err.print, with_spark=True) as systems:
        for spec, before in zip(specs, collect(specs, systems.cluster, systems.catalog), strict=True):
            with followed(topic, _err, before.lag) as hooks:
                report = pipeline.ingest(spec, systems, str(uuid4()), None, hooks.on_commit, hooks.on_step, hooks.say)
            _out.print(run_line(report))


@app.command()
def status(
    topic: AnyTopic = None,
    as_json: AsJson = False,
    wait: Annotated[
        str | None, typer.Option(help="Wait until the tables have all records, for so long at most: 90s, 5m.")
    ] = None,
) -> None:
    """Show per topic and partition how far its table is; exit code 1 if that can't be told, or --wait was in vain."""
    from kafka_lake.cli.output import status_table
    from kafka_lake.cli.project import systems_at_hand, topic_tables
    from kafka_lake.cli.status import awaited, collect
    from kafka_lake.common.durations import seconds_of

    seconds = None if wait is None else seconds_of(wait)
    specs = topic_tables(topic)
    with systems_at_hand(_err.print) as systems:
        if seconds is None:
            found = collect(specs, systems.cluster, systems.catalog)
        else:
            with _err.status("Waiting for the tables"):
                found = awaited(specs, systems.cluster, systems.catalog, seconds)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            _out.print(status_table(each))
    if any(each.error or (wait and each.lag) for each in found):
        raise typer.Exit(1)


@app.command("dead-letters")
def dead_letters(
    topic: Topic,
    replay: Annotated[
        bool, typer.Option("--replay", help="Decode them again, and move those that now fit into the table.")
    ] = False,
    where: Annotated[
        str | None, typer.Option(help="Only those that meet this SQL condition, as in \"error_class = 'not_json'\".")
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Records to show of each class.")] = 3,
    as_json: AsJson = False,
) -> None:
    """List the records that fit no row, by class; or decode them again.

    A condition may name the columns of the dead-letter table: error_class, error_message, partition, offset,
    timestamp, failed_at, run_id. Lists know comparisons, in, between, is null, like 'text%', and, or, not; --replay
    understands all of Spark SQL.
    """
    from kafka_lake.cli import repair as cli_again
    from kafka_lake.cli.output import dead_letter_tables, followed, redelivered_tables
    from kafka_lake.cli.project import systems_at_hand, topic_tables
    from kafka_lake.ingest.again import redeliver

    specs = topic_tables(topic)
    told: list[dict[str, Any]] = []
    with systems_at_hand(_err.print, with_broker=replay, with_spark=replay) as systems:
        for spec in specs:
            if replay:
                with followed(topic, _err) as hooks:
                    done = redeliver(spec, systems, str(uuid4()), where, on_step=hooks.on_step, say=hooks.say)
                told.append(cli_again.redelivered(spec, done))
                if not as_json:
                    _out.print(*redelivered_tables(spec, done), sep="\n")
            else:
                found = cli_again.dead_letters(spec, systems.catalog, where, samples)
                told.append(asdict(found))
                if not as_json:
                    _out.print(*dead_letter_tables(found), sep="\n")
    if as_json:
        typer.echo(json.dumps(told, indent=2))


@app.command()
def replay(
    topic: Topic,
    start: Annotated[str | None, typer.Option("--from", help=f"Where to begin: {_TARGETS}.")] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Where to end, exclusive: the same. The table's position by default.")
    ] = None,
    partitions: Partitions = None,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep rows whose records Kafka no longer has, instead of refusing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Read a part of the topic again, and swap the table's rows of it for what they are by today's schema."""
    from kafka_lake.cli.output import followed, run_line
    from kafka_lake.cli.project import systems_at_hand, topic_tables
    from kafka_lake.cli.repair import partitions_of
    from kafka_lake.ingest import again

    chosen = partitions_of(partitions)
    extent = again.Extent(start or "earliest", end or "latest", chosen, keep_missing)
    specs = topic_tables(topic)
    if not (start or end or chosen or yes):
        _agree(f"Read all of topic {topic} again?")
    with systems_at_hand(_err.print, with_spark=True) as systems:
        for spec in specs:
            with followed(topic, _err) as hooks:
                report = again.replay(spec, systems, str(uuid4()), extent, hooks.on_commit, hooks.on_step, hooks.say)
            _out.print(run_line(report) if report.commits else f"{report.table}: nothing of that is in the table.")


@app.command()
def reset(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help=f"Where to go on: {_TARGETS}.")],
    partitions: Partitions = None,
    yes: Yes = False,
) -> None:
    """Set the offsets at which the table goes on; shows what that does, and asks.

    Rows at and beyond the new offsets leave the table, since they will be read again. Offsets that are jumped over are
    recorded as skipped.
    """
    from kafka_lake.cli.output import followed, reset_table
    from kafka_lake.cli.project import systems_at_hand, topic_tables
    from kafka_lake.cli.repair import partitions_of, pinned, position_of, resets_of
    from kafka_lake.ingest import again

    chosen = partitions_of(partitions)
    specs = topic_tables(topic)
    with systems_at_hand(_err.print, with_spark=True) as systems:
        due = []
        for spec in specs:
            plan = again.plan_reset(spec, systems, to, chosen)
            if plan is None:
                _out.print(f"{'.'.join(spec.identifier)}: the position is there already; nothing to do.")
                continue
            before = position_of(systems.catalog, spec)
            _out.print(reset_table(spec, resets_of(before, plan)))
            due.append((spec, pinned(before, plan)))
        if due and not yes:
            _agree("Set the position?")
        for spec, targets in due:
            with followed(topic, _err) as hooks:
                again.reset(spec, systems, str(uuid4()), targets, None, hooks.on_step, hooks.say)
            _out.print(f"{'.'.join(spec.identifier)}: goes on at {targets}.")


@app.command()
def clean(
    topic: AnyTopic = None,
    older_than: Annotated[str, typer.Option(help="Spare what is younger than this: 30m, 24h, 7d.")] = "24h",
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this, it is only shown.")] = False,
) -> None:
    """Show what dead runs left behind, and remove it with --yes: branches, and files that no table knows.

    Younger files and branches are spared, since they may belong to writers that are at work: a run, a compaction. 0s
    spares nothing, and is safe only while nothing else writes to the tables.
    """
    from kafka_lake.cli.output import cleaned_lines
    from kafka_lake.cli.project import systems_at_hand, topic_tables
    from kafka_lake.common.durations import seconds_of
    from kafka_lake.ingest.maintenance.clean import clean as clean_table

    seconds = seconds_of(older_than)
    specs, found = topic_tables(topic), False
    with systems_at_hand(_err.print, with_broker=False) as systems:
        for spec in specs:
            with _err.status(f"Cleaning {'.'.join(spec.identifier)}"):
                cleaned = clean_table(spec, systems, seconds, dry_run=not yes)
            _out.print(*cleaned_lines(spec, cleaned, yes), sep="\n", soft_wrap=True, highlight=False, markup=False)
            found |= bool(cleaned.branches or cleaned.files)
    if found and not yes:
        _out.print("Nothing was removed. The same command with --yes removes what it finds then.")


@app.command()
def schema(
    topic: Topic,
    sample: Annotated[
        int, typer.Option(min=0, help="Newest records to look at, to say what the next run would change; 0 for none.")
    ] = 1000,
    history: Annotated[bool, typer.Option("--history", help="How the table came to its columns instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a table's columns, and what the next run would do to them; changes nothing.

    Exit code 1 if the next run would fail.
    """
    from kafka_lake.cli import schema as cli_schema
    from kafka_lake.cli.project import systems_at_hand, topic_tables

    specs = topic_tables(topic)
    refused = False
    told: list[Any] = []
    looks = not history and sample > 0
    with systems_at_hand(_err.print, with_broker=looks, with_spark=looks) as systems:
        for spec in specs:
            if history:
                versions = cli_schema.history_of(spec, systems)
                told.append(cli_schema.history_as_json(versions))
                shown = [cli_schema.history_table(spec, versions)]
            else:
                with _err.status(f"Looking at the newest records of {topic}"):
                    found = cli_schema.topic_schema(spec, systems, sample)
                refused |= bool(found.preview and found.preview.refused)
                told.append(asdict(found))
                shown = cli_schema.schema_tables(found)
            if not as_json:
                _out.print(*shown, sep="\n", highlight=False)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    if refused:
        raise typer.Exit(1)


@app.command()
def reload() -> None:
    """Have the Dagster that `kafka-lake up` runs load its definitions again; the sensor then starts what is new."""
    from kafka_lake.cli.project import topic_tables
    from kafka_lake.demo.runs import reload_definitions

    stack = running()
    if stack is None or not stack.ui_url:
        raise KafkaLakeError(
            f"No local stack with Dagster runs in {home()}.",
            "`kafka-lake up` starts one. The UI of a Dagster of your own has the button Reload definitions.",
        )
    # What is wrong with them is told with file and line here.
    specs = topic_tables()
    with _err.status("Loading definitions"):
        reload_definitions(stack.ui_url)
    _out.print(f"Dagster has loaded the tables of {len(specs)} topics:", highlight=False)
    for spec in specs:
        _out.print(f"  {stack.ui_url}/assets/{'/'.join(spec.identifier)}", soft_wrap=True, highlight=False)


@app.command()
def query(
    topic: Topic,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help='A query in Spark\'s SQL, as in "SELECT count(*) FROM this".')
    ],
    limit: Annotated[int, typer.Option(min=1, help="Rows to show at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Query a topic's table, which goes by its own name and as this; other tables by namespace.table. Reads only."""
    from kafka_lake.cli import query as cli_query
    from kafka_lake.cli.project import systems_at_hand, topic_tables

    spec = topic_tables(topic)[0]
    with systems_at_hand(_err.print, with_broker=False) as systems, _err.status("Asking Spark"):
        answer = cli_query.ask(spec, systems, sql, limit, as_json)
    if as_json:
        typer.echo(cli_query.answer_json(answer.rows))
    else:
        _out.print(cli_query.answer_table(answer))


@app.command()
def env(
    secrets: Annotated[bool, typer.Option("--secrets", help="With passwords, keys and tokens.")] = False,
) -> None:
    """Print the variables by which other tools find the same brokers, catalog and Spark.

    In a shell: eval "$(kafka-lake env --secrets)"
    """
    from kafka_lake.cli import env as cli_env
    from kafka_lake.cli.project import systems_at_hand

    with systems_at_hand(_err.print, with_broker=False) as systems:
        found = cli_env.variables(systems.catalog, systems.cluster.bootstrap_servers)
    for line in cli_env.lines(found, secrets):
        typer.echo(line)


@app.command()
def discover(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Kafka topics; all by default.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write a defs.yaml for each topic named, or ask which.")
    ] = False,
    into: Annotated[Path | None, typer.Option(help="Folder to write to; the project's defs by default.")] = None,
    sample: Annotated[int, typer.Option(min=1, max=1000, help="Newest records of each topic to look at.")] = 20,
    internal: Annotated[bool, typer.Option("--all", help="Internal topics as well, those that begin with _.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the cluster's topics with what their records seem to be, and write the YAML of those chosen.

    Offsets count from the start of the log to its end; compaction and transactions leave gaps between the records. The
    size is estimated by the records looked at: before compression, of one replica. No consumer group is involved, and
    no file is ever overwritten.
    """
    from kafka_lake.cli.discover import Request, run

    if not run(Request(topics or (), sample, internal, write, into, as_json), _out, _err):
        raise typer.Exit(1)


def _agree(question: str) -> None:
    if not typer.confirm(question, err=True):
        _err.print("Nothing was changed.")
        raise typer.Exit(1)


@app.command()
def doctor() -> None:
    """Examine everything that a run needs; exit code 1 if anything is red."""
    from kafka_lake.cli.doctor import examine
    from kafka_lake.cli.output import diagnosis_table
    from kafka_lake.local_stack.ports import Ports
    from kafka_lake.local_stack.stack import broker_at_hand

    ports = Ports.from_env()
    with _err.status("Examining") as working:
        diagnoses = examine(lambda: broker_at_hand(ports, _err.print), working.update)
    _out.print(diagnosis_table(diagnoses))
    if not all(each.healthy for each in diagnoses):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line."""
    app(obj=_OWN_PROCESS)
