"""Audit: check that the staged snapshots hold exactly what was planned, and that the topic's rules hold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from kafka_lake.catalog.positions import POSITION, ancestors, summary_of
from kafka_lake.common.offsets import Loss, OffsetRange, Position, Positions, place, positions_to_json
from kafka_lake.formats.task.error_classes import WRONG_TYPE
from kafka_lake.runtime.commit import NOT_KEPT, RULES_REMEDY, CheckFailedError, ColumnNote, Finding, rule_finding
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import DeadLetterClass, Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change, changes
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.dead_letters import added_rows
from kafka_lake.writers.schema_changes import SchemaRefusedError
from kafka_lake.writers.staged import Staged, StagedTable

# Lines about columns that are left out: their names may be data.
_NOTED = 100
_DEAD_LETTERS = "records with such values are dead letters; on_incompatible: new_column stores them in another column"


@dataclass(frozen=True)
class PartitionRows:
    """The rows that a snapshot adds of one Kafka partition: count, first and last offset, distinct offsets."""

    partition: int
    rows: int
    first: int
    last: int
    distinct: int


@dataclass(frozen=True)
class Audited:
    """A staged commit that passed its audit.

    Args:
        rows_by_partition: Rows by Kafka partition; empty for upserts.
        published_at: When readers could see it, in seconds since the epoch; 0 before its publication.
    """

    plan: Plan
    staged: Staged
    findings: tuple[Finding, ...]
    rows_by_partition: Mapping[int, int]
    published_at: float = 0.0


def audit(context: Context, plan: Plan, staged: Staged, failed_so_far: tuple[int, int] = (0, 0)) -> Audited:
    """Check a staged commit, and discard it if a check fails."""
    try:
        findings, rows_by_partition = check(context, plan, staged, failed_so_far)
        if failed := [result for result in findings if result.refuses]:
            reasons = "; ".join(f"{result.check}: {problem}" for result in failed for problem in result.problems)
            raise CheckFailedError(
                f"Topic {context.spec.topic}, table {context.table_name}: {reasons}.",
                findings,
                RULES_REMEDY if all(result.is_rule for result in failed) else "",
                context.spec.identifier,
            )
        context.observer.step_done("audited")
    except BaseException:
        staged.discard()
        raise
    context.timings.finish("audit")
    return Audited(plan, staged, tuple(findings), rows_by_partition)


def check(
    context: Context, plan: Plan, staged: Staged, failed_so_far: tuple[int, int] = (0, 0)
) -> tuple[list[Finding], dict[int, int]]:
    """Return the result of each check, and the rows by Kafka partition."""
    spec, primary = context.spec, staged.primary
    partitions = _partitions(context, staged)
    table = primary.branch.staged or primary.state.table.refresh()
    appended = table.metadata.snapshot_by_id(primary.appended)
    carried = summary_of(appended).get(POSITION) if appended else None
    lineage = {snapshot.snapshot_id for snapshot in ancestors(table, primary.snapshot)}
    problems = [
        f"{place(plan.topic, v.partition)} has {v.rows} rows that Kafka no longer has, the first at offset {v.first}; "
        "keep them with --keep-missing"
        for v in staged.vanished
    ]
    if not {primary.branch.head, primary.appended} <= lineage:
        problems.append(f"the staged snapshot {primary.snapshot} does not follow {primary.branch.head}")
    results = [
        row_count(spec, plan, staged),
        offset_continuity(
            plan, primary.state.position, partitions, carried, problems=problems, others=primary.state.others
        ),
        schema_evolution(_column_changes(table, primary), spec, staged),
        dead_letters(spec, staged, failed_so_far),
        data_loss(plan.named_losses),
        *map(rule_finding, staged.rules),
    ]
    rows: Counter[int] = Counter()
    for part in partitions or ():
        rows[part.partition] += part.rows
    return results, dict(rows)


def _column_changes(table: Table, primary: StagedTable) -> list[Change]:
    """Return how the columns differ from those of the planned head, without columns that the owner has dropped."""
    schemas: dict[int | None, Schema] = {schema.schema_id: schema for schema in table.metadata.schemas}
    snapshots = (table.metadata.snapshot_by_id(snapshot_id) for snapshot_id in (primary.branch.head, primary.appended))
    before, after = (schemas.get(s.schema_id) if s else None for s in snapshots)
    if before is None or after is None:
        return []
    removed = {c.column for c in changes(primary.state.table.schema(), after) if c.kind == "removed"}
    return [c for c in changes(before, after) if c.kind != "removed" or c.column in removed]


def row_count(spec: TopicTable, plan: Plan, staged: Staged) -> Finding:
    """Check that rows or changes, dead letters and tombstones make up the records, and no dead letter is missing."""
    merged, problems = staged.merge_result, list[str]()
    facts = {"records_read": staged.records}
    if merged is None:
        parts = {"rows": staged.primary.rows, "dead letters": staged.failed, "tombstones": staged.tombstones}
        facts |= {"rows_added": staged.primary.rows, "tombstones": staged.tombstones}
    else:
        parts = {"changes": merged.changes, "dead letters": staged.failed}
        facts |= {"changes": merged.changes, **merged.facts}
        problems += merged.problems
    if (total := sum(parts.values())) != staged.records:
        listed = " + ".join(f"{count} {what}" for what, count in parts.items())
        problems.append(f"{staged.records} records were read, but {listed} make {total}")
    if plan.share and plan.share.records != staged.records:
        problems.append(f"{plan.share.records} records are routed to this table, but {staged.records} were read for it")
    problems += _missing_dead_letters(spec, plan, staged)
    facts |= {
        "dead_letters": staged.failed,
        # Aborted transactions, transaction markers, and what compaction removed.
        "invisible_offsets": max(0, plan.records_at_most - staged.records - plan.elsewhere),
    }
    if plan.share:
        facts["records_of_other_tables"] = plan.elsewhere
    if staged.primary.state.adopted:
        facts["rows_of_others_before"] = staged.primary.state.adopted
    return Finding("row_count", tuple(problems), facts)


def _missing_dead_letters(spec: TopicTable, plan: Plan, staged: Staged) -> tuple[str, ...]:
    kept = staged.known_failed + (staged.dead_letters.rows if staged.dead_letters else 0)
    if not spec.keeps_dead_letters or plan.replays_dead_letters or kept == staged.failed:
        return ()
    if any(result.fails for result in staged.rules):
        return ()
    return (f"{staged.failed} records didn't decode, but the dead-letter table has {kept} of them",)


def dead_letters(spec: TopicTable, staged: Staged, failed_so_far: tuple[int, int] = (0, 0)) -> Finding:
    """Check that the whole run has no more dead letters than the topic's settings allow."""
    failed, records = staged.failed + failed_so_far[0], staged.records + failed_so_far[1]
    classes = "; ".join(
        f"{c.count} {c.name}, the first in {place(c.topic, c.partition)} at offset {c.offset}{_reason(c)}"
        for c in staged.classes
    )
    problems = []
    if staged.failed and spec.dead_letters == "fail":
        problems.append(
            f"dead_letters is fail, and {staged.failed} of {staged.records} records can't become rows ({classes})"
        )
    elif staged.failed and not spec.is_within_limit(failed, records):
        problems.append(f"{failed} dead letters of {records} records, the limit is {spec.max_dead_letters} ({classes})")
    facts: dict[str, Any] = {"dead_letters": staged.failed, "policy": spec.dead_letters}
    for c in staged.classes:
        value = f" Value: {c.value}" if spec.samples else ""
        facts[c.name] = c.count
        facts[f"sample_{c.name}"] = f"{place(c.topic, c.partition)} offset {c.offset}{_reason(c)}{value}"
    return Finding("dead_letters", tuple(problems), facts)


def _reason(of: DeadLetterClass) -> str:
    return f": {of.message}" if of.message else ""


def data_loss(losses: Sequence[Loss]) -> Finding:
    """Report the records that Kafka lost. The commit is published: `on_data_loss: continue` or a reset allowed it."""
    facts = {f"{loss.topic}/{loss.partition}": str(loss) for loss in losses}
    return Finding("data_loss", tuple(str(loss) for loss in losses), facts)


def offset_continuity(
    plan: Plan,
    before: Position | None,
    partitions: Sequence[PartitionRows] | None,
    carried: str | None,
    problems: Sequence[str] = (),
    others: Positions = MappingProxyType({}),
) -> Finding:
    """Check that the commit starts where the table's position ends, overlaps nothing and has every offset once."""
    problems, topic = list(problems), plan.topic
    ranges = {r.partition: r for r in plan.ranges}
    lost = {loss.partition for loss in plan.losses}
    for planned in plan.ranges if plan.appends else ():
        expected = before.offsets.get(planned.partition) if before else None
        if expected is not None and expected != planned.start and planned.partition not in lost:
            where = place(topic, planned.partition)
            problems.append(f"{where} starts at {planned.start}, the table's position is {expected}")
    if plan.keeps_position and before is not None and before != plan.after:
        problems.append(f"a {plan.kind} must not move the position, which was {before.to_json()}")
    if carried != (wanted := positions_to_json([plan.after, *others.values()])):
        problems.append(f"the staged snapshot has position {carried or '(none)'}, not {wanted}")
    for rows in partitions or ():
        where = place(topic, rows.partition)
        is_planned = not plan.replays_dead_letters
        problems += _partition_problems(where, rows, ranges.get(rows.partition), is_planned)
    facts: dict[str, Any] = {f"{topic}/{r.partition}": f"{r.start}..{r.end}" for r in plan.ranges}
    return Finding("offset_continuity", tuple(problems), {"offsets_compared": plan.records_at_most, **facts})


def _partition_problems(where: str, rows: PartitionRows, planned: OffsetRange | None, is_planned: bool) -> list[str]:
    problems = []
    if planned is None and is_planned:
        return [f"{where} has {rows.rows} rows (offsets {rows.first} to {rows.last}) that were not planned"]
    if planned is not None and (rows.first < planned.start or rows.last >= planned.end):
        problems.append(
            f"{where} has offsets {rows.first} to {rows.last}, planned were {planned.start} to {planned.end - 1}"
        )
    if rows.distinct != rows.rows:
        problems.append(f"{where} has {rows.rows} rows but {rows.distinct} distinct offsets")
    return problems


def schema_evolution(
    evolution: Sequence[Change], spec: TopicTable | None = None, staged: Staged | None = None
) -> Finding:
    """Check that every change of columns is safe by Iceberg's rules, and report values that have no column."""
    problems = [
        f"column {c.column}: {c.kind} ({c.before or 'none'} → {c.after or 'none'})" for c in evolution if not c.safe
    ]
    facts: dict[str, Any] = {c.column: f"{c.kind}: {c.before or 'none'} → {c.after or 'none'}" for c in evolution}
    if spec is None or staged is None:
        return Finding("schema_evolution", tuple(problems), facts, _done(evolution))
    if spec.on_incompatible == "fail":
        problems += [
            f"on_incompatible is fail, and {c.count} records don't fit their column, the first in "
            f"{place(c.topic, c.partition)} at offset {c.offset}{_reason(c)}"
            for c in staged.classes
            if c.name == WRONG_TYPE
        ]
    facts |= {f"records of {label}": count for label, count in staged.schemas.items()}
    notes = noted(spec, evolution, ignored=staged.ignored, conflicts=staged.conflicts, unkept=staged.unkept)
    return Finding("schema_evolution", tuple(problems), facts, notes)


def schema_refused(error: SchemaRefusedError) -> Finding:
    """Return the check result of a commit that was refused before it was staged."""
    return Finding("schema_evolution", error.reasons, {}, _done(error.changes))


def noted(
    spec: TopicTable,
    done: Sequence[Change],
    ignored: Sequence[Change],
    conflicts: Sequence[Conflict],
    unkept: Mapping[str, str],
) -> tuple[ColumnNote, ...]:
    """Return the notes about columns that changed, and about those that didn't, with the reason."""
    why = f"evolution is {spec.evolution}"
    notes = [
        ColumnNote(column=c.column, what=f"not {c.kind}", before=c.before, after=c.after, why=why)
        for c in ignored[:_NOTED]
    ]
    if len(ignored) > _NOTED:
        notes.append(
            ColumnNote(column="…", what=f"{len(ignored) - _NOTED} more not added", before="", after="", why=why)
        )
    for c in conflicts:
        instead = f"such values go to {c.new_column}" if c.new_column else _DEAD_LETTERS
        notes.append(
            ColumnNote(column=c.column, what="not changed", before=c.have, after=c.got, why=f"{c.label}: {instead}")
        )
    notes += [
        ColumnNote(column=path, what=NOT_KEPT, before="", after="", why=why_not)
        for path, why_not in islice(unkept.items(), _NOTED)
    ]
    if len(unkept) > _NOTED:
        more = f"{len(unkept) - _NOTED} more not kept"
        notes.append(ColumnNote(column="…", what=more, before="", after=""))
    return (*_done(done), *notes)


def _done(changes: Sequence[Change]) -> tuple[ColumnNote, ...]:
    return tuple(ColumnNote(c.column, c.kind, c.before, c.after) for c in changes)


def partitions_of(spans: Sequence[Span]) -> list[PartitionRows]:
    """Return the rows that tasks wrote, by Kafka partition.

    Offsets ascend within a span, so they are distinct. Where spans overlap, ``distinct`` is an upper bound below the
    number of rows.
    """
    found: dict[int, PartitionRows] = {}
    for span in sorted(spans, key=lambda s: (s.partition, s.first)):
        rows = PartitionRows(
            partition=span.partition, rows=span.rows, first=span.first, last=span.last, distinct=span.rows
        )
        if before := found.get(span.partition):
            overlap = max(0, before.last - span.first + 1)
            rows = PartitionRows(
                partition=span.partition,
                rows=before.rows + span.rows,
                first=before.first,
                last=max(before.last, span.last),
                distinct=before.distinct + max(0, span.rows - overlap),
            )
        found[span.partition] = rows
    return list(found.values())


def _partitions(context: Context, staged: Staged) -> list[PartitionRows] | None:
    """Return the staged rows by Kafka partition, by a scan only if the tasks' reports aren't enough."""
    spec, primary = context.spec, staged.primary
    if staged.merge_result is not None:
        return None
    if primary.spans is not None:
        reported = partitions_of(primary.spans)
        if all(part.distinct == part.rows for part in reported):
            return reported
    rows = added_rows(context, spec.identifier, primary)
    found = context.connections.frames.partitions(rows)
    names = ("partition", "rows", "first", "last", "distinct")
    return [PartitionRows(**{name: row[name] for name in names}) for row in found]
