"""Plan: the table's position and the topic's watermarks become the exact offsets of one commit. No Spark here."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from kafka_lake.common.errors import ConfigurationError, DataLossError, TopicReplacedError
from kafka_lake.common.offsets import Loss, OffsetRange, Position, Watermarks
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster


@dataclass(frozen=True)
class Plan:
    """One commit to be: what to read, and the position that its snapshot will carry.

    Args:
        ranges: Offsets to read, ascending by partition; empty ranges in plans that only move the position.
        after: The position once they are in the table, with every partition of the topic.
        remaining: Offsets that are left for later commits of this run.
        kind: ``append`` goes on at the table's position; ``replace`` swaps rows that the table has for what Kafka has
            now; ``reset`` moves the position; ``redeliver`` adds rows of dead letters.
        deletes: Offsets whose rows leave the table in the same commit.
        keep_missing: In a replacement, keep rows whose records Kafka no longer has, instead of refusing.
        losses: What this commit gives up for lost.
        undecodable: Why the records of this commit become dead letters without being decoded; None for all others.
    """

    ranges: tuple[OffsetRange, ...]
    after: Position
    remaining: int
    kind: Literal["append", "replace", "reset", "redeliver"] = "append"
    deletes: tuple[OffsetRange, ...] = ()
    keep_missing: bool = False
    losses: tuple[Loss, ...] = ()
    undecodable: str | None = None

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


def start_timestamp_ms(text: str, setting: str = "start") -> int:
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
            f"{setting}: {text!r} is neither earliest, latest nor an ISO 8601 time.",
            "Write for example 2026-01-31T00:00:00Z.",
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


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
    go_on: bool = False,
) -> Backlog:
    """Return everything that the topic has and the table lacks.

    Args:
        position: The table's, None if it has none yet.
        now: The topic's watermarks.
        starts: First offset per partition for a table without a position.
        partitions: Only these are looked at for losses; None for all.
        go_on: Take losses for granted instead of raising.

    Raises:
        TopicReplacedError: If the topic is not the one that the position speaks of. One of another name is refused
            though losses be taken for granted: rows of two topics would be mixed.
        DataLossError: If the log no longer has what comes next.
    """
    if position is None:
        first = {p: starts[p] for p in now.partitions}
        return Backlog(Position(now.identity, first, now.epochs), _to_the_end(first, now))
    if not position.identity.same_as(now.identity):
        if position.identity.topic != now.identity.topic or not go_on:
            raise _another_topic(position, now)
        gone = tuple(Loss(p, o, None, "topic made anew") for p, o in sorted(position.offsets.items()))
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
                Loss(partition, offset, None, "topic made anew")
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
    if losses and not go_on:
        raise DataLossError(
            f"Topic {position.identity.topic}: Kafka no longer has what the table lacks: "
            f"{'; '.join(str(loss) for loss in losses)}.",
            _WAYS_ON.format(topic=position.identity.topic),
        )
    return Backlog(Position(now.identity, at, epochs), _to_the_end(at, now), tuple(losses))


def unsure(position: Position | None, now: Watermarks, partitions: Collection[int] | None = None) -> list[int]:
    """Return the partitions that have another leader than when the position was written, whose logs may differ.

    Args:
        position: The table's, None if it has none yet.
        now: The topic's watermarks.
        partitions: Only these; None for all.
    """
    if position is None or not position.identity.same_as(now.identity):
        return []
    return [
        p
        for p, epoch in sorted(position.epochs.items())
        if (partitions is None or p in partitions)
        and now.epochs.get(p, epoch) != epoch
        and position.offsets.get(p, -1) >= now.low[p]
    ]


def untold(now: Watermarks) -> str | None:
    """Return what can't be told of a topic since its brokers are old, as a sentence; None if all can be told."""
    if now.identity.topic_id and now.epochs.keys() >= now.end.keys():
        return None
    what = [] if now.identity.topic_id else ["no topic id (they are older than Kafka 2.8)"]
    if not now.epochs.keys() >= now.end.keys():
        what.append("no leader epochs (they are older than Kafka 2.1)")
    return (
        f"Topic {now.identity.topic}: the brokers tell {' and '.join(what)}. If the topic was deleted and made anew, "
        "or its log was cut off, and it is longer than the table's position by now, nobody can tell, and what lies "
        "before the position is not read."
    )


_WAYS_ON = (
    "Nothing was read. Set on_data_loss: continue in the topic's YAML to go on with what is left and have the loss "
    "recorded, or choose where to go on with `kafka-lake reset {topic} --to …`."
)


def _to_the_end(at: Mapping[int, int], now: Watermarks) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(p, at[p], max(at[p], now.end[p])) for p in now.partitions)


def _another_topic(position: Position, now: Watermarks) -> TopicReplacedError:
    before, current = position.identity, now.identity
    if before.topic != current.topic:
        return TopicReplacedError(
            f"The table of topic {current.topic} is topic {before.topic}'s: it was filled from that one as far as "
            f"{dict(position.offsets)} (topic id {before.topic_id}, cluster {before.cluster_id}).",
            "Nothing was read, since rows of two topics would be mixed. Give one of them another table: in its YAML; "
            f"if {current.topic} takes the place of {before.topic}, say so with `kafka-lake reset {current.topic} "
            "--to earliest`.",
        )
    clusters = before.cluster_id and current.cluster_id and before.cluster_id != current.cluster_id
    what = "cluster id" if clusters else "topic id"
    return TopicReplacedError(
        f"Topic {current.topic} is not the topic that the table was filled from: its {what} differs "
        f"(table: topic {before.topic}, id {before.topic_id}, cluster {before.cluster_id}; "
        f"now: topic {current.topic}, id {current.topic_id}, cluster {current.cluster_id}). "
        f"The table's position is {dict(position.offsets)}.",
        "It was deleted and made anew, or the brokers are others. " + _WAYS_ON.format(topic=current.topic),
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
    go_on: bool = False,
) -> Plan | None:
    """Return the next commit, or None if there is nothing to do.

    Args:
        position: The table's position, read together with the head that the branch will start from.
        now: The topic's watermarks when the run began; what comes later is the next run's.
        starts: First offset per partition for a table without a position.
        max_records: Offsets of one commit at most.
        partitions: Only these; None for all.
        go_on: Take what Kafka lost for granted; the commit records it.

    Raises:
        DataLossError: If Kafka no longer has what comes next.
    """
    due = backlog(position, now, starts, partitions, go_on)
    wanted = tuple(r for r in due.ranges if partitions is None or r.partition in partitions)
    ranges = chunk(wanted, max_records)
    if not ranges and due.losses:
        # Nothing to read, but the loss and the position beyond it must be recorded.
        ranges = tuple(r for r in due.ranges if r.partition in {loss.partition for loss in due.losses})
    if not ranges and not due.losses:
        return None
    remaining = sum(len(r) for r in wanted) - sum(len(r) for r in ranges)
    return Plan(ranges, due.before.advanced(ranges), remaining, losses=due.losses)


def position_only(position: Position) -> Plan:
    """Return the commit that holds a position and nothing else."""
    return Plan(tuple(OffsetRange(p, o, o) for p, o in sorted(position.offsets.items())), position, 0)


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
    return position_only(Position(now.identity, dict(starts), now.epochs))


def replacement(
    position: Position, now: Watermarks, wanted: Sequence[OffsetRange], max_records: int, keep_missing: bool
) -> list[Plan]:
    """Return the commits that read parts of the topic again and swap the table's rows for what they give.

    Args:
        position: The table's; what lies beyond it is none of a replacement's business.
        now: The topic's watermarks.
        wanted: What to read again, one range per partition.
        max_records: Offsets of one commit at most.
        keep_missing: Leave rows alone that Kafka no longer has, instead of refusing.

    Returns:
        Plans whose positions are all the table's own; none if nothing of what is wanted is in the table.

    Raises:
        TopicReplacedError: If the topic is not the one that the position speaks of.
        DataLossError: If the log begins after the start of a range.
    """
    if not position.identity.same_as(now.identity):
        raise _another_topic(position, now)
    offsets = position.offsets
    due = [OffsetRange(r.partition, r.start, min(r.end, offsets.get(r.partition, 0))) for r in wanted
           if r.start < min(r.end, offsets.get(r.partition, 0))]  # fmt: skip
    gone = [OffsetRange(r.partition, r.start, min(r.end, now.low.get(r.partition, r.end))) for r in due
            if r.start < now.low.get(r.partition, r.end)]  # fmt: skip
    if gone and not keep_missing:
        listed = "; ".join(f"partition {r.partition} offsets {r.start} to {r.end - 1}" for r in gone)
        raise DataLossError(
            f"Topic {now.identity.topic}: Kafka no longer has all that is to be read again: {listed}.",
            "Nothing was changed. Begin later, or keep the rows that Kafka no longer has (--keep-missing).",
        )
    left = tuple(
        OffsetRange(r.partition, low, r.end)
        for r in due
        if (low := max(r.start, now.low.get(r.partition, r.end))) < r.end
    )
    plans = []
    while ranges := chunk(left, max_records):
        taken = {r.partition: r.end for r in ranges}
        left = tuple(OffsetRange(r.partition, taken.get(r.partition, r.start), r.end) for r in left)
        plans.append(Plan(ranges, position, sum(len(r) for r in left), "replace", ranges, keep_missing))
    return plans


def resetting(position: Position | None, now: Watermarks, targets: Mapping[int, int]) -> Plan:
    """Return the commit that moves the table's position.

    Rows at and beyond a target that lies before the position leave the table, since they will be read again; offsets
    between the position and a target beyond it are recorded as skipped.

    Args:
        position: The table's, None if it has none.
        now: The topic's watermarks.
        targets: Next offset to read per partition; partitions that are not named stay, or begin at the log's start.

    Raises:
        ConfigurationError: If a target lies outside of what the topic holds.
    """
    for partition, target in sorted(targets.items()):
        if partition not in now.end or not now.low[partition] <= target <= now.end[partition]:
            holds = ", ".join(f"{p}: {now.low[p]}..{now.end[p]}" for p in now.partitions)
            raise ConfigurationError(
                f"Topic {now.identity.topic}: there is no offset {target} in partition {partition} to go on from; "
                f"the partitions hold {holds}.",
                "Choose an offset within those ranges, the end included.",
            )
    same = position is not None and position.identity.same_as(now.identity)
    at = dict(position.offsets) if position and same else {}
    after = {**now.low, **{p: o for p, o in at.items() if p in now.end}, **targets}
    deletes = tuple(OffsetRange(p, after[p], at[p]) for p in sorted(at) if p in after and after[p] < at[p])
    losses = [Loss(p, at[p], after[p], "skipped") for p in sorted(at) if p in after and after[p] > at[p]]
    if position and not same:
        losses = [Loss(p, o, None, "topic made anew") for p, o in sorted(position.offsets.items())]
    # Who names an offset takes the log as it is.
    epochs = {
        **now.epochs,
        **({p: e for p, e in position.epochs.items() if p not in targets} if at and position else {}),
    }
    stay = position_only(Position(now.identity, after, {p: epochs[p] for p in after if p in epochs}))
    return Plan(stay.ranges, stay.after, 0, "reset", deletes, losses=tuple(losses))


_BY_PARTITION = re.compile(r"\d+:\d+(,\d+:\d+)*")


def is_time(text: str) -> bool:
    """Return whether `offsets_of` would take a text for a time.

    >>> is_time("2026-01-31T00:00:00Z"), is_time("0:17,1:4"), is_time("17")
    (True, False, False)
    """
    return not (text in ("earliest", "latest") or text.isdecimal() or _BY_PARTITION.fullmatch(text))


def offsets_of(text: str, topic: str, cluster: KafkaCluster, now: Watermarks) -> dict[int, int]:
    """Return the offset per partition that a person means by ``--from`` or ``--to``.

    Args:
        text: ``earliest``, ``latest``, an offset, an ISO 8601 time, or offsets by partition as in ``0:17,1:4``.
        topic: The topic's name.
        cluster: Asked for times.
        now: The topic's watermarks.

    Returns:
        Offsets, for the named partitions only in the last form. A time beyond the last record is the end.

    Raises:
        ConfigurationError: If the text is none of these.
        KafkaError: If the brokers don't answer.
    """
    if text in ("earliest", "latest"):
        return dict(now.low if text == "earliest" else now.end)
    if text.isdecimal():
        return dict.fromkeys(now.partitions, int(text))
    if _BY_PARTITION.fullmatch(text):
        return {int(p): int(o) for p, o in (pair.split(":") for pair in text.split(","))}
    moment = start_timestamp_ms(text, "--from or --to")
    found = cluster.offsets_at(topic, now.partitions, moment)
    return {p: now.end[p] if found.get(p) is None else int(found[p] or 0) for p in now.partitions}
