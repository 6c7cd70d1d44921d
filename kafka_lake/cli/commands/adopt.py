"""``kafka-lake adopt``: a table that another writer has filled is taken over."""

import json
from typing import Annotated
from uuid import uuid4

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson


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
    from kafka_lake.ingest.adopt.plan import plan_adoption
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
