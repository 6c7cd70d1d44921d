"""A run of a derived table: plan, compute, stage, audit, publish, and retry."""

import time
from contextlib import ExitStack
from dataclasses import replace

from pyiceberg.schema import Schema
from pyspark.sql import types as T
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from kafka_lake.catalog.branches import StagingBranch, branch_name, staging_branches
from kafka_lake.catalog.lake_catalog import check_commit_requirements
from kafka_lake.catalog.layout import check_layout
from kafka_lake.catalog.positions import row_count
from kafka_lake.catalog.tables import Totals, added, apply_changes, drop_if_unused, ensure_table, schema_of
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import DeriveReport, Engine
from kafka_lake.derived.frames import Frames
from kafka_lake.derived.plan import DerivePlan, load, plan
from kafka_lake.derived.stage import stage
from kafka_lake.derived.upstream import APPEND
from kafka_lake.engine.frames import shuffles
from kafka_lake.error_classification import is_transient
from kafka_lake.errors import PublishRefusedError, TableError
from kafka_lake.ingest.run import RunLog
from kafka_lake.maintenance.clean import sweep
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.runtime.context import call, short_pauses
from kafka_lake.schema.rules import needed_changes
from kafka_lake.writers.schema_changes import arrow_columns

_ATTEMPTS = 5
_ROWS_WORTH_A_PARTITION = 250_000
# Spark's own default.
_MOST_PARTITIONS = 200
_MERGED = {f"write.{operation}.mode": "merge-on-read" for operation in ("merge", "update", "delete")}


def derive(spec: DerivedTable, engine: Engine, rebuild: bool = False) -> DeriveReport:
    """Bring a derived table up to date in one commit. If it fails, ``main`` is as it was."""
    run_log = RunLog(spec.name, engine.run_id)
    try:
        return _derive(spec, replace(engine, observer=run_log.observing(engine.observer)), rebuild)
    except Exception as error:
        run_log.failed(error)
        raise


def _derive(spec: DerivedTable, engine: Engine, rebuild: bool) -> DeriveReport:
    began = time.monotonic()
    retrying = Retrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=short_pauses(engine.retry),
        retry=retry_if_exception_type(PublishRefusedError),
        sleep=engine.sleep,
        reraise=True,
    )
    report: DeriveReport = call(
        engine.retry,
        engine.observer.warn,
        f"Table {spec.name}",
        lambda: retrying(_attempt, spec, engine, rebuild, began=began),
        sleep=engine.sleep,
        passes=lambda error: is_transient(error) and not isinstance(error, PublishRefusedError),
    )
    cleaned(spec, engine, committed=report.snapshot is not None)
    return report


def _attempt(spec: DerivedTable, engine: Engine, rebuild: bool, *, began: float) -> DeriveReport:
    state = load(spec, engine.catalog)
    # Spark isn't started for its time zone if there is nothing to do.
    todo = plan(spec, state, rebuild)
    engine.observer.step_done("planned")
    if todo is None:
        return DeriveReport(spec.name, seconds=time.monotonic() - began)
    todo = plan(spec, state, rebuild, _zone(engine)) or todo
    with ExitStack() as held:
        if todo.head is None:
            _created(spec, engine, Frames(engine, spec, todo, held))
            held.callback(_drop_unused, spec, engine)
            engine.observer.step_done("table created")
            # Another run may have committed to it meanwhile.
            todo = plan(spec, load(spec, engine.catalog), rebuild, _zone(engine))
            assert todo is not None, "no snapshot records the table's upstream tables yet"
        return _committed(spec, engine, todo, held, began=began)


def _zone(engine: Engine) -> str:
    return engine.spark().conf.get("spark.sql.session.timeZone") or ""


def _partitions(todo: DerivePlan) -> int:
    """Return the number of shuffle partitions for the rows that a commit may read or write."""
    read = sum(pinned.read.rows for pinned in (*todo.upstream.values(), *todo.joined.values()))
    return min(_MOST_PARTITIONS, 2 + (read + row_count(todo.table)) // _ROWS_WORTH_A_PARTITION)


def _created(spec: DerivedTable, engine: Engine, frames: Frames) -> None:
    """Create the table with the columns of the query, unless it exists."""
    version = spec.table_properties.get("format-version")
    table = ensure_table(
        engine.catalog,
        spec.identifier,
        schema=_schema(frames),
        partition_by=spec.partition_by,
        sort_by=spec.sort_by,
        # Format version 1 has no delete files.
        properties={**(_MERGED if spec.key and version != "1" else {}), **spec.table_properties},
    )
    check_commit_requirements(engine.catalog, table)


def _evolved(spec: DerivedTable, frames: Frames, todo: DerivePlan) -> None:
    """Add the columns of the query that the table lacks."""
    assert todo.table is not None, "it has been created"
    schema = _schema(frames)
    changes = needed_changes(todo.table.schema(), schema)
    if unsafe := next((change for change in changes if not change.safe), None):
        raise TableError(
            f"Table {spec.name}: column {unsafe.column} would change from {unsafe.before or 'none'} to {unsafe.after}, "
            "which Iceberg can't do for existing files.",
            f"CAST it to {unsafe.before} in the query, or give it another name. main is unchanged.",
        )
    apply_changes(todo.table, schema, changes)
    check_layout(todo.table, spec.partition_by, spec.sort_by)


def _schema(frames: Frames) -> Schema:
    return schema_of(arrow_columns(frames.query().schema, T.StructType()))


def _drop_unused(spec: DerivedTable, engine: Engine) -> None:
    """Drop a table that was created for a failed commit."""
    try:
        drop_if_unused(engine.catalog, spec.identifier)
    except Exception as error:
        # Don't hide the error that led here; the next run can use an empty table.
        engine.observer.warn(f"Empty table {spec.name} couldn't be dropped: {error}")


def _committed(spec: DerivedTable, engine: Engine, todo: DerivePlan, held: ExitStack, *, began: float) -> DeriveReport:
    assert todo.head is not None, "ensure_table gives every table a first snapshot"
    frames = Frames(engine, spec, todo, held)
    held.enter_context(shuffles(engine.spark(), _partitions(todo)))
    _evolved(spec, frames, todo)
    name = branch_name(engine.run_id, todo.head)
    branch = StagingBranch(engine.spark(), engine.catalog, spec.identifier, name, head=todo.head)
    branch.create()
    try:
        report = stage(engine, spec, todo, frames, branch=branch)
        engine.observer.step_done("staged")
        assert report.snapshot is not None, "a staged commit has a snapshot"
        done = Totals(commits=1, rows=report.rows, rewrites=int(report.kind != APPEND))
        branch.publish(report.snapshot, lambda before: added(before, done))
    except BaseException:
        branch.discard()
        raise
    engine.observer.step_done("published")
    return replace(report, seconds=time.monotonic() - began)


def cleaned(spec: DerivedTable, engine: Engine, committed: bool) -> None:
    """Drop the branches of dead runs and maintain the table if due; failures are only warnings."""
    try:
        table = engine.catalog.table(spec.identifier)
        if table is not None and staging_branches(table):
            sweep(spec, engine)
        due = spec.maintenance.enabled is not False
        if committed and due and maintain(spec, engine, run_id=engine.run_id):
            engine.observer.step_done("maintained")
    except Exception as error:
        engine.observer.warn(f"Table {spec.name} is up to date, but its maintenance failed: {error}")
