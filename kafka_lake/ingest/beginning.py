"""Where a topic begins in a table that has positions of other topics, and none of this one."""

from dataclasses import replace

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Watermarks
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.rebuild import rebuilt_position
from kafka_lake.ingest.record_keys import at_version
from kafka_lake.lake.positions import TableState, positions_in, row_count, summary_of


def beginning(context: Context, now: Watermarks, state: TableState) -> TableState:
    """Return a table's state, in which the topic has no position if it begins now.

    The rows tell whether they have records of it: they are looked at once, since the first commit has a position.

    Args:
        context: Of the run; Spark reads where the rows came from, and nothing else.
        now: The topic's watermarks.
        state: The table, with positions of other topics.

    Raises:
        TableError: If the other topics are of another cluster; if the rows have records of the topic, and don't tell
            its position with certainty; or if it begins at the latest offset, and had a position before a rollback.
    """
    spec, warn = context.spec, context.observer.warn
    _refuse_other_clusters(context, now, state)
    if _has_rows(context, state):
        position = rebuilt_position(context, state, now)
        if position is not None:
            warn(
                f"Table {context.table_name}: no snapshot carries the position of topic {spec.topic} any more; "
                f"rebuilt from the rows: {dict(position.offsets)}."
            )
            return replace(state, position=position, rebuilt=True)
    if spec.start == "latest" and _has_begun(state, spec.topic):
        raise TableError(
            f"Table {context.table_name} has no rows of topic {spec.topic}, and its position is gone, as after a "
            "rollback.",
            "Nothing was read, since start is latest and records could be missed. Set the position with "
            f"`kafka-lake reset {spec.full_topic} --to …`.",
        )
    names = ", ".join(sorted(each.identity.topic for each in state.others))
    warn(f"Topic {spec.topic} begins at {spec.start} in table {context.table_name}, which has rows of: {names}.")
    return state


def _has_rows(context: Context, state: TableState) -> bool:
    """Return whether rows are of the topic, or don't tell."""
    spec, connections = context.spec, context.connections
    if not row_count(state.table) or state.head is None:
        return False
    column = spec.metadata_column
    if column is None or column not in {field.name for field in state.table.schema().fields}:
        return True
    rows = at_version(connections.spark(), connections.catalog.spark_name(spec.identifier), state.head)
    return any(each["topic"] == spec.topic for each in connections.frames.furthest(rows, column))


def _has_begun(state: TableState, topic: str) -> bool:
    snapshots = {each.snapshot_id: each for each in state.table.metadata.snapshots}
    been = {entry.snapshot_id for entry in state.table.metadata.snapshot_log} & snapshots.keys()
    return any(each.identity.topic == topic for one in been for each in positions_in(summary_of(snapshots[one])))


def _refuse_other_clusters(context: Context, now: Watermarks, state: TableState) -> None:
    ours = now.identity.cluster_id
    for each in state.others:
        theirs = each.identity.cluster_id
        if ours and theirs and ours != theirs:
            raise TableError(
                f"Table {context.table_name} has rows of topic {each.identity.topic} in Kafka cluster {theirs}, and "
                f"topic {context.spec.topic} is in cluster {ours}.",
                "Nothing was read: the topics of one table are of one cluster. Give this one another table:, or mend "
                "cluster:.",
            )
