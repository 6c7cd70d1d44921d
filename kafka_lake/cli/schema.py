"""``kafka-lake schema``: a table's columns, what the next run would do, how they came to be."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.table import Table as IcebergTable
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from kafka_lake.catalog.history import SchemaVersion, schema_history
from kafka_lake.catalog.tables import sources_of
from kafka_lake.cli.console import FullWidth
from kafka_lake.common.offsets import positions_to_json
from kafka_lake.common.text import counted, printable
from kafka_lake.errors import TableError
from kafka_lake.ingest.preview import Preview, preview
from kafka_lake.orchestration.metadata import readable
from kafka_lake.runtime.context import Connections
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import REGISTERED, TopicTable

_PARTITIONS = 6


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
    """Return a topic's schema and what the next run would change."""
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
    """Return how a topic's table came to its columns, the oldest first."""
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
