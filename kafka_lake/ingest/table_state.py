"""The table's position as a run needs it: from its snapshots, or else from its rows."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from kafka_lake.catalog.positions import (
    POSITION,
    TableState,
    adopted_position,
    ancestors,
    follows_another,
    has_origin,
    head_of,
    position_in,
    positions_in,
    row_count,
    summary_of,
)
from kafka_lake.catalog.totals import totals_of
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.errors import TableError
from kafka_lake.ingest.adopt import filled_by
from kafka_lake.ingest.plan.append import start_offsets
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.maintenance.old_rows import proven_positions
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.record_keys import at_version, state_of
from kafka_lake.spec.topic_table import TopicTable, full_topic
from kafka_lake.writers.staged import Staged

_OURS = "kafka-lake."


def rebuilt_position(context: Context, state: TableState, now: Watermarks) -> Position | None:
    """Return the position that the rows prove: commits are whole, so all before the last offset is there, or expired.

    None if kafka_lake wrote no row of the topic, so that the table begins where a new one would. Its rows name their
    record in the metadata column, and its snapshots have properties: so no row may have a value there, no snapshot a
    property, and no snapshot that had one may have expired. With positions in other topics, no row is of this topic.

    Partitions without a row begin where a new table would begin, or where the table was taken over from another writer.
    Dead letters don't count: a run that died before its rows were published has left some of offsets without rows.
    """
    spec, connections = context.spec, context.connections
    strangers = not _may_have_commits_of_ours(spec, state.table)
    where = f"Table {'.'.join(spec.identifier)} has rows, but no snapshot in the history of main carries a position"
    way_on = f"Set the position with `kafka-lake reset {spec.full_topic} --to …`, or choose another table."
    columns = _origins(state.table)
    if strangers and not columns:
        return None
    if spec.metadata_column is None or spec.metadata_column not in columns or state.head is None:
        raise TableError(
            f"{where} in topic {spec.topic}, and without a metadata column the rows don't tell how far they reach.",
            f"Nothing was read, since rows could double. {way_on}",
        )
    rows = at_version(connections.spark(), connections.catalog.spark_name(spec.identifier), state.head)
    found = connections.frames.furthest(rows, spec.metadata_column)
    if state.others and all(r["topic"] != spec.topic for r in found):
        return None
    reached = {r["partition"]: r["last"] + 1 for r in found if _same_topic(r["topic"], r["topic_id"], now)}
    reached = _with_expired(reached, state.table, now)
    if strangers and columns == {spec.metadata_column} and all(r["topic"] is None for r in found):
        return None
    if not reached:
        raise TableError(
            f"{where}, and none of the rows is of topic {spec.topic} as it is now "
            f"(id {now.identity.topic_id or 'unknown'}).",
            f"Nothing was read. {way_on}",
        )
    adopted = adopted_position(state.table)
    if adopted is not None and adopted.identity.same_as(now.identity):
        reached = {**adopted.offsets, **reached}
    missing = [p for p in now.partitions if p not in reached]
    if missing and spec.start == "latest":
        raise TableError(
            f"{where} in topic {spec.topic}, and of partitions {missing} there are no rows that would tell it.",
            f"Nothing was read, since start is latest and records could be missed. {way_on}",
        )
    if spec.start == "latest" and (untold := _untold(spec, state, {r["topic"] for r in found})):
        ways = " and ".join(f"`kafka-lake reset {each} --to …`" for each in untold)
        raise TableError(
            f"{where}, and of topics {', '.join(untold)} there are no rows that would tell it.",
            f"Nothing was read, since start is latest and records of these topics could be missed. Set their positions "
            f"with {ways}.",
        )
    starts = start_offsets(spec, connections.cluster, now) if missing else {}
    return Position(now.identity, {**{p: starts[p] for p in missing}, **reached})


def _untold(spec: TopicTable, state: TableState, of_rows: Collection[str | None]) -> list[str]:
    """Return the other topics of a table whose positions may be gone, and that have no rows.

    A commit with this topic's position would hide that: they would look like topics that are new to the table.
    """
    told = {spec.topic, *state.others, *of_rows}
    return [full_topic(spec.cluster, each) for each in spec.topics if each not in told]


def _with_expired(reached: dict[int, int], table: Table, now: Watermarks) -> dict[int, int]:
    """Return how far a table reaches, the rows counted in that have expired."""
    proven = proven_positions(table).get(now.identity.topic)
    if proven is None or not proven.identity.same_as(now.identity):
        return reached
    return {p: max(reached.get(p, 0), proven.offsets.get(p, 0)) for p in {*reached, *proven.offsets}}


def may_have_begun(state: TableState, topic: str) -> bool:
    """Return whether ``main`` may have carried a topic's position that is gone: rolled back, or expired since.

    What was staged and never published doesn't count. Where positions in other topics are carried on, no position is
    gone by expiry alone.
    """
    snapshots = {each.snapshot_id: each for each in state.table.metadata.snapshots}
    been = {entry.snapshot_id for entry in state.table.metadata.snapshot_log}
    summaries = [summary_of(snapshots[each]) for each in been & snapshots.keys()]
    if state.others:
        return any(topic in positions_in(each) for each in summaries)
    return any(POSITION in each for each in summaries) or _may_have_expired(state.table)


def _may_have_expired(table: Table) -> bool:
    """Return whether a snapshot of ours may have been in the history of ``main``, and has expired."""
    if (totals := totals_of(table)) is not None and totals.commits:
        return True
    oldest = deque(ancestors(table, head_of(table)), maxlen=1)
    has_properties_of_ours = any(key.startswith(_OURS) for key in table.properties)
    return has_properties_of_ours and any(follows_another(each) for each in oldest)


def _origins(table: Table) -> set[str]:
    """Return the columns that say where a row came from, whatever they are called: settings may have changed."""
    return {field.name for field in table.schema().fields if has_origin(field.field_type)}


def _may_have_commits_of_ours(spec: TopicTable, table: Table) -> bool:
    """Return whether a snapshot of ours may be in the table's history, or may have been before it expired."""
    if spec.metadata_column is None:
        # Nothing tells our rows from those of other writers.
        return True
    if any(key.startswith(_OURS) for s in table.metadata.snapshots for key in summary_of(s)):
        return True
    return _may_have_expired(table)


def _same_topic(topic: str | None, topic_id: str | None, now: Watermarks) -> bool:
    same_id = not topic_id or not now.identity.topic_id or topic_id == now.identity.topic_id
    return topic == now.identity.topic and same_id


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
    """Return a table's state, its position rebuilt if no snapshot carries it any more."""
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
    """Return the table's state."""
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


def left_by(context: Context, found: Tables, staged: Staged) -> Tables | None:
    """Return a table as a commit left it; None where an answer was lost, or dead letters may be obsolete now."""
    table = staged.primary.branch.published
    dead_letters = found.dead_letters.table if found.dead_letters else None
    if staged.dead_letters:
        dead_letters = staged.dead_letters.branch.published
        if dead_letters is None:
            return None
    if table is None:
        return None
    left = state_of(context.spec, table)
    beside = state_of(context.spec, dead_letters) if dead_letters else None
    return None if beside and pending_reconciliation(left, beside) else Tables(left, beside)
