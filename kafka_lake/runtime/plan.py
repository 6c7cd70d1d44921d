"""What one commit reads, and the position that it leaves behind."""

from dataclasses import dataclass, field, replace
from typing import Literal

from kafka_lake.common.offsets import Loss, OffsetRange, Position


@dataclass(frozen=True)
class Share:
    """Counts of a plan's records, for one of several tables of a topic.

    Args:
        records: How many of the plan's records the table gets.
        elsewhere: How many go to other tables, or to none.
    """

    records: int
    elsewhere: int


@dataclass(frozen=True)
class Plan:
    """One commit to be: what to read, and the position that its snapshot will carry.

    Args:
        ranges: Offsets to read, ascending by partition; empty ranges in plans that only move the position.
        after: The position once they are in the table, with every partition of the topic.
        remaining: Offsets that are left for later commits of this run.
        kind: ``append`` goes on at the table's position; ``replace`` swaps rows that the table has for what Kafka has
            now; ``reset`` moves the position; ``dead_letter_replay`` adds rows of dead letters; ``adopt`` sets the
            position of a table that another writer has filled.
        deletes: Offsets whose rows leave the table in the same commit.
        keep_missing: In a replacement, keep rows whose records Kafka no longer has, instead of refusing.
        losses: What this commit gives up for lost.
        undecodable: Why the records of this commit become dead letters without being decoded; None for all others.
        adopted_from: Who has filled an adopted table, and how many rows it has; None for all others.
        share: What of the records is for the table; None for all of them.
        by_client: Whether this process reads the records, since Spark's Kafka source fails at one of them.
        one_by_one: Whether no record beyond a range may be expanded in memory, so that records are polled singly.
        record_bytes: Bytes of the largest records, as far as some have been looked at; 0 if none has.
    """

    ranges: tuple[OffsetRange, ...]
    after: Position
    remaining: int
    kind: Literal["append", "replace", "reset", "dead_letter_replay", "adopt"] = "append"
    deletes: tuple[OffsetRange, ...] = ()
    keep_missing: bool = False
    losses: tuple[Loss, ...] = ()
    undecodable: str | None = None
    adopted_from: tuple[str, int] | None = None
    share: Share | None = None
    by_client: bool = False
    one_by_one: bool = False
    record_bytes: float = field(default=0, compare=False)

    @property
    def records_at_most(self) -> int:
        """Return how many records the ranges can hold; gaps make it fewer."""
        return sum(len(r) for r in self.ranges)

    @property
    def topic(self) -> str:
        """Return the name of the topic that it reads."""
        return self.after.identity.topic

    @property
    def named_losses(self) -> tuple[Loss, ...]:
        """Return what it gives up for lost, with the topic's name."""
        return tuple(replace(each, topic=self.topic) for each in self.losses)

    @property
    def elsewhere(self) -> int:
        """Return how many of the records are for other tables, or for none."""
        return self.share.elsewhere if self.share else 0


def chunk(ranges: tuple[OffsetRange, ...], max_records: int) -> tuple[OffsetRange, ...]:
    """Return the first part of a backlog, at most `max_records` offsets, fair to all partitions, none empty.

    Small backlogs of partitions are taken whole; what that leaves is shared evenly among the long ones.

    >>> chunk((OffsetRange(0, 0, 100), OffsetRange(1, 7, 10)), 50)
    (OffsetRange(partition=0, start=0, end=47), OffsetRange(partition=1, start=7, end=10))
    """
    waiting = sorted((r for r in ranges if len(r)), key=len)
    left = max(1, max_records)
    taken = []
    for index, each in enumerate(waiting):
        share = min(len(each), -(-left // (len(waiting) - index)))
        if share:
            taken.append(OffsetRange(each.partition, each.start, each.start + share))
        left -= share
    return tuple(sorted(taken))


def can_be_parted(plan: Plan) -> bool:
    """Return whether a commit reads records that can be committed in parts."""
    return plan.kind in ("append", "replace") and plan.records_at_most > 0 and plan.undecodable is None


def part(plan: Plan, ranges: tuple[OffsetRange, ...]) -> Plan:
    """Return a plan with some of its ranges, each from its start."""
    ends = {r.partition: r.end for r in ranges}
    if plan.kind == "replace":
        after, deletes = plan.after, ranges
    else:
        after = plan.after.advanced(
            tuple(OffsetRange(r.partition, r.start, ends.get(r.partition, r.start)) for r in plan.ranges)
        )
        deletes = plan.deletes
    remaining = plan.remaining + plan.records_at_most - sum(len(r) for r in ranges)
    return replace(plan, ranges=ranges, after=after, remaining=remaining, deletes=deletes)


def position_only(position: Position) -> Plan:
    """Return the commit that holds a position and nothing else."""
    return Plan(tuple(OffsetRange(p, o, o) for p, o in sorted(position.offsets.items())), position, 0)
