"""Stage: the rows of a commit come and go on a branch of the derived table, which nobody reads yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.bounds import Bound
from kafka_lake.derive.compute import Computed, compute, having, key_names, not_older
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.kept_back import KeptBack
from kafka_lake.derive.late import late_rows
from kafka_lake.derive.partitioned import Brought, audit_window, brought, time_type, told_of_window, warn_of
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.query import ORIGIN
from kafka_lake.derive.record import REBUILD, REWRITE
from kafka_lake.derive.rules import ask_rules
from kafka_lake.derive.waiting import coarse
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.keyed.merge import run_merge
from kafka_lake.ingest.record_keys import at_version
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append
from kafka_lake.ingest.stage.staged import StagedTable, staged_table
from kafka_lake.lake.author import author_summary, removes_mark
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.catalog import literal, quoted
from kafka_lake.lake.positions import DERIVED, POSITION, TableState, summary_of

_OP = "kafka_lake_op"
_MOST_RELEASED = 1000
_GOES, _COMES = "goes", "comes"
_INSERTED = "spark.merge-into.num-target-rows-inserted"


@dataclass(frozen=True)
class StagedRows:
    """A commit on its branch.

    Args:
        table: The snapshot that will be published.
        kind: What the commit is.
        rows: Rows that came.
        keys: Keys whose rows were computed again; None if it wasn't by key.
        ranges: Offsets whose rows were derived again.
        bounds: As `Computed` has them.
        came: The rows that came; None if they are all that the table has.
        findings: Of the table's rules.
        late: New upstream rows that came late; None if they weren't counted.
        kept_back: What became of records that find no row to look up.
        brought: Of which of the asset's partitions rows came.
    """

    table: StagedTable
    kind: str
    rows: int
    keys: int | None = None
    ranges: tuple[OffsetRange, ...] = ()
    bounds: Mapping[str, Sequence[Bound]] = field(default_factory=dict)
    came: DataFrame | None = None
    findings: tuple[Finding, ...] = ()
    late: int | None = None
    kept_back: KeptBack = field(default_factory=KeptBack)
    brought: Brought = field(default_factory=Brought)


def stage(engine: Engine, spec: DerivedTable, todo: DerivePlan, frames: Frames, *, branch: StagingBranch) -> StagedRows:
    """Compute the rows of a commit, write them to a branch, and audit what is there then.

    Args:
        engine: Of the run.
        spec: The derived table.
        todo: What to do.
        frames: Give what the commit reads.
        branch: Of the table, at its head.

    Raises:
        AuditFailedError: If the rows aren't what they must be, or break a rule that fails. The branch is the caller's
            to discard.
        ConfigurationError: If the query doesn't go with the tables that it reads, or a rule with the table.
    """
    assert todo.table is not None, "it has been created"
    columns: T.StructType = engine.spark().table(engine.catalog.spark_name(spec.identifier)).schema
    kind = time_type(spec, columns)
    computed = compute(frames, spec, todo)
    computed = replace(computed, rows=shaped(computed.rows, columns))
    cut = todo.window.condition(kind) if todo.window is not None else ""
    whole = computed.rows
    if cut:
        computed = replace(computed, rows=frames.kept(whole.filter(cut)), kind=REWRITE)
    state = TableState(todo.table, todo.head, None)
    summary = _summary(engine, spec, todo, computed)
    if todo.window is not None:
        audit_window(engine, spec, todo.window, whole, head=branch.head, cut=cut)
        summary |= told_of_window(engine, spec, todo, computed.rows, head=branch.head, cut=cut)
        staged = _appended(spec, computed, branch=branch, state=state, summary=summary, goes=cut)
    elif computed.kind == REBUILD:
        staged = _overwritten(branch, state, computed, summary)
    elif todo.full:
        table = append(branch, state, computed.rows, summary)
        staged = StagedRows(table, computed.kind, table.rows)
    elif computed.keys is None and not computed.candidates:
        computed = replace(computed, rows=frames.kept(computed.rows))
        goes = _in_ranges(computed.ranges or {})
        staged = _appended(spec, computed, branch=branch, state=state, summary=summary, goes=goes)
    else:
        staged = _merged(engine, spec, computed, frames, branch=branch, state=state, summary=summary)
    _audit_keys(engine, spec, todo, computed=computed, staged=staged)
    findings = ask_rules(engine, spec, _came(engine, spec, staged), staged.rows, whole=staged.came is None)
    late = late_rows(frames, spec, todo)
    found = brought(spec, _came(engine, spec, staged), kind, now=engine.clock())
    warn_of(spec, found, engine.observer.warn)
    staged = replace(staged, brought=found)
    return replace(staged, bounds=computed.bounds, findings=findings, late=late, kept_back=computed.kept_back)


def _came(engine: Engine, spec: DerivedTable, staged: StagedRows) -> DataFrame:
    if staged.came is not None:
        return staged.came
    return at_version(engine.spark(), engine.catalog.spark_name(spec.identifier), staged.table.snapshot)


def _summary(engine: Engine, spec: DerivedTable, todo: DerivePlan, computed: Computed) -> dict[str, str]:
    ranges = [each for told in (computed.ranges or {}).values() for each in told]
    if spec.write == "append":
        # For tables that are made of this one: rows come at offsets that they have read.
        ranges += coarse(computed.kept_back.released, _MOST_RELEASED)
    record = replace(todo.record, waiting=computed.kept_back.waiting)
    told = {DERIVED: record.to_json(), **author_summary(engine.run_id, computed.kind, ranges)}
    if spec.write == "append" and len(todo.record.upstream) == 1:
        # So it is a log itself, by the offsets of the same topic.
        (read,) = todo.record.upstream.values()
        if read.position is not None:
            told[POSITION] = read.position.to_json()
    return told


def _overwritten(
    branch: StagingBranch, state: TableState, computed: Computed, summary: Mapping[str, str]
) -> StagedRows:
    base = branch.staged_snapshot()
    writer: Any = computed.rows.writeTo(branch.write_name)
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.overwrite(F.lit(True))
    table = staged_table(branch, base, state)
    return StagedRows(table, computed.kind, table.rows)


def _appended(
    spec: DerivedTable,
    computed: Computed,
    *,
    branch: StagingBranch,
    state: TableState,
    summary: Mapping[str, str],
    goes: str,
) -> StagedRows:
    """Add rows, and take those away for which a condition holds, if there is one."""
    rows = computed.rows
    expected = rows.count()
    if goes:
        summary = {**summary, **removes_mark(branch.delete(goes))}
    table = append(branch, state, rows if expected else rows.limit(0), summary)
    _audit_count(spec, expected, table.rows)
    ranges = tuple(each for told in (computed.ranges or {}).values() for each in told)
    return StagedRows(table, computed.kind, table.rows, ranges=ranges, came=rows)


def _in_ranges(ranges: Mapping[str, Sequence[OffsetRange]]) -> str:
    """Return the condition that a row of the derived table is of some offsets, as SQL."""
    column, found = quoted(ORIGIN), []
    for topic, told in ranges.items():
        # By its name where the brokers tell no id.
        same = f"coalesce({column}.`topic_id`, {column}.`topic`) = {literal(topic)}"
        found += [
            f"({same} AND {column}.`partition` = {r.partition} AND {column}.`offset` >= {r.start} "
            f"AND {column}.`offset` < {r.end})"
            for r in told
        ]
    return " OR ".join(found)


def _merged(
    engine: Engine,
    spec: DerivedTable,
    computed: Computed,
    frames: Frames,
    *,
    branch: StagingBranch,
    state: TableState,
    summary: Mapping[str, str],
) -> StagedRows:
    """Take the rows of keys away and add others, as one snapshot."""
    spark, names, rows = engine.spark(), key_names(spec), computed.rows
    if computed.candidates:
        there = at_version(spark, engine.catalog.spark_name(spec.identifier), branch.head)
        rows = not_older(rows, shaped(there, rows.schema), spec)
    rows = frames.kept(rows)
    expected = rows.count()
    keys = computed.keys
    if keys is None:
        keys = rows.select(*[F.col(quoted(name)).alias(key) for name, key in names.items()])
    count = expected if computed.candidates else keys.count()
    if computed.possible is not None:
        _audit_possible(spec, rows, computed.possible)
    if not expected and not count:
        return StagedRows(append(branch, state, rows.limit(0), summary), computed.kind, 0, 0, came=rows)
    goes = keys.select(F.lit(_GOES).alias(_OP), *names.values())
    comes = rows.withColumn(_OP, F.lit(_COMES))
    both = goes.unionByName(comes, allowMissingColumns=True)
    columns = [field.name for field in rows.schema]
    run_merge(spark, both, summary, lambda view: _statement(branch.write_name, view, columns, names))
    if branch.staged_snapshot() == branch.head:
        # Nothing was there that goes, and nothing comes: the position is all that is new.
        return StagedRows(append(branch, state, rows.limit(0), summary), computed.kind, 0, count, came=rows)
    table = staged_table(branch, branch.head, state)
    _audit_count(spec, expected, int(summary_of(branch.written(branch.head)).get(_INSERTED, table.rows)))
    return StagedRows(table, computed.kind, expected, count, came=rows)


def _statement(table: str, view: str, columns: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the MERGE: rows of each key that goes are deleted, rows that come meet none and are inserted. Pure."""
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(key)}" for name, key in names.items())
    listed = ", ".join(map(quoted, columns))
    values = ", ".join(f"s.{quoted(name)}" for name in columns)
    return "\n".join(
        [
            f"MERGE INTO {table} AS t USING {view} AS s ON {same} AND s.{quoted(_OP)} = '{_GOES}'",
            "WHEN MATCHED THEN DELETE",
            f"WHEN NOT MATCHED AND s.{quoted(_OP)} = '{_COMES}' THEN INSERT ({listed}) VALUES ({values})",
        ]
    )


def _audit_count(spec: DerivedTable, expected: int, found: int) -> None:
    if expected != found:
        raise AuditFailedError(
            f"Table {spec.name}: the query gave {expected} rows, and {found} were staged.",
            "main is as it was. The query must give the same rows each time; if it does, please report this.",
        )


def _audit_possible(spec: DerivedTable, rows: DataFrame, possible: DataFrame) -> None:
    others = having(rows, possible, spec, "left_anti").count()
    if others:
        told = ", ".join(f"{name} ({each})" if name != each else name for name, each in spec.key.items())
        raise AuditFailedError(
            f"Table {spec.name}: {others} rows of the query have a key that no row of {', '.join(spec.sources)} has: "
            f"{told}.",
            "main is as it was. Let key: give, for a row of an upstream table, the key of the rows that it counts in.",
        )


def _audit_keys(
    engine: Engine, spec: DerivedTable, todo: DerivePlan, *, computed: Computed, staged: StagedRows
) -> None:
    """Make sure of what the branch has after the commit: one row for each key, and possible keys alone.

    Raises:
        AuditFailedError: If it hasn't.
    """
    rows = at_version(engine.spark(), engine.catalog.spark_name(spec.identifier), staged.table.snapshot)
    if todo.full and computed.possible is not None:
        # Other partitions may have rows of keys that have expired.
        _audit_possible(spec, computed.rows if todo.window is not None else rows, computed.possible)
    if spec.write != "upsert":
        return
    several = rows.groupBy(*[F.col(quoted(name)) for name in spec.key]).count().filter(F.col("count") > 1).count()
    if several:
        raise AuditFailedError(
            f"Table {spec.name}: {several} keys would have several rows; key: {', '.join(spec.key)}.",
            "main is as it was. Please report this.",
        )
