"""Isolate: halve a batch that fails for no known reason of the systems, until the record that breaks it is alone.

Each half that works is a commit like any other. The record that fails alone becomes a dead letter, and the batches
grow again. Pure: `runner.Runner` asks what to do and does it.
"""

from dataclasses import dataclass, replace

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.errors import EveryRecordFailsError
from kafka_lake.ingest.plan.model import Plan, chunk, part

_GROWTH = 8
_FAILED_IN_A_ROW = 10
_BY_CLIENT = 20_000


@dataclass(frozen=True)
class Undecodable:
    """A record that fails alone.

    Args:
        message: The first line of the error.
    """

    partition: int
    offset: int
    message: str


@dataclass(frozen=True)
class Search:
    """How far the search for such a record is.

    Args:
        limit: Offsets of the next commit at most; None for no limit, which means that nothing is searched for.
        suspects: Offsets that are left of the batch that failed last.
        found: The record that was found, until it is a dead letter.
        in_a_row: How many were found one after the other, without a record between them that is a row.
        failed_alone: Whether the record that comes next has failed alone already; once may be the systems' fault.
        by_client: Whether this process reads the next commit's records, since Spark's Kafka source failed at one.
    """

    limit: int | None = None
    suspects: int = 0
    found: Undecodable | None = None
    in_a_row: int = 0
    failed_alone: bool = False
    by_client: bool = False

    def next(self, plan: Plan) -> Plan:
        """Return the part of a planned commit to make next: the record that was found, or as much as the limit allows.

        >>> from kafka_lake.common.offsets import Position, TopicIdentity
        >>> ten = Plan((OffsetRange(0, 5, 15),), Position(TopicIdentity("c", "t", "pizzas"), {0: 15}), 0)
        >>> half = Search(limit=5).next(ten)
        >>> half.ranges, half.after.offsets, half.remaining
        ((OffsetRange(partition=0, start=5, end=10),), {0: 10}, 5)
        """
        if self.by_client:
            plan = replace(plan, by_client=True)
        if self.found is not None:
            for each in plan.ranges:
                if (each.partition, each.start) == (self.found.partition, self.found.offset) and len(each):
                    alone = (OffsetRange(each.partition, each.start, each.start + 1),)
                    return replace(part(plan, alone), undecodable=self.found.message)
        if self.limit is None or plan.records_at_most <= self.limit:
            return plan
        return part(plan, chunk(plan.ranges, self.limit))

    def failed(self, plan: Plan, message: str) -> "Search":
        """Return the search after a commit failed.

        Args:
            plan: What was to be committed; at least one offset.
            message: The first line of the error.

        Raises:
            EveryRecordFailsError: If too many records in a row failed alone.
        """
        size = plan.records_at_most
        if size > 1:
            return replace(self, limit=size // 2, suspects=size)
        if not self.failed_alone:
            return replace(self, limit=1, suspects=1, failed_alone=True)
        if self.in_a_row >= _FAILED_IN_A_ROW:
            raise EveryRecordFailsError(
                f"Topic {plan.after.identity.topic}: {self.in_a_row} records in a row failed one by one: {message}",
                "Mend transform:, the sql: of a table's where:, or what the message names. Records that were set apart "
                "are dead letters of class undecodable: replay them after that.",
            )
        alone = next(r for r in plan.ranges if len(r))
        found = Undecodable(alone.partition, alone.start, message)
        return Search(1, 0, found, self.in_a_row + 1, by_client=self.by_client)

    def unreadable(self, plan: Plan) -> "Search":
        """Return the search after Spark's Kafka source failed at a record: this process reads the next records.

        There may be one such record or nothing else, so Spark is asked again after that, for more and more.

        Args:
            plan: What was to be committed; at least one offset.
        """
        limit = min(plan.records_at_most, _BY_CLIENT)
        return replace(self, limit=limit, suspects=limit, by_client=True)

    def done(self, plan: Plan, rows: int) -> "Search":
        """Return the search after a commit.

        Args:
            rows: How many rows it added.
        """
        if self.limit is None or plan.undecodable is not None:
            return replace(self, found=None, failed_alone=False, by_client=False)
        left = max(self.suspects - plan.records_at_most, 0)
        # What failed once and works in parts failed for a reason that is gone.
        limit = self.limit if left else self.limit * _GROWTH
        return Search(limit, left, None, 0 if rows else self.in_a_row)
