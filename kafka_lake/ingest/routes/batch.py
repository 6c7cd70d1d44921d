"""The records of a commit, each with its route: the share of each table, and what it may have of others'."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.decode.by_schema.names import SchemaNames
from kafka_lake.ingest.plan.model import Plan, Share
from kafka_lake.ingest.routes.conditions import OWN, not_of_route, of_route
from kafka_lake.ingest.routes.found import Found, position_of
from kafka_lake.ingest.routes.given import conditions_of, given_after, given_of
from kafka_lake.ingest.routes.share import has_more_letters, is_ahead, is_doubtful, is_of_another_log, share_of
from kafka_lake.ingest.routes.shared import Shares, Side
from kafka_lake.ingest.stage.arrow_tables import Prewritten
from kafka_lake.ingest.stage.dead_letter_rows import named
from kafka_lake.ingest.table_state import Tables
from kafka_lake.ingest.topic_table import TopicTable


@dataclass(frozen=True)
class Batch:
    """The records of a plan, each with its route.

    Args:
        plan: The commit.
        spec: Of the topic, with the values that have a table.
        left: The records of tables that are still to be written, as Spark keeps them; those of all if one may have rows
            of others.
        names: Of their schemas.
        total: How many records there are.
        counts: How many each route takes.
        written: The rows of tables that have been written, by the numbers of their routes.
    """

    plan: Plan
    spec: TopicTable
    left: DataFrame
    names: SchemaNames
    total: int
    counts: Mapping[int, int]
    written: Mapping[int, Prewritten]

    def side(self, number: int, found: Found) -> Side | None:
        """Return the share of a route's table; None if the commit has nothing for it."""
        context, its = found
        position, count = position_of(found), self.counts.get(number, 0)
        given, conditions = given_of(its.table), conditions_of(self.spec, number, self.names)
        since = given.by(conditions)
        in_doubt = is_doubtful(position, self.plan, since)
        letters_in_doubt = has_more_letters(letters_of(its), position, self.plan)
        changes = self.plan.kind == "replace" or is_of_another_log(self.plan) or in_doubt or letters_in_doubt
        if not count and not (changes and its.table is not None):
            return None
        share, records = share_of(self.plan, position, since), of_route(self.left, number)
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
        return Side(context, its, share, records, others=others, route=number, written=self.written.get(number))

    def own(self, context: Context, own: Tables, sides: tuple[Side, ...]) -> Shares:
        """Return the shares: what no route takes is for the topic's own table, or for none."""
        otherwise, count = context.spec.otherwise, self.counts.get(OWN, 0)
        records, ignored = of_route(self.left, OWN), 0
        if otherwise == "ignore":
            records, count, ignored = records.filter(F.lit(False)), 0, count
        share = Share(count, self.total - count, as_dead_letters=otherwise == "dead_letter")
        may_have = self.plan.kind == "replace" or has_more_letters(letters_of(own), None, self.plan)
        others = self._others(None if otherwise == "ignore" else OWN) if may_have else None
        plan, written = replace(self.plan, share=share), self.written.get(OWN)
        return Shares(plan, records, others=others, sides=sides, ignored=ignored, written=written)

    def _others(self, number: int | None) -> DataFrame:
        """Return what names the records of the other tables, of which a table may have rows.

        Args:
            number: The table's route; None if it gets no records.
        """
        return named(self.plan, self.left if number is None else not_of_route(self.left, number))


def have_others(plan: Plan, spec: TopicTable, names: SchemaNames, *, own: Tables, found: Sequence[Found]) -> bool:
    """Return whether a table may have rows or dead letters of the plan's records that are another table's by now.

    Args:
        plan: The commit.
        spec: Of the topic, with the values that have a table.
        names: Of the records' schemas.
        own: The topic's own table.
        found: The tables of its routes.
    """
    if plan.kind == "replace" or has_more_letters(letters_of(own), None, plan):
        return True
    for number, (_, its) in enumerate(found):
        position = its.table.position if its.table else None
        since = given_of(its.table).by(conditions_of(spec, number, names))
        if is_doubtful(position, plan, since) or has_more_letters(letters_of(its), position, plan):
            return True
    return False


def letters_of(found: Tables) -> Position | None:
    """Return the position of a dead-letter table; None if it has none, or there is none."""
    return found.dead_letters.position if found.dead_letters else None
