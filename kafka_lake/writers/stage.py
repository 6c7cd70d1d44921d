"""Stage: the rows of a commit on a branch made at the head of `main`; the position is in the snapshot's summary.

Writing gives data files. Only when the records show no further columns are the files put into a snapshot.
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
from kafka_lake.cdc.changes import Changes
from kafka_lake.common.offsets import losses_to_json
from kafka_lake.common.records import without_time
from kafka_lake.dead_letters.pending import UNRECONCILED
from kafka_lake.errors import AuditFailedError, TableError
from kafka_lake.formats import UNMATCHED
from kafka_lake.formats.decoder import Decoder, Unreadable, batch_metrics, decoded
from kafka_lake.formats.key_columns import key_columns
from kafka_lake.formats.task.batches import OBSERVED
from kafka_lake.formats.task.decoded import NOTHING
from kafka_lake.quality.result import Refused, refused_mark
from kafka_lake.quality.validation import ValidationResult
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.dead_letter_class import DeadLetterClass
from kafka_lake.runtime.decode_options import Batch, SchemaPlan, Written
from kafka_lake.runtime.plan import Plan
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.append import nothing_written
from kafka_lake.writers.append_tables import Prewritten
from kafka_lake.writers.dead_letters import (
    added_rows,
    known_dead_letters,
    may_be_obsolete,
    stage_dead_letters,
)
from kafka_lake.writers.frames import tasks_of
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.history.write import write_versions
from kafka_lake.writers.replay import delete_replaced, keep_what_vanished, leave_out_expired
from kafka_lake.writers.rules import check_rows
from kafka_lake.writers.schema_changes import may_bring_columns, plan_schema, refuse_changes
from kafka_lake.writers.staged import Staged, StagedTable, Vanished, staged_table
from kafka_lake.writers.upsert.batch import ChangeBatch
from kafka_lake.writers.upsert.deduplicate import with_not_sent
from kafka_lake.writers.upsert.merge import UpsertResult
from kafka_lake.writers.upsert.write import write_upserts

# The first shows new fields, the second what is in fields that records have got since, the third that all is well.
_PASSES = 8
_NO_TABLE = "No table takes it, and unmatched is dead_letter."


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
        # There are no rows, and without a transform the columns are those of the table.
        context = replace(context, spec=replace(context.spec, transform=None))
    source = _Source(context, state, plan, records, held=held, others=others, written=written)
    properties = _properties(source, dead_letters_before)
    with ExitStack() as undo:
        rows = _stage_rows(source, decoder, properties, undo)
        verdict = rows.verdict
        if verdict is None:
            verdict = check_rows(context, plan, rows.primary, declared=rows.decoder.fixed is not None)
        if verdict.refused is not None and rows.verdict is None:
            rows = _stage_without(source, rows, verdict.refused, properties=properties, undo=undo)
        if unmatched is not None:
            rows = with_unmatched(rows, unmatched, also_none=context.spec.write != "append")
            source = replace(source, records=source.records.unionByName(unmatched))
        is_refused = any(result.fails for result in verdict.results)
        failed = _stage_failed(source, rows, undo, before=dead_letters_before, is_refused=is_refused)
        primary, vanished = rows.primary, tuple[Vanished, ...]()
        # Nothing goes from a keyed table because it is read again.
        if plan.kind == "replace" and context.spec.write == "append":
            primary, vanished = keep_what_vanished(
                context,
                plan,
                primary,
                [frame for frame in (failed.rows, others() if others else None) if frame is not None],
            )
            primary = leave_out_expired(context, plan, primary)
            if failed.table is not None:
                failed = replace(failed, table=leave_out_expired(context, plan, failed.table))
        undo.pop_all()
    counts, untimed = rows.counts, int(rows.counts.get("untimed", 0))
    observed = rows.counts.get(OBSERVED, NOTHING)
    return Staged(
        primary=primary,
        dead_letters=failed.table,
        records=counts["records"],
        tombstones=counts["tombstones"],
        failed=counts["failed"],
        known_failed=failed.known,
        classes=failed.classes,
        vanished=vanished,
        failed_rows=failed.rows,
        ignored=(*rows.plan.ignored, *rows.left_out),
        conflicts=rows.plan.conflicts,
        schemas=rows.decoder.schema_counts(observed),
        oldest_ms=counts.get("oldest_ms"),
        newest_ms=counts.get("newest_ms"),
        bytes_read=counts["bytes_read"],
        deletes=rows.deletes,
        keyed=rows.keyed,
        rules=verdict.results,
        unkept={**_unkept(context.spec, rows.decoder), **_untimed(context.spec, untimed)},
        untimed=untimed,
        decoded_singly=sum(observed.slow.values()),
    )


@dataclass(frozen=True)
class _Source:
    """What is staged: the records of a plan, for a table as it was; and the ids of those of other tables."""

    context: Context
    state: TableState
    plan: Plan
    records: DataFrame
    held: ExitStack
    others: Callable[[], DataFrame] | None = None
    written: Prewritten | None = None

    def unwritten(self) -> "_Source":
        """Return the same where nothing is written yet."""
        return self if self.written is None else replace(self, records=self.written.again(), written=None)


@dataclass(frozen=True)
class StagedRows:
    """The rows of a batch on their branch, and by which columns they were decoded.

    Args:
        counts: The batch's metrics.
        with_errors: Gives the records with ``error_class`` and ``error_message``, or only those that failed, lazy.
        decoder: Knows all that the records showed.
        left_out: Columns that the topic's policy leaves out of the table.
        classes: The failed records by class; None if they haven't been counted by class.
        verdict: Of the rules, if they have been checked and what they refuse is left out already.
        deletes: The staged table of deleted keys; None if there is none.
        keyed: What became of the changes; None for a table that is appended to.
    """

    primary: StagedTable
    counts: Mapping[str, Any]
    with_errors: Callable[[], DataFrame]
    decoder: Decoder
    plan: SchemaPlan
    left_out: tuple[Change, ...] = ()
    classes: tuple[DeadLetterClass, ...] | None = None
    verdict: ValidationResult | None = None
    deletes: StagedTable | None = None
    keyed: UpsertResult | HistoryResult | None = None


@dataclass(frozen=True)
class _Failed:
    """The records that became no row.

    Args:
        rows: As rows of the dead-letter table, lazy; None if there are none.
        table: The dead-letter table, None if there is nothing new for it.
        known: How many of them it has already.
        classes: All of them by class.
    """

    rows: DataFrame | None = None
    table: StagedTable | None = None
    known: int = 0
    classes: tuple[DeadLetterClass, ...] = ()


def _properties(source: _Source, dead_letters_before: TableState | None) -> dict[str, str]:
    """Return snapshot properties that describe the commit, beside position and run."""
    context, plan = source.context, source.plan
    properties: dict[str, str] = {}
    if plan.kind == "reset":
        properties[RESET] = context.run_id
    if source.state.adopted:
        properties[ADOPTED] = str(source.state.adopted)
    if plan.adopted_from is not None:
        who, rows = plan.adopted_from
        properties |= {ADOPTED_FROM: who, ADOPTED: str(rows)}
    if plan.losses:
        properties[LOSSES] = losses_to_json(plan.named_losses)
    may_be_obsolete = plan.kind == "dead_letter_replay" or (
        dead_letters_before is not None and known_dead_letters(context, plan, dead_letters_before) is not None
    )
    # The rows of keyed tables don't say which record they were, so they show no obsolete dead letters.
    if may_be_obsolete and context.spec.write == "append" and context.spec.metadata_column:
        properties[UNRECONCILED] = context.run_id
    return properties


def _stage_without(
    source: _Source, before: StagedRows, refused: Refused, properties: Mapping[str, str], undo: ExitStack
) -> StagedRows:
    """Write the rows once more, without those that rules refuse."""
    undo.close()
    rows = _stage_rows(source.unwritten(), before.decoder, properties, undo, refused=refused)
    same_rows = rows.primary.rows + len(refused) == before.primary.rows
    if not same_rows or rows.counts["failed"] != before.counts["failed"] + len(refused):
        raise AuditFailedError(
            f"Topic {source.context.spec.topic}: rules refuse {len(refused)} of {before.primary.rows} rows, but "
            f"{rows.primary.rows} were staged without them.",
            "Nothing was published. A transform must give the same rows for the same records; without a transform "
            "that is a defect of kafka_lake: please report it.",
        )
    return replace(rows, left_out=before.left_out)


def _stage_rows(
    source: _Source,
    decoder: Decoder,
    properties: Mapping[str, str],
    undo: ExitStack,
    refused: Refused | None = None,
) -> StagedRows:
    """Write the rows, again if they show columns that the table needs and doesn't have."""
    context, state, spec = source.context, source.state, source.context.spec
    may_stop = decoder.fixed is None and spec.evolution == "evolve" and not spec.is_keyed
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
            wiser, changed = plan, False
            if learned is not None:
                wiser = plan_schema(spec, learned.decoder, state)
                refuse_changes(spec, wiser.refused)
                changed = learned.again or wiser.target != plan.target
                decoder = learned.decoder
            if not changed and not (isinstance(written, Written) and written.has_stopped):
                rows = staging.append(written) if isinstance(written, Written) else written
                context.observer.step_done("primary staged")
                undo.push(attempt.pop_all())
                return replace(rows, decoder=decoder, plan=wiser, left_out=left_out)
        # The batch shows columns that the table lacks: add them, and write it again. A pass that stopped early for
        # columns that the policy refuses is made to its end.
        may_stop = may_stop and changed
        source = source.unwritten()
    raise TableError(
        f"Topic {spec.topic}: after {_PASSES} passes over the same records table {context.table_name} still "
        "lacks columns for some of their fields.",
        "That is a defect of kafka_lake: please report it. Set evolution: ignore_new, or declare the columns with "
        "columns:, to go on meanwhile.",
    )


@dataclass(frozen=True)
class _Staging:
    """One pass over a batch: data files that become a snapshot, or changes that are merged.

    Args:
        schema: The columns that the batch is decoded into.
        properties: Snapshot properties that describe the commit, beside position and run.
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
        if source.written is not None:
            written = source.written.take()
        elif plan.share is not None and not plan.share.records and not plan.deletes:
            # The commit moves the position alone: Spark needn't look for rows.
            written = nothing_written(self.batch.records)
        else:
            written = source.context.decoding.write(self.batch, source.held)
        self.undo.enter_context(self.files)
        self.files.callback(written.delete_files, self.batch.state.table)
        return written

    def append(self, written: Written) -> StagedRows:
        """Put data files into a snapshot on a new branch."""
        branch, plan = self._branch(), self.batch.plan
        base, properties = self.batch.state.head, {**self.properties, **written.properties}
        if plan.deletes:
            gone = delete_replaced(self.source.context, branch, plan)
            base, properties = gone or base, properties | removes_property(gone)
        refused = {result.rule.name: result.failed for result in written.rules or () if result.refuses_rows}
        branch.append(written.files, self._summary(properties, refused))
        primary = staged_table(branch, base, self.batch.state, written)
        # From now on, they go with the branch.
        self.files.pop_all()
        return StagedRows(
            primary, written.counts, written.with_errors, self.batch.decoder, plan=self.schema, classes=written.classes
        )

    def merge(self) -> StagedRows:
        """Merge changes into a new branch as one snapshot."""
        context, batch, plan = self.source.context, self.batch, self.batch.plan
        spec, decoder, topic_id = context.spec, batch.decoder, plan.after.identity.topic_id
        branch, tasks = self._branch(), tasks_of(plan, batch.spark)
        if isinstance(decoder, Changes):
            decoder = decoder.of_partitions(len(plan.after.offsets))
        # Decoding starts Python once for each partition of the records: few tasks, before it, not behind it.
        changes = context.decoding.decode(
            spec, decoder, batch.target, batch.records.coalesce(tasks), topic_id=topic_id, refused=batch.refused
        )
        # Records that are set apart undecoded have no changes, and their decoder knows no keys.
        key = decoder.key_in(batch.target) if isinstance(decoder, Changes) else key_columns(spec, batch.state.table)
        write = write_versions if spec.write == "history" else write_upserts
        staged = write(
            ChangeBatch(
                context=context,
                plan=plan,
                state=batch.state,
                branch=branch,
                changes=changes.rows,
                key=key,
                topic_id=topic_id,
                summary=self._summary(self.properties),
                tasks=tasks,
                failed=lambda: int(changes.counts()["failed"]),
                declared=decoder.fixed is not None,
            ),
            self.undo,
        )
        counts, not_sent, verdict = changes.counts(), staged.batch.not_sent, staged.batch.verdict
        refused = verdict.refused
        counts["failed"] += len(not_sent) + (len(refused) if refused else 0)

        def with_errors() -> DataFrame:
            found = with_not_sent(changes.with_errors(), batch.spark, not_sent)
            return found if refused is None else refused.set_apart(found)

        return StagedRows(
            staged.primary,
            counts,
            with_errors,
            batch.decoder,
            plan=self.schema,
            verdict=verdict,
            deletes=staged.deletes,
            keyed=staged.batch,
        )

    def _branch(self) -> StagingBranch:
        context, state = self.source.context, self.batch.state
        assert state.head is not None, "ensure_table gives every table a first snapshot"
        branch = StagingBranch(
            spark=self.batch.spark,
            catalog=context.connections.catalog,
            identifier=context.spec.identifier,
            name=branch_name(context.run_id, state.head),
            head=state.head,
            table=state.table,
        )
        branch.create()
        self.undo.callback(branch.discard)
        return branch

    def _summary(self, properties: Mapping[str, str], refused: Mapping[str, int] | None = None) -> dict[str, str]:
        """Return the snapshot's summary."""
        plan, before = self.batch.plan, self.batch.refused.by_rule if self.batch.refused is not None else {}
        again = plan.deletes if plan.kind == "replace" else ()
        return {
            **positions_summary(plan.after, self.batch.state.others),
            **author_summary(self.source.context.run_id, plan.kind, again),
            **properties,
            **refused_mark({**before, **(refused or {})}),
        }


def with_unmatched(rows: StagedRows, unmatched: DataFrame, *, also_none: bool) -> StagedRows:
    """Return staged rows with other records as dead letters beside them."""
    failed = decoded(unmatched, Unreadable(_NO_TABLE, UNMATCHED, also_none), rows.plan.target)
    counts, more = dict(rows.counts), failed.agg(*batch_metrics()).collect()[0].asDict()
    # Nothing is learned from records that no table takes.
    more.pop(OBSERVED)
    for name, count in more.items():
        both = [each for each in (counts.get(name), count) if each is not None]
        join = {"oldest_ms": min, "newest_ms": max}.get(name, sum)
        counts[name] = join(both) if both else None

    def with_errors() -> DataFrame:
        return rows.with_errors().unionByName(failed.drop(OBSERVED), allowMissingColumns=True)

    return replace(rows, counts=counts, with_errors=with_errors, classes=None)


def _stage_failed(
    source: _Source, staged: StagedRows, undo: ExitStack, before: TableState | None, *, is_refused: bool
) -> _Failed:
    """Write the records that became no row to a branch of the dead-letter table, if the topic has one."""
    context, plan, spec = source.context, source.plan, source.context.spec
    if not staged.counts["failed"] and not _has_obsolete(source, before):
        return _Failed()
    rows = context.decoding.dead_letters(spec, staged.with_errors(), context.run_id, plan.after.identity.topic_id)
    table, known = None, 0
    if plan.kind != "dead_letter_replay" and spec.dead_letters == "table" and not is_refused:
        table, known = stage_dead_letters(
            context, plan, rows, primary=staged.primary, records=source.records, others=source.others
        )
        if table is not None:
            undo.callback(table.branch.discard)
        context.observer.step_done("dead letters staged")
    classes = () if known else staged.classes or ()
    if not classes:
        added = rows if table is None or known else added_rows(context, spec.dead_letter_table, table)
        classes = context.decoding.classes(added)
    return _Failed(rows, table, known, tuple(found.shown(spec) for found in classes))


def _has_obsolete(source: _Source, before: TableState | None) -> bool:
    """Return whether the dead-letter table has records that the plan reads again and that may be rows by now."""
    context, plan = source.context, source.plan
    may_be = may_be_obsolete(context, plan) or source.others is not None
    if before is None or context.spec.dead_letters != "table" or not may_be:
        return False
    return known_dead_letters(context, plan, before) is not None


def _unkept(spec: TopicTable, decoder: Decoder) -> dict[str, str]:
    """Return what was in the records and is in no column, without excluded fields."""
    return {path: why for path, why in decoder.not_stored().items() if path.split(".")[0] not in spec.except_columns}


def _untimed(spec: TopicTable, count: int) -> dict[str, str]:
    if not count:
        return {}
    where = f"{spec.metadata_column}.timestamp" if spec.metadata_column else "Kafka's timestamp"
    return {where: without_time(count)}
