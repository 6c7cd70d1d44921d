"""Upsert: deduplicate a batch's change events by key and MERGE them into the run's branch."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import AUTHOR, POSITION, read_state, row_count
from kafka_lake.catalog.tables import append_nothing
from kafka_lake.cdc.task.change import DELETE, NOTHING, TRUNCATE
from kafka_lake.engine.frames import cached, shuffles
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.writers.frames import append, shaped
from kafka_lake.writers.rules import check_events
from kafka_lake.writers.staged import StagedTable, staged_table
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.change_events import INTERNAL_COLUMNS
from kafka_lake.writers.upsert.cutoff import AppliedCutoff, count_older, delete_older, without_older
from kafka_lake.writers.upsert.deduplicate import (
    NEEDS_ROW,
    SEVERAL_PARTITIONS,
    UNKNOWN,
    EventStatistics,
    LatestEvents,
    already_unique,
    deduplicate,
    event_statistics,
    order_by_rows,
    order_tombstones,
)
from kafka_lake.writers.upsert.deleted_keys import (
    deleted_keys,
    ensure_deletes_table,
    expire_deleted_keys,
    keys_missing_in_snapshot,
    without_late,
)
from kafka_lake.writers.upsert.keys import (
    EVENT_TIME,
    KEY_CHANGED,
    OPERATION,
    SNAPSHOT_MARKER,
    SOURCE_TABLE,
    WITHOUT_ORDER,
    KeyBounds,
    key_bounds,
    ordering_error,
)
from kafka_lake.writers.upsert.merge import MergeCounts, UpsertResult, inserts_row, merge_statement, run_merge
from kafka_lake.writers.upsert.missing_values import MissingValue, find_missing_values, without_missing
from kafka_lake.writers.upsert.source_snapshots import CompleteSnapshot, check_snapshot_deletes, find_cutoff

_ROWS_PER_PARTITION = 1_000_000
_ROWS_PER_FALSE_POSITIVE = 8
"""The filter of keys lets at most one of this many rows with other keys pass."""
_SETTINGS = {
    # Adaptive execution starts a job after each shuffle, though the sizes are known before.
    "spark.sql.adaptive.enabled": "false",
    # Cached events are read at once, and dropped.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}


def write_upserts(batch: ChangeBatch, undo: ExitStack) -> tuple[StagedTable, StagedTable | None, UpsertResult]:
    """Stage the events of an upsert table, and their deleted keys if there are any.

    ``undo`` gets callbacks that remove what was staged.
    """
    try:
        with ExitStack() as held:
            return _stage(batch, held, undo)
    except Exception as error:
        if (refusal := ordering_error(batch.context.spec, error)) is None:
            raise
        raise refusal from error


def _stage(
    batch: ChangeBatch, held: ExitStack, undo: ExitStack
) -> tuple[StagedTable, StagedTable | None, UpsertResult]:
    held.enter_context(query_settings(batch))
    all_events, statistics = cached_events(batch, held)
    counts, spec = statistics.counts, batch.context.spec
    batch = replace(batch, is_complete=not statistics.incomplete)
    validation = check_events(batch.context, batch.plan, all_events, declared=batch.declared)
    batch = batch.without_refused(validation)
    cutoff, snapshot, properties = find_cutoff(batch, all_events, statistics)
    batch = replace(batch, cutoff=cutoff, summary={**batch.summary, **properties})
    events = all_events.drop(SNAPSHOT_MARKER, SOURCE_TABLE, KEY_CHANGED)
    if validation.refused is not None:
        events = validation.refused.left(events, METADATA_COLUMN)
    events = row_events(batch, events).drop(EVENT_TIME)
    _evolve_deletes_table(batch, events)
    missing = tuple[MissingValue, ...]()
    has_tombstones = batch.keys.has_order and counts["deletes"]
    is_simple = validation.refused is None and batch.cutoff is None and not has_tombstones and not batch.nullable
    if is_simple and statistics.events_per_key <= 1:
        latest = already_unique(spec, events, statistics)
    else:
        events = _with_order(batch, events, counts["deletes"], held)
        if batch.cutoff is not None:
            events, applied = without_older(events, batch.cutoff, batch.keys)
            batch = replace(batch, cutoff=applied)
        latest, missing = _deduplicated(batch, events, held)
    unique = latest.events.drop(SEVERAL_PARTITIONS, UNKNOWN)
    deletes = None
    if (counts["deletes"] or snapshot) and not spec.ignores_deletes:
        deletes = _stage_deletes(batch, unique, snapshot, undo)
    unique = unique.drop(WITHOUT_ORDER)
    late = without_late(batch.context, unique, batch.keys) if latest.count else None
    in_time = unique if late is None else cached(late, held)
    count, delete_count = (latest.count, latest.deletes) if late is None else _counts(in_time)
    if count:
        primary, merged = _merge(batch, in_time, latest.bounds)
    else:
        nothing = shaped(in_time.limit(0), batch.columns)
        primary, merged = append(batch.branch, batch.state, nothing, batch.summary), MergeCounts()
    primary, applied_cutoff = _delete_before_cutoff(batch, primary, snapshot)
    refused = len(validation.refused) if validation.refused else 0
    result = UpsertResult(
        changes=counts["changes"] - len(missing) - refused,
        keys=latest.count,
        deletes=counts["deletes"],
        late=latest.count - count,
        # A soft delete writes the row that it marks.
        rows=count if batch.keys.is_soft else count - delete_count,
        merged=merged,
        missing_values=missing,
        cutoff=applied_cutoff,
        validation=validation,
    )
    return primary, deletes, result


def query_settings(batch: ChangeBatch) -> AbstractContextManager[None]:
    """Return the block in which Spark plans queries as a MERGE needs it."""
    rows = row_count(batch.state.table)
    if batch.filtered_records and not batch.context.spec.has_versions:
        # Few rows pass the filter of keys. Those of a history may be many versions of them.
        rows = batch.filtered_records + rows // _ROWS_PER_FALSE_POSITIVE
    return shuffles(batch.context.connections.spark(), batch.tasks + rows // _ROWS_PER_PARTITION, _SETTINGS)


def cached_events(batch: ChangeBatch, held: ExitStack) -> tuple[DataFrame, EventStatistics]:
    """Return all events in the table's types, cached, and statistics of them."""
    columns = T.StructType([*batch.columns.fields, *INTERNAL_COLUMNS.fields])
    events = cached(shaped(batch.events, columns), held)
    statistics = event_statistics(batch.context.spec, events, batch.keys, records=batch.filtered_records)
    _check_operations(batch, events, statistics.counts)
    return events, statistics


def _check_operations(batch: ChangeBatch, events: DataFrame, counts: Row) -> None:
    """Refuse deletes and truncates where the settings say so."""
    spec, place = batch.context.spec, F.col(quoted(METADATA_COLUMN))
    for operation, count, setting, settings in (
        (DELETE, counts["deletes"], spec.deletes, "deletes: apply, soft or ignore"),
        (TRUNCATE, counts["truncates"], spec.on_truncate, "on_truncate: apply or ignore"),
    ):
        if count and setting == "fail":
            first = F.min(F.struct(place["partition"], place["offset"]))
            partition, offset = events.filter(F.col(OPERATION) == operation).agg(first).collect()[0][0]
            raise ChangeRefusedError(
                f"Topic {spec.topic}: {count} records "
                f"{'delete rows' if operation == DELETE else 'truncate the table'}, "
                f"the first in partition {partition} at offset {offset}, and the settings refuse this.",
                f"main is unchanged. To continue, set {settings}.",
            )


def row_events(batch: ChangeBatch, events: DataFrame) -> DataFrame:
    """Return the events that change rows, without deletes if the settings ignore them."""
    if batch.context.spec.ignores_deletes:
        events = events.filter(F.col(OPERATION) != DELETE)
    return events.filter(~F.col(OPERATION).isin(TRUNCATE, NOTHING))


def _with_order(batch: ChangeBatch, events: DataFrame, deletes: int, held: ExitStack) -> DataFrame:
    """Return events that all have an order; deletes without one get that of their row if need be."""
    keys = batch.keys
    if not keys.has_order or not deletes:
        return events
    events = cached(order_tombstones(events, keys), held)
    count = F.count(F.lit(1)).alias("count")
    bounds, row = key_bounds(events.filter(NEEDS_ROW), keys, count, records=batch.filtered_records)
    return order_by_rows(events, batch.rows(), keys, bounds) if row["count"] else events.drop(NEEDS_ROW)


def _deduplicated(
    batch: ChangeBatch, events: DataFrame, held: ExitStack
) -> tuple[LatestEvents, tuple[MissingValue, ...]]:
    """Return one event per key, and the events that are left out since they lack values."""
    spec, keys, records = batch.context.spec, batch.keys, batch.filtered_records
    latest = deduplicate(spec, events, keys, batch.nullable, held=held, records=records)
    if not latest.incomplete or spec.is_partial:
        return latest, ()
    missing = find_missing_values(batch.context, events, latest, batch.rows(), keys=keys)
    if missing:
        complete = without_missing(events, batch.context.connections.spark(), missing, keys)
        latest = deduplicate(spec, complete, keys, batch.nullable, held=held, records=records)
    return latest, missing


def _counts(events: DataFrame) -> tuple[int, int]:
    """Return the number of events, and of deletes among them."""
    count, deletes = events.agg(F.count(F.lit(1)), F.count_if(F.col(OPERATION) == DELETE)).collect()[0]
    return count, deletes


def _merge(batch: ChangeBatch, events: DataFrame, bounds: KeyBounds) -> tuple[StagedTable, MergeCounts]:
    spark, branch, keys = batch.context.connections.spark(), batch.branch, batch.keys
    if not row_count(batch.state.table):
        rows = shaped(events.alias("s").filter(F.expr(inserts_row("s", keys))), batch.columns)
        return append_rows(batch, rows)
    columns, nullable = events.columns, batch.nullable
    run_merge(
        spark,
        events,
        batch.summary,
        lambda view: merge_statement(branch.write_name, view, columns, keys, nullable=nullable, bounds=bounds),
    )
    primary = staged_table(branch, branch.head, batch.state)
    return primary, MergeCounts.of(primary.summary)


def append_rows(batch: ChangeBatch, rows: DataFrame) -> tuple[StagedTable, MergeCounts]:
    """Append the rows of a batch to an empty table: no MERGE is needed."""
    primary = append(batch.branch, batch.state, rows, batch.summary)
    return primary, MergeCounts(inserted=primary.rows, added=primary.rows)


def _delete_before_cutoff(
    batch: ChangeBatch, primary: StagedTable, snapshot: CompleteSnapshot | None
) -> tuple[StagedTable, AppliedCutoff | None]:
    """Delete rows that are older than a new cutoff from the branch, after newer events were merged."""
    applied, keys = batch.cutoff, batch.keys
    if applied is None or not applied.is_new:
        return primary, applied
    spark, branch = batch.context.connections.spark(), batch.branch
    counts = count_older(spark, branch, applied.cutoff, keys)
    if snapshot is not None:
        check_snapshot_deletes(batch.context.spec, snapshot, *counts)
    tip, applied = delete_older(spark, branch, primary.snapshot, applied, keys=keys, counts=counts)
    return replace(primary, snapshot=tip), applied


def _evolve_deletes_table(batch: ChangeBatch, events: DataFrame) -> None:
    """Give the table of deleted keys the columns that it needs, if the table exists."""
    catalog, name = batch.context.connections.catalog, batch.context.spec.deletes_table
    if catalog.table(name) is None:
        return
    table = ensure_deletes_table(batch.context, deleted_keys(events, batch.keys).schema)
    head = table.current_snapshot()
    if head is not None and head.schema_id != table.metadata.current_schema_id:
        # A snapshot is read with the columns that it was written with.
        append_nothing(table)


def _stage_deletes(
    batch: ChangeBatch, events: DataFrame, snapshot: CompleteSnapshot | None, undo: ExitStack
) -> StagedTable | None:
    """Append the deleted keys of a batch to a branch of their table, which is created if need be."""
    spec, connections, keys = batch.context.spec, batch.context.connections, batch.keys
    rows = deleted_keys(events, keys)
    if snapshot is not None:
        # Keys of the batch are not among those that the snapshot lacks.
        older = replace(batch, cutoff=None).rows().alias("t").filter(snapshot.cutoff.is_older(keys, "t"))
        lacking = older.join(events.alias("s"), F.expr(keys.same_key("t", "s")), "left_anti")
        rows = rows.unionByName(keys_missing_in_snapshot(lacking, snapshot.cutoff, keys))
    table = ensure_deletes_table(batch.context, rows.schema)
    state = read_state(table)
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    spark = connections.spark()
    branch = StagingBranch(spark, connections.catalog, spec.deletes_table, batch.branch.name, head=state.head)
    branch.create()
    undo.callback(branch.discard)
    expire_deleted_keys(batch.context, branch, table)
    columns = spark.table(connections.catalog.spark_name(spec.deletes_table)).schema
    summary = {key: value for key, value in batch.summary.items() if key in (POSITION, *AUTHOR)}
    staged = append(branch, state, shaped(rows, columns).coalesce(batch.tasks), summary)
    if staged.rows == 0:
        branch.discard()
        return None
    return staged
