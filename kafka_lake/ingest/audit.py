"""Audit: is what was staged exactly what was planned? Findings, not opinions; the same for staged and published."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from kafka_lake.catalog.positions import POSITION, ancestors, summary_of
from kafka_lake.common.offsets import Loss, OffsetRange, Position, Positions, place, positions_to_json
from kafka_lake.formats.task.error_classes import WRONG_TYPE
from kafka_lake.runtime.commit import NOT_KEPT, ColumnNote, Finding, rule_finding
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.dead_letter_class import DeadLetterClass
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change, changes
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.dead_letters import added_rows
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.schema_changes import SchemaRefusedError
from kafka_lake.writers.staged import Staged
from kafka_lake.writers.upsert.merge import UpsertResult

# Lines about columns that are left out: their names may be data.
_NOTED = 100
_DEAD_LETTERS = "records with such values are dead letters; on_incompatible: new_column keeps them in another column"


@dataclass(frozen=True)
class PartitionRows:
    """What a snapshot adds of one Kafka partition: rows, first and last offset, and how many offsets are distinct."""

    partition: int
    rows: int
    first: int
    last: int
    distinct: int


def audit(
    context: Context, plan: Plan, staged: Staged, earlier: tuple[int, int] = (0, 0)
) -> tuple[list[Finding], dict[int, int]]:
    """Examine a staged commit."""
    spec, primary = context.spec, staged.primary
    held = None
    if spec.metadata_column and staged.keyed is None:
        held = None if primary.spans is None else partitions_of(primary.spans)
        if held is None or any(each.distinct != each.rows for each in held):
            held = _staged_partitions(context, staged, spec.metadata_column)
    table = primary.branch.staged or primary.state.table.refresh()
    schemas = {s.schema_id: s for s in table.metadata.schemas}
    head = table.metadata.snapshot_by_id(primary.branch.head)
    new = table.metadata.snapshot_by_id(primary.appended)
    old_schema = schemas.get(head.schema_id) if head and head.schema_id is not None else None
    new_schema = schemas.get(new.schema_id) if new and new.schema_id is not None else None
    evolution = changes(old_schema, new_schema) if old_schema and new_schema else []
    if new_schema and any(each.kind == "removed" for each in evolution):
        # What the table hadn't any more when it was planned, its owner has dropped.
        ours = [c.column for c in changes(primary.state.table.schema(), new_schema) if c.kind == "removed"]
        evolution = [c for c in evolution if c.kind != "removed" or c.column in ours]
    carried = summary_of(new).get(POSITION, "") if new else ""
    behind = [s.snapshot_id for s in ancestors(table, primary.snapshot)]
    chain = (
        []
        if primary.branch.head in behind and primary.appended in behind
        else [f"the staged snapshot {primary.snapshot} does not follow {primary.branch.head}"]
    )
    chain += [
        f"{place(plan.topic, v.partition)} has {v.rows} rows that Kafka no longer has, the first at offset {v.first}; "
        "keep them with --keep-missing"
        for v in staged.vanished
    ]
    return [
        row_count(spec, plan, staged),
        offset_continuity(plan, primary.state.position, held, carried, chain=chain, others=primary.state.others),
        schema_evolution(evolution, spec, staged),
        dead_letters(spec, staged, earlier),
        data_loss(plan.named_losses),
        *map(rule_finding, staged.rules),
    ], _summed_rows(held or ())


def _summed_rows(held: Sequence[PartitionRows]) -> dict[int, int]:
    rows: Counter[int] = Counter()
    for each in held:
        rows[each.partition] += each.rows
    return dict(rows)


def row_count(spec: TopicTable, plan: Plan, staged: Staged) -> Finding:
    """Check that rows, dead letters and tombstones make up the records read, and that no dead letter is missing."""
    if staged.keyed is not None:
        return _keyed_row_count(spec, plan, staged, staged.keyed)
    total = staged.primary.rows + staged.failed + staged.tombstones
    problems = []
    if total != staged.records:
        problems.append(
            f"{staged.records} records were read, but {staged.primary.rows} rows + {staged.failed} dead letters + "
            f"{staged.tombstones} tombstones make {total}"
        )
    problems += [*_others(plan, staged), *_dead_letters_missing(spec, plan, staged)]
    facts = {
        "records_read": staged.records,
        "rows_added": staged.primary.rows,
        "dead_letters": staged.failed,
        "tombstones": staged.tombstones,
        # Aborted transactions, transaction markers, and what compaction removed.
        "invisible_offsets": max(0, plan.records_at_most - staged.records - plan.elsewhere),
    }
    if plan.share:
        facts["records_of_other_tables"] = plan.elsewhere
    if staged.primary.state.adopted:
        facts["rows_of_others_before"] = staged.primary.state.adopted
    return Finding("row_count", tuple(problems), facts)


def _keyed_row_count(spec: TopicTable, plan: Plan, staged: Staged, batch: UpsertResult | HistoryResult) -> Finding:
    """Check that changes and dead letters make up the records, and that each key is as its changes left it."""
    problems = [*batch.problems]
    if batch.changes + staged.failed != staged.records:
        problems.append(
            f"{staged.records} records were read, but {batch.changes} changes + {staged.failed} dead letters make "
            f"{batch.changes + staged.failed}"
        )
    facts = {
        "records_read": staged.records,
        "changes": batch.changes,
        **batch.facts,
        "dead_letters": staged.failed,
        "invisible_offsets": max(0, plan.records_at_most - staged.records - plan.elsewhere),
    }
    return Finding("row_count", (*problems, *_others(plan, staged), *_dead_letters_missing(spec, plan, staged)), facts)


def _others(plan: Plan, staged: Staged) -> tuple[str, ...]:
    """Return what is wrong with a table's share of the records."""
    if plan.share is None or plan.share.records == staged.records:
        return ()
    return (f"{plan.share.records} records are routed to this table, but {staged.records} were read for it",)


def _dead_letters_missing(spec: TopicTable, plan: Plan, staged: Staged) -> tuple[str, ...]:
    kept = staged.known_failed + (staged.dead_letters.rows if staged.dead_letters else 0)
    if spec.dead_letters != "table" or plan.kind == "dead_letter_replay" or kept == staged.failed:
        return ()
    if any(each.fails for each in staged.rules):
        return ()
    return (f"{staged.failed} records didn't decode, but the dead-letter table has {kept} of them",)


def dead_letters(spec: TopicTable, staged: Staged, earlier: tuple[int, int] = (0, 0)) -> Finding:
    """Check that no more records failed than the topic's settings allow, counted over the whole run."""
    failed, records = staged.failed + earlier[0], staged.records + earlier[1]
    classes = "; ".join(
        f"{c.count} {c.name}, the first in {place(c.topic, c.partition)} at offset {c.offset}{_reason(c)}"
        for c in staged.classes
    )
    problems = []
    if staged.failed and spec.dead_letters == "fail":
        problems.append(f"dead_letters is fail, and {staged.failed} records of {staged.records} fit no row ({classes})")
    elif staged.failed and not spec.is_within_limit(failed, records):
        problems.append(f"{failed} dead letters of {records} records, the limit is {spec.max_dead_letters} ({classes})")
    facts: dict[str, Any] = {"dead_letters": staged.failed, "policy": spec.dead_letters}
    for each in staged.classes:
        facts[each.name] = each.count
        facts[f"sample_{each.name}"] = f"{each.place}{_reason(each)}{f' Value: {each.value}' if spec.samples else ''}"
    return Finding("dead_letters", tuple(problems), facts)


def _reason(of: DeadLetterClass) -> str:
    return f": {of.message}" if of.message else ""


def data_loss(losses: Sequence[Loss]) -> Finding:
    """Tell what a commit gives up for lost; it is published nevertheless, since that is what was asked for."""
    facts = {f"{loss.topic}/{loss.partition}": str(loss) for loss in losses}
    return Finding("data_loss", tuple(str(loss) for loss in losses), facts)


def offset_continuity(
    plan: Plan,
    before: Position | None,
    held: Sequence[PartitionRows] | None,
    carried: str,
    chain: Sequence[str] = (),
    others: Positions = MappingProxyType({}),
) -> Finding:
    """Check that the commit starts where the table's position ends, overlaps nothing and has every offset once."""
    problems, topic = list(chain), plan.topic
    ranges = {r.partition: r for r in plan.ranges}
    lost = {loss.partition for loss in plan.losses}
    for each in plan.ranges if plan.kind == "append" else ():
        expected = before.offsets.get(each.partition) if before else None
        if expected is not None and expected != each.start and each.partition not in lost:
            where = place(topic, each.partition)
            problems.append(f"{where} starts at {each.start}, the table's position is {expected}")
    if plan.kind in ("replace", "dead_letter_replay") and before is not None and before != plan.after:
        problems.append(f"a {plan.kind} must not move the position, which was {before.to_json()}")
    if carried != (wanted := positions_to_json([plan.after, *others.values()])):
        problems.append(f"the staged snapshot carries position {carried or '(none)'}, not {wanted}")
    for rows in held or ():
        where, planned = place(topic, rows.partition), ranges.get(rows.partition)
        problems += _partition_problems(where, rows, planned, plan.kind == "dead_letter_replay")
    facts = {f"{topic}/{r.partition}": f"{r.start}..{r.end}" for r in plan.ranges}
    return Finding("offset_continuity", tuple(problems), facts)


def _partition_problems(where: str, rows: PartitionRows, planned: OffsetRange | None, anywhere: bool) -> list[str]:
    problems = []
    if planned is None and not anywhere:
        return [f"{where} has {rows.rows} rows (offsets {rows.first} to {rows.last}) that nobody planned"]
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
    """Check that the schema changed in ways only that are safe by Iceberg's rules, and tell what didn't change."""
    problems = [
        f"column {c.column}: {c.kind} ({c.before or 'none'} → {c.after or 'none'})" for c in evolution if not c.safe
    ]
    facts: dict[str, Any] = {c.column: f"{c.kind}: {c.before or 'none'} → {c.after or 'none'}" for c in evolution}
    if spec is None or staged is None:
        return Finding("schema_evolution", tuple(problems), facts, _done(evolution))
    if spec.on_incompatible == "fail":
        problems += [
            f"on_incompatible is fail, and {c.count} records fit no column, the first in "
            f"{place(c.topic, c.partition)} at offset {c.offset}{_reason(c)}"
            for c in staged.classes
            if c.name == WRONG_TYPE
        ]
    facts |= {f"records of {label}": count for label, count in staged.schemas.items()}
    notes = noted(spec, evolution, ignored=staged.ignored, conflicts=staged.conflicts, unkept=staged.unkept)
    return Finding("schema_evolution", tuple(problems), facts, notes)


def schema_refused(error: SchemaRefusedError) -> Finding:
    """Return the finding of a commit that was refused before it was staged."""
    return Finding("schema_evolution", error.reasons, {}, _done(error.changes))


def noted(
    spec: TopicTable,
    done: Sequence[Change],
    ignored: Sequence[Change],
    conflicts: Sequence[Conflict],
    unkept: Mapping[str, str],
) -> tuple[ColumnNote, ...]:
    """Return what happened to columns, and what did not and why, as lines of a table."""
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
        ColumnNote(column=path, what=NOT_KEPT, before="", after="", why=said)
        for path, said in islice(unkept.items(), _NOTED)
    ]
    if len(unkept) > _NOTED:
        more = f"{len(unkept) - _NOTED} more not kept"
        notes.append(ColumnNote(column="…", what=more, before="", after="", why=""))
    return (*_done(done), *notes)


def _done(changes: Sequence[Change]) -> tuple[ColumnNote, ...]:
    return tuple(ColumnNote(c.column, c.kind, c.before, c.after) for c in changes)


def partitions_of(spans: Sequence[Span]) -> list[PartitionRows]:
    """Return what tasks wrote of each Kafka partition, as a scan of their files would find it.

    The offsets within a span ascend, so they are distinct. Where spans of a partition overlap they might not be: then
    as many are counted as can be distinct at the most, which is less than there are rows.
    """
    found: dict[int, PartitionRows] = {}
    for span in sorted(spans, key=lambda each: (each.partition, each.first)):
        before = found.get(
            span.partition,
            PartitionRows(partition=span.partition, rows=0, first=span.first, last=span.first - 1, distinct=0),
        )
        overlap = max(0, before.last - span.first + 1)
        found[span.partition] = PartitionRows(
            partition=span.partition,
            rows=before.rows + span.rows,
            first=before.first,
            last=max(before.last, span.last),
            distinct=before.distinct + max(0, span.rows - overlap),
        )
    return list(found.values())


def _staged_partitions(context: Context, staged: Staged, column: str) -> list[PartitionRows]:
    found = context.connections.frames.partitions(added_rows(context, context.spec.identifier, staged.primary), column)
    return [
        PartitionRows(
            partition=r["partition"], rows=r["rows"], first=r["first"], last=r["last"], distinct=r["distinct"]
        )
        for r in found
    ]
