"""Plans that change what a table has already: parts read again, and a position set by hand."""

from collections.abc import Collection, Mapping, Sequence

from kafka_lake.common.offsets import Loss, OffsetRange, Position, Watermarks
from kafka_lake.errors import ConfigurationError, DataLossError
from kafka_lake.ingest.plan.append import another_topic, backlog, ways_on
from kafka_lake.runtime.plan import Plan, chunk, position_only


def refuse_adopted(adopted: Position | None, now: Watermarks, first: Mapping[int, int]) -> None:
    """Refuse to read records that another writer has made rows of before the table was taken over from it.

    Those rows don't name their records, so they can't be replaced: each record would be there twice.
    """
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
        f"Nothing was changed. Begin at {targets} or later. To read older records all the same, first delete the other "
        "writer's rows, and then the table property kafka-lake.adopted-position.",
    )


def refuse_other_log(position: Position, now: Watermarks, partitions: Collection[int]) -> None:
    """Refuse to swap rows for records of a log that was cut off or replaced since they were read.

    Their records are nowhere else, and their offsets mean other records now.
    """
    if not position.identity.same_as(now.identity):
        return
    found = backlog(position, now, {}, partitions, accept_losses=True).losses
    # What retention took can't be swapped; and rows of a partition that is gone aren't asked for.
    losses = [each for each in found if each.reason not in ("retention", "partition gone")]
    if losses:
        topic = position.identity.topic
        raise DataLossError(
            f"Topic {topic}: rows of other records would be replaced: {'; '.join(map(str, losses))}.",
            ways_on(topic, losses),
        )


def replacement(
    position: Position, now: Watermarks, asked: Sequence[OffsetRange], max_records: int, keep_missing: bool
) -> list[Plan]:
    """Return the commits that read parts of the topic again and swap the table's rows for what they give."""
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
    """Return the commit that moves the table's position.

    Rows at and beyond a target that lies before the position leave the table, since they will be read again; offsets
    between the position and a target beyond it are recorded as skipped.
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
    if position is None and rows_name_records:
        # The position is gone, but the rows aren't: any of them may lie behind the target.
        deletes = tuple(OffsetRange(p, after[p], now.end[p]) for p in now.partitions if after[p] < now.end[p])
    losses = [Loss(p, at[p], after[p], "skipped") for p in sorted(at) if p in after and after[p] > at[p]]
    if position and not same:
        losses = [Loss(p, o, None, "topic recreated") for p, o in sorted(position.offsets.items())]
    # Who names an offset takes the log as it is.
    epochs = {
        **now.epochs,
        **({p: e for p, e in position.epochs.items() if p not in targets} if at and position else {}),
    }
    # So does who names the very offset of a log that was replaced. Where nothing changes, the last record stays.
    last = {p: each for p, each in (position.last if at and position else {}).items()
            if after.get(p) == at.get(p) and (p not in targets or p not in now.replaced)}  # fmt: skip
    stay = position_only(Position(now.identity, after, {p: epochs[p] for p in after if p in epochs}, last))
    return Plan(ranges=stay.ranges, after=stay.after, remaining=0, kind="reset", deletes=deletes, losses=tuple(losses))
