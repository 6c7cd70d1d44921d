"""What of a plan is a table's share, by the table's own position. Pure: offsets in, offsets out.

A side table may be further than the topic: a run was killed after it had published the side table, and before it
published the topic's own. So what lies before the table's own position is not given to it again. It may be behind, too:
a commit that brings it no rows isn't made. What lies between the two had nothing for it.

That a table is further counts only if it got all of its share there: by the same conditions, and from where the topic
begins now. Else routes were changed after a run was killed, or the topic's own table was dropped, renamed or rolled
back. Then that part of the side table is replaced.
"""

from collections.abc import Mapping
from dataclasses import replace

from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.ingest.plan.model import Plan

OTHER_LOG = ("truncated", "replaced", "partition gone", "topic recreated")
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
    lost = {loss.partition for loss in plan.losses if loss.reason in OTHER_LOG}
    return {p: offset for p, offset in own.offsets.items() if p not in lost and p in plan.after.offsets}


def is_of_another_log(plan: Plan) -> bool:
    """Return whether offsets mean other records from this plan on: then each table is told so, rows or not."""
    return any(loss.reason in OTHER_LOG for loss in plan.losses)


def is_ahead(own: Position | None, plan: Plan) -> bool:
    """Return whether a side table has been beyond the start of what is planned."""
    reached = counted(own, plan)
    return any(reached.get(r.partition, 0) > r.start for r in plan.ranges)


def is_doubtful(own: Position | None, plan: Plan, since: Mapping[int, int]) -> bool:
    """Return whether a side table lacks, or has too much of, what lies between the plan's start and its position.

    Args:
        own: The side table's position; None if it has none.
        plan: Of the topic.
        since: From which offset on, by partition, the table has what today's conditions give it.

    >>> from kafka_lake.common.offsets import TopicIdentity
    >>> at = lambda offset: Position(TopicIdentity("c", "t", "shop"), {0: offset})
    >>> [is_doubtful(at(7), Plan((OffsetRange(0, 5, 9),), at(9), 0), since) for since in ({}, {0: 6}, {0: 5})]
    [True, True, False]
    """
    reached = counted(own, plan)
    return plan.kind == "append" and any(
        reached.get(r.partition, 0) > r.start < since.get(r.partition, r.start + 1) for r in plan.ranges
    )


def has_more_letters(letters: Position | None, own: Position | None, plan: Plan) -> bool:
    """Return whether a dead-letter table has been beyond the plan's start, and beyond its own table.

    Then a run was killed between the two. Routes may have been changed since, so that some letters are not its own.

    Args:
        letters: The dead-letter table's position; None if it has none.
        own: The table's position; None if it has none.
        plan: Of the topic.
    """
    further, reached = counted(letters, plan), counted(own, plan)
    return any(further.get(r.partition, 0) > max(r.start, reached.get(r.partition, 0)) for r in plan.ranges)


def share_of(plan: Plan, own: Position | None, since: Mapping[int, int] | None = None) -> Plan:
    """Return the plan of a side table.

    Args:
        plan: Of the topic.
        own: The side table's position; None if it has none.
        since: As for `is_doubtful`; None if the table has all of its share up to its position.

    Returns:
        For records that are read on: the ranges beyond the table's own position, and a position that never goes back;
        or if it is in doubt, all ranges, of which rows up to its position are replaced.
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
    last = {p: each for p, each in plan.after.last.items() if p not in further}
    last |= {p: own.last[p] for p in further if own and p in own.last}
    after = Position(
        plan.after.identity, {**plan.after.offsets, **further}, epochs={**plan.after.epochs, **epochs}, last=last
    )
    if plan.kind == "replace":
        return replace(plan, after=after)
    if since is not None and is_doubtful(own, plan, since):
        held = (OffsetRange(r.partition, r.start, min(reached.get(r.partition, 0), r.end)) for r in plan.ranges)
        # Rows whose records Kafka no longer has are nobody else's.
        return replace(
            plan, kind="replace", deletes=tuple(r for r in held if r.start < r.end), after=after, keep_missing=True
        )
    starts = {r.partition: min(max(r.start, reached.get(r.partition, 0)), r.end) for r in plan.ranges}
    left = (OffsetRange(r.partition, starts[r.partition], r.end) for r in plan.ranges)
    return replace(plan, ranges=tuple(r for r in left if len(r)), after=after)
