"""Stage: write the rows of a commit to a branch at the head of `main`; the position is in the snapshot's summary.

Data files are written first. They become a snapshot only when the records show no columns that the table lacks.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.positions import (
    ADOPTED,
    ADOPTED_FROM,
    LOSSES,
    RESET,
    TableState,
    author_summary,
    positions_summary,
    removes_property,
)
from kafka_lake.common.offsets import losses_to_json
from kafka_lake.common.records import without_time
from kafka_lake.dead_letters.pending import UNRECONCILED
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AuditFailedError, TableError
from kafka_lake.formats import UNMATCHED
from kafka_lake.formats.decoder import Decoder, Unreadable, batch_metrics, decoded
from kafka_lake.formats.redaction import quoted
from kafka_lake.formats.table_compatibility import key_columns
from kafka_lake.formats.task.batches import OBSERVED
from kafka_lake.formats.task.decoded import NOTHING
from kafka_lake.quality.result import Refused, refused_mark
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.decoding import Batch, SchemaPlan, Written
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import DeadLetterClass
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.append import nothing_written
from kafka_lake.writers.append_tables import Prewritten
from kafka_lake.writers.dead_letters import added_rows, known_dead_letters, may_be_obsolete, stage_dead_letters
from kafka_lake.writers.frames import tasks_of
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.history.write import write_history
from kafka_lake.writers.replay import delete_replaced, keep_missing_rows
from kafka_lake.writers.rules import check_rows
from kafka_lake.writers.schema_changes import may_bring_columns, plan_schema, refuse_changes
from kafka_lake.writers.staged import Staged, StagedTable, Vanished, staged_table
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.merge import UpsertResult
from kafka_lake.writers.upsert.missing_values import with_missing_errors
from kafka_lake.writers.upsert.write import write_upserts

# The first pass shows new fields, the second the fields inside them; the third writes.
_PASSES = 8
_UNMATCHED = "No table takes it, and unmatched is dead_letter."


@dataclass(frozen=True)
class _Source:
    """The records to stage, and the table that they are for.

    Args:
        held: Gets callbacks by which Spark drops cached frames.
        routed: Returns the ids of the plan's records that other tables take.
        written: Rows that were written together with those of other tables.
    """

    context: Context
    state: TableState
    plan: Plan
    records: DataFrame
    held: ExitStack
    routed: Callable[[], DataFrame] | None = None
    written: Prewritten | None = None

    def unwritten(self) -> "_Source":
        """Return the same records, of which no row is written yet."""
        return self if self.written is None else replace(self, records=self.written.again(), written=None)


@dataclass(frozen=True)
class StagedRows:
    """The rows of a batch on their branch.

    Args:
        with_errors: Returns the records with ``error_class`` and ``error_message``, or only the failed ones, lazy.
        decoder: The decoder with all that the records showed.
        left_out: Columns that the topic's policy leaves out of the table.
        classes: The failed records by class; None if they weren't counted by class.
        validation: Result of the rules, if the refused records are left out already.
    """

    primary: StagedTable
    counts: Mapping[str, Any]
    with_errors: Callable[[], DataFrame]
    decoder: Decoder
    plan: SchemaPlan
    left_out: tuple[Change, ...] = ()
    classes: tuple[DeadLetterClass, ...] | None = None
    validation: ValidationResult | None = None
    deletes: StagedTable | None = None
    merge_result: UpsertResult | HistoryResult | None = None


@dataclass(frozen=True)
class _DeadLetters:
    """The records that became no row.

    Args:
        known: How many the table has already.
    """

    rows: DataFrame | None = None
    table: StagedTable | None = None
    known: int = 0
    classes: tuple[DeadLetterClass, ...] = ()


def stage(
    context: Context,
    state: TableState,
    plan: Plan,
    records: DataFrame,
    *,
    held: ExitStack,
    dead_letters_before: TableState | None = None,
    others: Callable[[], DataFrame] | None = None,
    written: Prewritten | None = None,
    unmatched: DataFrame | None = None,
) -> Staged:
    """Decode the records and write rows and dead letters to branches of their tables."""
    context = replace(context, spec=may_bring_columns(context.spec, state))
    decoder = context.decoding.decoder(context.spec, context.connections, state)
    if plan.undecodable is not None:
        decoder = context.decoding.unreadable(context.spec, plan.undecodable)
        # There are no rows. Without a transform, the columns are those of the table.
        context = replace(context, spec=replace(context.spec, transform=None))
    source = _Source(context, state, plan, records, held=held, routed=others, written=written)
    spec, properties = context.spec, _properties(source, dead_letters_before)
    with ExitStack() as undo:
        rows = _stage_rows(source, decoder, properties, undo)
        validation = rows.validation
        if validation is None:
            validation = check_rows(context, plan, rows.primary, declared=rows.decoder.fixed is not None)
            if validation.refused is not None:
                rows = _stage_without(source, rows, validation.refused, properties=properties, undo=undo)
        if unmatched is not None:
            rows = with_unmatched(rows, unmatched, also_none=spec.is_keyed)
            source = replace(source, records=source.records.unionByName(unmatched))
        fails = any(result.fails for result in validation.results)
        dead_letters = _stage_dead_letters(source, rows, undo, before=dead_letters_before, rules_fail=fails)
        primary, vanished = rows.primary, tuple[Vanished, ...]()
        # A replay deletes no rows of an upsert table or a history.
        if plan.replaces and not spec.is_keyed:
            elsewhere = [frame for frame in (dead_letters.rows, others() if others else None) if frame is not None]
            primary, vanished = keep_missing_rows(context, plan, primary, elsewhere)
        undo.pop_all()
    counts, untimed = rows.counts, int(rows.counts.get("untimed", 0))
    observed = rows.counts.get(OBSERVED, NOTHING)
    return Staged(
        primary=primary,
        dead_letters=dead_letters.table,
        records=counts["records"],
        tombstones=counts["tombstones"],
        failed=counts["failed"],
        known_failed=dead_letters.known,
        classes=dead_letters.classes,
        vanished=vanished,
        failed_rows=dead_letters.rows,
        ignored=(*rows.plan.ignored, *rows.left_out),
        conflicts=rows.plan.conflicts,
        schemas=rows.decoder.schema_counts(observed),
        oldest_ms=counts.get("oldest_ms"),
        newest_ms=counts.get("newest_ms"),
        bytes_read=counts["bytes_read"],
        deletes=rows.deletes,
        merge_result=rows.merge_result,
        rules=validation.results,
        unkept=_unkept(context, rows.decoder, untimed),
        untimed=untimed,
        decoded_singly=sum(observed.slow.values()),
    )


def _properties(source: _Source, dead_letters_before: TableState | None) -> dict[str, str]:
    """Return the snapshot properties of the commit, beside position and run."""
    context, plan, state = source.context, source.plan, source.state
    properties = {LOSSES: losses_to_json(plan.named_losses)} if plan.losses else {}
    if plan.resets:
        properties[RESET] = context.run_id
    if state.adopted:
        properties[ADOPTED] = str(state.adopted)
    if plan.adopted_from is not None:
        writer, rows = plan.adopted_from
        properties |= {ADOPTED_FROM: writer, ADOPTED: str(rows)}
    has_obsolete = plan.replays_dead_letters or (
        dead_letters_before is not None and known_dead_letters(context, plan, dead_letters_before) is not None
    )
    # Rows of upsert tables and histories don't name all their records, so they can't be compared with dead letters.
    if has_obsolete and not (context.spec.is_keyed and plan.appends):
        properties[UNRECONCILED] = context.run_id
    return properties


def _stage_without(
    source: _Source, before: StagedRows, refused: Refused, properties: Mapping[str, str], undo: ExitStack
) -> StagedRows:
    """Write the rows once more, without those that rules refuse."""
    undo.close()
    rows = _stage_rows(source.unwritten(), before.decoder, properties, undo, refused=refused)
    has_same_rows = rows.primary.rows + len(refused) == before.primary.rows
    if not has_same_rows or rows.counts["failed"] != before.counts["failed"] + len(refused):
        raise AuditFailedError(
            f"Topic {source.context.spec.topic}: rules refuse {len(refused)} of {before.primary.rows} rows, but "
            f"{rows.primary.rows} were staged without them.",
            "Nothing was published. A transform must return the same rows for the same records; without a transform "
            "this is a bug in kafka_lake: please report it.",
        )
    return replace(rows, left_out=before.left_out)


def _stage_rows(
    source: _Source,
    decoder: Decoder,
    properties: Mapping[str, str],
    undo: ExitStack,
    refused: Refused | None = None,
) -> StagedRows:
    """Write the rows; write them again if they show columns that the table needs and lacks."""
    context, state, spec = source.context, source.state, source.context.spec
    may_stop = decoder.fixed is None and spec.adds_columns and not spec.is_keyed
    for _ in range(_PASSES):
        plan, left_out = context.decoding.evolve_table(spec, state, decoder, source.records)
        if source.written is not None and not source.written.fits(plan.target, state):
            source = source.unwritten()
        batch = Batch(
            spec,
            context.connections.spark(),
            state,
            source.plan,
            records=source.records,
            decoder=decoder,
            target=plan.target,
            refused=refused,
            may_stop=may_stop,
        )
        with ExitStack() as attempt:
            staging = _Staging(source, batch, plan, {**properties, **decoder.snapshot_properties()}, undo=attempt)
            written = staging.merge() if spec.is_keyed else staging.write()
            learned = decoder.learn(written.counts.get(OBSERVED, NOTHING), source.records, plan.target)
            new_plan, has_changed = plan, False
            if learned is not None:
                new_plan = plan_schema(spec, learned.decoder, state)
                refuse_changes(spec, new_plan.refused)
                has_changed = learned.again or new_plan.target != plan.target
                decoder = learned.decoder
            if not has_changed and not (isinstance(written, Written) and written.has_stopped):
                rows = staging.append(written) if isinstance(written, Written) else written
                context.observer.step_done("table staged")
                undo.push(attempt.pop_all())
                return replace(rows, decoder=decoder, plan=new_plan, left_out=left_out)
        # A pass that stopped early for columns that the policy refuses is repeated to its end.
        may_stop = may_stop and has_changed
        source = source.unwritten()
    raise TableError(
        f"Topic {spec.topic}: after {_PASSES} passes over the same records table {context.table_name} still "
        "lacks columns for some of their fields.",
        "This is a bug in kafka_lake: please report it. Until then, set evolution: ignore_new, or declare "
        "the columns with columns:.",
    )


@dataclass(frozen=True)
class _Staging:
    """One pass over a batch.

    Args:
        properties: Snapshot properties beside position and run.
        undo: Gets callbacks that remove what was written and staged.
    """

    source: _Source
    batch: Batch
    schema: SchemaPlan
    properties: Mapping[str, str]
    undo: ExitStack
    files: ExitStack = field(default_factory=ExitStack)

    def write(self) -> Written:
        """Write the rows to data files that are in no snapshot yet."""
        source, plan = self.source, self.batch.plan
        if source.written is not None and (files := source.written.take()) is not None:
            written = files
        elif plan.share is not None and not plan.share.records and not plan.deletes:
            # The commit moves only the position: Spark needn't look for rows.
            written = nothing_written(self.batch.records)
        else:
            written = source.context.decoding.write(self.batch, source.held)
        self.undo.enter_context(self.files)
        self.files.callback(written.delete_files, self.batch.state.table)
        return written

    def append(self, written: Written) -> StagedRows:
        """Append data files as a snapshot on a new branch."""
        branch, plan = self._branch(), self.batch.plan
        base, properties = self.batch.state.head, {**self.properties, **written.properties}
        if plan.deletes:
            deleted = delete_replaced(self.source.context, branch, plan)
            base, properties = deleted or base, properties | removes_property(deleted)
        refused = {result.rule.name: result.failed for result in written.rules or () if result.refuses_rows}
        branch.append(written.files, self._summary(properties, refused))
        primary = staged_table(branch, base, self.batch.state, written)
        # From now on, the files are deleted with the branch.
        self.files.pop_all()
        return StagedRows(
            primary, written.counts, written.with_errors, self.batch.decoder, plan=self.schema, classes=written.classes
        )

    def merge(self) -> StagedRows:
        """Merge change events into a new branch as one snapshot."""
        context, batch, plan = self.source.context, self.batch, self.batch.plan
        spec, topic_id = context.spec, plan.after.identity.topic_id
        decoder = batch.decoder.of_partitions(len(plan.after.offsets))
        branch, tasks = self._branch(), tasks_of(plan, batch.spark)
        # Decoding starts Python once for each partition of the records, so they are coalesced before it.
        events = context.decoding.decode(
            spec, decoder, batch.target, batch.records.coalesce(tasks), topic_id=topic_id, refused=batch.refused
        )
        # The decoder of undecodable records knows no key.
        key = decoder.key_in(batch.target) or key_columns(spec, batch.state.table)
        change_batch = ChangeBatch(
            context=context,
            plan=plan,
            state=batch.state,
            branch=branch,
            events=events.rows,
            columns=batch.spark.table(context.connections.catalog.spark_name(spec.identifier)).schema,
            key=key,
            topic_id=topic_id,
            summary=self._summary(self.properties),
            tasks=tasks,
            failed=lambda: int(events.counts()["failed"]),
            declared=decoder.fixed is not None,
        )
        merged = write_history(change_batch) if spec.has_versions else write_upserts(change_batch, self.undo)
        primary, deletes, result = merged
        counts = events.counts()
        missing, refused = result.missing_values, result.validation.refused
        counts["failed"] += len(missing) + (len(refused) if refused else 0)

        def with_errors() -> DataFrame:
            records = with_missing_errors(events.with_errors(), batch.spark, missing)
            return records if refused is None else refused.set_apart(records)

        return StagedRows(
            primary,
            counts,
            with_errors,
            batch.decoder,
            plan=self.schema,
            validation=result.validation,
            deletes=deletes,
            merge_result=result,
        )

    def _branch(self) -> StagingBranch:
        context, state = self.source.context, self.batch.state
        assert state.head is not None, "ensure_table gives every table a first snapshot"
        catalog, name = context.connections.catalog, branch_name(context.run_id, state.head)
        branch = StagingBranch(
            self.batch.spark, catalog, context.spec.identifier, name, head=state.head, table=state.table
        )
        branch.create()
        self.undo.callback(branch.discard)
        return branch

    def _summary(self, properties: Mapping[str, str], refused: Mapping[str, int] | None = None) -> dict[str, str]:
        """Return the snapshot's summary; ``refused`` are dead letters by rule."""
        plan, before = self.batch.plan, self.batch.refused.by_rule if self.batch.refused is not None else {}
        replayed = plan.deletes if plan.replaces else ()
        return {
            **positions_summary(plan.after, self.batch.state.others),
            **author_summary(self.source.context.run_id, plan.kind, replayed),
            **properties,
            **refused_mark({**before, **(refused or {})}),
        }


def with_unmatched(rows: StagedRows, unmatched: DataFrame, *, also_none: bool) -> StagedRows:
    """Add records that no table takes to the dead letters of staged rows."""
    failed = decoded(unmatched, Unreadable(_UNMATCHED, UNMATCHED, also_none), rows.plan.target)
    counts, more = dict(rows.counts), failed.agg(*batch_metrics()).collect()[0].asDict()
    # These records show no columns of the table.
    more.pop(OBSERVED)
    for name, count in more.items():
        known = [value for value in (counts.get(name), count) if value is not None]
        combine = {"oldest_ms": min, "newest_ms": max}.get(name, sum)
        counts[name] = combine(known) if known else None

    def with_errors() -> DataFrame:
        return rows.with_errors().unionByName(failed.drop(OBSERVED), allowMissingColumns=True)

    return replace(rows, counts=counts, with_errors=with_errors, classes=None)


def _stage_dead_letters(
    source: _Source, staged: StagedRows, undo: ExitStack, before: TableState | None, *, rules_fail: bool
) -> _DeadLetters:
    """Write the failed records to a branch of the dead-letter table, if the topic has one."""
    context, plan, spec = source.context, source.plan, source.context.spec
    if not staged.counts["failed"] and not _has_obsolete(source, before):
        return _DeadLetters()
    rows = context.decoding.dead_letters(staged.with_errors(), context.run_id, plan.after.identity.topic_id)
    table, known = None, 0
    if not plan.replays_dead_letters and spec.keeps_dead_letters and not rules_fail:
        table, known = stage_dead_letters(
            context, plan, rows, primary=staged.primary, records=source.records, routed=source.routed
        )
        if table is not None:
            undo.callback(table.branch.discard)
        context.observer.step_done("dead letters staged")
    classes = () if known else staged.classes or ()
    if not classes:
        added = rows if table is None or known else added_rows(context, spec.dead_letter_table, table)
        classes = context.decoding.classes(added)
    return _DeadLetters(rows, table, known, tuple(_redacted(part, spec) for part in classes))


def _redacted(of: DeadLetterClass, spec: TopicTable) -> DeadLetterClass:
    message, value = (quoted(text, spec.samples, spec.mask) for text in (of.message, of.value))
    return replace(of, message=message, value=value, topic=spec.topic)


def _has_obsolete(source: _Source, before: TableState | None) -> bool:
    """Return whether the plan reads dead letters again that may be rows by now."""
    context, plan = source.context, source.plan
    may_be = may_be_obsolete(context, plan) or source.routed is not None
    if before is None or not context.spec.keeps_dead_letters or not may_be:
        return False
    return known_dead_letters(context, plan, before) is not None


def _unkept(context: Context, decoder: Decoder, untimed: int) -> dict[str, str]:
    """Return values of the records that are in no column, by path, without excluded fields."""
    spec = context.spec
    unkept = {path: why for path, why in decoder.not_stored().items() if path.split(".")[0] not in spec.except_columns}
    if untimed:
        path = f"{METADATA_COLUMN}.timestamp"
        unkept[path] = without_time(untimed)
    return unkept
