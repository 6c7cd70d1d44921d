"""The plans of replays and resets."""

from collections.abc import Collection, Mapping, Sequence

from kafka_lake.common.offsets import Loss, OffsetRange, Position, Watermarks
from kafka_lake.errors import ConfigurationError, DataLossError
from kafka_lake.ingest.plan.append import another_topic, backlog, loss_remedy
from kafka_lake.runtime.plan import Plan, chunk, position_only


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
        f"Topic {now.identity.topic}: the table was taken over from another writer, whose rows don't name their "
        f"records: {listed}. Records before that would be in the table twice.",
        f"Nothing was changed. Start at {targets} or later. To read older records all the same, first delete the other "
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
            f"Topic {topic}: rows of other records would be replaced: {'; '.join(map(str, losses))}.",
            loss_remedy(topic, losses),
        )


def replacement(
    position: Position, now: Watermarks, asked: Sequence[OffsetRange], max_records: int, keep_missing: bool
) -> list[Plan]:
    """Return the commits of a replay, which replace the rows of some offsets."""
    if not position.identity.same_as(now.identity):
        raise another_topic(position, now)
    offsets = position.offsets
    due = [OffsetRange(r.partition, r.start, min(r.end, offsets.get(r.partition, 0))) for r in asked
           if r.start < min(r.end, offsets.get(r.partition, 0))]  # fmt: skip
    gone = [OffsetRange(r.partition, r.start, min(r.end, now.low.get(r.partition, r.end))) for r in due
            if r.start < now.low.get(r.partition, r.end)]  # fmt: skip
    if gone and not keep_missing:
        listed = "; ".join(f"partition {r.partition} offsets {r.start} to {r.end - 1}" for r in gone)
        raise DataLossError(
            f"Topic {now.identity.topic}: Kafka no longer has all records of the replay: {listed}.",
            "Nothing was changed. Start later, or keep the rows that Kafka no longer has (--keep-missing).",
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
                "Choose an offset within those ranges, the end included.",
            )
    same = position is not None and position.identity.same_as(now.identity)
    at = dict(position.offsets) if position and same else {}
    after = {**now.low, **{p: o for p, o in at.items() if p in now.end}, **targets}
    deletes = tuple(OffsetRange(p, after[p], at[p]) for p in sorted(at) if p in after and after[p] < at[p])
    if position is None and rows_name_records:
        # Without a position, any row may be of an offset behind the target.
        deletes = tuple(OffsetRange(p, after[p], now.end[p]) for p in now.partitions if after[p] < now.end[p])
    losses = [Loss(p, at[p], after[p], "skipped") for p in sorted(at) if p in after and after[p] > at[p]]
    if position and not same:
        losses = [Loss(p, o, None, "topic recreated") for p, o in sorted(position.offsets.items())]
    # A reset accepts the log as it is: targets get the current leader epochs,
    epochs = {
        **now.epochs,
        **({p: e for p, e in position.epochs.items() if p not in targets} if at and position else {}),
    }
    # and lose the last record where the log was replaced.
    last = {p: record for p, record in (position.last if at and position else {}).items()
            if after.get(p) == at.get(p) and (p not in targets or p not in now.replaced)}  # fmt: skip
    stay = position_only(Position(now.identity, after, {p: epochs[p] for p in after if p in epochs}, last))
    return Plan(ranges=stay.ranges, after=stay.after, remaining=0, kind="reset", deletes=deletes, losses=tuple(losses))
