"""Stage: one Iceberg write per table to a branch made at the head of `main`; the position rides in its summary."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from kafka_lake.common.offsets import losses_to_json
from kafka_lake.common.record_times import without_time
from kafka_lake.errors import AuditFailedError, TableError
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.unreconciled import UNRECONCILED
from kafka_lake.ingest.decode.dead_letter_class import DeadLetterClass
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decoding import SchemaPlan
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.rules.result import Refused
from kafka_lake.ingest.stage.arrow_tables import Prewritten
from kafka_lake.ingest.stage.batch import CLASSES, DELETES, KEYED, Batch, WrittenBatch
from kafka_lake.ingest.stage.dead_letter_rows import (
    added_rows,
    known_dead_letters,
    may_be_obsolete,
    stage_dead_letters,
)
from kafka_lake.ingest.stage.expired_rows import leave_out_expired
from kafka_lake.ingest.stage.judge import judge
from kafka_lake.ingest.stage.replaced_rows import keep_what_vanished
from kafka_lake.ingest.stage.schema_plan import may_bring_columns, plan_schema, refuse_changes
from kafka_lake.ingest.stage.staged import Staged, StagedTable, Vanished
from kafka_lake.ingest.stage.unmatched_rows import with_unmatched
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import branch_name
from kafka_lake.lake.positions import ADOPTED, ADOPTED_FROM, LOSSES, RESET, TableState
from kafka_lake.lake.schema import Change

# The first shows new fields, the second what is in fields that records have got since, the third that all is well.
_PASSES = 8


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
    """Decode the records and write rows and dead letters to branches of their tables.

    Args:
        state: The table as the plan saw it; the branch starts at its head.
        plan: Its position goes into the snapshot's summary.
        held: Gets what lets Spark forget what it keeps for the commit.
        dead_letters_before: The dead-letter table as the plan saw it; None if there is none.
        others: Gives what names the plan's records that go to other tables; None if there are none.
        written: The rows, if they have been written together with those of other tables.
        unmatched: Other records of the plan, which become dead letters of the table since no table takes them, lazy.

    Returns:
        What was staged. ``main`` of every table is as it was.

    Raises:
        SchemaRefusedError: If the rows' schema doesn't fit the table's and the change is not safe, or not allowed by
            the topic's policy. Nothing is staged any more.
        RegistryError: If a schema registry is needed and doesn't answer. Nothing is staged any more.
        PublishRefusedError: If others changed the table so much that the branch is not what was begun.
    """
    context = replace(context, spec=may_bring_columns(context.spec, state))
    decoder = context.decoding.decoder(context.spec, context.connections, state)
    if plan.undecodable is not None:
        decoder = context.decoding.unreadable(context.spec, plan.undecodable)
        # There are no rows, and without a transform the columns are those of the table.
        context = replace(context, spec=replace(context.spec, transform=None))
    source = _Source(context, state, plan, records, others=others, written=written)
    marks = _marks(source, dead_letters_before)
    with ExitStack() as undo:
        rows = _stage_rows(source, decoder, marks, undo)
        verdict = rows.batch.verdict
        if verdict is None:
            verdict = judge(context, plan, rows.batch.primary, declared=rows.decoder.fixed is not None)
        if verdict.refused is not None and rows.batch.verdict is None:
            rows = _stage_without(source, rows, verdict.refused, marks=marks, undo=undo)
        if unmatched is not None:
            also_none = context.spec.write != "append"
            batch = with_unmatched(rows.batch, unmatched, rows.plan.target, also_none=also_none)
            rows = replace(rows, batch=batch)
            source = replace(source, records=source.records.unionByName(unmatched))
        is_refused = any(each.fails for each in verdict.results)
        failed = _stage_failed(source, rows.batch, undo, before=dead_letters_before, is_refused=is_refused)
        primary, vanished = rows.batch.primary, tuple[Vanished, ...]()
        # Nothing goes from a keyed table because it is read again.
        if plan.kind == "replace" and context.spec.write == "append":
            primary, vanished = keep_what_vanished(
                context,
                plan,
                primary,
                [each for each in (failed.rows, others() if others else None) if each is not None],
            )
            primary = leave_out_expired(context, plan, primary)
            if failed.table is not None:
                failed = replace(failed, table=leave_out_expired(context, plan, failed.table))
        undo.pop_all()
        held.callback(rows.batch.release)
    counts, untimed = rows.batch.counts, int(rows.batch.counts.get("untimed", 0))
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
        schemas=rows.decoder.seen(counts),
        oldest_ms=counts.get("oldest_ms"),
        newest_ms=counts.get("newest_ms"),
        bytes_read=counts["bytes_read"],
        deletes=counts.get(DELETES),
        keyed=counts.get(KEYED),
        rules=verdict.results,
        unkept={**_unkept(context.spec, rows.decoder), **_untimed(context.spec, untimed)},
        untimed=untimed,
    )


@dataclass(frozen=True)
class _Source:
    """What is staged: the records of a plan, for a table as it was; and what names those of other tables."""

    context: Context
    state: TableState
    plan: Plan
    records: DataFrame
    others: Callable[[], DataFrame] | None = None
    written: Prewritten | None = None

    def unwritten(self) -> "_Source":
        """Return the same where nothing is written yet."""
        return self if self.written is None else replace(self, records=self.written.again(), written=None)


@dataclass(frozen=True)
class _StagedRows:
    """The rows of a batch on their branch, and by which columns they were decoded.

    Args:
        decoder: Knows all that the records showed.
        left_out: Columns that the topic's policy leaves out of the table.
    """

    batch: WrittenBatch
    decoder: Decoder
    plan: SchemaPlan
    left_out: tuple[Change, ...]


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


def _marks(source: _Source, dead_letters_before: TableState | None) -> dict[str, str]:
    """Return what the snapshot's summary tells of the commit, beside position and run."""
    context, plan = source.context, source.plan
    marks: dict[str, str] = {}
    if plan.kind == "reset":
        marks[RESET] = context.run_id
    if source.state.adopted:
        marks[ADOPTED] = str(source.state.adopted)
    if plan.adopted_from is not None:
        who, rows = plan.adopted_from
        marks |= {ADOPTED_FROM: who, ADOPTED: str(rows)}
    if plan.losses:
        marks[LOSSES] = losses_to_json(plan.named_losses)
    may_be_obsolete = plan.kind == "dead_letter_replay" or (
        dead_letters_before is not None and known_dead_letters(context, plan, dead_letters_before) is not None
    )
    # The rows of keyed tables don't tell of each record, so they tell of no dead letter either.
    if may_be_obsolete and context.spec.write == "append" and context.spec.metadata_column:
        marks[UNRECONCILED] = context.run_id
    return marks


def _stage_without(
    source: _Source, before: _StagedRows, refused: Refused, marks: Mapping[str, str], undo: ExitStack
) -> _StagedRows:
    """Write the rows once more, without those that rules refuse."""
    undo.close()
    rows = _stage_rows(source.unwritten(), before.decoder, marks, undo, refused=refused)
    same_rows = rows.batch.primary.rows + len(refused) == before.batch.primary.rows
    if not same_rows or rows.batch.counts["failed"] != before.batch.counts["failed"] + len(refused):
        raise AuditFailedError(
            f"Topic {source.context.spec.topic}: rules refuse {len(refused)} of {before.batch.primary.rows} rows, but "
            f"{rows.batch.primary.rows} were staged without them.",
            "Nothing was published. A transform must give the same rows for the same records; without a transform "
            "that is a defect of kafka_lake: please report it.",
        )
    return replace(rows, left_out=before.left_out)


def _stage_rows(
    source: _Source, decoder: Decoder, marks: Mapping[str, str], undo: ExitStack, refused: Refused | None = None
) -> _StagedRows:
    """Write the rows, as often as they show columns that the table needs and doesn't have."""
    context, state = source.context, source.state
    for _ in range(_PASSES):
        name = branch_name(context.run_id, state.head or 0)
        plan, left_out = context.decoding.evolve_table(context.spec, state, decoder, source.records)
        if source.written is not None and not source.written.fits(plan.target, state):
            source = source.unwritten()
        batch = Batch(
            context=context,
            state=state,
            plan=source.plan,
            records=source.records,
            decoder=decoder,
            target=plan.target,
            branch=name,
            marks={**marks, **decoder.marks()},
            refused=refused,
            written=source.written.take() if source.written else None,
        )
        written = batch.write(undo)
        context.observer.step_done("primary staged")
        learned = decoder.learn(written.counts, source.records, plan.target)
        if learned is None:
            return _StagedRows(written, decoder, plan, left_out)
        wiser = plan_schema(context.spec, learned.decoder, state)
        refuse_changes(context.spec, wiser.refused)
        decoder = learned.decoder
        if not learned.again and wiser.target == plan.target:
            return _StagedRows(written, decoder, wiser, left_out)
        # The batch itself shows what was not known: give the table what that needs, and stage it again.
        undo.close()
        source = source.unwritten()
    raise TableError(
        f"Topic {context.spec.topic}: after {_PASSES} passes over the same records table {context.table_name} still "
        "lacks columns for some of their fields.",
        "That is a defect of kafka_lake: please report it. Set evolution: ignore_new, or declare the columns with "
        "columns:, to go on meanwhile.",
    )


def _stage_failed(
    source: _Source, batch: WrittenBatch, undo: ExitStack, before: TableState | None, *, is_refused: bool
) -> _Failed:
    """Write the records that became no row to a branch of the dead-letter table, if the topic has one.

    Nothing is written of a commit that a rule refuses: none of its records is a dead letter.
    """
    context, plan, spec = source.context, source.plan, source.context.spec
    if not batch.counts["failed"] and not _has_obsolete(source, before):
        return _Failed()
    rows = context.decoding.dead_letters(spec, batch.judged(), context.run_id, plan.after.identity.topic_id)
    table, known = None, 0
    if plan.kind != "dead_letter_replay" and spec.dead_letters == "table" and not is_refused:
        table, known = stage_dead_letters(
            context, plan, rows, primary=batch.primary, records=source.records, others=source.others
        )
        if table is not None:
            undo.callback(table.branch.discard)
        context.observer.step_done("dead letters staged")
    # Who decoded them may have counted them by class.
    classes = () if known else batch.counts.get(CLASSES, ())
    if not classes:
        added = rows if table is None or known else added_rows(context, spec.dead_letter_table, table)
        classes = context.decoding.classes(added)
    return _Failed(rows, table, known, tuple(each.shown(spec) for each in classes))


def _has_obsolete(source: _Source, before: TableState | None) -> bool:
    """Return whether the dead-letter table has some of what the plan reads, and may have it for no reason any more."""
    context, plan = source.context, source.plan
    may_be = may_be_obsolete(context, plan) or source.others is not None
    if before is None or context.spec.dead_letters != "table" or not may_be:
        return False
    return known_dead_letters(context, plan, before) is not None


def _unkept(spec: TopicTable, decoder: Decoder) -> dict[str, str]:
    """Return what was in the records and is in no column, but for what shall be in none."""
    return {path: said for path, said in decoder.unkept().items() if path.split(".")[0] not in spec.except_columns}


def _untimed(spec: TopicTable, count: int) -> dict[str, str]:
    if not count:
        return {}
    where = f"{spec.metadata_column}.timestamp" if spec.metadata_column else "Kafka's timestamp"
    return {where: without_time(count)}
