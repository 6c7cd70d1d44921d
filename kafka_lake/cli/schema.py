"""``kafka-lake schema``: a table's columns, what the next run would do, how they came to be; another type for one."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.table import Table as IcebergTable
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from kafka_lake.cli.console import FullWidth
from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import positions_to_json
from kafka_lake.common.printable import counted, printable
from kafka_lake.components.table_page import readable
from kafka_lake.ingest.column_type.change import Changed, ColumnType, change, plan
from kafka_lake.ingest.column_type.change import look as look_at_change
from kafka_lake.ingest.column_type.settings import refuse_column, refuse_contradiction
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode import WRONG_TYPE
from kafka_lake.ingest.jobs.dead_letter_replay import Replayed
from kafka_lake.ingest.preview import Preview, preview
from kafka_lake.ingest.topic_table import REGISTERED, TopicTable
from kafka_lake.lake.history import SchemaVersion, schema_history
from kafka_lake.lake.schema import Change
from kafka_lake.lake.tables.schema_update import sources_of

_PARTITIONS = 6
WRONG_TYPES = f"error_class = '{WRONG_TYPE}'"
"""The dead letters that another type of a column may make rows of."""


@dataclass(frozen=True)
class ColumnState:
    """A column as the table has it: dotted path, type, whether null is forbidden, and the field that feeds it."""

    column: str
    type: str
    required: bool
    source: str
    doc: str


@dataclass(frozen=True)
class TopicSchema:
    """A topic's schema, as far as it was asked for.

    Args:
        topic: The topic's name.
        table: ``namespace.table``.
        columns: The table's, none if there is no table yet.
        registered: What the registry has as the newest version of the values' subject; empty without a registry.
        preview: What the newest records would change; None if they were not looked at.
    """

    topic: str
    table: str
    columns: tuple[ColumnState, ...]
    registered: str
    preview: Preview | None


def topic_schema(
    spec: TopicTable, connections: Connections, sample: int, topic: TopicTable | None = None
) -> TopicSchema:
    """Return a topic's schema and what the next run would change.

    Args:
        spec: The topic and its table.
        connections: Cluster, catalog, registry; Spark unless the sample is 0.
        sample: How many of the newest records of the topic to look at.
        topic: The topic's settings, where the table is that of a route.
    """
    table = connections.catalog.table(spec.identifier)
    return TopicSchema(
        topic=spec.topic,
        table=".".join(spec.identifier),
        columns=_columns(table) if table else (),
        registered=_registered(spec, connections),
        preview=preview(spec, connections, sample, topic) if sample else None,
    )


def _columns(table: IcebergTable) -> tuple[ColumnState, ...]:
    sources = sources_of(table)
    return tuple(
        ColumnState(
            column=f.name,
            type=readable(str(f.field_type)),
            required=f.required,
            source=sources.get(f.name, ""),
            doc=f.doc or "",
        )
        for f in table.schema().fields
    )


def _registered(spec: TopicTable, connections: Connections) -> str:
    if connections.registry is None or spec.schema_file or spec.format not in REGISTERED:
        return ""
    latest = connections.registry.latest(spec.value_subject)
    if latest is None:
        return f"subject {spec.value_subject} is unknown"
    return f"subject {spec.value_subject}: version {latest.version}, schema id {latest.id}, {latest.kind}"


def schema_tables(found: TopicSchema) -> list[RenderableType]:
    """Return a topic's schema as tables: the columns, what was looked at, and what would be changed."""
    columns = FullWidth("column", title=escape(f"{found.topic} → {found.table}"), box=box.SIMPLE_HEAD)
    columns.add_column("type", ratio=2, overflow="fold")
    columns.add_column("null", no_wrap=True)
    columns.add_column("from field", no_wrap=True)
    for each in found.columns:
        source = escape(printable(each.source))
        columns.add_row(escape(each.column), escape(each.type), "no" if each.required else "", source)
    shown: list[RenderableType] = [columns if found.columns else escape(f"{found.topic} → {found.table}: no table yet")]
    if found.registered:
        shown.append(escape(f"Registry: {found.registered}."))
    if found.preview is not None:
        shown += preview_tables(found.preview)
    return shown


def preview_tables(seen: Preview) -> list[RenderableType]:
    """Return what was looked at and what would be changed, as lines and a table."""
    if not seen.records:
        return ["The topic has no records to look at."]
    failed = sum(each.count for each in seen.classes)
    written = ", ".join(f"{count:,} of {label}" for label, count in seen.schemas.items())
    records = counted(seen.records, "record")
    line = f"The newest {records}: {failed:,} would be dead letters, {seen.tombstones:,} tombstones"
    shown: list[RenderableType] = [escape(f"{line}; {written}." if written else f"{line}.")]
    for each in seen.classes:
        place = f"partition {each.partition} offset {each.offset}"
        shown.append(escape(f"  {each.count:,} {each.name}, the first in {place}: {printable(each.message)}"))
    if seen.refused:
        shown.append(f"[bold red]The next run would fail:[/] {escape(seen.refused)}")
    if not seen.notes:
        return shown if seen.refused else [*shown, "The next run would change no column."]
    changes = FullWidth("column", title="What the next run would do", box=box.SIMPLE_HEAD)
    for heading in ("change", "before", "after", "why"):
        changes.add_column(heading, overflow="fold")
    for note in seen.notes:
        before, after = readable(note.before), readable(note.after)
        changes.add_row(*(escape(text) for text in (note.column, note.what, before, after, note.why)))
    return [*shown, changes]


def history_of(spec: TopicTable, connections: Connections) -> list[SchemaVersion]:
    """Return how a topic's table came to its columns, the oldest first.

    Raises:
        TableError: If there is no table.
    """
    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} doesn't exist yet.", "Its first run makes it.")
    return schema_history(table)


def history_as_json(history: Sequence[SchemaVersion]) -> list[dict[str, Any]]:
    """Return a table's history for programs."""
    return [
        {
            **{name: value for name, value in asdict(each).items() if name != "positions"},
            "committed_at": each.committed_at.isoformat(timespec="milliseconds"),
            "position": json.loads(positions_to_json(each.positions.values())),
        }
        for each in history
    ]


def history_table(spec: TopicTable, history: Sequence[SchemaVersion]) -> RenderableType:
    """Return how a table came to its columns as a table, a row per change."""
    shown = Table("when (UTC)", title=escape(f"{spec.topic} → {'.'.join(spec.identifier)}"), box=box.SIMPLE_HEAD)
    shown.add_column("snapshot", no_wrap=True)
    shown.add_column("up to offsets", no_wrap=True)
    shown.add_column("change", overflow="fold", ratio=1)
    for version in history:
        lines = [escape(_change(change)) for change in version.changes]
        lines += [f"[dim]{escape(version.note)}[/]"] if version.note else []
        when = version.committed_at.strftime("%Y-%m-%d %H:%M:%S")
        snapshot = "none yet" if version.snapshot_id is None else str(version.snapshot_id)
        shown.add_row(when, snapshot, _offsets(version), "\n".join(lines), end_section=True)
    return shown


def _change(change: Change) -> str:
    before, after = readable(change.before), readable(change.after)
    return f"{change.column} {change.kind}: {f'{before} → {after}' if before and after else before or after}"


def _offsets(version: SchemaVersion) -> str:
    offsets = [(f"{topic}/{p}", o) for topic, its in version.positions.items() for p, o in sorted(its.offsets.items())]
    more = [f"… {len(offsets) - _PARTITIONS} partitions more"] if len(offsets) > _PARTITIONS else []
    return "\n".join([*(f"{partition}: {offset:,}" for partition, offset in offsets[:_PARTITIONS]), *more])


@dataclass(frozen=True)
class ChangedColumn:
    """A column that got another type, or would get it.

    Args:
        table: ``namespace.table``.
        column: Its path.
        before: Its type before.
        after: Its new type.
        done: What was done.
        notes: What is to be known beside that.
    """

    table: str
    column: str
    before: str
    after: str
    done: Changed
    notes: tuple[str, ...]


def specs_of(name: str, specs: Sequence[TopicTable]) -> list[TopicTable]:
    """Return the settings of a table, for each topic that fills it.

    Args:
        name: With its namespace.
        specs: Of all topics.

    Raises:
        ConfigurationError: If no topic fills a table of that name.
    """
    every = [table for spec in specs for table in spec.tables]
    found = [each for each in every if ".".join(each.identifier) == name]
    if not found:
        known = ", ".join(dict.fromkeys(".".join(each.identifier) for each in every)) or "none"
        raise ConfigurationError(f"No topic here fills a table {name}; the tables are: {known}.", "Name one of them.")
    return found


def change_column(
    specs: Sequence[TopicTable],
    connections: Connections,
    column: str,
    kind: str,
    run_id: str,
    tell: Callable[[str], object],
    dry_run: bool,
) -> ChangedColumn:
    """Give a table's column another type.

    Args:
        specs: The table's settings, for each topic that fills it.
        connections: Catalog and Spark, and the registry if the topics' formats need it.
        column: Its path.
        kind: The type, in Spark's SQL.
        run_id: For the snapshot.
        tell: Is told of each step.
        dry_run: Whether nothing is changed.

    Raises:
        KafkaLakeError: If it can't be done; the table is as it was.
    """
    asked = ColumnType(specs[0].identifier, column, kind)
    connections.spark()
    table = connections.catalog.table(asked.identifier)
    if table is None:
        raise TableError(f"Table {asked.table} doesn't exist yet.", "Its first run makes it.")
    planned, notes = plan(asked, table), dict[str, None]()
    for spec in specs:
        refuse_column(spec, table, column, planned.names)
        notes |= dict.fromkeys(
            refuse_contradiction(spec, connections, table, planned.schema, names=planned.names, kind=asked.spark_type)
        )
    done = look_at_change(asked, connections) if dry_run else change(asked, connections, run_id, tell)
    after = asked.spark_type.simpleString()
    return ChangedColumn(asked.table, column, planned.before, after, done=done, notes=tuple(notes))


def changed_line(changed: ChangedColumn) -> str:
    """Return what was done to a column, or would be, in one line for each thing."""
    done = changed.done
    would = "" if done.snapshot is not None else "would be "
    written = f"{done.rows:,} rows, {done.values:,} of them with a value, in {done.files:,} files"
    size = f"{done.size / 2**20:,.1f} MiB"
    lines = [
        f"{changed.table}: column {changed.column}: {changed.before} → {changed.after}: "
        f"{written} ({size}) {would}written again"
        f"{'' if done.snapshot is None else f', snapshot {done.snapshot}'}.",
        *(f"Note: {each}." for each in changed.notes),
    ]
    if done.snapshot is None:
        lines.append("Nothing was changed. The same command without --dry-run does it.")
    return "\n".join(lines)


def replayed_line(spec: TopicTable, done: Replayed) -> str:
    """Return what became of the dead letters whose value didn't fit a column's type."""
    return (
        f"{spec.topic}: {done.moved:,} dead letters of class {WRONG_TYPE} are rows now; {done.remaining:,} still don't "
        "fit."
    )
