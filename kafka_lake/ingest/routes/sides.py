"""The tables of a topic's routes in a commit: found, given their share of the records, and staged.

The records are read once. Spark keeps them until the commit is done, ordered by route: so a table's share is found by
what Spark knows of its blocks, without a look at the others'. Where routes go by schemas or values, the
order is Kafka's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import PublishRefusedError, TableError
from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.reconcile import reconcile
from kafka_lake.ingest.dead_letters.unreconciled import unreconciled
from kafka_lake.ingest.effort import Effort
from kafka_lake.ingest.plan.identity import another_topic
from kafka_lake.ingest.plan.model import Plan, Share
from kafka_lake.ingest.routes.conditions import (
    OWN,
    ROUTE,
    asks_for_schemas,
    counts_of,
    not_of_route,
    of_route,
    routed,
    schema_names,
)
from kafka_lake.ingest.routes.new_tables import NewValues, new_values
from kafka_lake.ingest.routes.share import counted, is_ahead, is_of_another_log, share_of
from kafka_lake.ingest.routes.unfinished_reset import refuse_unfinished
from kafka_lake.ingest.table_state import Tables, tables, with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_table import TopicTable

_LEVEL = StorageLevel.MEMORY_AND_DISK


@dataclass(frozen=True)
class Side:
    """A table of a route in a commit.

    Args:
        context: Of the run, with the table's settings.
        found: The tables as the plan saw them; None in it for a table that is still to be created.
        plan: Its share of the topic's plan.
        records: Its share of the records, lazy.
        others: What names the records that other tables get, lazy; None if it can have no rows of theirs.
    """

    context: Context
    found: Tables
    plan: Plan
    records: DataFrame
    others: DataFrame | None = None


@dataclass(frozen=True)
class Shares:
    """A plan and its records, shared out.

    Args:
        plan: What of the plan is for the topic's own table.
        records: Its records, lazy.
        others: What names the records of the other tables, lazy; None if it can have no rows of theirs.
        sides: The tables of routes that get records or, by a reset or replay, lose rows.
        ignored: Records that no table gets, as ``otherwise: ignore`` says.
        values: What the records have of values without a table; None if they have none.
    """

    plan: Plan
    records: DataFrame
    others: DataFrame | None = None
    sides: tuple[Side, ...] = ()
    ignored: int = 0
    values: NewValues | None = None

    @property
    def shows_new_tables(self) -> bool:
        """Return whether the topic's own table is to tell of new tables first. Nothing is shared out then."""
        return self.values is not None and bool(self.values.admission.new)


@contextmanager
def shared_out(context: Context, topic: TopicEnds, plan: Plan, records: DataFrame) -> Iterator[Shares]:
    """Share out a plan's records among the topic's tables during the block.

    Args:
        context: Of the run.
        topic: What the topic holds.
        plan: The commit.
        records: Its records, lazy.

    Raises:
        ConfigurationError: If a route's condition can't be asked.
        TableError: If a table of a route holds another topic's records, or a reset of it is unfinished.
    """
    spec = context.spec
    # A record that alone makes its batch fail is looked at by nobody, and dead letters are their own table's.
    reads = plan.records_at_most > 0 and plan.undecodable is None
    moves = plan.kind == "reset" or is_of_another_log(plan)
    if not spec.has_routes or not (reads or moves):
        yield Shares(plan, records)
        return
    found = [_found(_of(context, route.to), topic, spec.identifier, plan) for route in spec.every_route]
    if not reads:
        yield Shares(plan, records, sides=tuple(_moved(plan, each, records) for each in found if _position(each)))
        return
    # Which schemas and values there are is known once the records have been read.
    is_late = asks_for_schemas(spec) or spec.route_by is not None
    kept = records if is_late else routed(records, spec).sortWithinPartitions(ROUTE, "partition", "offset")
    kept = kept.persist(_LEVEL)
    try:
        names = schema_names(kept, spec, context.connections)
        shared = routed(kept, spec, names) if is_late else kept
        values = new_values(context, shared, names)
        if values is not None and values.admission.new:
            # They are told of first, and the records are shared out anew.
            yield Shares(plan, records, values=values)
            return
        batch = _Batch(plan, shared, *counts_of(shared))
        sides = (batch.side(number, each) for number, each in enumerate(found))
        yield replace(batch.own(context, tuple(side for side in sides if side is not None)), values=values)
    finally:
        # A server that is gone has forgotten them.
        with suppress(Exception):
            kept.unpersist()


def create_sides(shares: Shares, topic: TopicEnds) -> Shares:
    """Create the tables of routes that get their first records, and return the shares with them.

    Raises:
        PublishRefusedError: If others were faster, and have committed to such a table. The runner plans again.
    """
    return replace(shares, sides=tuple(_created(side, topic) for side in shares.sides))


def _created(side: Side, topic: TopicEnds) -> Side:
    context = side.context
    if side.found.table is not None and side.found.table.head is not None:
        return side
    create_for(context, side.records)
    context.observer.step_done("table created")
    _, found = _found(context, topic, None, side.plan)
    if found.table is None or found.table.position is not None:
        # Its share was that of a table without a position.
        raise PublishRefusedError(f"Table {context.table_name}: others have created and filled it meanwhile.")
    return replace(side, found=found)


def create_for(context: Context, records: DataFrame) -> None:
    """Create a table of a topic with routes; where no record shows a column, its columns come with later ones."""
    try:
        context.decoding.create_table(context.spec, context.connections, records, False)
    except TableError:
        context.decoding.create_table(context.spec, context.connections, records, True)


_Found = tuple[Context, Tables]


@dataclass(frozen=True)
class _Batch:
    """The records of a plan, each with its route, as Spark keeps them.

    Args:
        plan: The commit.
        kept: The records.
        total: How many there are.
        counts: How many each route takes.
    """

    plan: Plan
    kept: DataFrame
    total: int
    counts: Mapping[int, int]

    def side(self, number: int, found: _Found) -> Side | None:
        """Return the share of a route's table; None if the commit has nothing for it."""
        context, its = found
        position, count = _position(found), self.counts.get(number, 0)
        changes = self.plan.kind == "replace" or is_of_another_log(self.plan)
        if not count and not (changes and its.table is not None):
            return None
        share, records = share_of(self.plan, position), of_route(self.kept, number)
        elsewhere = self.total - count
        if self.plan.kind == "append" and is_ahead(position, self.plan):
            records = context.connections.frames.within(records, share.ranges)
            count = records.count()
            elsewhere = max(0, share.records_at_most - count)
            if not count and not changes:
                return None
        share = replace(share, share=Share(count, elsewhere, is_side=True))
        return Side(context, its, plan=share, records=records, others=self._others(number))

    def own(self, context: Context, sides: tuple[Side, ...]) -> Shares:
        """Return the shares: what no route takes is for the topic's own table, or for none."""
        otherwise, count = context.spec.otherwise, self.counts.get(OWN, 0)
        records, ignored = of_route(self.kept, OWN), 0
        if otherwise == "ignore":
            records, count, ignored = records.filter(F.lit(False)), 0, count
        share = Share(count, self.total - count, as_dead_letters=otherwise == "dead_letter")
        others = self._others(None if otherwise == "ignore" else OWN)
        return Shares(replace(self.plan, share=share), records, others=others, sides=sides, ignored=ignored)

    def _others(self, number: int | None) -> DataFrame | None:
        """Return what names the records of the other tables, where a table may have rows of them; None else.

        Args:
            number: The table's route; None if it gets no records.
        """
        if self.plan.kind != "replace":
            return None
        topic_id = F.lit(self.plan.after.identity.topic_id or None).cast("string").alias("topic_id")
        kept = self.kept if number is None else not_of_route(self.kept, number)
        return kept.select(topic_id, "partition", "offset")


def _moved(plan: Plan, found: _Found, records: DataFrame) -> Side:
    context, its = found
    share = replace(share_of(plan, _position(found)), share=Share(0, 0, is_side=True))
    return Side(context, its, share, records)


def _of(context: Context, spec: TopicTable) -> Context:
    """Return what a run works with for another table of its topic."""
    observer, name = context.observer, ".".join(spec.identifier)
    told = replace(observer, step_done=lambda step: observer.step_done(f"{name}: {step}"))
    return replace(context, spec=spec, observer=told, effort=Effort())


def _found(context: Context, topic: TopicEnds, own: tuple[str, str] | None, plan: Plan) -> _Found:
    """Return a table of a route as it is, dead letters reconciled."""
    found = tables(context)
    if found.dead_letters and found.table and unreconciled(found.table, found.dead_letters):
        reconcile(context)
        found = tables(context)
    if found.table is None:
        return context, found
    if own is not None and plan.kind != "reset":
        refuse_unfinished(context, own, found.table.table)
    state = with_position(context, topic, found.table, required=plan.kind != "reset")
    if state.position is not None:
        if state.position.identity.topic != plan.after.identity.topic:
            raise another_topic(state.position, topic.now)
        state = replace(state, position=_trusted(context, topic, plan, state.position))
    return context, Tables(state, found.dead_letters)


def _trusted(context: Context, topic: TopicEnds, plan: Plan, position: Position) -> Position:
    """Return how far a table has been in the log as it is now: it may have been cut off, and have grown again, since.

    The topic's own position tells of that for what lies before it. A side table may have been further.
    """
    if not is_ahead(position, plan):
        return position
    if topic.is_behind(position):
        # Another run has been further than this one could know when it began.
        topic.poll()
    now, reached = topic.validated(position), counted(position, plan)
    starts = {r.partition: r.start for r in plan.ranges}
    offsets = dict(position.offsets)
    for partition, offset in reached.items():
        cut = now.cut_off.get(partition, offset)
        offsets[partition] = min(
            offset, starts.get(partition, 0) if cut is None else cut, now.end.get(partition, offset)
        )
    if offsets != dict(position.offsets):
        context.observer.warn(
            f"Table {context.table_name}: the log of topic {context.spec.topic} was cut off before its position "
            f"{dict(position.offsets)}: records from {offsets} on are other ones than those that it has, and come too."
        )
    return replace(position, offsets=offsets)


def _position(found: _Found) -> Position | None:
    state = found[1].table
    return state.position if state else None
