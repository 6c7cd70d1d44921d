"""A table's state for a run: its position, from its snapshots or recovered from its rows."""

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
    state_of,
    summary_of,
)
from kafka_lake.catalog.tables import totals_of
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.engine.frames import at_version
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import TableError
from kafka_lake.ingest.plan import start_offsets
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.maintenance.row_retention import proven_positions
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import TopicTable, full_topic
from kafka_lake.writers.staged import Staged

_OWN = "kafka-lake."
SINK = "kafka.connect.offsets."
"""How the names of the snapshot properties of Kafka Connect's Iceberg sink begin."""
_QUERY = "spark.sql.streaming.queryId"


def recovered_position(context: Context, state: TableState, now: Watermarks) -> Position | None:
    """Return the position behind the last rows: commits are whole, so all earlier records are in the table or expired.

    None if kafka_lake wrote no row of the topic: no row has a value in the metadata column, and no snapshot has or had
    its properties. With positions in other topics, it is enough that no row is of this topic.

    Partitions without a row start as in a new table, or at the adopted position. Dead letters don't count: they are
    published before the rows.
    """
    spec, connections = context.spec, context.connections
    is_foreign = not _may_have_own_commits(state.table)
    where = f"Table {'.'.join(spec.identifier)} has rows, but no snapshot in the history of main has a position"
    remedy = f"Set the position with `kafka-lake reset {spec.full_topic} --to …`, or choose another table."
    has_origins = any(f.name == METADATA_COLUMN and has_origin(f.field_type) for f in state.table.schema().fields)
    if is_foreign and not has_origins:
        return None
    if not has_origins or state.head is None:
        raise TableError(
            f"{where} in topic {spec.topic}, and without a metadata column the rows don't show the offsets.",
            f"Nothing was read, because rows could be duplicated. {remedy}",
        )
    rows = at_version(connections.spark(), connections.catalog.spark_name(spec.identifier), state.head)
    found = connections.frames.furthest(rows)
    if state.others and all(r["topic"] != spec.topic for r in found):
        return None
    reached = {r["partition"]: r["last"] + 1 for r in found if _same_topic(r["topic"], r["topic_id"], now)}
    reached = _with_expired(reached, state.table, now)
    if is_foreign and all(r["topic"] is None for r in found):
        return None
    if not reached:
        raise TableError(
            f"{where}, and no row belongs to the current topic {spec.topic} (id {now.identity.topic_id or 'unknown'}).",
            f"Nothing was read. {remedy}",
        )
    adopted = adopted_position(state.table)
    if adopted is not None and adopted.identity.same_as(now.identity):
        reached = {**adopted.offsets, **reached}
    missing = [p for p in now.partitions if p not in reached]
    if missing and spec.start == "latest":
        raise TableError(
            f"{where} in topic {spec.topic}, and partitions {missing} have no rows.",
            f"Nothing was read, because starting_offsets is latest and records could be missed. {remedy}",
        )
    if spec.start == "latest" and (lost := _topics_without_rows(spec, state, {r["topic"] for r in found})):
        ways = " and ".join(f"`kafka-lake reset {topic} --to …`" for topic in lost)
        raise TableError(
            f"{where}, and topics {', '.join(lost)} have no rows.",
            "Nothing was read, because starting_offsets is latest and records of these topics could be missed. Set "
            f"their positions with {ways}.",
        )
    starts = start_offsets(spec, connections.cluster, now) if missing else {}
    return Position(now.identity, {**{p: starts[p] for p in missing}, **reached})


def _topics_without_rows(spec: TopicTable, state: TableState, of_rows: Collection[str | None]) -> list[str]:
    """Return the table's other topics without a position or rows.

    After a commit with this topic's position, they would look like new topics.
    """
    known = {spec.topic, *state.others, *of_rows}
    return [full_topic(spec.cluster, topic) for topic in spec.topics if topic not in known]


def _with_expired(reached: dict[int, int], table: Table, now: Watermarks) -> dict[int, int]:
    """Return the offsets behind the last rows, expired rows included."""
    proven = proven_positions(table).get(now.identity.topic)
    if proven is None or not proven.identity.same_as(now.identity):
        return reached
    return {p: max(reached.get(p, 0), proven.offsets.get(p, 0)) for p in {*reached, *proven.offsets}}


def may_have_begun(state: TableState, topic: str) -> bool:
    """Return whether ``main`` may have had a position of the topic that was rolled back or has expired.

    Staged snapshots that were never published don't count. A position can't expire while the table has positions of
    other topics.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in state.table.metadata.snapshots}
    heads = {entry.snapshot_id for entry in state.table.metadata.snapshot_log}
    summaries = [summary_of(snapshots[head]) for head in heads & snapshots.keys()]
    if state.others:
        return any(topic in positions_in(summary) for summary in summaries)
    return any(POSITION in summary for summary in summaries) or _may_have_expired(state.table)


def _may_have_expired(table: Table) -> bool:
    """Return whether a snapshot of kafka_lake may have expired from the history of ``main``."""
    if (totals := totals_of(table)) is not None and totals.commits:
        return True
    oldest = deque(ancestors(table, head_of(table)), maxlen=1)
    has_own_properties = any(key.startswith(_OWN) for key in table.properties)
    return has_own_properties and any(follows_another(snapshot) for snapshot in oldest)


def _may_have_own_commits(table: Table) -> bool:
    """Return whether a snapshot of kafka_lake is in the table's history, or may have expired from it."""
    if any(key.startswith(_OWN) for snapshot in table.metadata.snapshots for key in summary_of(snapshot)):
        return True
    return _may_have_expired(table)


def _same_topic(topic: str | None, topic_id: str | None, now: Watermarks) -> bool:
    same_id = not topic_id or not now.identity.topic_id or topic_id == now.identity.topic_id
    return topic == now.identity.topic and same_id


@dataclass(frozen=True)
class Tables:
    """The state of a table and its dead-letter table.

    Args:
        table: None if it doesn't exist.
        dead_letters: None if it doesn't exist or is empty.
    """

    table: TableState | None
    dead_letters: TableState | None


def current_tables(context: Context) -> Tables:
    """Return the topic's current tables.

    The dead-letter table is loaded first, so the table contains every commit that made those dead letters obsolete.
    """
    dead_letters = current_dead_letters(context)
    table = context.connections.catalog.table(context.spec.identifier)
    return Tables(None if table is None else state_of(context.spec, table), dead_letters)


def current_dead_letters(context: Context) -> TableState | None:
    """Return the current dead-letter table; None if it doesn't exist or is empty."""
    table = context.connections.catalog.table(context.spec.dead_letter_table)
    return None if table is None or head_of(table) is None else state_of(context.spec, table)


def with_position(
    context: Context, topic: TopicEnds, state: TableState, required: bool = True, sought: bool = True
) -> TableState:
    """Return a table's state; its position is recovered if no snapshot has it."""
    if not sought:
        return state
    try:
        return _with_position(context, topic, state)
    except TableError:
        if required:
            raise
        return state


def existing(context: Context, state: TableState | None) -> TableState:
    """Return the state of a table with a position."""
    if state is None or state.position is None:
        topic = context.spec.topic
        raise TableError(
            f"Table {context.table_name} of topic {topic} has no position yet.",
            f"Fill it first: materialize it, or run `kafka-lake ingest {context.spec.full_topic}`.",
        )
    return state


def filled_by(table: Table) -> str | None:
    """Return the program that has filled a table from a topic, by the history of ``main``; None if unknown."""
    for snapshot in ancestors(table, head_of(table)):
        summary = summary_of(snapshot)
        sink = next((key for key in summary if key.startswith(SINK)), None)
        if sink is not None:
            return f"the Iceberg sink of Kafka Connect ({sink})"
        if _QUERY in summary:
            return f"the Structured Streaming query {summary[_QUERY]}"
    return None


def _check_not_foreign(context: Context, table: Table) -> None:
    """Refuse a table that another program has filled from a topic: its records would be doubled."""
    writer = filled_by(table)
    if writer is None:
        return
    topic = context.spec.full_topic
    raise TableError(
        f"Table {context.table_name} was filled by {writer}, and has no position in topic {topic}.",
        f"Nothing was read, because rows could be duplicated. Take it over with `kafka-lake adopt "
        f"{context.table_name} --topic "
        f"{topic} …`. If its rows aren't this topic's, set its position with `kafka-lake reset {topic} --to …`.",
    )


def _check_same_cluster(context: Context, topic: TopicEnds, state: TableState) -> None:
    cluster = topic.now.identity.cluster_id
    for position in state.others.values():
        other = position.identity.cluster_id
        if cluster and other and cluster != other:
            raise TableError(
                f"Table {context.table_name} has rows of topic {position.identity.topic} in Kafka cluster {other}, and "
                f"topic {context.spec.topic} is in cluster {cluster}.",
                "Nothing was read: the topics of a table must be in one cluster. Give this topic another table:, or "
                "correct cluster:.",
            )


def _with_position(context: Context, topic: TopicEnds, state: TableState) -> TableState:
    table, spec, warn = state.table, context.spec, context.observer.warn
    if state.position is not None:
        return state
    _check_same_cluster(context, topic, state)
    rows, gone = row_count(table), f"no snapshot has the position of topic {spec.topic} any more"
    if not rows and (proven := position_in(proven_positions(table), spec.topic, spec.topics)) is not None:
        at = dict(proven.offsets)
        warn(f"Table {context.table_name}: {gone}, and all rows have expired; it continues at {at}.")
        return replace(state, position=proven, rebuilt=True)
    if rows and (position := recovered_position(context, state, topic.now)) is not None:
        warn(f"Table {context.table_name}: {gone}; recovered from the rows: {dict(position.offsets)}.")
        return replace(state, position=position, rebuilt=True)
    if spec.start == "latest" and (state.others or not rows) and may_have_begun(state, spec.topic):
        raise TableError(
            f"Table {context.table_name} has no rows of topic {spec.topic}, and {gone}.",
            "Nothing was read, because starting_offsets is latest and records could be missed. Set the position with "
            f"`kafka-lake reset {spec.full_topic} --to …`.",
        )
    if state.others:
        names = ", ".join(sorted(state.others))
        warn(f"Topic {spec.topic} begins at {spec.start} in table {context.table_name}, which has rows of: {names}.")
        return state
    if not rows:
        return state
    _check_not_foreign(context, table)
    warn(
        f"Table {context.table_name}: its {rows} rows were written by other programs. They stay, and topic "
        f"{spec.topic} starts at {spec.start}."
    )
    return replace(state, adopted=rows)


def tables_after(context: Context, tables: Tables, staged: Staged) -> Tables | None:
    """Return the tables after a commit; None if the catalog's answer was lost, or dead letters may be obsolete now."""
    table = staged.primary.branch.published
    dead_letters = tables.dead_letters.table if tables.dead_letters else None
    if staged.dead_letters:
        dead_letters = staged.dead_letters.branch.published
        if dead_letters is None:
            return None
    if table is None:
        return None
    state = state_of(context.spec, table)
    dead_letter_state = state_of(context.spec, dead_letters) if dead_letters else None
    is_unreconciled = dead_letter_state is not None and pending_reconciliation(state, dead_letter_state)
    return None if is_unreconciled else Tables(state, dead_letter_state)
