"""Write a history: the events of a batch and the stored events of their keys become rows of the run's branch."""

from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import row_count
from kafka_lake.engine.frames import cached
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import TableError
from kafka_lake.formats.rows import DELETED, VALID_FROM
from kafka_lake.writers.frames import append, shaped
from kafka_lake.writers.history.versions import (
    IN_BATCH,
    IS_UNPLACED,
    HistoryResult,
    HistoryTable,
    event_rows,
    history_counts,
    is_changed,
    merge_statement,
    stored_rows,
    union_events,
    with_intervals,
)
from kafka_lake.writers.rules import check_events
from kafka_lake.writers.staged import StagedTable, staged_table
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.deduplicate import UNKNOWN, EventStatistics, conflict
from kafka_lake.writers.upsert.keys import KeyBounds, partitions_error, tombstone_error
from kafka_lake.writers.upsert.merge import MergeCounts, run_merge
from kafka_lake.writers.upsert.missing_values import MissingValue, collect_missing_values, without_missing
from kafka_lake.writers.upsert.write import append_rows, cached_events, query_settings, row_events


def write_history(batch: ChangeBatch) -> tuple[StagedTable, None, HistoryResult]:
    """Stage the events of a history on the batch's branch."""
    with ExitStack() as held:
        held.enter_context(query_settings(batch))
        all_events, statistics = cached_events(batch, held)
        validation = check_events(batch.context, batch.plan, all_events, declared=batch.declared)
        batch = batch.without_refused(validation)
        events = row_events(batch, all_events)
        if validation.refused is not None:
            events = validation.refused.left(events, METADATA_COLUMN)
        primary, result = _stage(batch, events, statistics, held)
        refused = len(result.missing_values) + (len(validation.refused) if validation.refused else 0)
        counts = statistics.counts
        result = replace(result, changes=counts["changes"] - refused, deletes=counts["deletes"], validation=validation)
        return primary, None, result


def _stage(
    batch: ChangeBatch, events: DataFrame, statistics: EventStatistics, held: ExitStack
) -> tuple[StagedTable, HistoryResult]:
    # Without this column no record has shown the order yet: all events are tombstones of unknown keys.
    if VALID_FROM not in batch.columns.names:
        return _append_nothing(batch), HistoryResult()
    history = _history_table(batch)
    rows = cached(event_rows(events, history), held)
    if not statistics.keys:
        return _append_nothing(batch), HistoryResult()
    # The table's current columns are read: the planned head lacks columns that this run has added.
    table = batch.context.connections.spark().table(batch.table_name)
    stored = stored_rows(shaped(table, history.columns), rows, history, statistics.bounds)
    versions, missing = _versions(batch, stored, rows, history, held=held)
    _check_order(batch, versions, history, statistics.counts["deletes"])
    counts = history_counts(versions, history)
    changed_count = counts.pop("changed")
    if changed_count:
        changed = versions.filter(is_changed(history)).select(*map(quoted, history.columns.names))
        primary, merged = _merge(batch, shaped(changed, batch.columns), history, statistics.bounds)
    else:
        primary, merged = _append_nothing(batch), MergeCounts()
    result = HistoryResult(rewritten=changed_count - counts["rows"], merged=merged, missing_values=missing)
    return primary, replace(result, **counts)


def _merge(
    batch: ChangeBatch, changed: DataFrame, history: HistoryTable, bounds: KeyBounds
) -> tuple[StagedTable, MergeCounts]:
    if not row_count(batch.state.table):
        return append_rows(batch, changed)
    spark, branch, columns = batch.context.connections.spark(), batch.branch, changed.columns
    run_merge(
        spark,
        changed,
        batch.summary,
        lambda view: merge_statement(branch.write_name, view, columns, history, bounds=bounds),
    )
    primary = staged_table(branch, branch.head, batch.state)
    return primary, MergeCounts.of(primary.summary)


def _versions(
    batch: ChangeBatch, stored: DataFrame, events: DataFrame, history: HistoryTable, *, held: ExitStack
) -> tuple[DataFrame, tuple[MissingValue, ...]]:
    """Return all events of the batch's keys with their intervals; and the events left out since they lack a value."""
    missing = tuple[MissingValue, ...]()
    versions = cached(with_intervals(union_events(stored, events, history), history), held)
    # Without one event, another may lack the value that it had.
    while lacking := _missing_values(batch, versions, history):
        missing += lacking
        events = without_missing(events, batch.context.connections.spark(), lacking, history.keys)
        versions = cached(with_intervals(union_events(stored, events, history), history), held)
    return versions, tuple(sorted(missing, key=lambda value: (value.partition, value.offset)))


def _append_nothing(batch: ChangeBatch) -> StagedTable:
    """Stage a snapshot without rows, for its position."""
    table = batch.context.connections.spark().table(batch.table_name)
    return append(batch.branch, batch.state, table.limit(0), batch.summary)


def _history_table(batch: ChangeBatch) -> HistoryTable:
    spec = batch.context.spec
    history = HistoryTable(
        batch.keys,
        batch.columns,
        track=spec.track,
        nullable=tuple(batch.nullable),
        is_partial=spec.is_partial,
        ids={field.name: field.field_id for field in batch.state.table.schema().fields},
    )
    if unknown := [name for name in spec.track if name not in history.values]:
        raise TableError(
            f"Topic {spec.topic}: track: {', '.join(unknown)} isn't a column of the rows of table "
            f"{'.'.join(spec.identifier)}.",
            f"Its columns are {', '.join(history.values)}. Correct track:, or declare the column with columns:.",
        )
    return history


def _missing_values(batch: ChangeBatch, versions: DataFrame, history: HistoryTable) -> tuple[MissingValue, ...]:
    """Return the events of the batch that leave a value unchanged which no event before them has."""
    if history.is_partial or not history.nullable:
        return ()
    place = F.col(quoted(METADATA_COLUMN))
    lacking = versions.filter(F.col(IN_BATCH) & (F.size(UNKNOWN) > 0))
    columns = [*[place[name].alias(name) for name in ("partition", "offset")], F.array_join(UNKNOWN, ", ")]
    return collect_missing_values(batch.context.spec, lacking.select(*columns))


def _check_order(batch: ChangeBatch, versions: DataFrame, history: HistoryTable, deletes: int) -> None:
    """Refuse an event that can't be ordered against events of its key in other Kafka partitions."""
    keys, spec = history.keys, batch.context.spec
    if keys.has_order and not deletes:
        return
    is_todays, _, _ = map(F.expr, keys.kafka_order("e"))
    is_unordered = F.col(IN_BATCH) & (F.col(IS_UNPLACED) if keys.has_order else F.lit(True))
    is_change = ~F.col(DELETED) | F.lit(not keys.has_order)
    by_key = versions.alias("e").filter(is_todays).groupBy(*map(F.expr, keys.key("e")))
    found = by_key.agg(conflict(F.col(f"e.{quoted(METADATA_COLUMN)}"), is_unordered, is_change).alias("found"))
    if (place := found.agg(F.min("found")).collect()[0][0]) is not None:
        raise tombstone_error(spec, *place) if keys.has_order else partitions_error(spec, *place)
