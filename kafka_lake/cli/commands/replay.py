"""``kafka-lake replay``."""

from typing import Annotated
from uuid import uuid4

import typer

from kafka_lake.cli import project
from kafka_lake.cli.arguments import OFFSETS, Partitions, Topic, Yes, parse_partitions
from kafka_lake.cli.output import Output, confirm
from kafka_lake.cli.progress import run_progress, run_summary


def replay(
    topic: Topic,
    start: Annotated[str | None, typer.Option("--from", help=f"Start: {OFFSETS}.")] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", help="End, exclusive, in the same forms. Default: the table's position."),
    ] = None,
    partitions: Partitions = None,
    keep_missing: Annotated[
        bool, typer.Option("--keep-missing", help="Keep rows whose records expired from Kafka, instead of failing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Read a part of the topic again, and replace its rows.

    Uses the current schema and transform. Shows the effect and asks first.
    """
    from kafka_lake.ingest import run
    from kafka_lake.runtime.plan import ReplayRange

    chosen = parse_partitions(partitions)
    replay_range = ReplayRange(start or "earliest", end or "latest", chosen, keep_missing)
    specs = project.topic_tables(topic)
    if not (start or end or chosen or yes):
        confirm(f"Read all of topic {topic} again?")
    with project.open_connections(with_spark=True, cluster=specs[0].cluster) as connections:
        for spec in specs:
            with run_progress(topic) as observer:
                report = run.replay(
                    spec, connections, run_id=str(uuid4()), replay_range=replay_range, observer=observer
                )
            for table in spec.tables:
                done = report.of(table.identifier)
                Output().lines(
                    run_summary(done) if done.commits else f"{done.table}: the table has no rows of this part."
                )
