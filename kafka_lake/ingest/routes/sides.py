"""The tables of a topic's routes in a commit: found, given their share of the records, and staged.

The records are read once. Spark keeps them until the commit is done, ordered by route: so a table's share is found by
what Spark knows of its blocks, without a look at the others'.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import PublishRefusedError, TableError
from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan, Share
from kafka_lake.ingest.routes.conditions import OWN, ROUTE, of_route, routed
from kafka_lake.ingest.routes.found import Found, found_table, of_table, position_of
from kafka_lake.ingest.routes.given import conditions_of, given_after, given_of
from kafka_lake.ingest.routes.heads import HEADS, heads_of, refuse_lost
from kafka_lake.ingest.routes.share import has_more_letters, is_ahead, is_doubtful, is_of_another_log, share_of
from kafka_lake.ingest.stage.dead_letter_rows import named
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.table_state import Tables
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_table import Route
from kafka_lake.lake.positions import TableState

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
        heads: The commits that the tables of routes have, as `heads_of` has them.
    """

    plan: Plan
    records: DataFrame
    others: DataFrame | None = None
    sides: tuple[Side, ...] = ()
    ignored: int = 0
    heads: Mapping[str, int] = field(default_factory=dict)

    def told(self, sides: Iterable[tuple[Side, Staged]]) -> Plan:
        """Return what of the plan is for the topic's own table, with the commits that other tables have beside it."""
        if self.plan.share is None:
            return self.plan
        staged = {side.context.table_name: each.primary.appended for side, each in sides}
        marks = {HEADS: json.dumps({**self.heads, **staged})}
        return replace(self.plan, share=replace(self.plan.share, marks=marks))


@contextmanager
def shared_out(context: Context, topic: TopicEnds, plan: Plan, *, own: Tables, records: DataFrame) -> Iterator[Shares]:
    """Share out a plan's records among the topic's tables during the block.

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
    if not spec.routes or not (reads or moves or plan.undecodable is not None):
        yield Shares(plan, records)
        return
    found = [found_table(of_table(context, route.to), topic, spec.identifier, plan) for route in spec.routes]
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
    kept = routed(records, spec).sortWithinPartitions(ROUTE, "partition", "offset").persist(_LEVEL)
    try:
        counts = {int(row[ROUTE]): row["count"] for row in kept.groupBy(ROUTE).count().collect()}
        batch = _Batch(plan, spec.routes, kept=kept, counts=counts)
        given = (batch.side(number, each) for number, each in enumerate(found))
        shares = batch.own(context, own, tuple(side for side in given if side is not None))
        yield replace(shares, heads=heads_of(beside))
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
    _, found = found_table(context, topic, None, side.plan)
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


@dataclass(frozen=True)
class _Batch:
    """The records of a plan, each with its route, as Spark keeps them.

    Args:
        plan: The commit.
        routes: Of the topic.
        kept: The records.
        counts: How many each route takes.
    """

    plan: Plan
    routes: Sequence[Route]
    kept: DataFrame
    counts: Mapping[int, int]

    @property
    def total(self) -> int:
        """Return how many there are."""
        return sum(self.counts.values())

    def side(self, number: int, found: Found) -> Side | None:
        """Return the share of a route's table; None if the commit has nothing for it."""
        context, its = found
        position, count = position_of(found), self.counts.get(number, 0)
        given, conditions = given_of(its.table.table if its.table else None), conditions_of(self.routes, number)
        since = given.by(conditions)
        in_doubt = is_doubtful(position, self.plan, since)
        letters_in_doubt = has_more_letters(_position_of(its.dead_letters), position, self.plan)
        changes = self.plan.kind == "replace" or is_of_another_log(self.plan) or in_doubt or letters_in_doubt
        if not count and not (changes and its.table is not None):
            return None
        share, records = share_of(self.plan, position, since), of_route(self.kept, number)
        elsewhere = self.total - count
        if self.plan.kind == "append" and is_ahead(position, self.plan) and not in_doubt:
            records = context.connections.frames.within(records, share.ranges)
            count = records.count()
            elsewhere = max(0, share.records_at_most - count)
            if not count and not changes:
                return None
        reads_on = self.plan.kind == "append"
        marks = given_after(self.plan, position, given, conditions).marks() if reads_on else {}
        share = replace(share, share=Share(count, elsewhere, is_side=True, marks=marks))
        others = self._others(number) if share.kind == "replace" or letters_in_doubt else None
        return Side(context, its, plan=share, records=records, others=others)

    def own(self, context: Context, own: Tables, sides: tuple[Side, ...]) -> Shares:
        """Return the shares: what no route takes is for the topic's own table, or for none."""
        otherwise, count = context.spec.otherwise, self.counts.get(OWN, 0)
        records, ignored = of_route(self.kept, OWN), 0
        if otherwise == "ignore":
            records, count, ignored = records.filter(F.lit(False)), 0, count
        share = Share(count, self.total - count, as_dead_letters=otherwise == "dead_letter")
        may_have = self.plan.kind == "replace" or has_more_letters(_position_of(own.dead_letters), None, self.plan)
        others = self._others(None if otherwise == "ignore" else OWN) if may_have else None
        return Shares(replace(self.plan, share=share), records, others=others, sides=sides, ignored=ignored)

    def _others(self, number: int | None) -> DataFrame:
        """Return what names the records of the other tables, of which a table may have rows.

        Args:
            number: The table's route; None if it gets no records.
        """
        return named(self.plan, self.kept if number is None else self.kept.filter(F.col(ROUTE) != str(number)))


def _position_of(state: TableState | None) -> Position | None:
    return state.position if state else None


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
