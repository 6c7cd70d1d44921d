"""The way of keyed tables: a batch's changes are folded to one for each key, and merged into the run's branch."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.append import append_nothing
from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import read_state, row_count
from kafka_lake.cdc.task.change import DELETE, NOTHING, TRUNCATE
from kafka_lake.engine.frames import cached, shuffles
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.quality.result import refused_mark
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.writers.frames import append, shaped
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.rules import check_changes
from kafka_lake.writers.staged import StagedTable, side_summary, staged_table
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.deduplicate import (
    NEEDS_ROW,
    SEVERAL_PARTITIONS,
    UNKNOWN,
    Figures,
    LatestEvents,
    MissingValue,
    already_folded,
    find_not_sent,
    fold_batch,
    look_at,
    tombstones_ordered,
    with_order_of_rows,
    without,
)
from kafka_lake.writers.upsert.deleted_keys import (
    deletes_by_snapshot,
    deletes_of,
    ensure_deletes_table,
    forget_old,
    without_late,
)
from kafka_lake.writers.upsert.keys import (
    EVENT_TIME,
    KEY_CHANGED,
    OPERATION,
    SNAPSHOT_MARKER,
    SOURCE_TABLE,
    UNCHANGED,
    WITHOUT_ORDER,
    Bounds,
    bounds,
    quoted,
    refusal_of,
)
from kafka_lake.writers.upsert.merge import Merged, MergePlan, UpsertResult, brings, merge
from kafka_lake.writers.upsert.source_snapshots import Ended, Told, check_removal, past_of
from kafka_lake.writers.upsert.truncates import Emptied, empty, rows_behind, without_older

_ROWS_WORTH_A_PARTITION = 1_000_000
_SETTINGS = {
    # A query that is planned anew after each of its shuffles is a job for each, though their sizes are known before.
    "spark.sql.adaptive.enabled": "false",
    # What is kept is read a moment later, and forgotten.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
_ABOUT_CHANGES = T.StructType(
    [
        T.StructField(OPERATION, T.StringType()),
        T.StructField(UNCHANGED, T.ArrayType(T.StringType())),
        T.StructField(EVENT_TIME, T.TimestampType()),
        T.StructField(SNAPSHOT_MARKER, T.StringType()),
        T.StructField(SOURCE_TABLE, T.StringType()),
        T.StructField(KEY_CHANGED, T.BooleanType()),
    ]
)


@dataclass(frozen=True)
class StagedChanges:
    """What changes became.

    Args:
        deletes: The table of deleted keys, None if there is nothing new for it.
        batch: What became of the batch.
    """

    primary: StagedTable
    deletes: StagedTable | None
    batch: UpsertResult | HistoryResult


def write_upserts(batch: ChangeBatch, undo: ExitStack) -> StagedChanges:
    """Stage changes."""
    try:
        with ExitStack() as held:
            return _staged(batch, held, undo)
    except Exception as error:
        if (refusal := refusal_of(batch.context.spec, error)) is None:
            raise
        raise refusal from error


def _staged(batch: ChangeBatch, held: ExitStack, undo: ExitStack) -> StagedChanges:
    held.enter_context(planned(batch))
    all_changes, seen = told(batch, held)
    figures = seen.counts
    verdict = check_changes(batch.context, batch.plan, all_changes, declared=batch.declared)
    batch = without_refused(batch, verdict)
    batch = _since_past(batch, all_changes, figures)
    changes = all_changes.drop(SNAPSHOT_MARKER, SOURCE_TABLE, KEY_CHANGED)
    if verdict.refused is not None:
        changes = verdict.refused.left(changes, batch.keys.metadata)
    changes = of_rows(batch, changes).drop(EVENT_TIME)
    _ready_for_deletes(batch, changes)
    has_tombstones = batch.keys.has_order and figures["deletes"]
    is_plain = verdict.refused is None and batch.emptied is None and not has_tombstones and not batch.may_lack
    if is_plain and seen.most <= 1:
        folded, not_sent = already_folded(batch.context.spec, changes, seen), tuple[MissingValue, ...]()
    else:
        ordered = _ordered(batch, changes, figures["deletes"], held)
        if batch.emptied is not None:
            ordered, counted_older = without_older(ordered, batch.emptied, batch.keys)
            batch = replace(batch, emptied=counted_older)
        folded, not_sent = _folded(batch, ordered, held)
    one_each = folded.one_each.drop(SEVERAL_PARTITIONS, UNKNOWN)
    deletes = None
    if (figures["deletes"] or batch.ended) and batch.context.spec.deletes != "ignore":
        deletes = _stage_deletes(batch, one_each, undo)
    one_each = one_each.drop(WITHOUT_ORDER)
    late = without_late(batch.context, one_each, batch.keys) if folded.count else None
    in_time = one_each if late is None else cached(late, held)
    left, gone = (folded.count, folded.deletes) if late is None else _counted(in_time)
    if left:
        primary, merged = _merged(batch, in_time, folded.within)
    else:
        nothing = shaped(in_time.limit(0), batch.columns)
        primary, merged = append(batch.branch, batch.state, nothing, batch.summary), Merged()
    primary, emptied = _emptied(batch, primary)
    done = UpsertResult(
        changes=figures["changes"] - len(not_sent) - (len(verdict.refused) if verdict.refused else 0),
        keys=folded.count,
        deletes=figures["deletes"],
        late=folded.count - left,
        # A soft delete writes the row that it marks.
        brings=left if batch.keys.is_soft else left - gone,
        merged=merged,
        not_sent=not_sent,
        emptied=emptied,
        verdict=verdict,
    )
    return StagedChanges(primary, deletes, done)


def planned(batch: ChangeBatch) -> AbstractContextManager[None]:
    """Return the block in which Spark plans queries as a merge needs it."""
    # Few changes find few rows, which needn't be spread.
    rows = 0 if batch.few else row_count(batch.state.table)
    return shuffles(batch.context.connections.spark(), batch.tasks + rows // _ROWS_WORTH_A_PARTITION, _SETTINGS)


def told(batch: ChangeBatch, held: ExitStack) -> tuple[DataFrame, Figures]:
    """Return all changes in the table's types, and figures of them."""
    spec = batch.context.spec
    changes = cached(shaped(batch.changes, T.StructType([*batch.columns.fields, *_ABOUT_CHANGES.fields])), held)
    seen = look_at(spec, changes, batch.keys, few=batch.few)
    _check_settings(batch, changes, seen.counts)
    return changes, seen


def _check_settings(batch: ChangeBatch, changes: DataFrame, figures: Row) -> None:
    """Refuse deletes and truncates where the settings say so."""
    spec, place = batch.context.spec, F.col(quoted(batch.keys.metadata))
    for does, count, setting, settings in (
        (DELETE, figures["deletes"], spec.deletes, "deletes: apply, soft or ignore"),
        (TRUNCATE, figures["truncates"], spec.on_truncate, "on_truncate: apply or ignore"),
    ):
        if count and setting == "fail":
            first = F.min(F.struct(place["partition"], place["offset"]))
            at = changes.filter(F.col(OPERATION) == does).agg(first).collect()[0][0]
            raise ChangeRefusedError(
                f"Topic {spec.topic}: {count} records {'delete rows' if does == DELETE else 'empty the table'}, the "
                f"first in partition {at[0]} at offset {at[1]}, and the settings say to fail.",
                f"main is as it was. To go on, set {settings}.",
            )


def without_refused(batch: ChangeBatch, verdict: ValidationResult) -> ChangeBatch:
    """Return a batch that counts what rules refuse among the records that failed, and whose summary tells of it."""
    refused, failed = verdict.refused, batch.failed
    if refused is None:
        return batch
    summary = {**batch.summary, **refused_mark(refused.by_rule)}
    return replace(batch, failed=lambda: failed() + len(refused), summary=summary)


def _since_past(batch: ChangeBatch, changes: DataFrame, figures: Row) -> ChangeBatch:
    """Return a batch that knows what doesn't count any more; raises as `past_of`."""
    told = Told(changes, figures, batch.summary, batch.failed)
    past = past_of(batch.context, batch.state, told, batch.keys)
    summary = {**batch.summary, **past.marks}
    return replace(batch, emptied=past.emptied, ended=past.ended, summary=summary)


def of_rows(batch: ChangeBatch, changes: DataFrame) -> DataFrame:
    """Return the changes of rows that the settings let count."""
    if batch.context.spec.deletes == "ignore":
        changes = changes.filter(F.col(OPERATION) != DELETE)
    return changes.filter(~F.col(OPERATION).isin(TRUNCATE, NOTHING))


def _ordered(batch: ChangeBatch, changes: DataFrame, deletes: int, held: ExitStack) -> DataFrame:
    """Return changes, each with its order: deletes that tell none have that of their row, where they need it."""
    keys = batch.keys
    if not keys.has_order or not deletes:
        return changes
    changes = cached(tombstones_ordered(changes, keys), held)
    within, found = bounds(changes.filter(NEEDS_ROW), keys, F.count(F.lit(1)).alias("count"), few=batch.few)
    needed = found["count"]
    return with_order_of_rows(changes, batch.rows(), keys, within) if needed else changes.drop(NEEDS_ROW)


def _emptied(batch: ChangeBatch, primary: StagedTable) -> tuple[StagedTable, Emptied | None]:
    """Delete from the branch what doesn't count any more; the changes behind it are there by then."""
    emptied, keys = batch.emptied, batch.keys
    if emptied is None or not emptied.is_new:
        return primary, emptied
    spark, branch = batch.context.connections.spark(), batch.branch
    counted_rows = rows_behind(spark, branch, emptied, keys)
    if batch.ended is not None:
        check_removal(batch.context.spec, batch.ended, *counted_rows)
    snapshot, emptied = empty(spark, branch, primary.snapshot, emptied, keys=keys, counted=counted_rows)
    return replace(primary, snapshot=snapshot), emptied


def _folded(batch: ChangeBatch, changes: DataFrame, held: ExitStack) -> tuple[LatestEvents, tuple[MissingValue, ...]]:
    """Fold changes to one for each key; those that lack a value which nothing has are set apart."""
    spec, keys = batch.context.spec, batch.keys
    folded = fold_batch(spec, changes, keys, batch.may_lack, held=held, few=batch.few)
    if not folded.lacking or spec.is_partial:
        return folded, ()
    not_sent = find_not_sent(batch.context, folded, batch.rows(), keys)
    if not_sent:
        others = without(changes, batch.context.connections.spark(), not_sent, keys)
        folded = fold_batch(spec, others, keys, batch.may_lack, held=held, few=batch.few)
    return folded, not_sent


def _counted(changes: DataFrame) -> tuple[int, int]:
    """Return how many changes there are, and how many of them are deletes."""
    found = changes.agg(F.count(F.lit(1)), F.count_if(F.col(OPERATION) == DELETE)).collect()[0]
    return found[0], found[1]


def _merged(batch: ChangeBatch, changes: DataFrame, within: Bounds) -> tuple[StagedTable, Merged]:
    """Merge changes into the branch; return it, and what happened to its rows."""
    spark, branch = batch.context.connections.spark(), batch.branch
    how = MergePlan(batch.keys, batch.may_lack, within)
    if not row_count(batch.state.table):
        new = shaped(changes.alias("s").filter(F.expr(brings("s", batch.keys))), batch.columns)
        return appended(append(branch, batch.state, new, batch.summary))
    merge(spark, branch, changes, how, summary=batch.summary)
    primary = staged_table(branch, branch.head, batch.state)
    return primary, Merged.of(primary.summary)


def appended(primary: StagedTable) -> tuple[StagedTable, Merged]:
    """Return a table that had no rows, with what was written to it: no row of it was looked for."""
    return primary, Merged(inserted=primary.rows, added=primary.rows)


def _lacking(batch: ChangeBatch, ended: Ended, one_each: DataFrame) -> DataFrame:
    """Return the keys that a snapshot of the source lacks as deleted ones; those of the batch are not among them."""
    state, keys = batch.state, batch.keys
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    rows = batch.rows(state.head).alias("t").filter(ended.at.is_behind(keys, "t"))
    return deletes_by_snapshot(rows.join(one_each.alias("s"), F.expr(keys.same("t", "s")), "left_anti"), ended.at, keys)


def _ready_for_deletes(batch: ChangeBatch, changes: DataFrame) -> None:
    """Let the table of deleted keys have the columns that it needs, if there is one."""
    connections, name = batch.context.connections, batch.context.spec.deletes_table
    if connections.catalog.table(name) is None:
        return
    table = ensure_deletes_table(batch.context, deletes_of(changes, batch.keys).schema)
    head = table.current_snapshot()
    if head is not None and head.schema_id != table.metadata.current_schema_id:
        # A snapshot is read with the columns that it was written with.
        append_nothing(table)


def _stage_deletes(batch: ChangeBatch, one_each: DataFrame, undo: ExitStack) -> StagedTable | None:
    """Append the deleted keys of a batch to a branch of their table, which is created if it isn't there."""
    spec, connections = batch.context.spec, batch.context.connections
    rows = deletes_of(one_each, batch.keys)
    if batch.ended is not None:
        rows = rows.unionByName(_lacking(batch, batch.ended, one_each))
    table = ensure_deletes_table(batch.context, rows.schema)
    state = read_state(table)
    assert state.head is not None, "ensure_table gives every table a first snapshot"
    spark = connections.spark()
    branch = StagingBranch(
        spark=spark,
        catalog=connections.catalog,
        identifier=spec.deletes_table,
        name=batch.branch.name,
        head=state.head,
    )
    branch.create()
    undo.callback(branch.discard)
    forget_old(batch.context, branch, table)
    columns = spark.table(connections.catalog.spark_name(spec.deletes_table)).schema
    rows = shaped(rows, columns).coalesce(batch.tasks)
    staged = append(branch, state, rows, side_summary(batch.summary))
    if staged.rows == 0:
        branch.discard()
        return None
    return staged
