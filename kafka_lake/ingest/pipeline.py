"""One commit, the seven steps in a row: plan, read, decode and stage, audit, publish, report.

Exactly once rests on three things alone: the plan begins at the position of the very head that the branch starts from,
the position is part of the snapshot that holds the rows, and publication is refused if the head has moved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from kafka_lake.common.errors import AuditFailedError, KafkaLakeError, PublishRefusedError
from kafka_lake.common.offsets import Position
from kafka_lake.ingest.audit import Finding, audit, schema_refused
from kafka_lake.ingest.byte_limit import ByteLimit
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.due import due
from kafka_lake.ingest.dead_letters.isolate import Search
from kafka_lake.ingest.dead_letters.reconcile import reconcile
from kafka_lake.ingest.decode.key_columns import refuse_other_keys
from kafka_lake.ingest.jobs.job import Job
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.publish import publish
from kafka_lake.ingest.report import Commit, waited
from kafka_lake.ingest.retry import short_pauses
from kafka_lake.ingest.stage.rebase import can_follow, follow
from kafka_lake.ingest.stage.schema_plan import SchemaRefusedError
from kafka_lake.ingest.stage.stage import stage
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.table_state import Tables, dead_letters_head, tables, with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.lake.positions import TableState, head_of, read_state

_FOLLOWED = 30


class GateFailedError(AuditFailedError):
    """A check of the audit refused a commit. `main` is as it was, and the staged snapshot has been removed.

    Args:
        message: Which checks failed, and why.
        findings: The result of each check.
        remedy: What to do next, if there is something better to say than usual.
    """

    what_to_do: ClassVar[str] = (
        "The message names the check. `dead_letters`: look at them with `kafka-lake dead-letters TOPIC`, then fix "
        "the producer or the schema, or raise `max_dead_letters`. `schema_evolution`: see `SchemaRefusedError`. "
        "`row_count` and `offset_continuity`: a transform must give one row for one row and leave the metadata "
        "column alone; without a transform this is a bug, please report it."
    )

    def __init__(self, message: str, findings: list[Finding], remedy: str = "") -> None:
        said = remedy or "main is as it was and the staged snapshot is gone; mend the cause and run again."
        super().__init__(message, said)
        self.findings = findings


class _OvertakenError(PublishRefusedError):
    """Others moved ``main`` after the commit was staged, which is still there."""


@dataclass
class Attempt:
    """One attempt at a commit: what it works with, and what its runner must know if it fails.

    Args:
        context: Of the run.
        job: Gives the plan and the records.
        topic: What the topic holds.
        search: Cuts the plan while a record is sought that makes its batch fail.
        byte_limit: Cuts the plan where its records have too many bytes.
        failed_so_far: Dead letters and records of the run's commits before this one; its limit is for the whole run.
        created: Tables that were made for this run; added to.
        decoding: The plan whose records are being decoded and staged: one of them may be the reason of a failure.
        position: The table's, as it was found.
        after: The tables as the commit left them; None where only a look can tell.
    """

    context: Context
    job: Job
    topic: TopicEnds
    search: Search
    byte_limit: ByteLimit
    failed_so_far: tuple[int, int]
    created: set[tuple[str, str]]
    decoding: Plan | None = None
    position: Position | None = None
    after: Tables | None = None


@dataclass(frozen=True)
class Published:
    """A commit that is visible.

    Args:
        staged: What it has.
        findings: Of its audit.
        by_partition: Rows by Kafka partition.
        at: When it became visible, in seconds since the epoch.
    """

    staged: Staged
    findings: list[Finding]
    by_partition: dict[int, int]
    at: float


def commit(attempt: Attempt) -> tuple[Commit, Plan] | None:
    """Make the next commit that a job asks for.

    Returns:
        The commit and its plan; None if there was nothing to do.

    Raises:
        GateFailedError: If a gate refused it. ``main`` is as it was, and nothing staged is left.
        PublishRefusedError: If others moved ``main``: likewise, and it is for the runner to plan again.
        KafkaLakeError: For anything else a user can mend; likewise.
    """
    context = attempt.context
    before = _look(attempt)
    todo = _plan(attempt, before)
    if todo is None:
        return None
    records = attempt.job.read(todo)
    if before.table is None or before.table.head is None:
        _create(attempt, before, todo, records)
        return commit(attempt)
    with _as_refusal(context, before.table):
        staged = _stage(attempt, before, before.table, todo, records)
        published = _audit_and_publish(attempt, before, todo, staged)
    attempt.job.published(published.staged)
    attempt.after = _left(before, published.staged)
    return _report(todo, published), todo


def _left(before: Tables, staged: Staged) -> Tables | None:
    """Return the tables as a commit left them; None where an answer was lost, or dead letters may be obsolete now."""
    table = staged.primary.branch.published
    letters = staged.dead_letters.branch.published if staged.dead_letters else before.letters and before.letters.table
    if table is None or (letters is None and staged.dead_letters):
        return None
    left = Tables(read_state(table), read_state(letters) if letters else None)
    assert left.table is not None, "it has just been read"
    return None if left.letters and due(left.table, left.letters) else left


def _look(attempt: Attempt) -> Tables:
    context, job = attempt.context, attempt.job
    found = tables(context)
    if found.letters and found.table and due(found.table, found.letters):
        reconcile(context.spec, context.connections, context.run_id, on_step=context.observer.on_step)
        found = tables(context)
    state = found.table
    if state is not None:
        refuse_other_keys(context.spec, state.table)
        state = with_position(context, attempt.topic, state, job.position_required, job.position_sought)
    attempt.position = state.position if state else None
    if attempt.position and attempt.topic.is_behind(attempt.position):
        # Another run has been further than this one could know when it began.
        attempt.topic.poll()
    return Tables(state, found.letters)


def _plan(attempt: Attempt, before: Tables) -> Plan | None:
    todo = attempt.job.plan(attempt.topic, before.table)
    attempt.context.observer.on_step("planned")
    if todo is not None:
        todo = attempt.decoding = attempt.byte_limit.cut(attempt.search.next(todo))
    return todo


def _create(attempt: Attempt, before: Tables, todo: Plan, records: Any) -> None:
    spec, connections = attempt.context.spec, attempt.context.connections
    if before.table is None:
        attempt.created |= {each for each in spec.identifiers if connections.catalog.table(each) is None}
    attempt.context.decoding.create_table(spec, connections, records, todo.undecodable is not None)
    attempt.context.observer.on_step("table created")
    attempt.decoding = None


def _stage(attempt: Attempt, before: Tables, state: TableState, todo: Plan, records: Any) -> Staged:
    context = attempt.context
    try:
        staged = stage(
            spec=context.spec,
            connections=context.connections,
            decoding=context.decoding,
            state=state,
            plan=todo,
            records=records,
            run_id=context.run_id,
            on_step=context.observer.on_step,
            letters_before=before.letters,
        )
    except SchemaRefusedError as error:
        raise GateFailedError(error.message, [schema_refused(error)], error.remedy) from error
    attempt.decoding = None
    return staged


def _audit_and_publish(attempt: Attempt, before: Tables, todo: Plan, staged: Staged) -> Published:
    """Publish what passes its audit; where others were faster, at the head that they have made, audited anew."""
    context = attempt.context
    retrying = Retrying(
        stop=stop_after_attempt(_FOLLOWED),
        wait=short_pauses(context.connections.retry),
        retry=retry_if_exception_type(_OvertakenError),
        sleep=context.sleep,
        reraise=True,
    )
    try:
        for each in retrying:
            with each:
                if each.retry_state.attempt_number > 1:
                    staged = _followed(context, todo, staged)
                findings, by_partition = _audited(attempt, todo, staged)
                visible_at = _published(context, before, todo, staged)
    except BaseException:
        staged.discard()
        raise
    return Published(staged, findings, by_partition, visible_at)


def _audited(attempt: Attempt, todo: Plan, staged: Staged) -> tuple[list[Finding], dict[int, int]]:
    context = attempt.context
    findings, by_partition = audit(context.spec, context.connections, todo, staged, attempt.failed_so_far)
    if failed := [f for f in findings if f.refuses]:
        reasons = "; ".join(f"{f.check}: {p}" for f in failed for p in f.problems)
        raise GateFailedError(f"Topic {context.spec.topic}, table {context.table_name}: {reasons}.", findings)
    context.observer.on_step("audited")
    return findings, by_partition


def _published(context: Context, before: Tables, todo: Plan, staged: Staged) -> float:
    if staged.dead_letters is None and dead_letters_head(context) != (before.letters.head if before.letters else None):
        # Letters that have come meanwhile may be of records that are rows with this commit.
        raise PublishRefusedError(f"Table {context.table_name}: its dead-letter table has changed meanwhile.")
    try:
        return publish(staged, context.observer.on_step)
    except PublishRefusedError as error:
        if not can_follow(todo, staged):
            raise
        raise _OvertakenError(error.message) from error


def _followed(context: Context, todo: Plan, staged: Staged) -> Staged:
    followed = follow(context.connections, todo, staged, context.run_id)
    if followed is None:
        raise PublishRefusedError(
            f"Table {context.table_name}: main moved from snapshot {staged.primary.branch.head} "
            "meanwhile, and what was written doesn't go with what is there now."
        )
    context.observer.on_step("followed")
    return followed


@contextmanager
def _as_refusal(context: Context, state: TableState) -> Iterator[None]:
    """Let an error be a refused publication where others have moved ``main`` meanwhile.

    Who publishes takes the branches of those away who no longer can: that shows as any error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, KafkaLakeError) and not isinstance(error, GateFailedError):
            raise
        table = context.connections.catalog.table(context.spec.identifier)
        if (head := head_of(table) if table else None) == state.head:
            raise
        raise PublishRefusedError(
            f"Table {context.table_name}: main moved from snapshot {state.head} to {head} meanwhile."
        ) from error


def _report(todo: Plan, published: Published) -> Commit:
    staged = published.staged
    return Commit(
        staged.primary.snapshot,
        todo.ranges,
        todo.after,
        staged.records,
        staged.primary.rows,
        staged.failed,
        staged.tombstones,
        staged.primary.files,
        staged.primary.size,
        published.by_partition,
        tuple(published.findings),
        todo.kind,
        staged.classes,
        waited(staged, published.at) if todo.kind != "replace" else None,
        published.at,
        staged.bytes_read,
    )
