"""Stage: the rows of a commit come and go on a branch of the derived table, audited before publication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError
from kafka_lake.derive.compute import Computed, compute, having, key_names, keys_of, not_older
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.frames import Frames, within
from kafka_lake.derive.partitioned import Brought, audit_window, brought, time_type, warn_of, window_summary
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.query import ORIGIN
from kafka_lake.derive.record import REBUILD, REWRITE
from kafka_lake.derive.verify import verify
from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.gate import GateFailedError
from kafka_lake.ingest.keyed.merge import run_merge
from kafka_lake.ingest.rule_finding import rule_finding
from kafka_lake.ingest.rules.asked import Asked
from kafka_lake.ingest.rules.evaluate import evaluate
from kafka_lake.ingest.rules.referred import referred
from kafka_lake.ingest.rules.result import RuleResult, commit_result
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append
from kafka_lake.ingest.stage.staged import StagedTable, staged_table
from kafka_lake.lake.author import author_summary, removes_mark
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.catalog import quoted
from kafka_lake.lake.positions import DERIVED, POSITION, TableState, summary_of

_OP = "kafka_lake_op"
_GOES, _COMES = "goes", "comes"
_INSERTED = "spark.merge-into.num-target-rows-inserted"


_REMEDY = (
    "main is as it was. Correct the query or the upstream rows, or change the rule: its own settings, on_failure: or "
    "fail_above:. Then run again."
)


@dataclass(frozen=True)
class StagedRows:
    """A commit on its branch."""

    table: StagedTable
    kind: str
    rows: int
    keys: int | None = None
    came: DataFrame | None = None
    findings: tuple[Finding, ...] = ()
    verified: int = 0
    rederived: int = 0
    brought: Brought = field(default_factory=Brought)


def stage(engine: Engine, spec: DerivedTable, todo: DerivePlan, frames: Frames, *, branch: StagingBranch) -> StagedRows:
    """Compute the rows of a commit, write them to a branch at the table's head, and audit what is there then.

    Raises:
        AuditFailedError: If the rows aren't what they must be, or break a rule that fails. The caller discards the
            branch.
        ConfigurationError: If the query doesn't go with the tables that it reads, or a rule with the table.
    """
    columns: T.StructType = engine.spark().table(engine.catalog.spark_name(spec.identifier)).schema
    kind = time_type(spec, columns)
    computed = compute(frames, spec, todo)
    computed = replace(computed, rows=shaped(computed.rows, columns))
    staged = _written(engine, spec, todo, frames, computed=computed, branch=branch, cut=_cut(todo, kind))
    there = frames.made(staged.table.snapshot)
    _audit_unique(spec, there)
    verified = verify(engine, spec, todo, frames, computed=computed, staged=there)
    came = there if staged.came is None else staged.came
    findings = _check_rules(engine, spec, came, staged.rows, whole=staged.came is None)
    found = brought(spec, came, kind, now=engine.clock())
    warn_of(spec, found, engine.observer.warn)
    rederived = sum(len(each) for ranges in computed.again.values() for each in ranges)
    return replace(staged, findings=findings, verified=verified, rederived=rederived, brought=found)


def _cut(todo: DerivePlan, kind: str) -> str:
    return todo.window.condition(kind) if todo.window is not None else ""


def _written(
    engine: Engine,
    spec: DerivedTable,
    todo: DerivePlan,
    frames: Frames,
    *,
    computed: Computed,
    branch: StagingBranch,
    cut: str,
) -> StagedRows:
    assert todo.table is not None, "it has been created"
    state = TableState(todo.table, todo.head, None)
    summary = _summary(engine, spec, todo, computed)
    if todo.window is not None:
        rows = frames.kept(computed.rows.filter(cut))
        audit_window(frames, spec, todo.window, computed.rows, cut=cut)
        summary |= window_summary(engine, spec, todo, frames, rows=rows, cut=cut)
        return _appended(spec, replace(computed, rows=rows, kind=REWRITE), branch, state, summary=summary, goes=cut)
    if computed.kind == REBUILD:
        return _overwritten(branch, state, computed, summary)
    if todo.full:
        table = append(branch, state, computed.rows, summary)
        return StagedRows(table, computed.kind, table.rows)
    if computed.keys is None and not computed.candidates:
        goes = [within(todo.upstream[name].identity, each) for name, each in computed.again.items() if each]
        kept = replace(computed, rows=frames.kept(computed.rows))
        return _appended(spec, kept, branch, state, summary=summary, goes=" OR ".join(dict.fromkeys(goes)))
    return _merged(engine, spec, computed, frames, branch=branch, state=state, summary=summary)


def _summary(engine: Engine, spec: DerivedTable, todo: DerivePlan, computed: Computed) -> dict[str, str]:
    # For tables that are made of this one: at these offsets, rows may have changed.
    ranges = dict.fromkeys(each for ranges in computed.again.values() for each in ranges)
    summary = {DERIVED: todo.record.to_json()}
    summary |= author_summary(engine.run_id, computed.kind, ranges if spec.write == "append" else ())
    if spec.write == "append" and len(todo.record.upstream) == 1:
        # So it is a log itself, by the offsets of the same topic.
        (read,) = todo.record.upstream.values()
        if read.position is not None:
            summary[POSITION] = read.position.to_json()
    return summary


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
    return StagedRows(table, computed.kind, table.rows, came=rows)


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
        rows = not_older(rows, shaped(frames.made(), rows.schema), spec)
    rows = frames.kept(rows)
    expected = rows.count()
    keys = keys_of(rows, spec) if computed.keys is None else computed.keys
    count = expected if computed.candidates else keys.count()
    if computed.keys is not None and (others := having(rows, keys, spec, "left_anti").count()):
        raise AuditFailedError(
            f"Table {spec.name}: {others} rows of the query have a key that no row that was read of "
            f"{', '.join(spec.sources)} has: {', '.join(f'{name} ({text})' for name, text in spec.key.items())}.",
            "main is as it was. Let key: give, for a row of an upstream table, the key of the rows that it counts in.",
        )
    if not expected and not count:
        return StagedRows(append(branch, state, rows.limit(0), summary), computed.kind, 0, 0, came=rows)
    goes = keys.select(F.lit(_GOES).alias(_OP), *names.values())
    comes = rows.withColumn(_OP, F.lit(_COMES))
    both = goes.unionByName(comes, allowMissingColumns=True)
    columns = [field.name for field in rows.schema]
    run_merge(spark, both, summary, lambda view: _statement(branch.write_name, view, columns, names))
    if branch.staged_snapshot() == branch.head:
        # Nothing was there that goes, and nothing comes: only the position is new.
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


def _audit_unique(spec: DerivedTable, rows: DataFrame) -> None:
    """Raise an error unless each key of an upsert table has one row on the branch."""
    if spec.write != "upsert":
        return
    several = rows.groupBy(*[F.col(quoted(name)) for name in spec.key]).count().filter(F.col("count") > 1).count()
    if several:
        raise AuditFailedError(
            f"Table {spec.name}: {several} keys would have several rows; key: {', '.join(spec.key)}.",
            "main is as it was. Please report this.",
        )


def _check_rules(
    engine: Engine, spec: DerivedTable, rows: DataFrame, count: int, *, whole: bool
) -> tuple[Finding, ...]:
    """Check a table's rules on the rows that a commit adds; ``whole`` says whether they are all rows of the table.

    Raises:
        ConfigurationError: If a rule doesn't go with the table's columns.
        GateFailedError: If a rule that fails is broken. The caller discards the branch.
    """
    rules = spec.named_rules
    if not rules:
        return ()
    if count:
        column = ORIGIN if spec.is_row_wise else None
        tables = referred(engine, rules, f"Table {spec.name}")
        asked = Asked(
            topic=spec.name, rules=rules, rows=rows, column=column, declared=True, what="Table", tables=tables
        )
        results = evaluate(asked).results
    else:
        # A commit that takes rows away, or holds a position alone, is not the one that somebody counts.
        results = tuple(
            commit_result(rule, 0) if whole and rule.kind in ("row_count", "null_share") else RuleResult(rule, 0, 0)
            for rule in rules
        )
    findings = list(map(rule_finding, results))
    if failed := [each for each in findings if each.refuses]:
        reasons = "; ".join(f"{each.check}: {problem}" for each in failed for problem in each.problems)
        raise GateFailedError(f"Table {spec.name}: {reasons}.", findings, _REMEDY, spec.identifier)
    return tuple(findings)
