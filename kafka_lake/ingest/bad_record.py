"""The search for a record that makes its batch fail: it becomes a dead letter, and the other records become rows."""

from dataclasses import dataclass, replace

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.errors import EveryRecordFailsError
from kafka_lake.runtime.plan import Plan, chunk, part

_GROWTH = 8
_FAILED_IN_A_ROW = 10
_RECORDS_BY_CLIENT = 20_000


@dataclass(frozen=True)
class Undecodable:
    """A record that fails alone."""

    partition: int
    offset: int
    message: str


@dataclass(frozen=True)
class Search:
    """The state of a search for a record that makes its batch fail, by halving the batch.

    Args:
        limit: Most offsets of the next commit; None if there is no search.
        suspects: Offsets left of the batch that failed last.
        found: The record that was found, until it is a dead letter.
        in_a_row: Records found one after the other, without a row in between.
        failed_alone: Whether the next record has failed alone once; a system may have been the cause.
        by_client: Whether this process reads the next commit's records, since Spark's Kafka source can't read one.
    """

    limit: int | None = None
    suspects: int = 0
    found: Undecodable | None = None
    in_a_row: int = 0
    failed_alone: bool = False
    by_client: bool = False

    def next(self, plan: Plan) -> Plan:
        """Return the part of a plan to commit next: the record that was found, or as much as the limit allows.

        >>> from kafka_lake.common.offsets import Position, TopicIdentity
        >>> ten = Plan((OffsetRange(0, 5, 15),), Position(TopicIdentity("c", "t", "pizzas"), {0: 15}), 0)
        >>> half = Search(limit=5).next(ten)
        >>> half.ranges, half.after.offsets, half.remaining
        ((OffsetRange(partition=0, start=5, end=10),), {0: 10}, 5)
        """
        if self.by_client:
            plan = replace(plan, by_client=True)
        if self.found is not None:
            for r in plan.ranges:
                if (r.partition, r.start) == (self.found.partition, self.found.offset) and len(r):
                    alone = (OffsetRange(r.partition, r.start, r.start + 1),)
                    return replace(part(plan, alone), undecodable=self.found.message)
        if self.limit is None or plan.records_at_most <= self.limit:
            return plan
        return part(plan, chunk(plan.ranges, self.limit))

    def failed(self, plan: Plan, message: str) -> "Search":
        """Return the search after a commit failed."""
        size = plan.records_at_most
        if size > 1:
            return replace(self, limit=size // 2, suspects=size)
        if not self.failed_alone:
            return replace(self, limit=1, suspects=1, failed_alone=True)
        if self.in_a_row >= _FAILED_IN_A_ROW:
            raise EveryRecordFailsError(
                f"Topic {plan.after.identity.topic}: {self.in_a_row} records in a row failed one by one: {message}",
                "Correct transform:, the sql: of a table's where:, or what the message names. Then replay the dead "
                "letters of class undecodable.",
            )
        alone = next(r for r in plan.ranges if len(r))
        found = Undecodable(alone.partition, alone.start, message)
        return Search(1, 0, found, self.in_a_row + 1, by_client=self.by_client)

    def unreadable(self, plan: Plan) -> "Search":
        """Return the search after Spark's Kafka source failed at a record: this process reads the next records.

        After that, Spark reads again, more records each time.
        """
        limit = min(plan.records_at_most, _RECORDS_BY_CLIENT)
        return replace(self, limit=limit, suspects=limit, by_client=True)

    def done(self, plan: Plan, rows: int) -> "Search":
        """Return the search after a commit."""
        if self.limit is None or plan.undecodable is not None:
            return replace(self, found=None, failed_alone=False, by_client=False)
        left = max(self.suspects - plan.records_at_most, 0)
        # If all parts work, the cause of the failure is gone.
        limit = self.limit if left else self.limit * _GROWTH
        return Search(limit, left, None, 0 if rows else self.in_a_row)
