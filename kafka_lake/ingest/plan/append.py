"""Everything that a topic has and its table lacks, and the next commit of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka_lake.common.offsets import Loss, OffsetRange, Position, Watermarks
from kafka_lake.errors import DataLossError
from kafka_lake.ingest.plan.identity import another_topic, ways_on
from kafka_lake.ingest.plan.model import Plan, chunk, position_only
from kafka_lake.ingest.topic_table import TopicTable


@dataclass(frozen=True)
class Backlog:
    """Everything that the topic has and the table lacks.

    Args:
        before: Where reading goes on, per partition: the table's position, past what is lost.
        ranges: One per partition of the topic, empty ones too.
        losses: What Kafka no longer has.
    """

    before: Position
    ranges: tuple[OffsetRange, ...]
    losses: tuple[Loss, ...] = ()


def backlog(
    position: Position | None,
    now: Watermarks,
    starts: Mapping[int, int],
    partitions: Collection[int] | None = None,
    accept_losses: bool = False,
) -> Backlog:
    """Return everything that the topic has and the table lacks.

    Args:
        position: The table's, None if it has none yet.
        starts: First offset per partition for a table without a position.
        partitions: Only these are looked at for losses; None for all.
        accept_losses: Take losses for granted instead of raising.

    Raises:
        TopicReplacedError: If the topic is not the one that the position speaks of. One of another name is refused
            though losses be taken for granted: rows of two topics would be mixed.
        DataLossError: If the log no longer has what comes next.
    """
    if position is None:
        first = {p: starts[p] for p in now.partitions}
        return Backlog(Position(now.identity, first, now.epochs), _to_the_end(first, now))
    if not position.identity.same_as(now.identity):
        if position.identity.topic != now.identity.topic or not accept_losses:
            raise another_topic(position, now)
        gone = tuple(Loss(p, o, None, "topic recreated") for p, o in sorted(position.offsets.items()))
        return Backlog(Position(now.identity, dict(now.low), now.epochs), _to_the_end(now.low, now), gone)
    # A partition that the position doesn't know was added to the topic since: all of it is new.
    known = {**dict.fromkeys(now.partitions, 0), **position.offsets}
    at, epochs = dict(known), dict(now.epochs)
    losses = []
    for partition, offset in sorted(known.items()):
        if partitions is not None and partition not in partitions:
            # It waits where it is, a new one where its log begins.
            at[partition] = position.offsets.get(partition, now.low.get(partition, 0))
            if partition in position.epochs:
                epochs[partition] = position.epochs[partition]
            continue
        if partition not in now.end:
            losses.append(Loss(partition, offset, None, "partition gone"))
            del at[partition]
        elif partition in now.cut_off:
            cut = now.cut_off[partition]
            losses.append(
                Loss(partition, offset, None, "topic recreated")
                if cut is None
                else Loss(partition, cut, offset, "truncated")
            )
            at[partition] = max(cut or 0, now.low[partition])
        elif offset < now.low[partition]:
            losses.append(Loss(partition, offset, now.low[partition], "retention"))
            at[partition] = now.low[partition]
        elif offset > now.end[partition]:
            losses.append(Loss(partition, now.end[partition], offset, "truncated"))
            at[partition] = now.end[partition]
        elif partition in now.replaced:
            losses.append(Loss(partition, now.replaced[partition], offset, "replaced"))
    if losses and not accept_losses:
        raise DataLossError(
            f"Topic {position.identity.topic}: Kafka no longer has what the table lacks: "
            f"{'; '.join(str(loss) for loss in losses)}.",
            ways_on(position.identity.topic, losses),
        )
    lost = {loss.partition for loss in losses}
    last = {p: each for p, each in position.last.items() if p in at and p not in lost}
    return Backlog(Position(now.identity, at, epochs, last), _to_the_end(at, now), tuple(losses))


def plan(
    position: Position | None,
    now: Watermarks,
    starts: Mapping[int, int],
    max_records: int,
    partitions: Collection[int] | None = None,
    accept_losses: bool = False,
) -> Plan | None:
    """Return the next commit, or None if there is nothing to do.

    Args:
        position: The table's position, read together with the head that the branch will start from.
        now: The topic's watermarks when the run began; what comes later is the next run's.
        starts: First offset per partition for a table without a position.
        max_records: Offsets of one commit at most.
        partitions: Only these; None for all.
        accept_losses: Take what Kafka lost for granted; the commit records it.

    Raises:
        DataLossError: If Kafka no longer has what comes next.
    """
    due = backlog(position, now, starts=starts, partitions=partitions, accept_losses=accept_losses)
    chosen = tuple(r for r in due.ranges if partitions is None or r.partition in partitions)
    ranges = chunk(chosen, max_records)
    if not ranges and due.losses:
        # Nothing to read, but the loss and the position beyond it must be recorded.
        ranges = tuple(r for r in due.ranges if r.partition in {loss.partition for loss in due.losses})
    if not ranges and not due.losses:
        return None
    remaining = sum(len(r) for r in chosen) - sum(len(r) for r in ranges)
    return Plan(ranges, due.before.advanced(ranges), remaining, losses=due.losses)


def opening(spec: TopicTable, now: Watermarks, starts: Mapping[int, int]) -> Plan | None:
    """Return the commit that holds a position and no rows, for a table that begins at the topic's latest offset.

    Without it every run would look anew where "latest" is, and what came in between would be in no table.

    Returns:
        The plan, whose ranges are all empty; None for a table that begins where it can be told again at any time.
    """
    if spec.start != "latest" or not now.partitions:
        return None
    return position_only(Position(now.identity, dict(starts), now.epochs))


def _to_the_end(at: Mapping[int, int], now: Watermarks) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(p, at[p], max(at[p], now.end[p])) for p in now.partitions)
