"""The tables of a topic's routes, created: with the topic's own, or when they get their first records."""

from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.common.errors import PublishRefusedError, TableError
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.routes.found import found_table, of_table
from kafka_lake.ingest.routes.shared import Shares, Side
from kafka_lake.ingest.topic_ends import TopicEnds


def create_sides(shares: Shares, topic: TopicEnds) -> Shares:
    """Create the tables of routes that get their first records, and return the shares with them.

    Raises:
        PublishRefusedError: If others were faster, and have committed to such a table. The runner plans again.
    """
    return replace(shares, sides=shares.write_created(tuple(_created(side, topic) for side in shares.sides)))


def _created(side: Side, topic: TopicEnds) -> Side:
    context = side.context
    if side.found.table is not None and side.found.table.head is not None:
        return side
    create_for(context, side.records)
    context.observer.step_done("table created")
    _, found = found_table(context, topic, None, side.plan)
    if found.table is None or found.table.position is not None:
        # Its share was that of a table without a position.
        raise PublishRefusedError(f"Table {context.table_name}: others have created and filled it meanwhile.")
    return replace(side, found=found)


def create_declared(context: Context, records: DataFrame) -> None:
    """Create the tables of routes whose columns are declared and which Arrow can write: so none must wait for another.

    Args:
        context: Of the run, whose topic's own table has just been created.
        records: Of the topic; they aren't looked at.
    """
    for route in context.spec.routes:
        spec = route.to
        if spec.format != "json" or spec.write != "append" or context.connections.catalog.table(spec.identifier):
            continue
        if context.decoding.decoder(spec, context.connections, None).fixed is not None:
            its = of_table(context, spec)
            create_for(its, records)
            its.observer.step_done("table created")


def create_for(context: Context, records: DataFrame) -> None:
    """Create a table of a topic with routes; where no record shows a column, its columns come with later ones."""
    try:
        context.decoding.create_table(context.spec, context.connections, records, False)
    except TableError:
        context.decoding.create_table(context.spec, context.connections, records, True)
