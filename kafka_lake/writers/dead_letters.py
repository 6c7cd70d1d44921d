"""Dead letters on a branch of their table: only those that it doesn't have yet."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import TableState, author_summary, positions_summary, row_count
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.common.offsets import Position
from kafka_lake.dead_letters.pending import STAGED_WITH
from kafka_lake.engine.frames import OFFSET
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.formats.columns import nullable_all
from kafka_lake.formats.task.error_classes import SAMPLE_CHARACTERS
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.dead_letter_class import DeadLetterClass, most_frequent_first
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import added_between, at_version, state_of
from kafka_lake.writers.frames import append, shaped, tasks_of
from kafka_lake.writers.staged import StagedTable


def known_dead_letters(context: Context, plan: Plan, dead_letters: TableState) -> DataFrame | None:
    """Return the rows that the dead-letter table already has of the plan's records; None if it has none.

    It has some if records are read again: by a replay, after a rollback, or after a run that died between its two
    publications.
    """
    position = dead_letters.position
    if dead_letters.head is None or not row_count(dead_letters.table):
        return None
    if position is not None and not position.identity.same_as(plan.after.identity):
        # The topic has been recreated since: the offsets are of other records.
        position = Position(plan.after.identity, {})
    if position is None and dead_letters.others:
        # It has dead letters of other topics only.
        position = Position(plan.after.identity, {})
    reached = None if plan.kind == "replace" or position is None else position.offsets
    ahead = [r for r in plan.ranges if len(r) and (reached is None or reached.get(r.partition, 0) > r.start)]
    if not ahead:
        return None
    held = at_version(
        context.connections.spark(),
        context.connections.catalog.spark_name(context.spec.dead_letter_table),
        dead_letters.head,
    )
    known = context.connections.frames.within_topic(held, ahead, plan.after.identity.topic_id)
    return known if known.limit(1).count() else None


def stage_dead_letters(
    context: Context,
    plan: Plan,
    dead_letters: DataFrame,
    *,
    primary: StagedTable,
    records: DataFrame,
    others: Callable[[], DataFrame] | None = None,
) -> tuple[StagedTable | None, int]:
    """Write dead letters to a branch of their table."""
    table = ensure_table(
        context.connections.catalog,
        context.spec.dead_letter_table,
        schema_of(to_arrow_schema(nullable_all(dead_letters.schema))),
    )
    state = state_of(context.spec, table)
    position, known_failed = state.position, 0
    if position is not None and not position.identity.same_as(plan.after.identity):
        position = None
    # Of the snapshot that the branch starts from: if others publish meanwhile, this commit is refused.
    obsolete = list[Row]()
    if (known := known_dead_letters(context, plan, state)) is not None:
        frames = context.connections.frames
        if may_be_obsolete(context, plan):
            # Records that Kafka no longer has were not read, and stay dead letters.
            unread = frames.without(known, named(plan, records), OFFSET)
            unread = unread if others is None else frames.without(unread, others(), OFFSET)
            gone = frames.without(frames.without(known, dead_letters), unread, OFFSET)
            obsolete = gone.select("partition", "offset").collect()
        elif others is not None:
            moved = frames.without(known, frames.without(known, others(), OFFSET), OFFSET)
            obsolete = moved.select("partition", "offset").collect()
        fresh = frames.without(dead_letters, known)
        known_failed = dead_letters.count() - fresh.count()
        dead_letters = fresh
    summary = {
        **positions_summary(_furthest(plan.after, position), state.others),
        **author_summary(context.run_id, plan.kind),
        STAGED_WITH: str(primary.appended),
    }
    spark, identifier = context.connections.spark(), context.spec.dead_letter_table
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    branch = StagingBranch(
        spark=spark,
        catalog=context.connections.catalog,
        identifier=identifier,
        name=primary.branch.name,
        head=state.head,
    )
    branch.create()
    try:
        if obsolete:
            _delete(context, branch, obsolete, plan.after.identity.topic_id)
        columns = spark.table(context.connections.catalog.spark_name(identifier)).schema
        staged = append(branch, state, shaped(dead_letters, columns).coalesce(tasks_of(plan, spark)), summary)
    except BaseException:
        branch.discard()
        raise
    if staged.rows == 0 and not obsolete:
        staged.branch.discard()
        return None, known_failed
    return staged, known_failed


def may_be_obsolete(context: Context, plan: Plan) -> bool:
    """Return whether a commit removes dead letters whose records are decoded now.

    Other tables have a row for each record, by which `kafka_lake.dead_letters.reconcile` finds them later. Rows
    of upsert tables and histories don't name each record.
    """
    return context.spec.is_keyed and plan.kind in ("append", "replace")


def named(plan: Plan, records: DataFrame) -> DataFrame:
    """Return the ids of records as rows and dead letters have them: the topic's id, partition and offset."""
    topic_id = F.lit(plan.after.identity.topic_id or None).cast("string").alias("topic_id")
    return records.select(topic_id, "partition", "offset")


def _delete(context: Context, branch: StagingBranch, records: Sequence[Row], topic_id: str) -> None:
    """Delete the dead letters of some records of the topic from a branch."""
    by_partition: dict[int, list[int]] = {}
    for row in records:
        by_partition.setdefault(row["partition"], []).append(row["offset"])
    places = " OR ".join(
        f"(partition = {partition} AND offset IN ({', '.join(map(str, offsets))}))"
        for partition, offsets in by_partition.items()
    )
    same_topic = "topic_id = '{}'".format(topic_id.replace("'", "")) if topic_id else "topic_id IS NULL"
    context.connections.spark().sql(f"DELETE FROM {branch.write_name} WHERE {same_topic} AND ({places})")


def _furthest(after: Position, before: Position | None) -> Position:
    # Never back: a killed run may have been further in some partitions than this plan is.
    furthest = {**after.offsets}
    for partition, offset in before.offsets.items() if before else ():
        furthest[partition] = max(offset, furthest.get(partition, 0))
    # Last records of partitions that another run has read further are unknown.
    return replace(after, offsets=furthest, last={})


def added_rows(context: Context, identifier: tuple[str, str], staged: StagedTable) -> DataFrame:
    """Return the rows that a staged commit adds."""
    base = staged.state.table.refresh().metadata.snapshot_by_id(staged.appended)
    before = base.parent_snapshot_id if base else None
    name = context.connections.catalog.spark_name(identifier)
    return added_between(
        context.connections.spark(), name, staged.branch.head if before is None else before, staged.appended
    )


def classes_of(dead_letters: DataFrame) -> tuple[DeadLetterClass, ...]:
    """Return dead letters by class, the most frequent first, each with the first one of the lowest partition."""
    sample = F.struct(
        F.col("partition"),
        F.col("offset"),
        F.col("error_message"),
        F.substring(F.make_valid_utf8(F.col("value").cast("string")), 1, SAMPLE_CHARACTERS).alias("value"),
    )
    grouped = dead_letters.groupBy("error_class").agg(F.count(F.lit(1)).alias("count"), F.min(sample).alias("sample"))
    found = [
        DeadLetterClass(
            name=row["error_class"],
            count=row["count"],
            partition=row["sample"]["partition"],
            offset=row["sample"]["offset"],
            message=row["sample"]["error_message"] or "",
            value=row["sample"]["value"] or "",
        )
        for row in grouped.collect()
    ]
    return most_frequent_first(found)
