"""What of a plan is a table's share, by the table's own position. Pure: offsets in, offsets out.

A side table may be further than the topic: a run was killed after it had published the side table, and before it
published the topic's own. So what lies before the table's own position is not given to it again. It may be behind, too:
a commit that brings it no rows isn't made. What lies between the two had nothing for it.
"""

from dataclasses import replace

from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.ingest.plan.model import Plan

_OTHER_LOG = ("truncated", "partition gone", "topic recreated")
"""Losses after which offsets mean other records. What is lost to retention, or skipped, was what it is."""


def counted(own: Position | None, plan: Plan) -> dict[int, int]:
    """Return how far a side table has been in the plan's partitions, as far as that counts.

    A position in another topic of the same name says nothing. Neither does it where the log was cut off: the offsets
    beyond that mean other records now.

    >>> from kafka_lake.common.offsets import TopicIdentity
    >>> at = lambda offset: Position(TopicIdentity("c", "t", "shop"), {0: offset})
    >>> counted(at(7), Plan((OffsetRange(0, 5, 9),), at(9), 0))
    {0: 7}
    """
    if own is None or not own.identity.same_as(plan.after.identity):
        return {}
    lost = {loss.partition for loss in plan.losses if loss.reason in _OTHER_LOG}
    return {p: offset for p, offset in own.offsets.items() if p not in lost and p in plan.after.offsets}


def is_ahead(own: Position | None, plan: Plan) -> bool:
    """Return whether a side table has been beyond the start of what is planned."""
    reached = counted(own, plan)
    return any(reached.get(r.partition, 0) > r.start for r in plan.ranges)


def share_of(plan: Plan, own: Position | None) -> Plan:
    """Return the plan of a side table.

    Args:
        plan: Of the topic.
        own: The side table's position; None if it has none.

    Returns:
        For records that are read on: the ranges beyond the table's own position, and a position that never goes back.
        For a part that is read again: that part, and the further one of the two positions. For a reset: the same
        position, and all that the table has from there on is deleted.

    >>> from kafka_lake.common.offsets import TopicIdentity
    >>> at = lambda offset: Position(TopicIdentity("c", "t", "shop"), {0: offset})
    >>> share = share_of(Plan((OffsetRange(0, 5, 9),), at(9), 0), own=at(7))
    >>> share.ranges, share.after.offsets
    ((OffsetRange(partition=0, start=7, end=9),), {0: 9})
    """
    reached = counted(own, plan)
    if plan.kind == "reset":
        deletes = (OffsetRange(p, to, reached[p]) for p, to in sorted(plan.after.offsets.items()) if p in reached
                   and reached[p] > to)  # fmt: skip
        return replace(plan, deletes=tuple(deletes))
    further = {p: offset for p, offset in reached.items() if offset > plan.after.offsets[p]}
    epochs = {p: own.epochs[p] for p in further if own and p in own.epochs}
    after = replace(plan.after, offsets={**plan.after.offsets, **further}, epochs={**plan.after.epochs, **epochs})
    if plan.kind == "replace":
        return replace(plan, after=after)
    starts = {r.partition: min(max(r.start, reached.get(r.partition, 0)), r.end) for r in plan.ranges}
    left = (OffsetRange(r.partition, starts[r.partition], r.end) for r in plan.ranges)
    return replace(plan, ranges=tuple(r for r in left if len(r)), after=after)
