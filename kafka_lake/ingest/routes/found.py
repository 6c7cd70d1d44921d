"""A table of a route as a run finds it: with its position, as far as the log is still the one that it was."""

from dataclasses import replace

from kafka_lake.common.offsets import Position
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.reconcile import reconcile
from kafka_lake.ingest.dead_letters.unreconciled import unreconciled
from kafka_lake.ingest.effort import Effort
from kafka_lake.ingest.plan.identity import another_topic
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.share import counted, is_ahead
from kafka_lake.ingest.routes.unfinished_reset import refuse_unfinished
from kafka_lake.ingest.table_state import Tables, tables, with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_table import TopicTable

Found = tuple[Context, Tables]
"""What a run works with for the table, and the table itself."""


def of_table(context: Context, spec: TopicTable) -> Context:
    """Return what a run works with for another table of its topic."""
    observer, name = context.observer, ".".join(spec.identifier)
    told = replace(observer, step_done=lambda step: observer.step_done(f"{name}: {step}"))
    return replace(context, spec=spec, observer=told, effort=Effort())


def found_table(context: Context, topic: TopicEnds, own: tuple[str, str] | None, plan: Plan) -> Found:
    """Return a table of a route as it is, dead letters reconciled.

    Args:
        context: As `of_table` gave it.
        topic: What the topic holds.
        own: Namespace and name of the topic's own table; None if that a reset is unfinished is known by now.
        plan: The commit.

    Raises:
        TableError: If the table holds another topic's records, or a reset of it is unfinished.
    """
    found = tables(context)
    if found.dead_letters and found.table and unreconciled(found.table, found.dead_letters):
        reconcile(context)
        found = tables(context)
    if found.table is None:
        return context, found
    if own is not None and plan.kind != "reset":
        refuse_unfinished(context, own, found.table.table)
    state = with_position(context, topic, found.table, required=plan.kind != "reset")
    if state.position is not None:
        if state.position.identity.topic != plan.after.identity.topic:
            raise another_topic(state.position, topic.now)
        state = replace(state, position=_trusted(context, topic, plan, state.position))
    return context, Tables(state, found.dead_letters)


def _trusted(context: Context, topic: TopicEnds, plan: Plan, position: Position) -> Position:
    """Return how far a table has been in the log as it is now: it may have been cut off, and have grown again, since.

    The topic's own position tells of that for what lies before it. A side table may have been further.
    """
    if not is_ahead(position, plan):
        return position
    if topic.is_behind(position):
        # Another run has been further than this one could know when it began.
        topic.poll()
    now, reached = topic.validated(position), counted(position, plan)
    starts = {r.partition: r.start for r in plan.ranges}
    offsets = dict(position.offsets)
    for partition, offset in reached.items():
        cut = now.cut_off.get(partition, offset)
        if cut is None or partition in now.replaced:
            # Any record may be another one: all that are planned come.
            cut = starts.get(partition, 0)
        offsets[partition] = min(offset, cut, now.end.get(partition, offset))
    if offsets != dict(position.offsets):
        context.observer.warn(
            f"Table {context.table_name}: the log of topic {context.spec.topic} was cut off or replaced before its "
            f"position {dict(position.offsets)}: records from {offsets} on are other ones than those that it has, and "
            "come too."
        )
    return replace(position, offsets=offsets)


def position_of(found: Found) -> Position | None:
    """Return the table's position; None if it has none, or there is no table."""
    state = found[1].table
    return state.position if state else None
