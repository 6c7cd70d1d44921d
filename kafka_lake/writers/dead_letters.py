"""Write dead letters to a branch of their table, without those that it has already."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import TableState, author_summary, positions_summary, row_count, state_of
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.dead_letters.pending import RECONCILED, RECONCILED_FROM, STAGED_WITH
from kafka_lake.engine.frames import OFFSET, added_between, at_version
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.formats.columns import nullable_all
from kafka_lake.formats.task.error_classes import SAMPLE_CHARACTERS
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import DeadLetterClass, merged_classes
from kafka_lake.writers.frames import append, shaped, tasks_of
from kafka_lake.writers.staged import StagedTable


def known_dead_letters(context: Context, plan: Plan, dead_letters: TableState) -> DataFrame | None:
    """Return the dead letters that the table already has of the plan's records; None if it has none.

    It has some if records are read again: by a replay, after a rollback, or after a run that died between the
    publications of the two tables.
    """
    if dead_letters.head is None or not row_count(dead_letters.table):
        return None
    position = dead_letters.position
    is_foreign = position is not None and not position.identity.same_as(plan.after.identity)
    if is_foreign or (position is None and dead_letters.others):
        # The dead letters are of a deleted topic of this name, or of other topics.
        position = Position(plan.after.identity, {})
    offsets = None if plan.replaces or position is None else position.offsets
    overlapping = [r for r in plan.ranges if len(r) and (offsets is None or offsets.get(r.partition, 0) > r.start)]
    if not overlapping:
        return None
    spark, catalog = context.connections.spark(), context.connections.catalog
    rows = at_version(spark, catalog.spark_name(context.spec.dead_letter_table), dead_letters.head)
    known = context.connections.frames.within_topic(rows, overlapping, plan.after.identity.topic_id)
    return known if known.limit(1).count() else None


def with_positions(context: Context, dead_letters: TableState, current: TopicIdentity) -> TableState:
    """Return the state; if another program expired all snapshots with positions, these are behind the last letters."""
    if dead_letters.positions or dead_letters.head is None or not row_count(dead_letters.table):
        return dead_letters
    connections, offsets = context.connections, dict[TopicIdentity, dict[int, int]]()
    name = connections.catalog.spark_name(context.spec.dead_letter_table)
    for row in connections.frames.furthest(at_version(connections.spark(), name, dead_letters.head), None):
        identity = TopicIdentity(current.cluster_id, row["topic_id"] or "", row["topic"])
        offsets.setdefault(identity, {})[row["partition"]] = row["last"] + 1
    own = Position(current, offsets[current]) if current in offsets else None
    # Of a topic with letters from before and after its recreation, none is known to be the current one.
    topics = Counter(identity.topic for identity in offsets)
    others = {
        i.topic: Position(i, at) for i, at in offsets.items() if i.topic != current.topic and topics[i.topic] == 1
    }
    return replace(dead_letters, position=own, others=others)


def stage_dead_letters(
    context: Context,
    plan: Plan,
    dead_letters: DataFrame,
    *,
    primary: StagedTable,
    records: DataFrame,
    routed: Callable[[], DataFrame] | None = None,
) -> tuple[StagedTable | None, int]:
    """Write dead letters to a branch of their table, and remove obsolete ones."""
    spark, catalog = context.connections.spark(), context.connections.catalog
    identifier = context.spec.dead_letter_table
    table = ensure_table(catalog, identifier, schema_of(to_arrow_schema(nullable_all(dead_letters.schema))))
    state = state_of(context.spec, table)
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    known_count, obsolete = 0, list[Row]()
    if (known := known_dead_letters(context, plan, state)) is not None:
        obsolete = _obsolete(context, plan, known, dead_letters, records=records, routed=routed)
        new = context.connections.frames.without(dead_letters, known)
        known_count = dead_letters.count() - new.count()
        dead_letters = new
    reached = with_positions(context, state, plan.after.identity)
    summary = {
        **positions_summary(_furthest_position(plan.after, reached.position), reached.others),
        **author_summary(context.run_id, plan.kind),
        STAGED_WITH: str(primary.appended),
    }
    if obsolete and plan.replaces and context.spec.is_keyed:
        # After a rollback behind the replay, these dead letters come back.
        appended = primary.state.table.refresh().metadata.snapshot_by_id(primary.appended)
        mark = f"{context.run_id}@{appended.sequence_number if appended else None}"
        summary |= {RECONCILED: mark, RECONCILED_FROM: str(state.head)}
    branch = StagingBranch(spark, catalog, identifier, primary.branch.name, head=state.head)
    branch.create()
    try:
        if obsolete:
            _delete(context, branch, obsolete, plan.after.identity.topic_id)
        columns = spark.table(catalog.spark_name(identifier)).schema
        staged = append(branch, state, shaped(dead_letters, columns).coalesce(tasks_of(plan, spark)), summary)
    except BaseException:
        branch.discard()
        raise
    if staged.rows == 0 and not obsolete:
        branch.discard()
        return None, known_count
    return staged, known_count


def _obsolete(
    context: Context,
    plan: Plan,
    known: DataFrame,
    dead_letters: DataFrame,
    *,
    records: DataFrame,
    routed: Callable[[], DataFrame] | None,
) -> list[Row]:
    """Return partition and offset of the known dead letters whose records aren't dead letters any more."""
    frames = context.connections.frames
    if may_be_obsolete(context, plan):
        # Dead letters stay if Kafka no longer has their records.
        unread = frames.without(known, record_ids(plan, records), OFFSET)
        unread = unread if routed is None else frames.without(unread, routed(), OFFSET)
        obsolete = frames.without(frames.without(known, dead_letters), unread, OFFSET)
    elif routed is not None:
        obsolete = frames.without(known, frames.without(known, routed(), OFFSET), OFFSET)
    else:
        return []
    rows: list[Row] = obsolete.select("partition", "offset").collect()
    return rows


def may_be_obsolete(context: Context, plan: Plan) -> bool:
    """Return whether a commit itself removes dead letters whose records decode now.

    Upsert tables and histories don't have a row for each record, so `kafka_lake.dead_letters.reconcile` can't do it.
    """
    return context.spec.is_keyed and plan.reads_ranges


def record_ids(plan: Plan, records: DataFrame) -> DataFrame:
    """Return the topic id, partition and offset of records, as rows and dead letters have them."""
    topic_id = F.lit(plan.after.identity.topic_id or None).cast("string").alias("topic_id")
    return records.select(topic_id, "partition", "offset")


def _delete(context: Context, branch: StagingBranch, records: Sequence[Row], topic_id: str) -> None:
    """Delete the dead letters of some records from a branch."""
    by_partition: dict[int, list[int]] = {}
    for row in records:
        by_partition.setdefault(row["partition"], []).append(row["offset"])
    places = " OR ".join(
        f"(partition = {partition} AND offset IN ({', '.join(map(str, offsets))}))"
        for partition, offsets in by_partition.items()
    )
    same_topic = "topic_id = '{}'".format(topic_id.replace("'", "")) if topic_id else "topic_id IS NULL"
    context.connections.spark().sql(f"DELETE FROM {branch.write_name} WHERE {same_topic} AND ({places})")


def _furthest_position(after: Position, before: Position | None) -> Position:
    """Return the plan's position, or that of a killed run where it had read further."""
    offsets = {**after.offsets}
    if before is not None and before.identity.same_as(after.identity):
        for partition, offset in before.offsets.items():
            offsets[partition] = max(offset, offsets.get(partition, 0))
    # The last records of partitions that another run has read further are unknown.
    return replace(after, offsets=offsets, last={})


def added_rows(context: Context, identifier: tuple[str, str], staged: StagedTable) -> DataFrame:
    """Return the rows that a staged commit adds."""
    appended = staged.state.table.refresh().metadata.snapshot_by_id(staged.appended)
    parent = appended.parent_snapshot_id if appended else None
    name = context.connections.catalog.spark_name(identifier)
    before = staged.branch.head if parent is None else parent
    return added_between(context.connections.spark(), name, before, staged.appended)


def classes_of(dead_letters: DataFrame) -> tuple[DeadLetterClass, ...]:
    """Return dead letters by class, the most frequent first, each with a sample from the lowest partition."""
    sample = F.struct(
        F.col("partition"),
        F.col("offset"),
        F.col("error_message"),
        F.substring(F.make_valid_utf8(F.col("value").cast("string")), 1, SAMPLE_CHARACTERS).alias("value"),
    )
    grouped = dead_letters.groupBy("error_class").agg(F.count(F.lit(1)).alias("count"), F.min(sample).alias("sample"))
    return merged_classes(
        DeadLetterClass(
            name=row["error_class"],
            count=row["count"],
            partition=row["sample"]["partition"],
            offset=row["sample"]["offset"],
            message=row["sample"]["error_message"] or "",
            value=row["sample"]["value"] or "",
        )
        for row in grouped.collect()
    )
