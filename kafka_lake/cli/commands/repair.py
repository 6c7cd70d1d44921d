"""Commands that read or compute once more: ``dead-letters``, ``replay``, ``reset``, ``rebuild``; and ``adopt``."""

import json
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any
from uuid import uuid4

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson, Topic
from kafka_lake.common.text import counted

Partitions = Annotated[str | None, typer.Option(help="Only these Kafka partitions, as in 0,3.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]

_TARGETS = "earliest, latest, an offset, an ISO 8601 time, or offsets by partition as in 0:17,1:4"


def dead_letters(
    topic: Topic,
    replay: Annotated[
        bool, typer.Option("--replay", help="Decode them again, and move those that fit now into the table.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(help="Only dead letters that meet this SQL condition, as in \"error_class = 'not_json'\"."),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Records to show of each class.")] = 3,
    as_json: AsJson = False,
) -> None:
    """List a topic's dead letters by class, or decode them again.

    A condition may name the columns of the dead-letter table: error_class, error_message, partition, offset,
    timestamp, failed_at, run_id. A list understands comparisons, in, between, is null, like 'text%', and, or, not.
    --replay understands all of Spark SQL that is about one row.
    """
    from kafka_lake.cli import repair
    from kafka_lake.cli.output import dead_letter_tables, followed, replayed_tables
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.ingest.run import replay_dead_letters

    specs = topic_tables(topic)
    told: list[dict[str, Any]] = []
    with connections_at_hand(
        console.err.print, with_broker=replay, with_spark=replay, cluster=specs[0].cluster, starts_broker=replay
    ) as connections:
        for spec in chain.from_iterable(each.tables for each in specs):
            if replay:
                with followed(topic, console.err) as observer:
                    done = replay_dead_letters(spec, connections, run_id=str(uuid4()), where=where, observer=observer)
                told.append(repair.replayed_dead_letters(spec, done))
                if not as_json:
                    console.out.print(*replayed_tables(spec, done), sep="\n")
            else:
                found = repair.dead_letters(spec, connections.catalog, where, samples)
                told.append(asdict(found))
                if not as_json:
                    console.out.print(*dead_letter_tables(found), sep="\n")
    if as_json:
        typer.echo(json.dumps(told, indent=2))


def replay(
    topic: Topic,
    start: Annotated[str | None, typer.Option("--from", help=f"Where to begin: {_TARGETS}.")] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", help="Where to end, exclusive, in the same forms. By default the table's position."),
    ] = None,
    partitions: Partitions = None,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep rows whose records Kafka no longer has, instead of failing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Read a part of the topic again, and replace its rows by what today's schema and transform give."""
    from kafka_lake.cli.output import followed, run_line
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.cli.repair import partitions_of
    from kafka_lake.ingest import run
    from kafka_lake.ingest.jobs.replay import Extent

    chosen = partitions_of(partitions)
    extent = Extent(start or "earliest", end or "latest", chosen, keep_missing)
    specs = topic_tables(topic)
    if not (start or end or chosen or yes):
        console.agree(f"Read all of topic {topic} again?")
    with connections_at_hand(
        console.err.print, with_spark=True, cluster=specs[0].cluster, starts_broker=True
    ) as connections:
        for spec in specs:
            with followed(topic, console.err) as observer:
                report = run.replay(spec, connections, run_id=str(uuid4()), extent=extent, observer=observer)
            for each in (report.of(table.identifier) for table in spec.tables):
                console.out.print(run_line(each) if each.commits else f"{each.table}: the table has no rows of that.")


def reset(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help=f"Where to continue: {_TARGETS}.")],
    partitions: Partitions = None,
    yes: Yes = False,
) -> None:
    """Set the offsets at which the table continues. Shows the effect and asks first.

    Rows at and beyond the new offsets are removed, since their records will be read again. If offsets are jumped over,
    they are recorded as skipped.
    """
    from kafka_lake.cli.output import followed, reset_table
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.cli.repair import partitions_of, pinned, position_of, resets_of
    from kafka_lake.ingest import run

    chosen = partitions_of(partitions)
    specs = topic_tables(topic)
    with connections_at_hand(
        console.err.print, with_spark=True, cluster=specs[0].cluster, starts_broker=True
    ) as connections:
        due = []
        for spec in chain.from_iterable(each.tables for each in specs):
            plan = run.plan_reset(spec, connections, to, chosen)
            if plan is None:
                console.out.print(f"{'.'.join(spec.identifier)}: the position is there already; nothing to do.")
                continue
            before = position_of(connections.catalog, spec)
            console.out.print(reset_table(spec, resets_of(before, plan)))
            due.append((spec, pinned(before, plan)))
        if due and not yes:
            console.agree("Set the position?")
        for spec, targets in due:
            with followed(topic, console.err) as observer:
                run.reset(spec, connections, str(uuid4()), targets, observer=observer)
            console.out.print(f"{'.'.join(spec.identifier)}: continues at {targets}.")


def rebuild(
    table: Annotated[str, typer.Argument(help="The derived table; with its namespace if several have its name.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Compute all rows of a derived table again, and replace them in one commit.

    Do so after a change of its query, or if a run says that rows of an upstream table have changed and nobody can tell
    which. Readers have the old rows until the commit.
    """
    from kafka_lake.cli.project import connections_at_hand, derived_table
    from kafka_lake.derived.engine import Engine
    from kafka_lake.derived.run import derive
    from kafka_lake.runtime.context import Observer

    spec = derived_table(table)
    if not yes:
        console.agree(f"Compute all rows of {spec.name} again from {', '.join(spec.sources)}?")
    with connections_at_hand(console.err.print, with_broker=False, with_spark=True) as connections:
        engine = Engine(
            catalog=connections.catalog,
            spark=connections.spark,
            run_id=str(uuid4()),
            observer=Observer(warn=console.err.print),
            retry=connections.retry,
        )
        report = derive(spec, engine, rebuild=True)
    console.out.print(
        f"{report.table}: {counted(report.rows, 'row')}, snapshot {report.snapshot}; {report.seconds:.0f} s."
    )


def adopt(
    table: Annotated[str, typer.Argument(help="The table, as namespace.table.")],
    topic: Annotated[str, typer.Option("--topic", help="The Kafka topic that it was filled from.")],
    from_kafka_connect: Annotated[
        str | None, typer.Option(metavar="NAME", help="Filled by this connector of Apache Iceberg's sink.")
    ] = None,
    from_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Resume at the offsets that this consumer group has committed.")
    ] = None,
    from_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSETS", help="Resume at these offsets by partition, as in 0:17,1:4.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Newest records to read, to check that they fit the table; 0 for none.")
    ] = 1000,
    yes: Annotated[
        bool, typer.Option("--yes", help="Take the table over. Without this option nothing is changed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take over a table that another program has filled from the topic. Stop that program first.

    Shows at which offset each partition resumes and why, what Kafka has, and what the next run would do to the columns.
    With --yes it writes the position, in one commit without rows. The table's rows stay as they are.
    """
    from kafka_lake.cli import adopt as cli_adopt
    from kafka_lake.cli.output import followed
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.ingest import run
    from kafka_lake.ingest.adopt import plan_adoption
    from kafka_lake.ingest.preview import preview

    source = cli_adopt.source_of(from_kafka_connect, from_group, from_offsets)
    spec = cli_adopt.spec_of(topic_tables(topic), table)
    with connections_at_hand(
        console.err.print, with_spark=yes or sample > 0, cluster=spec.cluster, starts_broker=yes
    ) as connections:
        with console.err.status(f"Asking where {table} resumes"):
            found = plan_adoption(spec, connections, source)
            seen = preview(spec, connections, sample) if sample else None
        if not as_json:
            console.out.print(*cli_adopt.adoption_tables(found, seen), sep="\n", highlight=False)
        if seen is not None and seen.refused:
            raise cli_adopt.unfit(found, seen)
        if yes:
            with followed(topic, console.err) as observer:
                run.adopt(
                    spec,
                    connections,
                    run_id=str(uuid4()),
                    agreed=found,
                    source=source,
                    observer=observer,
                )
    if as_json:
        typer.echo(json.dumps(cli_adopt.as_json(found, seen, adopted=yes), indent=2))
    elif yes:
        console.out.print(f"{table}: taken over; continues at {dict(found.position.offsets)}.", highlight=False)
    else:
        console.out.print("Nothing was changed. The same command with --yes takes the table over.")
