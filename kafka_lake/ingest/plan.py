"""Plan: the table's position and the topic's watermarks become the exact offsets of one commit. No Spark here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kafka_lake.errors import ConfigurationError, DataLossError, TopicReplacedError
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.offsets import OffsetRange, Position, Watermarks


@dataclass(frozen=True)
class Plan:
    """One commit to be: what to read, and the position that its snapshot will carry.

    Args:
        ranges: Offsets to read, ascending by partition; none of them empty but in an `opening`.
        after: The position once they are in the table, with every partition of the topic.
        remaining: Offsets that are left for later commits of this run.
    """

    ranges: tuple[OffsetRange, ...]
    after: Position
    remaining: int

    @property
    def records_at_most(self) -> int:
        """Return how many records the ranges can hold; gaps make it fewer."""
        return sum(len(r) for r in self.ranges)


def start_offsets(spec: TopicTable, cluster: KafkaCluster, now: Watermarks) -> dict[int, int]:
    """Return where each partition begins for a table that has no position yet.

    Args:
        spec: Its ``start`` counts.
        cluster: Asked only for a start by time.
        now: The topic's watermarks.

    Raises:
        KafkaError: If the brokers don't answer.
    """
    if spec.start == "earliest":
        return dict(now.low)
    if spec.start == "latest":
        return dict(now.end)
    found = cluster.offsets_at(spec.topic, now.partitions, start_timestamp_ms(spec.start))
    return {
        p: now.end[p] if (at := found.get(p)) is None else min(max(at, now.low[p]), now.end[p]) for p in now.partitions
    }


def start_timestamp_ms(text: str) -> int:
    """Return an ISO 8601 time as milliseconds since the epoch; without a zone it is UTC.

    Raises:
        ConfigurationError: If the text is no such time.

    >>> start_timestamp_ms("2026-01-01T00:00:00")
    1767225600000
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"start: {text!r} is neither earliest, latest nor an ISO 8601 time.",
            "Write for example 2026-01-31T00:00:00Z.",
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def backlog(position: Position | None, now: Watermarks, starts: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """Return everything that the topic has and the table lacks, one range per partition, empty ones too.

    Args:
        position: The table's, None if it has none yet.
        now: The topic's watermarks.
        starts: First offset per partition for a table without a position.

    Raises:
        TopicReplacedError: If the topic is not the one that the position speaks of.
        DataLossError: If the log no longer has what comes next.
    """
    if position is None:
        return tuple(OffsetRange(p, starts[p], max(starts[p], now.end[p])) for p in now.partitions)
    _refuse_another_topic(position, now)
    lost: list[str] = []
    for partition, offset in sorted(position.offsets.items()):
        if partition not in now.end:
            lost.append(f"partition {partition} is gone, the table's position in it was {offset}")
        elif offset < now.low[partition]:
            lost.append(f"partition {partition} lost offsets {offset} to {now.low[partition] - 1} to retention")
        elif offset > now.end[partition]:
            lost.append(f"partition {partition} ends at {now.end[partition]}, before the table's position {offset}")
    if lost:
        raise DataLossError(
            f"Topic {position.identity.topic}: Kafka no longer has what the table lacks: {'; '.join(lost)}.",
            "Nothing was read. Restore the topic, or fill a new table from what is left.",
        )
    # A partition that the position doesn't know was added to the topic since: all of it is new.
    return tuple(OffsetRange(p, position.offsets.get(p, now.low[p]), now.end[p]) for p in now.partitions)


def _refuse_another_topic(position: Position, now: Watermarks) -> None:
    before, current = position.identity, now.identity
    if before.same_as(current):
        return
    what = (
        "name"
        if before.topic != current.topic
        else (
            "cluster id"
            if before.cluster_id and current.cluster_id and before.cluster_id != current.cluster_id
            else "topic id"
        )
    )
    raise TopicReplacedError(
        f"Topic {current.topic} is not the topic that the table was filled from: its {what} differs "
        f"(table: topic {before.topic}, id {before.topic_id}, cluster {before.cluster_id}; "
        f"now: topic {current.topic}, id {current.topic_id}, cluster {current.cluster_id}). "
        f"The table's position is {dict(position.offsets)}.",
        "It was deleted and made anew, or the brokers are others. Give the new topic a table of its own (table: …).",
    )


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


def plan(
    position: Position | None,
    now: Watermarks,
    starts: Mapping[int, int],
    max_records: int,
    partitions: Collection[int] | None = None,
) -> Plan | None:
    """Return the next commit, or None if there is nothing to do.

    Args:
        position: The table's position, read together with the head that the branch will start from.
        now: The topic's watermarks when the run began; what comes later is the next run's.
        starts: First offset per partition for a table without a position.
        max_records: Offsets of one commit at most.
        partitions: Only these; None for all.

    Raises:
        DataLossError: If Kafka no longer has what comes next.
    """
    whole = backlog(position, now, starts)
    wanted = tuple(r for r in whole if partitions is None or r.partition in partitions)
    ranges = chunk(wanted, max_records)
    if not ranges:
        return None
    before = Position(now.identity, {r.partition: r.start for r in whole})
    remaining = sum(len(r) for r in wanted) - sum(len(r) for r in ranges)
    return Plan(ranges, before.advanced(ranges), remaining)


def opening(spec: TopicTable, now: Watermarks, starts: Mapping[int, int]) -> Plan | None:
    """Return the commit that holds a position and no rows, for a table that begins at the topic's latest offset.

    Without it every run would look anew where "latest" is, and what came in between would be in no table.

    Args:
        spec: Its ``start`` counts.
        now: The topic's watermarks.
        starts: First offset per partition.

    Returns:
        The plan, whose ranges are all empty; None for a table that begins where it can be told again at any time.
    """
    if spec.start != "latest" or not now.partitions:
        return None
    ranges = tuple(OffsetRange(p, starts[p], starts[p]) for p in now.partitions)
    return Plan(ranges, Position(now.identity, dict(starts)), 0)
