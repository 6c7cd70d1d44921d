"""One commit, the seven steps in a row: plan, read, decode and stage, audit, publish, report.

Exactly once rests on three things alone: the plan begins at the position of the very head that the branch starts from,
the position is part of the snapshot that holds the rows, and publication is refused if the head has moved.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from kafka_lake.common.offsets import Position
from kafka_lake.common.record_times import without_time
from kafka_lake.ingest.byte_limit import ByteLimit
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.isolate import Search
from kafka_lake.ingest.dead_letters.reconcile import reconcile
from kafka_lake.ingest.dead_letters.unreconciled import unreconciled
from kafka_lake.ingest.decode.excepted import refuse_excepted
from kafka_lake.ingest.decode.key_columns import refuse_other_keys
from kafka_lake.ingest.gate import AuditedSide, Published, audit_and_publish, refused_if_main_moved
from kafka_lake.ingest.jobs.job import Job
from kafka_lake.ingest.left import left_by, reconcile_sides
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.report import waited
from kafka_lake.ingest.routes.by_value import as_properties
from kafka_lake.ingest.routes.conditions import first_records_of
from kafka_lake.ingest.routes.creation import create_declared, create_for, create_sides
from kafka_lake.ingest.routes.new_tables import telling, with_known
from kafka_lake.ingest.routes.shared import Shares
from kafka_lake.ingest.routes.sides import shared_out
from kafka_lake.ingest.stage.history_table import refuse_no_history
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.stage_tables import discard, stage_sides, stage_table
from kafka_lake.ingest.table_state import Tables, tables, with_position
from kafka_lake.ingest.too_large import TooLarge
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.lake.positions import TableState

Sides = list[AuditedSide]


@dataclass(frozen=True)
class Attempt:
    """What an attempt at a commit works with.

    Args:
        context: Of the run.
        job: Gives the plan and the records.
        topic: What the topic holds.
        search: Cuts the plan while a record is sought that makes its batch fail.
        byte_limit: Cuts the plan where its records have too many bytes.
        too_large: Cuts the plan before a record that the engine has no room for.
        failed_so_far: Dead letters and records of the run's commits before this one, by table; the limit is for the
            whole run.
        position: The table's, as the run last knew it.
    """

    context: Context
    job: Job
    topic: TopicEnds
    search: Search
    byte_limit: ByteLimit
    too_large: TooLarge
    failed_so_far: Mapping[tuple[str, str], tuple[int, int]]
    position: Position | None


@dataclass(frozen=True)
class Done:
    """A commit that was made.

    Args:
        commit: What it has.
        plan: What it was to have.
        left: The tables as it left them; None where only another look can tell.
    """

    commit: Commit
    plan: Plan
    left: Tables | None


@dataclass(frozen=True)
class Outcome:
    """What came of an attempt.

    Args:
        position: The table's, as it was found; as the run last knew it, if the attempt failed before.
        created: Tables that were made for it.
        decoding: The plan whose records were being decoded and staged as it failed: one of them may be the reason.
        done: The commit; None if there was nothing to do, or the attempt failed.
        error: Why it failed.
    """

    position: Position | None
    created: frozenset[tuple[str, str]] = frozenset()
    decoding: Plan | None = None
    done: Done | None = None
    error: Exception | None = None


def commit(attempt: Attempt) -> Outcome:
    """Make the next commit that a job asks for.

    Returns:
        What came of it. Its error is a `GateFailedError` if a gate refused the commit; a `PublishRefusedError` if
        others moved ``main``, and it is for the runner to plan again; another `KafkaLakeError` for anything else a user
        can mend. In each case ``main`` is as it was, and nothing staged is left.
    """
    known = Outcome(attempt.position)
    try:
        for each in _steps(attempt):
            known = each
    except Exception as error:
        return replace(known, error=error)
    return known


def _steps(attempt: Attempt) -> Iterator[Outcome]:
    """Take one step after the other, and give what is known before each of those that may fail by it."""
    context, job = attempt.context, attempt.job
    context.effort.begin()
    found: Tables = _find(attempt)
    context = with_known(context, found.table)
    known = Outcome(found.table.position if found.table else None)
    yield known
    todo: Plan | None = _plan(attempt, found)
    if todo is None:
        return
    context.effort.done("plan")
    yield replace(known, decoding=todo)
    records: DataFrame = job.read(todo)
    if found.table is None or found.table.head is None:
        yield from _create(attempt, todo, records, replace(known, created=_missing(context, found)))
        return
    with ExitStack() as held:
        with (
            refused_if_main_moved(context, found.table),
            shared_out(context, attempt.topic, todo, own=found, records=records) as shares,
        ):
            if shares.shows_new_tables:
                _tell_of_new_tables(attempt, context, found, shares)
            else:
                yield replace(known, created=_created(shares), decoding=todo)
                sides: Sides = stage_sides(create_sides(shares, attempt.topic), attempt.failed_so_far, held)
                staged: Staged = _stage_last(context, found, shares, sides, held=held)
                context.effort.done("stage")
                yield known
                published: Published = audit_and_publish(
                    context, found, shares.plan, staged, failed_so_far=attempt.failed_so_far, sides=sides
                )
        if shares.shows_new_tables:
            yield from _steps(attempt)
            return
        job.published(published.staged)
    reconcile_sides(published)
    commit = _report(context, shares, published)
    yield replace(known, done=Done(commit, todo, left_by(context, found, published.staged)))


def _find(attempt: Attempt) -> Tables:
    """Return the tables, dead letters reconciled and the position rebuilt where that is needed."""
    context, job = attempt.context, attempt.job
    found = tables(context)
    _refuse_other_tables(context, found.table)
    if found.dead_letters and found.table and unreconciled(found.table, found.dead_letters):
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
    elif context.spec.history:
        refuse_no_history(context.spec, context.connections.catalog.table(context.spec.history_table))


def _plan(attempt: Attempt, found: Tables) -> Plan | None:
    position = found.table.position if found.table else None
    if position and attempt.topic.is_behind(position):
        # Another run has been further than this one could know when it began.
        attempt.topic.poll()
    todo = attempt.job.plan(attempt.topic, found.table)
    attempt.context.observer.step_done("planned")
    if todo is None:
        return None
    todo = attempt.byte_limit.cut(attempt.search.next(todo))
    todo = attempt.too_large.cut(todo, found.table.table if found.table else None)
    return attempt.topic.remembered(todo)


def _missing(context: Context, found: Tables) -> frozenset[tuple[str, str]]:
    if found.table is not None:
        return frozenset()
    every = (each for spec in context.spec.tables for each in spec.identifiers)
    return frozenset(each for each in every if context.connections.catalog.table(each) is None)


def _create(attempt: Attempt, todo: Plan, records: DataFrame, known: Outcome) -> Iterator[Outcome]:
    """Create the table, and begin again: what others did meanwhile counts."""
    context = attempt.context
    yield replace(known, decoding=todo)
    if context.spec.has_routes and todo.undecodable is None:
        create_for(context, first_records_of(records, context.spec, context.connections))
        create_declared(context, records)
    else:
        context.decoding.create_table(context.spec, context.connections, records, todo.undecodable is not None)
    context.observer.step_done("table created")
    yield known
    for each in _steps(attempt):
        yield replace(each, created=known.created | each.created)


def _created(shares: Shares) -> frozenset[tuple[str, str]]:
    """Return the tables of routes that are to be created."""
    return frozenset(each for side in shares.sides for each in _missing(side.context, side.found))


def _tell_of_new_tables(attempt: Attempt, context: Context, found: Tables, shares: Shares) -> None:
    """Let the topic's own table tell of tables that values get, by a commit of its own: who plans from now on knows."""
    assert found.table is not None, "it has been created"
    assert shares.values is not None, "the caller has looked"
    assert context.spec.route_by is not None, "only by it there are any"
    todo, new = telling(found.table, shares.plan), shares.values.admission.new
    properties = as_properties(context.spec.route_by, new)
    with ExitStack() as held:
        staged = stage_table(context, found, todo, shares.records.limit(0), held=held)
        audit_and_publish(context, found, todo, staged, failed_so_far=attempt.failed_so_far, also=properties)
    names = ", ".join(f"{namespace}.{table}" for _, namespace, table in new)
    context.observer.warn(
        f"Topic {context.spec.topic}: new values get tables: {names}. They become assets once `kafka-lake topics "
        "refresh` has run and the definitions load again."
    )
    context.observer.step_done("new tables told")


def _stage_last(context: Context, found: Tables, shares: Shares, sides: Sides, *, held: ExitStack) -> Staged:
    """Stage what the topic's own table gets; if that fails, nothing staged is left."""
    try:
        plan = shares.told((each.side, each.staged) for each in sides)
        return stage_table(
            context, found, plan, shares.records, held=held, others=shares.others, written=shares.written
        )
    except BaseException:
        discard(sides)
        raise


def _report(context: Context, shares: Shares, published: Published) -> Commit:
    sides = {side.context.spec.identifier: _commit_of(side.plan, each) for side, each in published.sides}
    without_table = shares.values.records if shares.values else 0
    if shares.values is not None and without_table:
        context.observer.warn(shares.values.told(context.spec))
    own = _commit_of(shares.plan, published)
    if untimed := sum(each.untimed for each in (own, *sides.values())):
        context.observer.warn(f"Topic {context.spec.topic}: {without_time(untimed)}.")
    return replace(own, ignored=shares.ignored, sides=sides, without_table=without_table)


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
        refused=todo.share.refused if todo.share else "",
        untimed=staged.untimed,
    )
