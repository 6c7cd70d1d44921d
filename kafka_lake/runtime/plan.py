"""The plan of a commit: the offsets to read, and the position after it."""

from dataclasses import dataclass, field, replace
from typing import Literal

from kafka_lake.common.offsets import Loss, OffsetRange, Position


@dataclass(frozen=True)
class Share:
    """Counts of a plan's records, for one of several tables of a topic."""

    records: int
    elsewhere: int


@dataclass(frozen=True)
class Plan:
    """The plan of a commit.

    Args:
        ranges: Offsets to read, ascending by partition; empty ranges in plans that only move the position.
        after: The position in the snapshot, with every partition of the topic.
        remaining: Offsets left for later commits of this run.
        kind: ``append`` continues at the table's position; ``replace`` replaces rows of some offsets; ``reset`` sets
            the position; ``dead_letter_replay`` adds rows of dead letters; ``adopt`` sets the position of a table that
            another writer has filled.
        keep_missing: Whether a replacement keeps rows whose records Kafka no longer has.
        undecodable: The error with which the records become dead letters undecoded; None to decode them.
        adopted_from: The writer of an adopted table and its number of rows; None otherwise.
        by_client: Whether this process reads the records, since Spark's Kafka source can't read one of them.
        one_by_one: Whether records are polled singly, so that none behind a range is in memory.
        record_bytes: Bytes of the largest sampled record; 0 if none was sampled.
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
    def appends(self) -> bool:
        """Return whether the commit continues at the table's position."""
        return self.kind == "append"

    @property
    def replaces(self) -> bool:
        """Return whether the commit replaces rows of some offsets."""
        return self.kind == "replace"

    @property
    def resets(self) -> bool:
        """Return whether the commit sets the position, and deletes rows behind it."""
        return self.kind == "reset"

    @property
    def replays_dead_letters(self) -> bool:
        """Return whether the records are those of dead letters."""
        return self.kind == "dead_letter_replay"

    @property
    def reads_ranges(self) -> bool:
        """Return whether the commit reads its ranges from Kafka."""
        return self.appends or self.replaces

    @property
    def keeps_position(self) -> bool:
        """Return whether the position after the commit is the one before it."""
        return self.replaces or self.replays_dead_letters

    @property
    def records_at_most(self) -> int:
        """Return the number of offsets, an upper bound of the records."""
        return sum(len(r) for r in self.ranges)

    @property
    def topic(self) -> str:
        """Return the topic's name."""
        return self.after.identity.topic

    @property
    def named_losses(self) -> tuple[Loss, ...]:
        """Return the losses with the topic's name."""
        return tuple(replace(loss, topic=self.topic) for loss in self.losses)

    @property
    def elsewhere(self) -> int:
        """Return the number of records of other tables, or of none."""
        return self.share.elsewhere if self.share else 0


def chunk(ranges: tuple[OffsetRange, ...], max_records: int) -> tuple[OffsetRange, ...]:
    """Return the first part of a backlog: at most ``max_records`` offsets, without empty ranges.

    Short ranges are taken as a whole, and the long ones share the rest evenly.

    >>> chunk((OffsetRange(0, 0, 100), OffsetRange(1, 7, 10)), 50)
    (OffsetRange(partition=0, start=0, end=47), OffsetRange(partition=1, start=7, end=10))
    """
    by_length = sorted((r for r in ranges if len(r)), key=len)
    left, taken = max(1, max_records), []
    for index, r in enumerate(by_length):
        count = min(len(r), -(-left // (len(by_length) - index)))
        if count:
            taken.append(OffsetRange(r.partition, r.start, r.start + count))
        left -= count
    return tuple(sorted(taken))


def can_be_parted(plan: Plan) -> bool:
    """Return whether a plan can be committed in parts."""
    return plan.reads_ranges and plan.records_at_most > 0 and plan.undecodable is None


def part(plan: Plan, ranges: tuple[OffsetRange, ...]) -> Plan:
    """Return a plan with some of its ranges, each from its start."""
    ends = {r.partition: r.end for r in ranges}
    if plan.replaces:
        after, deletes = plan.after, ranges
    else:
        after = plan.after.advanced(
            tuple(OffsetRange(r.partition, r.start, ends.get(r.partition, r.start)) for r in plan.ranges)
        )
        deletes = plan.deletes
    remaining = plan.remaining + plan.records_at_most - sum(len(r) for r in ranges)
    return replace(plan, ranges=ranges, after=after, remaining=remaining, deletes=deletes)


def position_only(position: Position) -> Plan:
    """Return the plan of a commit that only has a position."""
    return Plan(tuple(OffsetRange(p, o, o) for p, o in sorted(position.offsets.items())), position, 0)


@dataclass(frozen=True)
class ReplayRange:
    """The part of a topic that a replay reads.

    Args:
        start: ``earliest``, an offset, an ISO 8601 time, or offsets by partition as in ``0:17,1:4``; inclusive.
        end: The same, or ``latest``; exclusive. Never beyond the table's position.
    """

    start: str = "earliest"
    end: str = "latest"
    partitions: frozenset[int] | None = None
    keep_missing: bool = False
