"""One commit, the seven steps in a row: plan, read, decode and stage, audit, publish, report.

Exactly once rests on three things alone: the plan begins at the position of the very head that the branch starts from,
the position is part of the snapshot that holds the rows, and publication is refused if the head has moved.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.offsets import Position
from kafka_lake.common.records import without_time
from kafka_lake.dead_letters.pending import pending_reconciliation
from kafka_lake.dead_letters.reconcile import reconcile
from kafka_lake.errors import TableError
from kafka_lake.formats.excepted import refuse_excepted
from kafka_lake.formats.key_columns import refuse_other_keys
from kafka_lake.ingest.audit import schema_refused
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.publish import GateFailedError, Published, audit_and_publish, refused_if_main_moved
from kafka_lake.ingest.read import Records, read_sample
from kafka_lake.ingest.report import waited
from kafka_lake.ingest.shares import TableShare
from kafka_lake.ingest.table_state import Tables, left_by, tables, with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.by_value import as_properties
from kafka_lake.routing.conditions import telling
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.schema_changes import SchemaRefusedError
from kafka_lake.writers.stage import stage
from kafka_lake.writers.staged import Staged


@dataclass(frozen=True)
class Attempt:
    """What an attempt at a commit works with.

    Args:
        job: Gives the plan and the records.
        cut: Shortens a plan for the table to what one commit may read.
        failed_so_far: Dead letters and records of the run's commits before this one; the limit is for the whole run.
        position: The table's, as the run last knew it.
        share: Selects the table's records of a topic with several tables; None for all records.
    """

    context: Context
    job: Job
    topic: TopicEnds
    cut: Callable[[Plan, Table | None], Plan]
    failed_so_far: tuple[int, int]
    position: Position | None
    share: TableShare | None = None


@dataclass(frozen=True)
class Done:
    """A commit that was made by a plan, and the tables as it left them; None where only another look can tell."""

    commit: Commit
    plan: Plan
    left: Tables | None


@dataclass
class Outcome:
    """What came of an attempt; filled in step by step, so that an error leaves what was known before it.

    Args:
        position: The table's, as it was found; as the run last knew it, if the attempt failed before.
        created: Tables that were made for it.
        decoding: The plan whose records were being decoded and staged as it failed: one of them may be the reason.
        done: The commit; None if there was nothing to do, or the attempt failed.
        passed: The plan, if none of its records is for the table.
    """

    position: Position | None
    created: frozenset[tuple[str, str]] = frozenset()
    decoding: Plan | None = None
    done: Done | None = None
    passed: Plan | None = None
    error: Exception | None = None


def commit(attempt: Attempt) -> Outcome:
    """Make the next commit that a job asks for.

    The outcome's error is a `GateFailedError` if a check refused the commit; a `PublishRefusedError` if another writer
    moved ``main``, and the runner must plan again; another `KafkaLakeError` for anything else a user can mend. In each
    case ``main`` is as it was, and nothing staged is left.
    """
    outcome = Outcome(attempt.position)
    try:
        _commit(attempt, outcome)
    except Exception as error:
        outcome.error = error
    return outcome


def _commit(attempt: Attempt, outcome: Outcome) -> None:
    """Take the seven steps; begin again after a step that changed what the plan was made by."""
    context, job = attempt.context, attempt.job
    context.effort.begin()
    found: Tables = _find(attempt)
    outcome.position, outcome.decoding = found.table.position if found.table else None, None
    todo: Plan | None = _plan(attempt, found)
    if todo is None:
        return
    context.effort.done("plan")
    outcome.decoding = todo
    records: Records | None = job.records(todo, attempt.share)
    if records is None:
        outcome.passed, outcome.decoding = todo, None
        return
    if found.table is None or found.table.head is None:
        outcome.created |= _missing(context, found)
        _create(attempt, records)
        outcome.decoding = None
        return _commit(attempt, outcome)
    with ExitStack() as held:
        with refused_if_main_moved(context, found.table):
            if not records.new_tables:
                staged: Staged = _stage(context, found.table, found, records, held=held)
                context.effort.done("stage")
                outcome.decoding = None
                published: Published = audit_and_publish(
                    context, found, records.plan, staged, failed_so_far=attempt.failed_so_far
                )
            else:
                _name_new_tables(attempt, found, records, held)
        if records.new_tables:
            return _commit(attempt, outcome)
        job.published(published.staged)
    outcome.done = Done(_report(context, records, published), todo, left_by(context, found, published.staged))


def _find(attempt: Attempt) -> Tables:
    """Return the tables, dead letters reconciled and the position rebuilt where that is needed."""
    context, job = attempt.context, attempt.job
    found = (attempt.share.take_found() if attempt.share else None) or tables(context)
    if attempt.share is not None:
        attempt.share.knows(found.table)
    _refuse_other_tables(context, found.table)
    if found.dead_letters and found.table and pending_reconciliation(found.table, found.dead_letters):
        reconcile(context)
        found = tables(context)
    state = found.table
    if state is not None:
        state = with_position(context, attempt.topic, state, required=job.position_required, sought=job.position_sought)
    return Tables(state, found.dead_letters)


def _refuse_other_tables(context: Context, state: TableState | None) -> None:
    """Stop a run whose settings don't go with the tables that are there, before anything is changed."""
    if state is not None:
        refuse_other_keys(context.spec, state.table)
        refuse_excepted(context.spec, state.table)


def _plan(attempt: Attempt, found: Tables) -> Plan | None:
    position = found.table.position if found.table else None
    if position and attempt.topic.is_behind(position):
        # Another run has been further than this one could know when it began.
        attempt.topic.poll()
    share, state = attempt.share, found.table
    if share is not None:
        share.sees(attempt.topic.now)
    if share is not None and share.is_settling:
        settling = share.settling(state)
        attempt.context.observer.step_done("planned")
        return attempt.topic.remembered(settling) if settling else None
    todo = attempt.job.plan(attempt.topic, share.ahead(state) if share else state)
    attempt.context.observer.step_done("planned")
    if todo is not None and share is not None:
        todo = share.cut(share.whole(todo, state))
    if todo is None:
        return None
    return attempt.topic.remembered(attempt.cut(todo, state.table if state else None))


def _missing(context: Context, found: Tables) -> frozenset[tuple[str, str]]:
    if found.table is not None:
        return frozenset()
    return frozenset(each for each in context.spec.identifiers if context.connections.catalog.table(each) is None)


def _create(attempt: Attempt, records: Records) -> None:
    context, plan = attempt.context, records.plan
    # Where no record shows a column, the columns come with later ones.
    has_none = plan.undecodable is not None or (plan.share is not None and not plan.share.records)
    sample = _sample(context, plan)
    looked_at = records.frame if sample is None else sample
    try:
        context.decoding.create_table(context.spec, context.connections, looked_at, has_none)
    except TableError:
        if sample is None and (attempt.share is None or has_none):
            raise
        context.decoding.create_table(context.spec, context.connections, records.frame, attempt.share is not None)
    context.observer.step_done("table created")


def _sample(context: Context, plan: Plan) -> DataFrame | None:
    """Return records that show the columns of a new table; None if all of the plan's have to.

    What a sample lacks, the table gets as it does later, if its policy lets it.
    """
    spec = context.spec
    if spec.format != "json" or spec.is_keyed or spec.evolution != "evolve":
        return None
    if plan.kind not in ("append", "replace") or plan.share is not None:
        return None
    return read_sample(context.connections, plan, spec.topic)


def _name_new_tables(attempt: Attempt, found: Tables, records: Records, held: ExitStack) -> None:
    """Let the table name the tables that new values get, by a commit of its own: who plans from now on knows."""
    context, spec = attempt.context, attempt.context.spec
    assert found.table is not None, "it has been created"
    assert spec.route_by is not None, "only by it there are any"
    plan = telling(found.table, records.plan)
    properties = as_properties(spec.route_by, records.new_tables, plan.after.offsets)
    staged = _stage(context, found.table, found, replace(records, plan=plan), held=held)
    audit_and_publish(context, found, plan, staged, failed_so_far=attempt.failed_so_far, also=properties)
    names = ", ".join(f"{namespace}.{table}" for _, namespace, table in records.new_tables)
    context.observer.warn(
        f"Topic {spec.topic}: new values get tables: {names}. They become assets once `kafka-lake topics refresh` has "
        "run and the definitions load again."
    )
    context.observer.step_done("new tables told")


def _stage(context: Context, state: TableState, found: Tables, records: Records, held: ExitStack) -> Staged:
    """Stage what the table gets."""
    try:
        return stage(
            context,
            state,
            records.plan,
            records.frame,
            held=held,
            dead_letters_before=found.dead_letters,
            others=records.others,
            written=records.written,
            unmatched=records.unmatched,
        )
    except SchemaRefusedError as error:
        raise GateFailedError(error.message, [schema_refused(error)], error.remedy, context.spec.identifier) from error


def _report(context: Context, records: Records, published: Published) -> Commit:
    commit = _commit_of(records.plan, published)
    if commit.untimed:
        context.observer.warn(f"Topic {context.spec.topic}: {without_time(commit.untimed)}.")
    return replace(commit, ignored=records.ignored, without_table=records.without_table)


def _commit_of(todo: Plan, published: Published) -> Commit:
    staged = published.staged
    return Commit(
        snapshot=staged.primary.snapshot,
        ranges=todo.ranges,
        after=todo.after,
        records=staged.records,
        rows=staged.primary.rows,
        dead_letters=staged.failed,
        tombstones=staged.tombstones,
        files=staged.primary.files,
        size=staged.primary.size,
        rows_by_partition=published.by_partition,
        findings=tuple(published.findings),
        kind=todo.kind,
        classes=staged.classes,
        waited=waited(staged, published.at) if todo.kind != "replace" else None,
        published_at=published.at,
        bytes_read=staged.bytes_read,
        elsewhere=todo.elsewhere,
        untimed=staged.untimed,
        decoded_singly=staged.decoded_singly,
    )
