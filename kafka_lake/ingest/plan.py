"""Plan: the table's position and the topic's watermarks become the exact offsets of one commit. No Spark here."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kafka_lake.common.offsets import Loss, OffsetRange, Position, Watermarks
from kafka_lake.common.text import start_timestamp_ms
from kafka_lake.errors import ConfigurationError, DataLossError, TopicReplacedError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.runtime.plan import Plan, chunk, position_only
from kafka_lake.spec.topic_table import TopicTable

_CONTINUE = (
    "Nothing was read. To continue with the remaining records and record the loss, set on_data_loss: continue in "
    "the topic's YAML. Or set new positions: `kafka-lake reset {topic} --to … --partitions …`."
)
_REPLACED = (
    "Nothing was read. The brokers may have been restored from an older copy. `kafka-lake reset {topic} --to "
    "earliest --partitions {partitions}` reads the current log again and replaces the rows from its first offset "
    "on. (A table with write: upsert keeps its rows; to fill it again, drop it.) `kafka-lake reset {topic} --to "
    "{targets}` continues with the current log. on_data_loss: continue in the topic's YAML does the same, and "
    "records the loss."
)

_WHY = {
    False: "It was deleted and recreated.",
    True: "These are the brokers of another cluster. If that is a mistake, correct cluster: in the topic's YAML, or "
    "the brokers' address. A topic that moved to another cluster is a new topic with other offsets.",
}


def loss_remedy(topic: str, losses: Sequence[Loss]) -> str:
    """Return what to do about losses. Advice about a replaced log comes before advice about deleted records."""
    replaced = [loss for loss in losses if loss.reason == "replaced"]
    if not replaced:
        return _CONTINUE.format(topic=topic)
    return _REPLACED.format(
        topic=topic,
        partitions=",".join(str(loss.partition) for loss in replaced),
        targets=",".join(f"{loss.partition}:{loss.end}" for loss in replaced),
    )


def with_other_leader(
    position: Position | None, now: Watermarks, partitions: Collection[int] | None = None
) -> list[int]:
    """Return the partitions whose leader epoch has changed since the position was written: their log may differ."""
    if position is None or not position.identity.same_as(now.identity):
        return []
    return [
        p
        for p, epoch in sorted(position.epochs.items())
        if (partitions is None or p in partitions)
        and now.epochs.get(p, epoch) != epoch
        and position.offsets[p] >= now.low[p]
    ]


def old_brokers_warning(now: Watermarks) -> str | None:
    """Return a warning if the brokers are too old to detect a recreated topic or a cut log; None otherwise."""
    if now.identity.topic_id and now.epochs.keys() >= now.end.keys():
        return None
    what = [] if now.identity.topic_id else ["no topic id (they are older than Kafka 2.8)"]
    if not now.epochs.keys() >= now.end.keys():
        what.append("no leader epochs (they are older than Kafka 2.1)")
    return (
        f"Topic {now.identity.topic}: the brokers have {' and '.join(what)}. A recreated topic or truncated log "
        f"isn't detected once it is longer than the table's position; the records before the position aren't read."
    )


def another_topic(position: Position, now: Watermarks) -> TopicReplacedError:
    """Return the error of a topic other than the one that the table was filled from."""
    before, current = position.identity, now.identity
    if before.topic != current.topic:
        return TopicReplacedError(
            f"The table of topic {current.topic} belongs to topic {before.topic}, which filled it up to "
            f"{dict(position.offsets)} (topic id {before.topic_id}, cluster {before.cluster_id}).",
            "Nothing was read, because rows of two topics would be mixed. Give one topic another table: in its "
            f"YAML; if {current.topic} replaces {before.topic}, run `kafka-lake reset {current.topic} --to earliest`.",
        )
    clusters = before.cluster_id and current.cluster_id and before.cluster_id != current.cluster_id
    what = "cluster id" if clusters else "topic id"
    return TopicReplacedError(
        f"Topic {current.topic} is not the topic that the table was filled from: its {what} differs "
        f"(table: topic {before.topic}, id {before.topic_id}, cluster {before.cluster_id}; "
        f"now: topic {current.topic}, id {current.topic_id}, cluster {current.cluster_id}). "
        f"The table's position is {dict(position.offsets)}.",
        f"{_WHY[bool(clusters)]} {_CONTINUE.format(topic=current.topic)}",
    )


_BY_PARTITION = re.compile(r"\d+:\d+(,\d+:\d+)*")


def start_offsets(
    spec: TopicTable, cluster: KafkaCluster, now: Watermarks, begins: Mapping[int, int] = MappingProxyType({})
) -> dict[int, int]:
    """Return the start offset of each partition for a table without a position.

    Args:
        begins: The start offsets of a value's table. Partitions that it lacks were added to the topic later.
    """
    if begins:
        return {**dict.fromkeys(now.partitions, 0), **begins}
    if spec.start == "earliest":
        return dict(now.low)
    if spec.start == "latest":
        return dict(now.end)
    offsets = cluster.offsets_at(spec.topic, now.partitions, start_timestamp_ms(spec.start))
    return {
        p: now.end[p] if (at := offsets.get(p)) is None else min(max(at, now.low[p]), now.end[p])
        for p in now.partitions
    }


def is_time(text: str) -> bool:
    """Return whether a text is a time for `offsets_of`.

    >>> is_time("2026-01-31T00:00:00Z"), is_time("0:17,1:4"), is_time("17")
    (True, False, False)
    """
    return not (text in ("earliest", "latest") or text.isdecimal() or _BY_PARTITION.fullmatch(text))


def offsets_of(text: str, topic: str, cluster: KafkaCluster, now: Watermarks) -> dict[int, int]:
    """Return the offset of each partition for ``--from`` or ``--to``.

    Args:
        text: ``earliest``, ``latest``, an offset, an ISO 8601 time, or offsets of some partitions, as in ``0:17,1:4``.
            A time after the last record is the end.
    """
    if text in ("earliest", "latest"):
        return dict(now.low if text == "earliest" else now.end)
    if text.isdecimal():
        return dict.fromkeys(now.partitions, int(text))
    if _BY_PARTITION.fullmatch(text):
        return {int(p): int(o) for p, o in (pair.split(":") for pair in text.split(","))}
    moment = start_timestamp_ms(text, "--from or --to")
    offsets = cluster.offsets_at(topic, now.partitions, moment)
    return {p: now.end[p] if (at := offsets.get(p)) is None else at for p in now.partitions}


@dataclass(frozen=True)
class Backlog:
    """The offsets of a topic that the table hasn't read.

    Args:
        ranges: One for each partition of the topic, empty ones included.
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
    """Return the offsets of a topic that the table hasn't read.

    Raises:
        DataLossError: If Kafka no longer has some of them, unless losses are accepted.
        TopicReplacedError: If the topic was recreated, or is another topic.
    """
    if position is None:
        first = {p: starts[p] for p in now.partitions}
        return Backlog(Position(now.identity, first, now.epochs), _to_the_end(first, now))
    if not position.identity.same_as(now.identity):
        if position.identity.topic != now.identity.topic or not accept_losses:
            raise another_topic(position, now)
        gone = tuple(Loss(p, o, None, "topic recreated") for p, o in sorted(position.offsets.items()))
        return Backlog(Position(now.identity, dict(now.low), now.epochs), _to_the_end(now.low, now), gone)
    # Partitions that the position doesn't have were added to the topic: all their records are new.
    known = {**dict.fromkeys(now.partitions, 0), **position.offsets}
    at, epochs = dict(known), dict(now.epochs)
    losses = []
    for partition, offset in sorted(known.items()):
        if partitions is not None and partition not in partitions:
            # Not chosen: stays at its position. If it is new, the next run that reads it names what it has lost.
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
            f"Topic {position.identity.topic}: Kafka no longer has records that the table hasn't read: "
            f"{'; '.join(str(loss) for loss in losses)}.",
            loss_remedy(position.identity.topic, losses),
        )
    lost = {loss.partition for loss in losses}
    last = {p: record for p, record in position.last.items() if p in at and p not in lost}
    return Backlog(Position(now.identity, at, epochs, last), _to_the_end(at, now), tuple(losses))


def plan(
    position: Position | None,
    now: Watermarks,
    starts: Mapping[int, int],
    max_records: int,
    partitions: Collection[int] | None = None,
    accept_losses: bool = False,
) -> Plan | None:
    """Return the next commit of at most ``max_records`` offsets; None if there is nothing to read or record.

    The position must be that of the head that the staging branch will start from.
    """
    due = backlog(position, now, starts=starts, partitions=partitions, accept_losses=accept_losses)
    chosen = tuple(r for r in due.ranges if partitions is None or r.partition in partitions)
    ranges = chunk(chosen, max_records)
    if not ranges and due.losses:
        # Record the losses, and the position behind them.
        ranges = tuple(r for r in due.ranges if r.partition in {loss.partition for loss in due.losses})
    if not ranges and not due.losses:
        return None
    remaining = sum(len(r) for r in chosen) - sum(len(r) for r in ranges)
    return Plan(ranges, due.before.advanced(ranges), remaining, losses=due.losses)


def opening(spec: TopicTable, now: Watermarks, starts: Mapping[int, int]) -> Plan | None:
    """Return a position-only commit for a table that starts at the latest offset, so that later runs start there."""
    if spec.start != "latest" or not now.partitions:
        return None
    return position_only(Position(now.identity, dict(starts), now.epochs))


def _to_the_end(at: Mapping[int, int], now: Watermarks) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(p, at[p], max(at[p], now.end[p])) for p in now.partitions)


def refuse_adopted(adopted: Position | None, now: Watermarks, first: Mapping[int, int]) -> None:
    """Refuse to read records before the adopted position: another writer's rows of them can't be identified."""
    if adopted is None or not adopted.identity.same_as(now.identity):
        return
    before = [p for p in sorted(first) if first[p] < adopted.offsets.get(p, 0)]
    if not before:
        return
    listed = "; ".join(f"partition {p} offset {first[p]}, taken over at {adopted.offsets[p]}" for p in before)
    targets = ",".join(f"{p}:{max(first[p], adopted.offsets.get(p, 0))}" for p in sorted(first))
    raise ConfigurationError(
        f"Topic {now.identity.topic}: the table was taken over from another writer, whose rows have no offsets: "
        f"{listed}. Older records would be in the table twice.",
        f"Nothing was changed. Start at {targets} or later. To read older records anyway, first delete the other "
        "writer's rows, and then the table property kafka-lake.adopted-position.",
    )


def refuse_other_log(position: Position, now: Watermarks, partitions: Collection[int]) -> None:
    """Refuse to replace rows whose log was cut off or replaced: the same offsets are of other records now."""
    if not position.identity.same_as(now.identity):
        return
    losses = backlog(position, now, {}, partitions, accept_losses=True).losses
    # Records deleted by retention aren't read, and a removed partition isn't part of the replay.
    losses = tuple(loss for loss in losses if loss.reason not in ("retention", "partition gone"))
    if losses:
        topic = position.identity.topic
        raise DataLossError(
            f"Topic {topic}: the replay would replace rows of other records: {'; '.join(map(str, losses))}.",
            loss_remedy(topic, losses),
        )


def replacement(
    position: Position, now: Watermarks, asked: Sequence[OffsetRange], max_records: int, keep_missing: bool
) -> list[Plan]:
    """Return the commits of a replay, which replace the rows of some offsets."""
    if not position.identity.same_as(now.identity):
        raise another_topic(position, now)
    bounds = [
        (r.partition, r.start, now.low.get(r.partition, r.end), min(r.end, position.offsets.get(r.partition, 0)))
        for r in asked
    ]
    gone = [OffsetRange(p, start, min(low, end)) for p, start, low, end in bounds if start < min(low, end)]
    if gone and not keep_missing:
        listed = "; ".join(f"partition {r.partition} offsets {r.start} to {r.end - 1}" for r in gone)
        raise DataLossError(
            f"Topic {now.identity.topic}: Kafka no longer has all records of the replay: {listed}.",
            "Nothing was changed. Start later, or keep the rows whose records Kafka no longer has (--keep-missing).",
        )
    left = tuple(OffsetRange(p, min(max(start, low), end), end) for p, start, low, end in bounds)
    plans = []
    while ranges := chunk(left, max_records):
        taken = {r.partition: r.end for r in ranges}
        left = tuple(OffsetRange(r.partition, taken.get(r.partition, r.start), r.end) for r in left)
        plans.append(
            Plan(
                ranges=ranges,
                after=position,
                remaining=sum(len(r) for r in left),
                kind="replace",
                deletes=ranges,
                keep_missing=keep_missing,
            )
        )
    return plans


def resetting(
    position: Position | None, now: Watermarks, targets: Mapping[int, int], rows_name_records: bool = False
) -> Plan:
    """Return the commit that sets the table's position.

    Rows at and behind a target before the position are deleted, since their records will be read again. Offsets
    between the position and a target behind it are recorded as skipped.
    """
    for partition, target in sorted(targets.items()):
        if partition not in now.end or not now.low[partition] <= target <= now.end[partition]:
            holds = ", ".join(f"{p}: {now.low[p]}..{now.end[p]}" for p in now.partitions)
            raise ConfigurationError(
                f"Topic {now.identity.topic}: there is no offset {target} in partition {partition}; "
                f"the partitions hold {holds}.",
                "Choose an offset in these ranges, including the end.",
            )
    current = position if position and position.identity.same_as(now.identity) else None
    # All records of a partition that was added to the topic are new. If it isn't named here, it stays so.
    at = {**dict.fromkeys(targets, 0), **current.offsets} if current else {}
    after = {**({} if current else now.low), **{p: o for p, o in at.items() if p in now.end}, **targets}
    deletes = tuple(OffsetRange(p, after[p], at[p]) for p in sorted(at) if p in after and after[p] < at[p])
    if position is None and rows_name_records:
        # Without a position, any row may be of an offset behind the target.
        deletes = tuple(OffsetRange(p, after[p], now.end[p]) for p in now.partitions if after[p] < now.end[p])
    losses = [Loss(p, at[p], after[p], "skipped") for p in sorted(at) if p in after and after[p] > at[p]]
    if position and not current:
        losses = [Loss(p, o, None, "topic recreated") for p, o in sorted(position.offsets.items())]
    # A reset accepts the log as it is: targets get the current leader epochs,
    epochs = {
        **now.epochs,
        **({p: e for p, e in current.epochs.items() if p not in targets} if current else {}),
    }
    # and lose the last record where the log was replaced, or may have been under another leader.
    replaced = {p for p in targets if p in now.replaced or (current and current.epochs.get(p) != epochs.get(p))}
    last = {
        p: record
        for p, record in (current.last if current else {}).items()
        if after.get(p) == at.get(p) and p not in replaced
    }
    stay = position_only(Position(now.identity, after, {p: epochs[p] for p in after if p in epochs}, last))
    return Plan(ranges=stay.ranges, after=stay.after, remaining=0, kind="reset", deletes=deletes, losses=tuple(losses))
