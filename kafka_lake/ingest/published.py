"""The checks of the published table, by PyIceberg without Spark; rules by Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThan,
    NotEqualTo,
    Reference,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.table import Table
from pyiceberg.types import NestedField, PrimitiveType
from pyspark.sql import functions as F

from kafka_lake.catalog.history import SchemaVersion, recorded_losses, schema_history
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import (
    LOSSES,
    POSITION,
    RESET,
    ancestors,
    head_of,
    positions_in,
    row_count,
    state_of,
    summary_of,
)
from kafka_lake.common.offsets import Position, lag, place
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import TableError
from kafka_lake.formats.rows import DELETED, change_columns
from kafka_lake.ingest.audit import data_loss, schema_evolution
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.validation import Validation, referenced_tables
from kafka_lake.runtime.commit import Finding, PublishedNote, moment, rule_finding
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.rule import Rule
from kafka_lake.spec.topic_table import TopicTable

_ROWS_AT_ONCE = 5_000_000


def examine(spec: TopicTable, catalog: LakeCatalog, cluster: KafkaCluster) -> list[Finding]:
    """Check the current table."""
    table = _existing(spec, catalog)
    return [
        _row_count(table),
        _offset_continuity(spec, table, cluster),
        _schema_evolution(table),
        _dead_letters(spec, catalog),
        data_loss(recorded_losses(table)),
    ]


def _existing(spec: TopicTable, catalog: LakeCatalog) -> Table:
    table = catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} doesn't exist yet.", "Materialize it first.")
    return table


def _schema_evolution(table: Table) -> Finding:
    versions = schema_history(table)[1:]
    found = schema_evolution([change for version in versions for change in version.changes])
    return replace(found, changes=tuple(note for version in versions for note in _notes(version)))


def _notes(version: SchemaVersion) -> list[PublishedNote]:
    when, snapshot = moment(version.committed_at), str(version.snapshot_id or "")
    return [PublishedNote(c.column, c.kind, c.before, c.after, when=when, snapshot=snapshot) for c in version.changes]


def _dead_letters(spec: TopicTable, catalog: LakeCatalog) -> Finding:
    count = row_count(catalog.table(spec.dead_letter_table))
    problems = [f"dead_letters is fail, and table {spec.dead_letter_table[1]} has {count}"]
    return Finding(
        "dead_letters", tuple(problems) if count and spec.dead_letters == "fail" else (), {"dead_letters": count}
    )


def _row_count(table: Table) -> Finding:
    claimed = row_count(table)
    counted = sum(task.file.record_count for task in table.scan().plan_files())
    problems = () if claimed == counted else (f"the snapshot's summary has {claimed} rows, its files have {counted}",)
    return Finding("row_count", problems, {"rows_in_table": counted})


def _offset_continuity(spec: TopicTable, table: Table, cluster: KafkaCluster) -> Finding:
    problems: list[str] = []
    history = [
        (positions_in(summary), RESET in summary or LOSSES in summary)
        for s in ancestors(table, head_of(table))
        if POSITION in (summary := summary_of(s))
    ]
    for (newer, on_purpose), (older, _) in pairwise(history):
        problems += [
            f"{place(topic, p)} went back from offset {offset} to {now.offsets.get(p, 0)}"
            for topic, before in older.items()
            if (now := newer.get(topic)) and before.identity.same_as(now.identity) and not on_purpose
            for p, offset in before.offsets.items()
            if now.offsets.get(p, 0) < offset
        ]
    states = {topic_spec.topic: state_of(topic_spec, table) for topic_spec in spec.each_topic}
    positions = {topic: state.position for topic, state in states.items() if state.position}
    behind = {topic: lag(position, cluster.watermarks_of(topic)) for topic, position in positions.items()}
    facts: dict[str, object] = {"lag": sum(sum(lags.values()) for lags in behind.values())}
    for topic, position in positions.items():
        lags = behind[topic]
        facts |= {f"{topic}/{p}": f"at {o}, lag {lags.get(p, 0)}" for p, o in sorted(position.offsets.items())}
    # A record that changes a row's key has two rows in a history; one of them is a delete.
    rows = NotEqualTo(term=Reference(DELETED), value=literal(True)) if spec.has_versions else AlwaysTrue()
    problems += _duplicates(table, list(positions.values()), rows)
    return Finding("offset_continuity", tuple(problems), facts)


def _duplicates(table: Table, positions: Sequence[Position], rows: BooleanExpression) -> list[str]:
    """Return the offsets with two rows, and those beyond the position."""
    problems = []
    for (topic_id, partition), counted in _keys(table, rows).items():
        # Brokers without topic ids have one topic a table.
        own = next((position for position in positions if topic_id in (None, position.identity.topic_id)), None)
        where = place(own.identity.topic if own else f"with id {topic_id}", partition)
        if counted.twice:
            problems.append(f"{where} has {counted.twice} rows too many, the first at offset {counted.first}")
        if own and counted.last >= (end := own.offsets.get(partition, 0)):
            problems.append(f"{where} has offset {counted.last}, its position is {end}")
    return problems


@dataclass(frozen=True)
class _Keys:
    """Rows of one Kafka partition: the number of duplicates, the first duplicate offset, and the last offset."""

    twice: int
    first: int
    last: int

    def and_(self, later: "_Keys | None") -> "_Keys":
        if later is None:
            return self
        first = min(counts.first for counts in (self, later) if counts.twice) if self.twice or later.twice else 0
        return _Keys(self.twice + later.twice, first, max(self.last, later.last))


def _keys(table: Table, rows: BooleanExpression) -> dict[tuple[str | None, int], _Keys]:
    """Scan the topic ids, partitions and offsets of all rows, a window of offsets at a time.

    A recreated topic uses the same offsets again, so a record's key is all three.
    """
    fields = tuple(f"{METADATA_COLUMN}.{name}" for name in ("topic_id", "partition", "offset"))
    offset = f"{METADATA_COLUMN}.offset"
    found: dict[tuple[str | None, int], _Keys] = {}
    for start, end in windows(table, offset):
        # Rows of other writers have no offset.
        near: BooleanExpression = GreaterThanOrEqual(term=Reference(offset), value=literal(start))
        if end is not None:
            near = And(near, LessThan(term=Reference(offset), value=literal(end)))
        found_rows = table.scan(And(near, rows), selected_fields=fields).to_arrow()
        for key, value in _keys_of(found_rows).items():
            found[key] = value.and_(found.get(key))
    return found


def _keys_of(rows: pa.Table) -> dict[tuple[str | None, int], _Keys]:
    rows = rows.flatten()
    rows = rows.rename_columns([name.rpartition(".")[2] for name in rows.column_names])
    grouped = rows.group_by(["topic_id", "partition"]).aggregate(
        [("offset", "count"), ("offset", "count_distinct"), ("offset", "max")]
    )
    keys = {}
    for group in grouped.to_pylist():
        twice, first = group["offset_count"] - group["offset_count_distinct"], 0
        if twice:
            topic_id = group["topic_id"]
            of_topic = pc.equal(rows["topic_id"], topic_id) if topic_id else rows["topic_id"].is_null()
            only = rows.filter(pc.and_(of_topic, pc.equal(rows["partition"], group["partition"])))["offset"]
            counts = only.value_counts()
            first = pc.min(counts.field("values").filter(pc.greater(counts.field("counts"), 1))).as_py()
        keys[group["topic_id"], group["partition"]] = _Keys(twice, first, group["offset_max"])
    return keys


def windows(table: Table, offset: str, rows: int = _ROWS_AT_ONCE) -> list[tuple[int, int | None]]:
    """Return windows of offsets with about ``rows`` rows each, by the statistics of files.

    A file without statistics counts as beginning at 0.
    """
    field = table.schema().find_field(offset)
    files = [task.file for task in table.scan(selected_fields=(offset,)).plan_files()]
    begins = sorted((_begin(field, file.lower_bounds), file.record_count) for file in files)
    starts, held = [0], 0
    for begin, count in begins:
        if held and held + count > rows and begin > starts[-1]:
            starts.append(begin)
            held = 0
        held += count
    return list(zip(starts, [*starts[1:], None], strict=True))


def _begin(field: NestedField, bounds: Mapping[int, bytes] | None) -> int:
    known = (bounds or {}).get(field.field_id)
    assert isinstance(field.field_type, PrimitiveType), "an offset is a number"
    return max(0, int(from_bytes(field.field_type, known))) if known is not None else 0


def examine_rules(spec: TopicTable, connections: Connections, rules: Sequence[Rule]) -> list[Finding]:
    """Check rules against all rows of a table."""
    if not rules:
        return []
    _existing(spec, connections.catalog)
    alone = [rule for rule in rules if rule.is_of_single_rows]
    of_commits = [rule for rule in rules if rule not in alone]
    found = [
        Finding(rule.check, (), {"rule": rule.description, "checked": "in each commit only"}) for rule in of_commits
    ]
    if alone:
        rows = connections.spark().table(connections.catalog.spark_name(spec.identifier))
        if DELETED in {field.name for field in change_columns(spec)}:
            rows = rows.filter(~F.coalesce(F.col(DELETED), F.lit(False)))
        # A row of the table that breaks a rule is a problem, whatever on_failure is.
        strict = tuple(rule if rule.on_failure == "warn" else replace(rule, on_failure="fail") for rule in alone)
        tables = referenced_tables(connections, strict, f"Topic {spec.topic}")
        asked = Validation(topic=spec.topic, rules=strict, rows=rows, column=METADATA_COLUMN, tables=tables)
        found += [rule_finding(result) for result in evaluate(asked).results]
    return found
