"""Stage a commit of a derived table on a branch, and audit it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import DERIVED, POSITION, author_summary, removes_property, summary_of
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import DeriveReport, Engine, UpstreamRead
from kafka_lake.derived.frames import (
    Computed,
    Frames,
    compute,
    having,
    key_names,
    keys_of,
    not_older,
    within,
)
from kafka_lake.derived.plan import DerivePlan, Pinned
from kafka_lake.derived.upstream import REBUILD
from kafka_lake.derived.verify import verify
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AuditFailedError
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.result import RuleResult
from kafka_lake.quality.validation import Validation, referenced_tables
from kafka_lake.runtime.commit import CheckFailedError, Finding, rule_finding
from kafka_lake.writers.frames import shaped
from kafka_lake.writers.upsert.merge import run_merge

_OP = "kafka_lake_op"
_DELETE, _INSERT = "delete", "insert"
_INSERTED = "spark.merge-into.num-target-rows-inserted"
_REMEDY = (
    "main is unchanged. Correct the query or the upstream rows, or change the rule, its on_failure: or "
    "its fail_above:. Then run again."
)


def stage(engine: Engine, spec: DerivedTable, todo: DerivePlan, frames: Frames, branch: StagingBranch) -> DeriveReport:
    """Compute the rows of a commit, write them to a branch at the table's head, and audit them.

    The caller discards the branch after an error.
    """
    columns: T.StructType = engine.spark().table(engine.catalog.spark_name(spec.identifier)).schema
    computed = compute(frames, spec, todo)
    computed = replace(computed, rows=shaped(computed.rows, columns))
    staged = _Writer(engine, spec, todo, frames, branch=branch).write(computed)
    all_rows = frames.made(staged.snapshot)
    verified = verify(engine, spec, todo, frames, computed=computed, staged=all_rows)
    added = all_rows if staged.added is None else staged.added
    return DeriveReport(
        table=spec.name,
        snapshot=staged.snapshot,
        kind=staged.kind,
        full=todo.full,
        rows=staged.rows,
        keys=staged.keys,
        verified=verified,
        rederived=sum(map(len, computed.again)),
        upstream={name: _upstream_read(pinned) for name, pinned in todo.upstream.items()},
        findings=_check_rules(engine, spec, added, staged.rows, whole=staged.added is None),
    )


def _upstream_read(pinned: Pinned) -> UpstreamRead:
    read, before = pinned.read, pinned.before
    assert read.snapshot is not None, "a table without a snapshot isn't read"
    return UpstreamRead(read.snapshot, read.rows, read.rows if before is None else max(0, read.added - before.added))


@dataclass(frozen=True)
class _Staged:
    """What was written: the snapshot, and the rows that it adds (``added``: None for all rows of the table)."""

    kind: str
    snapshot: int
    rows: int
    keys: int | None = None
    added: DataFrame | None = None


@dataclass(frozen=True)
class _Writer:
    """Writes the rows of a commit."""

    engine: Engine
    spec: DerivedTable
    todo: DerivePlan
    frames: Frames
    branch: StagingBranch

    def write(self, computed: Computed) -> _Staged:
        """Write computed rows."""
        summary = self._summary(computed)
        if self.todo.full:
            snapshot = self._insert(computed.rows, summary, overwrite=computed.kind == REBUILD)
            return _Staged(computed.kind, snapshot.snapshot_id, _added_rows(snapshot))
        if computed.keys is None and not computed.candidates:
            (fact,) = self.todo.upstream.values()
            old = within(fact.identity, computed.again) if computed.again else ""
            return self._replace(self.frames.kept(computed.rows), computed.kind, summary, old)
        return self._merge(computed, summary)

    def _summary(self, computed: Computed) -> dict[str, str]:
        summary = {DERIVED: self.todo.record.to_json()}
        if self.spec.write != "append":
            return summary | author_summary(self.engine.run_id, computed.kind, ())
        # Tables that are derived from this one read it by the same topic's offsets.
        (upstream,) = self.todo.record.upstream.values()
        if upstream.position is not None:
            summary[POSITION] = upstream.position.to_json()
        return summary | author_summary(self.engine.run_id, computed.kind, computed.again)

    def _insert(self, rows: DataFrame, summary: Mapping[str, str], overwrite: bool = False) -> Snapshot:
        base = self.branch.staged_snapshot()
        writer: Any = rows.writeTo(self.branch.write_name)
        for key, value in summary.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        if overwrite:
            writer.overwrite(F.lit(True))
        else:
            writer.append()
        return self.branch.written(base)

    def _replace(self, rows: DataFrame, kind: str, summary: Mapping[str, str], old: str) -> _Staged:
        """Delete the rows that meet a condition, and append new rows."""
        expected = rows.count()
        if old:
            summary = {**summary, **removes_property(self.branch.delete(old))}
        snapshot = self._insert(rows if expected else rows.limit(0), summary)
        self._audit_count(expected, _added_rows(snapshot))
        return _Staged(kind, snapshot.snapshot_id, expected, added=rows)

    def _merge(self, computed: Computed, summary: Mapping[str, str]) -> _Staged:
        """Replace the rows of keys in one snapshot."""
        spec, names, rows = self.spec, key_names(self.spec), computed.rows
        if computed.candidates:
            rows = not_older(rows, shaped(self.frames.made(), rows.schema), spec, self.frames.identity)
        rows = self.frames.kept(rows)
        expected = rows.count()
        keys = keys_of(rows, spec) if computed.keys is None else computed.keys
        count = expected if computed.candidates else keys.count()
        if computed.keys is not None and (strange := having(rows, keys, spec, "left_anti").count()):
            raise AuditFailedError(
                f"Table {spec.name}: {strange} rows of the query have keys that no row read from "
                f"{', '.join(spec.sources)} has: {', '.join(f'{name} ({text})' for name, text in spec.key.items())}.",
                "main is unchanged. Correct key:, so that it computes from upstream rows the same keys as the query.",
            )
        if expected or count:
            deletes = keys.select(F.lit(_DELETE).alias(_OP), *names.values())
            both = deletes.unionByName(rows.withColumn(_OP, F.lit(_INSERT)), allowMissingColumns=True)
            write, columns = self.branch.write_name, rows.columns
            run_merge(self.engine.spark(), both, summary, lambda view: _statement(write, view, columns, names))
        if self.branch.staged_snapshot() == self.branch.head:
            # The merge changed no row; the commit has the new position only.
            snapshot = self._insert(rows.limit(0), summary)
            return _Staged(computed.kind, snapshot.snapshot_id, 0, count, added=rows)
        snapshot = self.branch.written(self.branch.head)
        self._audit_count(expected, int(summary_of(snapshot).get(_INSERTED, _added_rows(snapshot))))
        return _Staged(computed.kind, snapshot.snapshot_id, expected, count, added=rows)

    def _audit_count(self, expected: int, staged: int) -> None:
        if expected != staged:
            raise AuditFailedError(
                f"Table {self.spec.name}: the query returned {expected} rows, and {staged} were staged.",
                "main is unchanged. The query must return the same rows each time; if it does, please report this.",
            )


def _added_rows(snapshot: Snapshot) -> int:
    return int(summary_of(snapshot).get("added-records", 0))


def _statement(table: str, view: str, columns: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the MERGE that deletes the rows of keys and inserts new rows. Pure."""
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(key)}" for name, key in names.items())
    listed = ", ".join(map(quoted, columns))
    values = ", ".join(f"s.{quoted(name)}" for name in columns)
    return (
        f"MERGE INTO {table} AS t USING {view} AS s ON {same} AND s.{quoted(_OP)} = '{_DELETE}'\n"
        "WHEN MATCHED THEN DELETE\n"
        f"WHEN NOT MATCHED AND s.{quoted(_OP)} = '{_INSERT}' THEN INSERT ({listed}) VALUES ({values})"
    )


def _check_rules(
    engine: Engine, spec: DerivedTable, rows: DataFrame, count: int, *, whole: bool
) -> tuple[Finding, ...]:
    """Evaluate the rules on the rows that a commit adds; ``whole`` says whether these are all rows of the table."""
    rules = spec.named_rules
    if not rules:
        return ()
    # A commit without new rows passes all rules.
    results: Sequence[RuleResult] = [RuleResult(rule, 0, 0) for rule in rules]
    if count or whole:
        column = METADATA_COLUMN if spec.is_row_wise else None
        tables = referenced_tables(engine, rules, f"Table {spec.name}")
        results = evaluate(
            Validation(spec.name, rules, rows, column=column, declared=True, what="Table", tables=tables)
        ).results
    findings = list(map(rule_finding, results))
    if failed := [finding for finding in findings if finding.refuses]:
        reasons = "; ".join(f"{finding.check}: {problem}" for finding in failed for problem in finding.problems)
        raise CheckFailedError(f"Table {spec.name}: {reasons}.", findings, _REMEDY, spec.identifier)
    return tuple(findings)
