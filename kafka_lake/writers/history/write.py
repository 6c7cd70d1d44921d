"""The way of histories: a batch's changes, and what the table has of their keys, become rows of the run's branch."""

from contextlib import ExitStack

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.positions import row_count
from kafka_lake.engine.frames import cached
from kafka_lake.errors import TableError
from kafka_lake.formats.rows import DELETED, VALID_FROM
from kafka_lake.writers.frames import append, shaped
from kafka_lake.writers.history.versions import (
    IN_BATCH,
    IS_UNPLACED,
    HistoryResult,
    Shape,
    counts_of,
    events_of,
    is_changed,
    joined,
    merge_events,
    stored_of,
    with_intervals,
)
from kafka_lake.writers.rules import check_changes
from kafka_lake.writers.staged import StagedTable, staged_table
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.deduplicate import MOST_NOT_SENT, UNKNOWN, Figures, MissingValue, value_not_told, without
from kafka_lake.writers.upsert.keys import Bounds, not_comparable, quoted, tombstone_elsewhere
from kafka_lake.writers.upsert.merge import Merged
from kafka_lake.writers.upsert.write import StagedChanges, appended, of_rows, planned, told, without_refused


def write_versions(batch: ChangeBatch, _: ExitStack) -> StagedChanges:
    """Stage changes of a history, on the batch's branch and nowhere else."""
    with ExitStack() as held:
        held.enter_context(planned(batch))
        all_changes, seen = told(batch, held)
        verdict = check_changes(batch.context, batch.plan, all_changes, declared=batch.declared)
        batch = without_refused(batch, verdict)
        changes = of_rows(batch, all_changes)
        if verdict.refused is not None:
            changes = verdict.refused.left(changes, batch.keys.metadata)
        primary, done = _merged(batch, changes, held, seen=seen)
        refused = len(done.not_sent) + (len(verdict.refused) if verdict.refused else 0)
        return StagedChanges(primary, None, done.of(seen.counts["changes"] - refused, seen.counts["deletes"], verdict))


def _merged(
    batch: ChangeBatch, changes: DataFrame, held: ExitStack, *, seen: Figures
) -> tuple[StagedTable, HistoryResult]:
    spark = batch.context.connections.spark()
    if VALID_FROM not in batch.columns.names:
        # No record has shown the column of the order yet: there are tombstones of unknown keys, and nothing else.
        return _nothing(batch), HistoryResult()
    shape = _shape(batch)
    keys = cached(events_of(changes, shape), held)
    within = seen.within
    if not seen.keys:
        return _nothing(batch), HistoryResult()
    # As it is published, with the columns that this run has given it. If others publish meanwhile, this run doesn't.
    rows = spark.table(batch.context.connections.catalog.spark_name(batch.context.spec.identifier))
    stored = stored_of(shaped(rows, shape.columns), keys, shape, within)
    made, not_sent = _made(batch, stored, keys, shape, held=held)
    _refuse_unordered(batch, made, shape, seen.counts["deletes"])
    counts = counts_of(made, shape)
    if counts["changed"]:
        changed = shaped(made.filter(is_changed(shape)).select(*map(quoted, shape.columns.names)), batch.columns)
        primary, merged = _written(batch, changed, shape, within)
    else:
        primary, merged = _nothing(batch), Merged()
    return primary, HistoryResult(
        rows=counts["rows"],
        versions=counts["versions"],
        closed=counts["closed"],
        rewritten=counts["changed"] - counts["rows"],
        double=counts["double"],
        overlapping=counts["overlapping"],
        merged=merged,
        not_sent=not_sent,
    )


def _written(batch: ChangeBatch, changed: DataFrame, shape: Shape, within: Bounds) -> tuple[StagedTable, Merged]:
    """Merge rows into the branch; return it, and what happened to its rows."""
    spark, branch = batch.context.connections.spark(), batch.branch
    if not row_count(batch.state.table):
        return appended(append(branch, batch.state, changed, batch.summary))
    merge_events(spark, branch, changed, shape, within=within, summary=batch.summary)
    primary = staged_table(branch, branch.head, batch.state)
    return primary, Merged.of(primary.summary)


def _made(
    batch: ChangeBatch, stored: DataFrame, events: DataFrame, shape: Shape, *, held: ExitStack
) -> tuple[DataFrame, tuple[MissingValue, ...]]:
    """Return all events of the batch's keys with their intervals; and the changes left out, which lack a value."""
    not_sent = tuple[MissingValue, ...]()
    made = cached(with_intervals(joined(stored, events, shape), shape), held)
    # Without one change, another may lack the value that it had.
    while lacking := _lacking(batch, made, shape):
        not_sent += lacking
        events = without(events, batch.context.connections.spark(), lacking, shape.keys)
        made = cached(with_intervals(joined(stored, events, shape), shape), held)
    return made, tuple(sorted(not_sent, key=lambda each: (each.partition, each.offset)))


def _nothing(batch: ChangeBatch) -> StagedTable:
    """Stage a snapshot without rows, for its position."""
    name = batch.context.connections.catalog.spark_name(batch.context.spec.identifier)
    return append(batch.branch, batch.state, batch.context.connections.spark().table(name).limit(0), batch.summary)


def _shape(batch: ChangeBatch) -> Shape:
    spec, table = batch.context.spec, batch.state.table
    shape = Shape(
        batch.keys,
        batch.columns,
        track=spec.track,
        may_lack=tuple(batch.may_lack),
        is_partial=spec.is_partial,
        ids={field.name: field.field_id for field in table.schema().fields},
    )
    if unknown := [name for name in spec.track if name not in shape.values]:
        raise TableError(
            f"Topic {spec.topic}: track: {', '.join(unknown)} isn't a column of the rows of table "
            f"{'.'.join(spec.identifier)}.",
            f"Its columns are {', '.join(shape.values)}. Correct track:, or declare the column with schema:.",
        )
    return shape


def _lacking(batch: ChangeBatch, made: DataFrame, shape: Shape) -> tuple[MissingValue, ...]:
    """Return the changes of the batch that leave a value as it was, and that nothing before them has told."""
    if shape.is_partial or not shape.may_lack:
        return ()
    place = F.col(quoted(shape.keys.metadata))
    lacking = made.filter(F.col(IN_BATCH) & (F.size(UNKNOWN) > 0))
    at = [place[name].alias(name) for name in ("partition", "offset")]
    named = lacking.select(*at, F.array_join(UNKNOWN, ", ").alias("columns"))
    found = named.distinct().orderBy("partition", "offset").limit(MOST_NOT_SENT + 1).collect()
    if len(found) > MOST_NOT_SENT:
        raise value_not_told(batch.context.spec, *found[0])
    return tuple(MissingValue(*each) for each in found)


def _refuse_unordered(batch: ChangeBatch, made: DataFrame, shape: Shape, deletes: int) -> None:
    """Stop at a change whose order among those of its key in other Kafka partitions nothing tells."""
    keys, spec = shape.keys, batch.context.spec
    if keys.has_order and not deletes:
        return
    is_todays, partition, offset = map(F.expr, keys.place("e"))
    asks = F.col(IN_BATCH) & (F.col(IS_UNPLACED) if keys.has_order else F.lit(True))
    of_key = made.alias("e").filter(is_todays).groupBy(*map(F.expr, keys.key("e"))).agg(
        F.min(F.when(asks, F.struct(partition.alias("partition"), offset.alias("offset")))).alias("first"),
        F.collect_set(F.when(~F.col(DELETED) | F.lit(not keys.has_order), partition)).alias("all"),
    )  # fmt: skip
    others = of_key.select("first.*", F.array_remove("all", F.col("first.partition")).alias("others"))
    found = others.filter(F.size("others") > 0).orderBy("partition", "offset").limit(1).collect()
    if not found:
        return
    at, other = found[0], found[0]["others"][0]
    if keys.has_order:
        raise tombstone_elsewhere(spec, at["partition"], at["offset"], other)
    where = f"in partition {at['partition']} at offset {at['offset']}; another one came from partition {other}"
    raise not_comparable(spec, where)
