"""The tables of a topic's routes in a commit: found, given their share of the records, and staged.

The records are read once. Tables that Arrow can write are written together, by one job. What is for the others, Spark
keeps until the commit is done, ordered by route: so a table's share is found by what Spark knows of its blocks, without
a look at the others'.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache

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
from kafka_lake.ingest.routes.conditions import OWN, ROUTE, of_route, routed
from kafka_lake.ingest.routes.share import counted, is_ahead, is_of_another_log, share_of
from kafka_lake.ingest.routes.together import kept, write_together
from kafka_lake.ingest.routes.unfinished_reset import refuse_unfinished
from kafka_lake.ingest.stage.arrow_tables import Prewritten, TableToWrite, table_to_write
from kafka_lake.ingest.table_state import Tables, tables, with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_table import TopicTable

_WORTH_A_JOB = 2


@dataclass(frozen=True)
class Side:
    """A table of a route in a commit.

    Args:
        context: Of the run, with the table's settings.
        found: The tables as the plan saw them; None in it for a table that is still to be created.
        plan: Its share of the topic's plan.
        records: Its share of the records, lazy.
        others: What names the records that other tables get, lazy; None if it can have no rows of theirs.
        route: The number of its route, where it gets records.
        written: Its rows, if they have been written together with those of other tables.
    """

    context: Context
    found: Tables
    plan: Plan
    records: DataFrame
    others: DataFrame | None = None
    route: int = OWN
    written: Prewritten | None = None


@dataclass(frozen=True)
class Shares:
    """A plan and its records, shared out.

    Args:
        plan: What of the plan is for the topic's own table.
        records: Its records, lazy.
        others: What names the records of the other tables, lazy; None if it can have no rows of theirs.
        sides: The tables of routes that get records or, by a reset or replay, lose rows.
        ignored: Records that no table gets, as ``otherwise: ignore`` says.
        written: The rows of the topic's own table, if they have been written together with those of other tables.
        batch: The records that were shared out; None if there are none.
    """

    plan: Plan
    records: DataFrame
    others: DataFrame | None = None
    sides: tuple[Side, ...] = ()
    ignored: int = 0
    written: Prewritten | None = None
    batch: "_Batch | None" = None


@contextmanager
def shared_out(context: Context, topic: TopicEnds, plan: Plan, records: DataFrame, own: Tables) -> Iterator[Shares]:
    """Share out a plan's records among the topic's tables during the block; what can be written together is, first.

    Args:
        context: Of the run.
        topic: What the topic holds.
        plan: The commit.
        records: Its records, lazy.
        own: The topic's own tables as the plan saw them.

    Raises:
        ConfigurationError: If a route's condition can't be asked.
        TableError: If a table of a route holds another topic's records, or a reset of it is unfinished.
    """
    spec = context.spec
    # A record that alone makes its batch fail is looked at by nobody, and dead letters are their own table's.
    reads = plan.records_at_most > 0 and plan.undecodable is None
    moves = plan.kind == "reset" or is_of_another_log(plan)
    if not spec.routes or not (reads or moves):
        yield Shares(plan, records)
        return
    found = [_found(_of(context, route.to), topic, spec.identifier, plan) for route in spec.routes]
    if not reads:
        yield Shares(plan, records, sides=tuple(_moved(plan, each, records) for each in found if _position(each)))
        return
    with ExitStack() as forget:
        batch = _shared(context, plan, routed(records, spec), found=[(context, own), *found], forget=forget)
        sides = (batch.side(number, each) for number, each in enumerate(found))
        yield batch.own(context, tuple(side for side in sides if side is not None))


def _shared(context: Context, plan: Plan, records: DataFrame, found: "Sequence[_Found]", forget: ExitStack) -> "_Batch":
    """Write what can be written together; what can't, Spark keeps.

    Args:
        context: Of the run.
        plan: The commit.
        records: With their routes.
        found: The topic's own tables, and those of its routes.
        forget: Lets Spark forget what it keeps.
    """
    keep = cache(lambda: kept(records.sortWithinPartitions(ROUTE, "partition", "offset"), forget))
    tables = {}
    for number, each in enumerate(found, start=OWN):
        if (table := _together(plan, number, each, context.spec)) is not None:
            tables[number] = table
    together = write_together(
        context,
        plan,
        records,
        tables,
        again=lambda number: of_route(keep(), number),
        unwanted=[OWN] if context.spec.otherwise == "ignore" else [],
        forget=forget,
    )
    if together is not None:
        return _Batch(plan, together.left, together.counts, written=together.written, forget=forget)
    counts = {int(row[ROUTE]): row["count"] for row in keep().groupBy(ROUTE).count().collect()}
    return _Batch(plan, keep(), counts, written={}, forget=forget)


def _together(plan: Plan, number: int, found: "_Found", topic: TopicTable) -> TableToWrite | None:
    """Return what is to be written of a table together with others; None if it goes its own way."""
    context, its = found
    is_own = number == OWN
    if (is_own and topic.otherwise != "table") or (not is_own and is_ahead(_position(found), plan)):
        return None
    return table_to_write(context, its.table, plan)


def create_sides(shares: Shares, topic: TopicEnds) -> Shares:
    """Create the tables of routes that get their first records, and return the shares with them.

    Raises:
        PublishRefusedError: If others were faster, and have committed to such a table. The runner plans again.
    """
    sides = tuple(_created(side, topic) for side in shares.sides)
    return replace(shares, sides=sides if shares.batch is None else shares.batch.write_created(sides))


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
            its = _of(context, spec)
            create_for(its, records)
            its.observer.step_done("table created")


def create_for(context: Context, records: DataFrame) -> None:
    """Create a table of a topic with routes; where no record shows a column, its columns come with later ones."""
    try:
        context.decoding.create_table(context.spec, context.connections, records, False)
    except TableError:
        context.decoding.create_table(context.spec, context.connections, records, True)


_Found = tuple[Context, Tables]


@dataclass(frozen=True)
class _Batch:
    """The records of a plan, each with its route.

    Args:
        plan: The commit.
        left: Those of tables that are still to be written, as Spark keeps them.
        counts: How many each route takes.
        written: The rows of tables that have been written, by the numbers of their routes.
        forget: Lets Spark forget what it keeps.
    """

    plan: Plan
    left: DataFrame
    counts: Mapping[int, int]
    written: Mapping[int, Prewritten]
    forget: ExitStack

    def write_created(self, sides: tuple[Side, ...]) -> tuple[Side, ...]:
        """Write the tables together that have been created since the others were, and return all."""
        tables = {}
        for side in sides:
            found = side.context, side.found
            if side.written is None and (table := _together(self.plan, side.route, found, side.context.spec)):
                tables[side.route] = table
        if len(tables) < _WORTH_A_JOB:
            return sides
        done = write_together(
            sides[0].context,
            self.plan,
            self.left.filter(F.col(ROUTE).isin(*map(str, tables))),
            tables,
            again=lambda number: of_route(self.left, number),
            unwanted=[],
            forget=self.forget,
        )
        if done is None:
            return sides
        return tuple(replace(side, written=done.written.get(side.route, side.written)) for side in sides)

    @property
    def total(self) -> int:
        """Return how many there are."""
        return sum(self.counts.values())

    def side(self, number: int, found: _Found) -> Side | None:
        """Return the share of a route's table; None if the commit has nothing for it."""
        context, its = found
        position, count = _position(found), self.counts.get(number, 0)
        changes = self.plan.kind == "replace" or is_of_another_log(self.plan)
        if not count and not (changes and its.table is not None):
            return None
        share, records = share_of(self.plan, position), of_route(self.left, number)
        elsewhere = self.total - count
        if self.plan.kind == "append" and is_ahead(position, self.plan):
            records = context.connections.frames.within(records, share.ranges)
            count = records.count()
            elsewhere = max(0, share.records_at_most - count)
            if not count and not changes:
                return None
        share = replace(share, share=Share(count, elsewhere, is_side=True))
        others, written = self._others(number), self.written.get(number)
        return Side(context, its, plan=share, records=records, others=others, route=number, written=written)

    def own(self, context: Context, sides: tuple[Side, ...]) -> Shares:
        """Return the shares: what no route takes is for the topic's own table, or for none."""
        otherwise, count = context.spec.otherwise, self.counts.get(OWN, 0)
        records, ignored = of_route(self.left, OWN), 0
        if otherwise == "ignore":
            records, count, ignored = records.filter(F.lit(False)), 0, count
        share = Share(count, self.total - count, as_dead_letters=otherwise == "dead_letter")
        others = self._others(None if otherwise == "ignore" else OWN)
        plan, written = replace(self.plan, share=share), self.written.get(OWN)
        return Shares(plan, records, others=others, sides=sides, ignored=ignored, written=written, batch=self)

    def _others(self, number: int | None) -> DataFrame | None:
        """Return what names the records of the other tables, where a table may have rows of them; None else.

        Args:
            number: The table's route; None if it gets no records.
        """
        if self.plan.kind != "replace":
            return None
        topic_id = F.lit(self.plan.after.identity.topic_id or None).cast("string").alias("topic_id")
        others = self.left if number is None else self.left.filter(F.col(ROUTE) != str(number))
        return others.select(topic_id, "partition", "offset")


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
