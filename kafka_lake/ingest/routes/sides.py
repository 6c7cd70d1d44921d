"""The tables of a topic's routes in a commit: found, and given their share of the records.

The records are read once. Tables that Arrow can write are written together, by one job. What is for the others, Spark
keeps until the commit is done, ordered by route: so a table's share is found by what Spark knows of its blocks, without
a look at the others'. Where routes go by schemas or values, the order is Kafka's.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan, Share
from kafka_lake.ingest.routes.batch import Batch, have_others
from kafka_lake.ingest.routes.conditions import OWN, ROUTE, asks_for_schemas, counts_of, of_route, routed, schema_names
from kafka_lake.ingest.routes.found import Found, found_table, of_table, position_of
from kafka_lake.ingest.routes.heads import heads_of, refuse_lost
from kafka_lake.ingest.routes.new_tables import new_values
from kafka_lake.ingest.routes.share import is_ahead, is_of_another_log, share_of
from kafka_lake.ingest.routes.shared import Shares, Side
from kafka_lake.ingest.routes.together import created_together, written_together
from kafka_lake.ingest.stage.dead_letter_rows import named
from kafka_lake.ingest.table_state import Tables
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.spark.kept import kept

_LEVEL = StorageLevel.MEMORY_AND_DISK
_ORDER = (ROUTE, "partition", "offset")


@contextmanager
def shared_out(context: Context, topic: TopicEnds, plan: Plan, *, own: Tables, records: DataFrame) -> Iterator[Shares]:
    """Share out a plan's records among the topic's tables during the block; what can be written together is, first.

    Args:
        context: Of the run.
        topic: What the topic holds.
        plan: The commit.
        own: The topic's own table, which is there.
        records: Its records, lazy.

    Raises:
        ConfigurationError: If a route's condition can't be asked.
        TableError: If a table of a route holds another topic's records, was dropped or set back, or a reset of it is
            unfinished.
    """
    spec = context.spec
    # A record that alone makes its batch fail is looked at by nobody, and dead letters are their own table's.
    reads = plan.records_at_most > 0 and plan.undecodable is None
    moves = plan.kind == "reset" or is_of_another_log(plan)
    if not spec.has_routes or not (reads or moves or plan.undecodable is not None):
        yield Shares(plan, records)
        return
    found = [found_table(of_table(context, route.to), topic, spec.identifier, plan) for route in spec.every_route]
    if plan.undecodable is not None and not moves:
        yield Shares(
            plan, records, sides=tuple(_without(plan, each, records) for each in found if _may_have(plan, each))
        )
        return
    beside = {each.table_name: its.table.table if its.table else None for each, its in found}
    if not reads:
        own_plan = replace(plan, share=Share(0, 0)) if plan.kind == "reset" else plan
        sides = tuple(_moved(plan, each, records) for each in found if position_of(each))
        yield Shares(own_plan, records, sides=sides, heads=heads_of(beside))
        return
    if plan.kind == "append" and own.table is not None:
        refuse_lost(context, own.table.table, beside)
    with ExitStack() as forget:
        # Which schemas and values there are is known once the records have been read.
        is_late = asks_for_schemas(spec) or spec.route_by is not None
        records = kept(records, forget, _LEVEL) if is_late else records
        names = schema_names(records, spec, context.connections)
        shared = routed(records, spec, names)
        values = new_values(context, shared, names)
        if values is not None and values.admission.new:
            # They are told of first, and the records are shared out anew.
            yield Shares(plan, records, values=values)
            return
        keep = cache(lambda: shared if is_late else kept(shared.sortWithinPartitions(*_ORDER), forget, _LEVEL))
        # With all_matches, a record is here once for each of its tables. Which rows are others' is told by all records.
        alone = spec.all_matches or have_others(plan, spec, names, own=own, found=found)
        every = {} if alone else {OWN: (context, own), **dict(enumerate(found))}
        together = written_together(
            context, plan, shared, every, again=lambda number: of_route(keep(), number), forget=forget
        )
        if together is None:
            total, counts = counts_of(keep())
            batch = Batch(plan, spec, keep(), names, total=total, counts=counts, written={})
        else:
            total = sum(together.counts.values())
            left, written = together.left, together.written
            batch = Batch(plan, spec, left, names, total=total, counts=together.counts, written=written)
        given = (batch.side(number, each) for number, each in enumerate(found))
        shares = batch.own(context, own, tuple(side for side in given if side is not None))
        write = tuple if alone else partial(created_together, plan, batch.left, forget=forget)
        yield replace(shares, values=values, heads=heads_of(beside), write_created=write)


def _moved(plan: Plan, found: Found, records: DataFrame) -> Side:
    context, its = found
    share = replace(share_of(plan, position_of(found)), share=Share(0, 0, is_side=True))
    return Side(context, its, share, records)


def _may_have(plan: Plan, found: Found) -> bool:
    """Return whether a table of a route may have a row or a dead letter of what the plan reads."""
    return position_of(found) is not None and (plan.kind == "replace" or is_ahead(position_of(found), plan))


def _without(plan: Plan, found: Found, records: DataFrame) -> Side:
    """Return the share of a table that loses the record which makes its batch fail: that is a dead letter now."""
    context, its = found
    share = replace(share_of(plan, position_of(found), {}), undecodable=None, deletes=plan.ranges)
    share = replace(share, share=Share(0, share.records_at_most, is_side=True))
    return Side(context, its, plan=share, records=records.filter(F.lit(False)), others=named(plan, records))
