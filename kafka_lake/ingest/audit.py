"""Audit: is what was staged exactly what was planned? Findings, not opinions; the same for staged and published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F

from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.stage import Staged
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import OffsetRange, Position
from kafka_lake.lake.positions import POSITION, summary_of
from kafka_lake.lake.schema import Change, changes

CHECKS = ("row_count", "offset_continuity", "schema_evolution")


@dataclass(frozen=True)
class Finding:
    """The outcome of one gate.

    Args:
        check: Its name, one of `CHECKS`.
        problems: What is wrong, where, and how much; empty if all is well.
        facts: Figures that the check's page shows.
    """

    check: str
    problems: tuple[str, ...]
    facts: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Return whether there is no problem."""
        return not self.problems


@dataclass(frozen=True)
class PartitionRows:
    """What a snapshot holds of one Kafka partition: rows, first and last offset, and how many offsets are distinct."""

    partition: int
    rows: int
    first: int
    last: int
    distinct: int


def audit(spec: TopicTable, systems: Systems, plan: Plan, staged: Staged) -> tuple[list[Finding], dict[int, int]]:
    """Examine a staged commit.

    Args:
        spec: The topic's settings.
        systems: Spark reads two integer columns of the staged files, and nothing else.
        plan: What should be there.
        staged: What is there.

    Returns:
        One finding per check, and the rows per Kafka partition (empty without metadata columns).
    """
    held = _staged_partitions(spec, systems, staged) if spec.metadata_column else None
    table = staged.primary.state.table.refresh()
    before = {s.schema_id: s for s in table.metadata.schemas}
    head = table.metadata.snapshot_by_id(staged.primary.branch.head)
    new = table.metadata.snapshot_by_id(staged.primary.snapshot)
    old_schema = before.get(head.schema_id) if head and head.schema_id is not None else None
    new_schema = before.get(new.schema_id) if new and new.schema_id is not None else None
    evolution = changes(old_schema, new_schema) if old_schema and new_schema else []
    carried = summary_of(new).get(POSITION, "") if new else ""
    chain = (
        []
        if new and new.parent_snapshot_id == staged.primary.branch.head
        else [f"the staged snapshot {staged.primary.snapshot} does not follow {staged.primary.branch.head}"]
    )
    return [
        row_count(staged),
        offset_continuity(plan, staged.primary.state.position, held, carried, chain),
        schema_evolution(evolution),
    ], {h.partition: h.rows for h in held or ()}


def row_count(staged: Staged) -> Finding:
    """Check that rows, dead letters and tombstones make up the records read."""
    dead = staged.known_failed + (staged.dead_letters.rows if staged.dead_letters else 0)
    total = staged.primary.rows + staged.failed + staged.tombstones
    problems = []
    if total != staged.records:
        problems.append(
            f"{staged.records} records were read, but {staged.primary.rows} rows + {staged.failed} dead letters + "
            f"{staged.tombstones} tombstones make {total}"
        )
    if dead < staged.failed:
        problems.append(f"{staged.failed} records didn't decode, but the dead-letter table has {dead} of them")
    facts = {
        "records_read": staged.records,
        "rows": staged.primary.rows,
        "dead_letters": staged.failed,
        "tombstones": staged.tombstones,
    }
    return Finding("row_count", tuple(problems), facts)


def offset_continuity(
    plan: Plan,
    before: Position | None,
    held: Sequence[PartitionRows] | None,
    carried: str,
    chain: Sequence[str] = (),
) -> Finding:
    """Check that the commit starts where the table's position ends, overlaps nothing and has every offset once."""
    problems = list(chain)
    ranges = {r.partition: r for r in plan.ranges}
    for each in plan.ranges:
        expected = before.offsets.get(each.partition) if before else None
        if expected is not None and expected != each.start:
            problems.append(f"partition {each.partition} starts at {each.start}, the table's position is {expected}")
    if carried != plan.after.to_json():
        problems.append(f"the staged snapshot carries position {carried or '(none)'}, not {plan.after.to_json()}")
    for rows in held or ():
        problems += _partition_problems(rows, ranges.get(rows.partition))
    facts = {f"partition_{r.partition}": f"{r.start}..{r.end}" for r in plan.ranges}
    return Finding("offset_continuity", tuple(problems), facts)


def _partition_problems(rows: PartitionRows, planned: OffsetRange | None) -> list[str]:
    where = f"partition {rows.partition}"
    if planned is None:
        return [f"{where} has {rows.rows} rows (offsets {rows.first} to {rows.last}) that nobody planned"]
    problems = []
    if rows.first < planned.start or rows.last >= planned.end:
        problems.append(
            f"{where} has offsets {rows.first} to {rows.last}, planned were {planned.start} to {planned.end - 1}"
        )
    if rows.distinct != rows.rows:
        problems.append(f"{where} has {rows.rows} rows but {rows.distinct} distinct offsets")
    return problems


def schema_evolution(evolution: Sequence[Change]) -> Finding:
    """Check that the schema changed in ways only that are safe by Iceberg's rules."""
    problems = [
        f"column {c.column}: {c.kind} ({c.before or 'none'} → {c.after or 'none'})" for c in evolution if not c.safe
    ]
    facts = {c.column: f"{c.kind}: {c.before or 'none'} → {c.after or 'none'}" for c in evolution}
    return Finding("schema_evolution", tuple(problems), facts)


def _staged_partitions(spec: TopicTable, systems: Systems, staged: Staged) -> list[PartitionRows]:
    source = (
        systems.spark()
        .read.format("iceberg")
        .option("start-snapshot-id", str(staged.primary.branch.head))
        .option("end-snapshot-id", str(staged.primary.snapshot))
        .load(systems.catalog.spark_name(spec.identifier))
    )
    offset = F.col(f"`{spec.metadata_column}`.offset")
    partition = F.col(f"`{spec.metadata_column}`.partition").alias("partition")
    found = source.groupBy(partition).agg(
        F.count(F.lit(1)).alias("rows"),
        F.min(offset).alias("first"),
        F.max(offset).alias("last"),
        F.count_distinct(offset).alias("distinct"),
    )
    return [PartitionRows(r["partition"], r["rows"], r["first"], r["last"], r["distinct"]) for r in found.collect()]
