"""A run of a derived table: plan, compute, stage, audit, publish; again if another commit was faster."""

import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import reduce

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from kafka_lake.common.errors import PublishRefusedError
from kafka_lake.derive.create import created, evolved
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import DeriveReport, Engine, UpstreamRead
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.lineage import DeriveLineage
from kafka_lake.derive.plan import DerivePlan, Pinned, load, plan, plan_window
from kafka_lake.derive.record import APPEND
from kafka_lake.derive.stage import StagedRows, stage
from kafka_lake.derive.window import Window
from kafka_lake.ingest.causes import is_transient
from kafka_lake.ingest.maintenance.clean import sweep
from kafka_lake.ingest.maintenance.maintain import maintain
from kafka_lake.ingest.maintenance.tables import Tables
from kafka_lake.ingest.report import merged
from kafka_lake.ingest.retry import call, short_pauses
from kafka_lake.ingest.run_log import RunLog
from kafka_lake.lake.branches import StagingBranch, branch_name, staging_branches
from kafka_lake.lake.positions import row_count
from kafka_lake.lake.tables.create import drop_if_unused
from kafka_lake.lake.totals import Totals, added
from kafka_lake.spark.shuffles import shuffles

_ATTEMPTS = 5
_ROWS_WORTH_A_PARTITION = 250_000
# Spark's own default.
_MOST_PARTITIONS = 200


def derive(spec: DerivedTable, engine: Engine, rebuild: bool = False, window: Window | None = None) -> DeriveReport:
    """Bring a derived table up to the upstream tables as they are now, in one commit.

    Args:
        spec: The derived table.
        engine: Catalog and Spark; Spark isn't touched if there is nothing to do.
        rebuild: Compute everything again, whatever there is.
        window: Partitions that are computed again, in a commit of their own, once the table is up to date. A table
            with ``write: replace`` is computed as a whole, as in each of its runs.

    Returns:
        What the last commit did; partitions and findings are those of all commits.

    Raises:
        ConfigurationError: If the settings don't go with the tables, or the query has changed and ``on_change`` is
            ``fail``. ``main`` is as it was.
        TableError: If an upstream table isn't there, or its rows have changed and nobody can tell which. Likewise.
        AuditFailedError: If the rows aren't what they must be, or break a rule. Likewise.
        PublishRefusedError: If others kept moving ``main`` ahead of this run.
        KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
    """
    run_log = RunLog(spec.name, engine.run_id)
    try:
        return _derive(spec, replace(engine, observer=run_log.observing(engine.observer)), rebuild, window)
    except Exception as error:
        run_log.failed(error)
        raise


def _derive(spec: DerivedTable, engine: Engine, rebuild: bool, window: Window | None) -> DeriveReport:
    began = time.monotonic()
    if window is not None and not spec.is_incremental:
        rebuild, window = True, None
    made: list[DeriveReport] = []
    retrying = Retrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=short_pauses(engine.retry),
        retry=retry_if_exception_type(PublishRefusedError),
        sleep=engine.sleep,
        reraise=True,
    )

    def attempt() -> DeriveReport:
        made.append(retrying(lambda: _attempt(spec, engine, rebuild, began)))
        if window is not None:
            made.append(retrying(lambda: _again(spec, engine, window, began, made=made)))
        return reduce(_joined, [each for each in made if each.snapshot is not None] or made[-1:])

    with DeriveLineage(spec, engine.catalog, engine.run_id) as lineage:
        report = call(
            engine.retry,
            engine.observer.warn,
            f"Table {spec.name}",
            attempt,
            sleep=engine.sleep,
            passes=lambda error: is_transient(error) and not isinstance(error, PublishRefusedError),
        )
        lineage.derived(report)
    _sweep(spec, engine)
    if report.snapshot is not None:
        maintained(spec, engine)
    return report


def _joined(before: DeriveReport, report: DeriveReport) -> DeriveReport:
    """Return the report of a commit, with findings and partitions of one before it in the same run."""
    findings = [*before.findings, *report.findings]
    checks = {each.check for each in findings}
    return replace(
        report,
        findings=tuple(each for each in merged(findings) if each.check in checks),
        outside=None if report.outside is None else report.outside + (before.outside or 0),
        partitions=tuple(dict.fromkeys([*report.partitions, *before.partitions])),
    )


def _attempt(spec: DerivedTable, engine: Engine, rebuild: bool, began: float) -> DeriveReport:
    state = load(spec, engine.catalog)
    todo = plan(spec, state, rebuild)
    engine.observer.step_done("planned")
    if todo is None:
        return DeriveReport(spec.name, seconds=time.monotonic() - began)
    zone = _zone(engine)
    todo = plan(spec, state, rebuild, zone) or todo
    with _commit_slot(engine), ExitStack() as held:
        if todo.table is None or todo.head is None:
            created(spec, engine, Frames(engine, spec, todo, held))
            held.callback(_drop_unused, spec, engine)
            engine.observer.step_done("table created")
            # Others may have committed to it meanwhile.
            todo = plan(spec, load(spec, engine.catalog), rebuild, zone)
            assert todo is not None, "no snapshot says yet what the table was made of"
        if todo.of_others:
            engine.observer.warn(
                f"Table {spec.name}: others have changed its rows, by snapshot {', '.join(map(str, todo.of_others))}. "
                f"What they did stays, but for what is computed again: `kafka-lake rebuild {spec.name}` does all."
            )
        return _committed(spec, engine, todo, held, began=began)


def _again(
    spec: DerivedTable, engine: Engine, window: Window, began: float, *, made: list[DeriveReport]
) -> DeriveReport:
    """Compute partitions again, of a table that is up to date; commits that bring it there go to ``made``."""
    zone = _zone(engine)
    todo = plan_window(spec, load(spec, engine.catalog), window, zone)
    if todo is None:
        # Upstream tables have got rows meanwhile.
        made.append(_attempt(spec, engine, False, began))
        todo = plan_window(spec, load(spec, engine.catalog), window, zone)
    if todo is None:
        raise PublishRefusedError(
            f"Table {spec.name}: upstream tables get rows faster than it can be brought up to date.",
            "Ask for the partitions again.",
        )
    engine.observer.step_done("planned")
    with _commit_slot(engine), ExitStack() as held:
        return _committed(spec, engine, todo, held, began=began)


def _zone(engine: Engine) -> str:
    return engine.spark().conf.get("spark.sql.session.timeZone") or ""


def _commit_slot(engine: Engine) -> AbstractContextManager[object]:
    return engine.commit_slots.take(engine.sleep) if engine.commit_slots else nullcontext()


def _partitions(todo: DerivePlan) -> int:
    """Return how many Spark partitions suit the rows that a commit may read or write."""
    tables = [each.read.rows for each in (*todo.upstream.values(), *todo.joined.values())]
    return min(_MOST_PARTITIONS, 2 + (sum(tables) + row_count(todo.table)) // _ROWS_WORTH_A_PARTITION)


def _drop_unused(spec: DerivedTable, engine: Engine) -> None:
    """Drop a table that was made for a commit which failed."""
    try:
        drop_if_unused(engine.catalog, spec.identifier)
    except Exception as error:
        # The error that led here must not be hidden; the next run can use an empty table.
        engine.observer.warn(f"Table {spec.name}, which is empty, is left behind: {error}")


def _committed(spec: DerivedTable, engine: Engine, todo: DerivePlan, held: ExitStack, *, began: float) -> DeriveReport:
    assert todo.head is not None, "ensure_table gives every table a first snapshot"
    frames = Frames(engine, spec, todo, held)
    held.enter_context(shuffles(engine.spark(), _partitions(todo)))
    evolved(spec, frames, todo)
    name = branch_name(engine.run_id, todo.head)
    branch = StagingBranch(engine.spark(), engine.catalog, spec.identifier, name, head=todo.head)
    branch.create()
    try:
        staged = stage(engine, spec, todo, frames, branch=branch)
        engine.observer.step_done("staged")
        done = Totals(commits=1, rows=staged.rows, rewrites=int(staged.kind != APPEND))
        branch.publish(staged.table.snapshot, lambda before: added(before, done))
    except BaseException:
        branch.discard()
        raise
    engine.observer.step_done("published")
    report = _report(spec, todo, staged, seconds=time.monotonic() - began)
    engine.published(report)
    return report


def _report(spec: DerivedTable, todo: DerivePlan, staged: StagedRows, *, seconds: float) -> DeriveReport:
    return DeriveReport(
        table=spec.name,
        snapshot=staged.table.snapshot,
        kind=staged.kind,
        full=todo.full,
        rows=staged.rows,
        keys=staged.keys,
        verified=staged.verified,
        rederived=staged.rederived,
        upstream={name: _read(each) for name, each in todo.upstream.items()},
        findings=staged.findings,
        seconds=seconds,
        partitions=staged.brought.keys,
        outside=staged.brought.outside if spec.partitions is not None else None,
    )


def _read(each: Pinned) -> UpstreamRead:
    assert each.read.snapshot is not None, "a table without a snapshot isn't read"
    new = each.read.rows if each.before is None else max(0, each.read.added - each.before.added)
    return UpstreamRead(each.read.snapshot, each.read.rows, new)


def maintained(spec: DerivedTable, engine: Engine) -> None:
    """Compact a derived table and expire its old snapshots, where that is due; the next run retries what fails."""
    if spec.maintenance.enabled is False or not spec.maintenance.may_begin(time.time()):
        return
    try:
        if maintain(spec, Tables(engine.catalog, engine.spark, engine.run_id)):
            engine.observer.step_done("maintained")
    except Exception as error:
        engine.observer.warn(f"Table {spec.name} is up to date, but its maintenance failed: {error}")


def _sweep(spec: DerivedTable, engine: Engine) -> None:
    """Drop the branches of dead runs; the next run retries what fails."""
    try:
        table = engine.catalog.table(spec.identifier)
        if table is not None and staging_branches(table):
            sweep(spec, engine)
    except Exception as error:
        engine.observer.warn(f"Table {spec.name}: branches of dead runs are left behind: {error}")
