"""Stage a commit of a derived table on a branch, and audit it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import DERIVED, POSITION, TableState, author_summary, removes_mark, summary_of
from kafka_lake.common.offsets import joined_ranges
from kafka_lake.derived.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.frames import (
    Computed,
    Frames,
    compute,
    having,
    key_names,
    keys_of,
    not_older,
    places_of,
    within,
)
from kafka_lake.derived.plan import DerivePlan
from kafka_lake.derived.query import ORIGIN
from kafka_lake.derived.upstream import REBUILD, REWRITE
from kafka_lake.derived.verify import verify
from kafka_lake.errors import AuditFailedError, ConfigurationError
from kafka_lake.ingest.publish import GateFailedError
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.result import RuleResult
from kafka_lake.quality.validation import Validation, referenced_tables
from kafka_lake.runtime.commit import Finding, rule_finding
from kafka_lake.writers.frames import append, shaped
from kafka_lake.writers.staged import StagedTable, staged_table
from kafka_lake.writers.upsert.merge import run_merge

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
    partitions: tuple[str, ...] = ()


def stage(engine: Engine, spec: DerivedTable, todo: DerivePlan, frames: Frames, *, branch: StagingBranch) -> StagedRows:
    """Compute the rows of a commit, write them to a branch at the table's head, and audit them.

    The caller discards the branch after an error.
    """
    columns: T.StructType = engine.spark().table(engine.catalog.spark_name(spec.identifier)).schema
    kind = time_type(spec, columns)
    computed = compute(frames, spec, todo)
    computed = replace(computed, rows=shaped(computed.rows, columns))
    cut = todo.window.condition(kind) if todo.window else ""
    staged = _Stage(engine, spec, todo, frames, branch=branch).written(computed, cut)
    there = frames.made(staged.table.snapshot)
    verified = verify(engine, spec, todo, frames, computed=computed, staged=there)
    came = there if staged.came is None else staged.came
    return replace(
        staged,
        findings=_check_rules(engine, spec, came, staged.rows, whole=staged.came is None),
        verified=verified,
        rederived=sum(map(len, computed.again)),
        partitions=partitions_of(spec, came, kind, now=engine.clock()),
    )


@dataclass(frozen=True)
class _Stage:
    """Writes the rows of a commit."""

    engine: Engine
    spec: DerivedTable
    todo: DerivePlan
    frames: Frames
    branch: StagingBranch

    def written(self, computed: Computed, cut: str) -> StagedRows:
        """Write computed rows, or only those that meet the condition ``cut``."""
        summary = self._summary(computed)
        if cut:
            rows = self.frames.kept(computed.rows.filter(cut))
            audit_window(self.frames, self.spec, computed.rows, cut=cut)
            summary |= window_summary(self.engine, self.spec, self.todo, self.frames, rows=rows, cut=cut)
            return self._replaced(replace(computed, rows=rows, kind=REWRITE), summary, cut)
        if computed.kind == REBUILD:
            return self._overwritten(computed, summary)
        if self.todo.full:
            table = append(self.branch, self._state, computed.rows, summary)
            return StagedRows(table, computed.kind, table.rows)
        if computed.keys is None and not computed.candidates:
            (fact,) = self.todo.upstream.values()
            goes = within(fact.identity, computed.again) if computed.again else ""
            return self._replaced(replace(computed, rows=self.frames.kept(computed.rows)), summary, goes)
        return self._merged(computed, summary)

    def _summary(self, computed: Computed) -> dict[str, str]:
        summary = {DERIVED: self.todo.record.to_json()}
        if self.spec.write != "append":
            return summary | author_summary(self.engine.run_id, computed.kind, ())
        # Tables that are derived from this one read it by the same topic's offsets.
        (upstream,) = self.todo.record.upstream.values()
        if upstream.position is not None:
            summary[POSITION] = upstream.position.to_json()
        return summary | author_summary(self.engine.run_id, computed.kind, computed.again)

    @property
    def _state(self) -> TableState:
        assert self.todo.table is not None, "it has been created"
        return TableState(self.todo.table, self.todo.head, None)

    def _overwritten(self, computed: Computed, summary: Mapping[str, str]) -> StagedRows:
        base = self.branch.staged_snapshot()
        writer: Any = computed.rows.writeTo(self.branch.write_name)
        for key, value in summary.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.overwrite(F.lit(True))
        table = staged_table(self.branch, base, self._state)
        return StagedRows(table, computed.kind, table.rows)

    def _replaced(self, computed: Computed, summary: Mapping[str, str], goes: str) -> StagedRows:
        """Append rows, and delete those that meet a condition."""
        rows = computed.rows
        expected = rows.count()
        if goes:
            summary = {**summary, **removes_mark(self.branch.delete(goes))}
        table = append(self.branch, self._state, rows if expected else rows.limit(0), summary)
        self._audit_count(expected, table.rows)
        return StagedRows(table, computed.kind, table.rows, came=rows)

    def _merged(self, computed: Computed, summary: Mapping[str, str]) -> StagedRows:
        """Replace the rows of keys in one snapshot."""
        spec, names, rows = self.spec, key_names(self.spec), computed.rows
        if computed.candidates:
            rows = not_older(rows, shaped(self.frames.made(), rows.schema), spec)
        rows = self.frames.kept(rows)
        expected = rows.count()
        keys = keys_of(rows, spec) if computed.keys is None else computed.keys
        count = expected if computed.candidates else keys.count()
        if computed.keys is not None and (others := having(rows, keys, spec, "left_anti").count()):
            raise AuditFailedError(
                f"Table {spec.name}: {others} rows of the query have a key that no row that was read of "
                f"{', '.join(spec.sources)} has: {', '.join(f'{name} ({text})' for name, text in spec.key.items())}.",
                "main is as it was. Let key: give, for a row of an upstream table, the key of the rows that it counts "
                "in.",
            )
        if expected or count:
            goes = keys.select(F.lit(_GOES).alias(_OP), *names.values())
            both = goes.unionByName(rows.withColumn(_OP, F.lit(_COMES)), allowMissingColumns=True)
            write, columns = self.branch.write_name, rows.columns
            run_merge(self.engine.spark(), both, summary, lambda view: _statement(write, view, columns, names))
        if self.branch.staged_snapshot() == self.branch.head:
            # No row goes or comes: only the position is new.
            return StagedRows(
                append(self.branch, self._state, rows.limit(0), summary), computed.kind, 0, count, came=rows
            )
        table = staged_table(self.branch, self.branch.head, self._state)
        self._audit_count(expected, int(summary_of(self.branch.written(self.branch.head)).get(_INSERTED, table.rows)))
        return StagedRows(table, computed.kind, expected, count, came=rows)

    def _audit_count(self, expected: int, found: int) -> None:
        if expected != found:
            raise AuditFailedError(
                f"Table {self.spec.name}: the query gave {expected} rows, and {found} were staged.",
                "main is as it was. The query must give the same rows each time; if it does, please report this.",
            )


def _statement(table: str, view: str, columns: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the MERGE that deletes the rows of keys and inserts new rows. Pure."""
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
        column = ORIGIN if spec.is_row_wise else None
        tables = referenced_tables(engine, rules, f"Table {spec.name}")
        results = evaluate(
            Validation(spec.name, rules, rows, column=column, declared=True, what="Table", tables=tables)
        ).results
    findings = list(map(rule_finding, results))
    if failed := [each for each in findings if each.refuses]:
        reasons = "; ".join(f"{each.check}: {problem}" for each in failed for problem in each.problems)
        raise GateFailedError(f"Table {spec.name}: {reasons}.", findings, _REMEDY, spec.identifier)
    return tuple(findings)


_MOST_KEYS = 1000
_DAYS_AHEAD = 31
_TIME, _OWNER = "kafka_lake_time", "kafka_lake_owner_"


def time_type(spec: DerivedTable, columns: T.StructType) -> str:
    """Return the type of the partitions' column; empty without partitions."""
    cut = spec.time_partitions
    if cut is None:
        return ""
    kinds = {each.name.lower(): each.dataType.simpleString() for each in columns}
    kind: str = kinds.get(cut.column.lower(), "")
    if not cut.has(kind):
        why = f"has type {kind}" if kind else "is no column of the table"
        raise ConfigurationError(
            f"Table {spec.name}: partitions: {cut.column} {why}.",
            "Name a column of the query's result, of type timestamp, or of type date for daily and monthly.",
        )
    return kind


def partitions_of(spec: DerivedTable, rows: DataFrame, kind: str, *, now: float) -> tuple[str, ...]:
    """Return Dagster's keys of the rows' partitions, the newest thousand, without those of a distant future."""
    cut = spec.time_partitions
    if cut is None:
        return ()
    step = 1 if cut.unit == "hourly" else 24
    hours = F.floor(F.expr(cut.hours(kind)) / step).cast("bigint") * step
    shown = hours.between(cut.first_hour, int(now // 3600) + 24 * _DAYS_AHEAD)
    found = rows.select(hours.alias("hours")).filter(shown).distinct().orderBy(F.desc("hours"))
    days = 31 if cut.unit == "monthly" else 1
    return tuple(dict.fromkeys(cut.key(each.hours) for each in found.limit(days * _MOST_KEYS).collect()))


def audit_window(frames: Frames, spec: DerivedTable, whole: DataFrame, *, cut: str) -> None:
    """Raise an AuditFailedError if a row of a record, or of a key, has moved to another partition.

    It would be there twice, or be lost. The time may come from a table under ``join``, or from a changed query.
    """
    assert spec.time_partitions is not None, "only tables with partitions are computed by them"
    at, time = F.col(quoted(ORIGIN)), F.col(quoted(spec.time_partitions.column)).alias(_TIME)
    owners = (
        [at[name].alias(f"{_OWNER}{name}") for name in ("topic_id", "partition", "offset")]
        if spec.write == "append"
        else [F.col(quoted(name)).alias(f"{_OWNER}{number}") for number, name in enumerate(spec.key)]
    )
    within = F.coalesce(F.expr(cut), F.lit(False))
    goes, stays = (frames.made().filter(each).select(*owners, time) for each in (within, ~within))
    comes, others = (whole.filter(each).select(*owners, time) for each in (within, ~within))
    moved = 0
    # Mostly no row has moved, and then the other partitions needn't be computed.
    came, gone = comes.exceptAll(goes), goes.exceptAll(comes)
    if not (inward := _of_owners(came, stays)).isEmpty():
        moved += _of_owners(stays, inward).exceptAll(_of_owners(others, inward)).count()
    if not gone.isEmpty():
        moved += _of_owners(others, gone).exceptAll(_of_owners(stays, gone)).count()
    if moved:
        what = "records" if spec.write == "append" else "keys"
        raise AuditFailedError(
            f"Table {spec.name}: {moved} rows have changed their partition: by the query as it is now, their {what} "
            "have rows in others. They would be there twice, or be lost.",
            "main is as it was. The time of a row comes from a table under join: or from another query than before, or "
            f"others have changed it. `kafka-lake rebuild {spec.name}` computes all partitions at once.",
        )


def _of_owners(rows: DataFrame, of: DataFrame) -> DataFrame:
    """Return the rows whose record, or key, other rows have too."""
    names = [name for name in rows.columns if name != _TIME]
    known = of.select(*[F.col(name).alias(f"{name}_") for name in names]).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"{name}_")) for name in names]
    return rows.join(known, reduce(Column.__and__, same), "left_semi")


def window_summary(
    engine: Engine, spec: DerivedTable, todo: DerivePlan, frames: Frames, *, rows: DataFrame, cut: str
) -> dict[str, str]:
    """Return snapshot properties for recomputed partitions; warns if upstream rows may be missing."""
    there = frames.made().filter(cut)
    after, before = rows.count(), there.count()
    if after < before or (spec.write == "aggregate" and any(each.read.expired for each in todo.upstream.values())):
        engine.observer.warn(
            f"Table {spec.name}: where {cut}, there were {before} rows, and there are {after} now. If rows of "
            f"{', '.join(spec.sources)} have expired, what was made of them has gone."
        )
    if spec.write != "append":
        return {}
    # Tables that are derived from this one recompute these offsets.
    (fact,) = todo.upstream.values()
    ranges = places_of(rows.select(ORIGIN).unionByName(there.select(ORIGIN)), fact.identity)
    return author_summary(engine.run_id, REWRITE, joined_ranges(ranges, None)) if ranges is not None else {}
