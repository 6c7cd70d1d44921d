"""The table's position as a run needs it: from its snapshots, or else from its rows."""

from dataclasses import dataclass, replace

from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.ingest.adopt.marks import filled_by
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.rebuild import may_have_begun, rebuilt_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_state import state_of
from kafka_lake.lake.maintenance.expired import proven_positions
from kafka_lake.lake.positions import TableState, head_of, position_in, row_count


@dataclass(frozen=True)
class Tables:
    """The topic's two tables as a commit found them, or left them.

    Args:
        table: The topic's table; None if there is none.
        dead_letters: Its dead-letter table; None if there is none, or nothing in it.
    """

    table: TableState | None
    dead_letters: TableState | None


def tables(context: Context) -> Tables:
    """Return the topic's tables as they are now, the dead-letter table looked at first.

    So whatever made dead letters obsolete before the first look is in the table by the second.
    """
    dead_letters = context.connections.catalog.table(context.spec.dead_letter_table)
    table = context.connections.catalog.table(context.spec.identifier)
    return Tables(
        None if table is None else state_of(context.spec, table),
        None if dead_letters is None or head_of(dead_letters) is None else state_of(context.spec, dead_letters),
    )


def with_position(
    context: Context, topic: TopicEnds, state: TableState, required: bool = True, sought: bool = True
) -> TableState:
    """Return a table's state, its position rebuilt if no snapshot carries it any more.

    Args:
        context: Of the run.
        topic: What the topic holds.
        state: The table as it was read.
        required: Whether a position that can't be told is an error; else the state has none.
        sought: Whether a position that no snapshot has is looked for in the rows; else the state has none.

    Raises:
        TableError: If the position is gone and can't be told with certainty, or another writer has filled the table
            from a topic and nobody has said where it resumes.
    """
    if not sought:
        return state
    try:
        return _with_position(context, topic, state)
    except TableError:
        if required:
            raise
        return state


def dead_letters_head(context: Context) -> int | None:
    """Return the head of the topic's dead-letter table; None if there is no such table, or nothing in it."""
    table = context.connections.catalog.table(context.spec.dead_letter_table)
    return head_of(table) if table else None


def existing(context: Context, state: TableState | None) -> TableState:
    """Return the table's state.

    Raises:
        TableError: If there is no table with a position yet.
    """
    if state is None or state.position is None:
        topic = context.spec.topic
        raise TableError(
            f"Table {context.table_name} of topic {topic} has no position yet.",
            f"Fill it first: materialize it, or run `kafka-lake ingest {context.spec.full_topic}`.",
        )
    return state


def _refuse_filled_by_others(context: Context, table: Table) -> None:
    """Refuse to begin a table that another program fills, or has filled, from a topic: its rows could double."""
    who = filled_by(table)
    if who is None:
        return
    topic = context.spec.full_topic
    raise TableError(
        f"Table {context.table_name} was filled by {who}, and has no position in topic {topic}.",
        f"Nothing was read, since rows could double. Take it over with `kafka-lake adopt {context.table_name} --topic "
        f"{topic} …`. If its rows aren't this topic's, set where it begins with `kafka-lake reset {topic} --to …`.",
    )


def _refuse_other_clusters(context: Context, topic: TopicEnds, state: TableState) -> None:
    ours = topic.now.identity.cluster_id
    for each in state.others.values():
        theirs = each.identity.cluster_id
        if ours and theirs and ours != theirs:
            raise TableError(
                f"Table {context.table_name} has rows of topic {each.identity.topic} in Kafka cluster {theirs}, and "
                f"topic {context.spec.topic} is in cluster {ours}.",
                "Nothing was read: the topics of one table are of one cluster. Give this one another table:, or mend "
                "cluster:.",
            )


def _with_position(context: Context, topic: TopicEnds, state: TableState) -> TableState:
    table, spec, warn = state.table, context.spec, context.observer.warn
    if state.position is not None:
        return state
    _refuse_other_clusters(context, topic, state)
    rows, gone = row_count(table), f"no snapshot carries the position of topic {spec.topic} any more"
    if not rows and (proven := position_in(proven_positions(table), spec.topic, spec.topics)) is not None:
        # All rows have expired. Another topic by the same name is refused by its identity.
        at = dict(proven.offsets)
        warn(f"Table {context.table_name}: {gone}, and all rows have expired; it goes on from where it was then: {at}.")
        return replace(state, position=proven, rebuilt=True)
    if rows and (position := rebuilt_position(context, state, topic.now)) is not None:
        warn(f"Table {context.table_name}: {gone}; rebuilt from the rows: {dict(position.offsets)}.")
        return replace(state, position=position, rebuilt=True)
    if spec.start == "latest" and (state.others or not rows) and may_have_begun(state, spec.topic):
        raise TableError(
            f"Table {context.table_name} has no rows of topic {spec.topic}, and {gone}, though one has.",
            "Nothing was read, since start is latest and records could be missed. Set the position with "
            f"`kafka-lake reset {spec.full_topic} --to …`.",
        )
    if state.others:
        names = ", ".join(sorted(state.others))
        warn(f"Topic {spec.topic} begins at {spec.start} in table {context.table_name}, which has rows of: {names}.")
        return state
    if not rows:
        return state
    _refuse_filled_by_others(context, table)
    warn(
        f"Table {context.table_name}: its {rows} rows are others', none can be of topic {spec.topic}; they stay, and "
        f"the topic begins at {spec.start}."
    )
    return replace(state, adopted=rows)
