"""One commit: plan, read, decode, stage, audit, publish, report.

Exactly once rests on three things: the plan begins at the position of the head that the branch starts from, the
position is part of the snapshot that holds the rows, and publication is refused if the head has moved.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import Position
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.dead_letters.reconcile import reconcile
from kafka_lake.errors import TableError
from kafka_lake.formats.base import format_named
from kafka_lake.formats.table_compatibility import refuse_excepted, refuse_other_keys
from kafka_lake.ingest.audit import audit, schema_refused
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.publish import publish, refused_if_main_moved
from kafka_lake.ingest.read import Records, read_sample
from kafka_lake.ingest.report import report_commit
from kafka_lake.ingest.shared_read import TableReader
from kafka_lake.ingest.table_state import Tables, current_tables, tables_after, with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.by_value import as_properties
from kafka_lake.routing.conditions import new_tables_plan
from kafka_lake.runtime.commit import CheckFailedError, Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.schema_changes import SchemaRefusedError
from kafka_lake.writers.stage import stage
from kafka_lake.writers.staged import Staged


@dataclass(frozen=True)
class Done:
    """A commit, its plan, and the tables after it; None if they must be loaded first."""

    commit: Commit
    plan: Plan
    tables: Tables | None


@dataclass
class TableRun:
    """A table's part of a run: its inputs, and how far it has come.

    Args:
        reader: Reads the table's records of a topic with several tables; None if all records are the table's.
        position: The table's last known position; None if it has none.
        cut: Shortens a plan to what one commit may read.
        failed_so_far: Dead letters and records of the run.
        created: Tables that were created for the next commit.
        decoding: The plan whose records are being decoded and staged; one of them may be the cause of an error.
        passed: The last plan, if none of its records are for the table.
    """

    context: Context
    job: Job
    topic: TopicEnds
    reader: TableReader | None
    position: Position | None
    cut: Callable[[Plan, Table | None], Plan]
    failed_so_far: tuple[int, int] = (0, 0)
    created: set[tuple[str, str]] = field(default_factory=set)
    decoding: Plan | None = None
    passed: Plan | None = None


def commit(run: TableRun) -> Done | None:
    """Make the next commit that a job asks for; None if there is nothing to commit."""
    context, job = run.context, run.job
    context.timings.start()
    tables = _tables(run)
    plan = _plan(run, tables)
    if plan is None:
        return None
    context.timings.finish("plan")
    run.decoding = plan
    records = job.records(plan, run.reader)
    if records is None:
        run.passed, run.decoding = plan, None
        return None
    if tables.table is None or tables.table.head is None:
        _create_table(run, tables, records)
        return commit(run)
    records = _with_table_properties(context, tables.table, records)
    with ExitStack() as cached:
        with refused_if_main_moved(context, tables.table):
            staged = _decode_and_stage(context, tables, records, cached)
            run.decoding = None
            audited = audit(context, records.plan, staged, run.failed_so_far)
            published = publish(context, tables, audited, records.table_properties)
        if not records.new_tables:
            job.published(published.staged)
    if records.new_tables:
        _announce_new_tables(context, records)
        return commit(run)
    return Done(report_commit(context, records, published), plan, tables_after(context, tables, published.staged))


def _tables(run: TableRun) -> Tables:
    """Return the current tables: dead letters reconciled, and the position recovered if no snapshot has it."""
    context, job, reader = run.context, run.job, run.reader
    tables = (reader.take_tables() if reader else None) or current_tables(context)
    if reader is not None:
        reader.note_table(tables.table)
    if tables.table is not None:
        refuse_other_keys(context.spec, tables.table.table)
        refuse_excepted(context.spec, tables.table.table)
    if tables.dead_letters and tables.table and pending_reconciliation(tables.table, tables.dead_letters):
        reconcile(context)
        tables = current_tables(context)
    if tables.table is not None:
        state = with_position(
            context, run.topic, tables.table, required=job.position_required, sought=job.position_sought
        )
        tables = replace(tables, table=state)
    run.position, run.decoding = tables.table.position if tables.table else None, None
    return tables


def _plan(run: TableRun, tables: Tables) -> Plan | None:
    """Return the job's next plan, no longer than one commit may be."""
    state, topic, reader = tables.table, run.topic, run.reader
    if state and state.position and topic.is_behind(state.position):
        # Another run has read records that arrived after this run polled the topic.
        topic.poll()
    if reader is not None:
        reader.note_watermarks(topic.now)
    if reader is not None and reader.moves_position_only:
        plan = reader.position_plan(state)
        run.context.observer.step_done("planned")
        return topic.remembered(plan) if plan else None
    plan = run.job.plan(topic, reader.ahead(state) if reader else state)
    run.context.observer.step_done("planned")
    if plan is not None and reader is not None:
        plan = reader.cut(reader.with_passed(plan, state))
    return topic.remembered(run.cut(plan, state.table if state else None)) if plan else None


def _create_table(run: TableRun, tables: Tables, records: Records) -> None:
    """Create the table with the columns of a sample, or of all records if the sample doesn't show them."""
    context, plan = run.context, records.plan
    if tables.table is None:
        catalog = context.connections.catalog
        run.created |= {name for name in context.spec.identifiers if catalog.table(name) is None}
    # Without decodable records, the columns come with later ones.
    has_none = plan.undecodable is not None or (plan.share is not None and not plan.share.records)
    sample = None
    infers = format_named(context.spec.format).infers_columns and context.spec.adds_columns
    if infers and plan.reads_ranges and plan.share is None:
        # Columns that the sample lacks are added later, as the evolution policy allows.
        sample = read_sample(context.connections, plan, context.spec.topic)
    try:
        context.decoding.create_table(
            context.spec, context.connections, records.frame if sample is None else sample, has_none
        )
    except TableError:
        if sample is None and (run.reader is None or has_none):
            raise
        context.decoding.create_table(context.spec, context.connections, records.frame, run.reader is not None)
    context.observer.step_done("table created")
    run.decoding = None


def _with_table_properties(context: Context, state: TableState, records: Records) -> Records:
    """Return a commit that only records new tables of values, if there are any: later plans must know them."""
    if not records.new_tables:
        return records
    assert context.spec.route_by is not None, "only tables_by makes new tables"
    plan = new_tables_plan(state, records.plan)
    properties = as_properties(context.spec.route_by, records.new_tables, plan.after.offsets)
    return replace(records, plan=plan, table_properties=properties)


def _announce_new_tables(context: Context, records: Records) -> None:
    names = ", ".join(f"{namespace}.{table}" for _, namespace, table in records.new_tables)
    context.observer.warn(
        f"Topic {context.spec.topic}: new values get tables: {names}. They become assets once `kafka-lake topics "
        "refresh` has run and the definitions load again."
    )
    context.observer.step_done("new tables recorded")


def _decode_and_stage(context: Context, tables: Tables, records: Records, cached: ExitStack) -> Staged:
    assert tables.table is not None, "the table has been created"
    try:
        staged = stage(
            context,
            tables.table,
            records.plan,
            records.frame,
            held=cached,
            dead_letters_before=tables.dead_letters,
            others=records.other_tables,
            written=records.written,
            unmatched=records.unmatched,
        )
    except SchemaRefusedError as error:
        raise CheckFailedError(error.message, [schema_refused(error)], error.remedy, context.spec.identifier) from error
    context.timings.finish("stage")
    return staged
