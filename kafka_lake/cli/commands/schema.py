"""``kafka-lake schema``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson, Topic
from kafka_lake.cli.output import Output, WideTable, add_columns, first_partitions, working
from kafka_lake.common.offsets import positions_to_json
from kafka_lake.common.text import counted, printable, readable
from kafka_lake.errors import TableError

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from kafka_lake.catalog.history import SchemaVersion
    from kafka_lake.ingest.preview import Preview
    from kafka_lake.runtime.context import Connections
    from kafka_lake.schema.rules import Change
    from kafka_lake.spec.topic_table import TopicTable


def schema(
    topic: Topic,
    sample: Annotated[int, typer.Option(min=0, help="Number of newest records to read for the forecast.")] = 1000,
    history: Annotated[bool, typer.Option("--history", help="Show past changes of the columns instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a table's columns, and how the next run would change them.

    Nothing changes. Exit code 1 if the next run would fail.
    """
    specs = project.topic_tables(topic)
    output, documents, refused = Output(as_json), list[Any](), False
    reads = not history and sample > 0
    with project.open_connections(with_broker=reads, with_spark=reads, cluster=specs[0].cluster) as connections:
        for topic_spec, spec in [(whole, table) for whole in specs for table in whole.tables]:
            if history:
                versions = history_of(spec, connections)
                documents.append(history_as_json(versions))
                output.show(history_table(spec, versions))
                continue
            with working(f"Reading the newest records of {topic}"):
                current = topic_schema(spec, connections, sample, topic_spec)
            refused |= bool(current.preview and current.preview.refused)
            documents.append(asdict(current))
            output.show(*schema_tables(current))
    output.json(documents)
    if refused:
        raise typer.Exit(1)


@dataclass(frozen=True)
class ColumnState:
    """A column of the table: its dotted path, its type, whether it forbids null, and the record's field."""

    column: str
    type: str
    required: bool
    source: str
    doc: str


@dataclass(frozen=True)
class TopicSchema:
    """The columns of a topic's table, and the effect of the next run.

    Args:
        columns: The table's; empty if there is no table yet.
        registered: The newest version of the values' subject in the registry; empty without a registry.
        preview: How the newest records would change the columns; None if they were not read.
    """

    topic: str
    table: str
    columns: tuple[ColumnState, ...]
    registered: str
    preview: Preview | None


def topic_schema(
    spec: TopicTable, connections: Connections, sample: int, topic: TopicTable | None = None
) -> TopicSchema:
    """Return a topic's schema and what the next run would change."""
    from kafka_lake.ingest.preview import preview

    table = connections.catalog.table(spec.identifier)
    return TopicSchema(
        topic=spec.topic,
        table=".".join(spec.identifier),
        columns=_columns(table) if table else (),
        registered=_registered(spec, connections),
        preview=preview(spec, connections, sample, topic) if sample else None,
    )


def _columns(table: IcebergTable) -> tuple[ColumnState, ...]:
    from kafka_lake.catalog.tables import sources_of

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
    from kafka_lake.formats.base import format_named
    from kafka_lake.kafka.registry import SchemaRegistry

    # Glue has no subjects.
    if not isinstance(connections.registry, SchemaRegistry) or spec.schema_file:
        return ""
    if not format_named(spec.format).has_schema_ids:
        return ""
    latest = connections.registry.latest(spec.value_subject)
    if latest is None:
        return f"subject {spec.value_subject} is unknown"
    return f"subject {spec.value_subject}: version {latest.version}, schema id {latest.id}, {latest.kind}"


def schema_tables(current: TopicSchema) -> list[RenderableType]:
    """Return the columns, and the effect of the next run, as tables and lines."""
    columns = WideTable("column", title=escape(f"{current.topic} → {current.table}"), box=box.SIMPLE_HEAD)
    columns.add_column("type", ratio=2, overflow="fold")
    columns.add_column("null", no_wrap=True)
    columns.add_column("from field", no_wrap=True)
    for column in current.columns:
        source = escape(printable(column.source))
        columns.add_row(escape(column.column), escape(column.type), "no" if column.required else "", source)
    title = escape(f"{current.topic} → {current.table}: no table yet")
    blocks: list[RenderableType] = [columns if current.columns else title]
    if current.registered:
        blocks.append(escape(f"Registry: {current.registered}."))
    if current.preview is not None:
        blocks += preview_tables(current.preview)
    return blocks


def preview_tables(effect: Preview) -> list[RenderableType]:
    """Return the effect of the next run as lines and a table."""
    if not effect.records:
        return ["The topic has no records."]
    failed = sum(group.count for group in effect.classes)
    written = ", ".join(f"{count:,} of {label}" for label, count in effect.schemas.items())
    records = counted(effect.records, "record")
    line = f"The newest {records}: {failed:,} would be dead letters, {effect.tombstones:,} tombstones"
    blocks: list[RenderableType] = [escape(f"{line}; {written}." if written else f"{line}.")]
    for group in effect.classes:
        first = f"the first in partition {group.partition} offset {group.offset}"
        blocks.append(escape(f"  {group.count:,} {group.name}, {first}: {printable(group.message)}"))
    if effect.refused:
        blocks.append(f"[bold red]The next run would fail:[/] {escape(effect.refused)}")
    if not effect.notes:
        return blocks if effect.refused else [*blocks, "The next run wouldn't change any column."]
    changes = WideTable("column", title="Effect of the next run", box=box.SIMPLE_HEAD)
    add_columns(changes, "change", "before", "after", "why", overflow="fold")
    for note in effect.notes:
        before, after = readable(note.before), readable(note.after)
        changes.add_row(*(escape(text) for text in (note.column, note.what, before, after, note.why)))
    return [*blocks, changes]


def history_of(spec: TopicTable, connections: Connections) -> list[SchemaVersion]:
    """Return the changes of the table's columns, the oldest first."""
    from kafka_lake.catalog.history import schema_history

    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} doesn't exist yet.", "The topic's first run creates it.")
    return schema_history(table)


def history_as_json(history: Sequence[SchemaVersion]) -> list[dict[str, Any]]:
    """Return a table's history for programs."""
    return [
        {
            **{name: value for name, value in asdict(version).items() if name != "positions"},
            "committed_at": version.committed_at.isoformat(timespec="milliseconds"),
            "position": json.loads(positions_to_json(version.positions.values())),
        }
        for version in history
    ]


def history_table(spec: TopicTable, history: Sequence[SchemaVersion]) -> RenderableType:
    """Return the changes of the columns as a table, a row per commit."""
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
    positions = version.positions.items()
    return first_partitions([f"{t}/{p}: {o:,}" for t, its in positions for p, o in sorted(its.offsets.items())])
