"""``kafka-lake discover``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize
from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output, WideTable
from kafka_lake.cli.progress import Bar
from kafka_lake.common.text import counted, printable
from kafka_lake.errors import ConfigurationError

if TYPE_CHECKING:
    from kafka_lake.discovery.discover import Discovered, Document
    from kafka_lake.discovery.guess import Column, Guess

_COLUMNS = 12
_TYPE_LENGTH = 40
_INDENT = 8


def discover(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Kafka topics, such as orders or eu/orders. Default: all."),
    ] = None,
    write_documents: Annotated[bool, typer.Option("--write", help="Write a defs.yaml for each named topic.")] = False,
    into: Annotated[Path | None, typer.Option(help="Folder to write to. Default: the project's defs.")] = None,
    sample: Annotated[int, typer.Option(min=1, max=1000, help="Number of newest records to read per topic.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the cluster's topics and their probable formats, and write YAML documents.

    Topics whose names start with _ are read only if they are named. Offsets have gaps after compaction and
    transactions, so they aren't exact record counts. Sizes are estimates, before compression, of one replica. No
    consumer group is used, and no file is overwritten.
    """
    from kafka_lake.discovery.discover import discover as discover_topics
    from kafka_lake.discovery.discover import documents, write

    if write_documents and not topics:
        raise ConfigurationError(
            "--write needs the names of topics.", "Name them, as in `kafka-lake discover orders --write`."
        )
    specs = project.topics_if_any()
    bar = Bar(as_json)
    discovered: list[Discovered] = []
    for cluster, names in _by_cluster(topics or ()):
        with (
            project.open_connections(with_catalog=False, cluster=cluster) as connections,
            bar.shown("Reading topics"),
        ):
            names = names or [name for name in connections.cluster.topics() if not name.startswith("_")]
            discovered += discover_topics(names, specs, connections=connections, count=sample, on_topic=bar.update)
    output = Output(as_json)
    output.show(*discovered_blocks(discovered, all_columns=bool(topics)))
    if not discovered:
        output.lines("There are no topics yet.")
    written: list[Document] = []
    if write_documents:
        written = documents(discovered, specs, into or project.defs_of_project())
        write({document.path: document.text for document in written})
        output.lines(*written_lines(written))
    paths = {document.topic: str(document.path) for document in written}
    output.json([{**asdict(topic), "written": paths.get(topic.full_topic)} for topic in discovered])
    if any(topic.error for topic in discovered):
        raise typer.Exit(1)


def _by_cluster(topics: Sequence[str]) -> list[tuple[str | None, list[str]]]:
    """Return the clusters to look at, each with the named topics; no names mean all topics."""
    if not topics:
        return [(name, []) for name in project.configured_clusters()]
    by_cluster: dict[str | None, list[str]] = {}
    for cluster, topic in map(project.split_topic, dict.fromkeys(topics)):
        by_cluster.setdefault(cluster, []).append(topic)
    return list(by_cluster.items())


def discovered_blocks(topics: Sequence[Discovered], all_columns: bool = False) -> list[RenderableType]:
    """Return for each topic a line with its size, and below it the guess of its format."""
    blocks: list[RenderableType] = []
    for topic in topics:
        blocks.append(Padding(_heading(topic), (1, 0, 0, 0)))
        grid = WideTable.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=_INDENT, no_wrap=True, justify="right")
        grid.add_column(ratio=1)
        if topic.error:
            grid.add_row("", f"[red]{escape(printable(topic.error))}[/]")
        else:
            _add_guess(grid, "values", topic.value, all_columns)
            if topic.key.format:
                _add_guess(grid, "keys", topic.key, all_columns)
            for remark in _notes(topic):
                grid.add_row("", remark)
        blocks.append(grid)
    return blocks


def _heading(topic: Discovered) -> Table:
    grid = WideTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(ratio=1, overflow="fold")
    tables = "".join(f" [green]→ {escape(table)}[/]" for table in topic.tables)
    cells = [f"[bold]{escape(topic.full_topic)}[/]{tables}"]
    if not topic.error:
        size = "" if topic.estimated_bytes is None else f"≈ {filesize.decimal(topic.estimated_bytes)}"
        cells += [counted(topic.partitions, "partition"), counted(topic.offsets, "offset"), size]
        for width in (14, 22, 9):
            grid.add_column(min_width=width, justify="right", no_wrap=True)
    grid.add_row(*cells)
    return grid


def _add_guess(grid: Table, part: str, guess: Guess, all_columns: bool) -> None:
    format_ = f"[bold cyan]{guess.format}[/]: " if guess.format else ""
    grid.add_row(f"[dim]{part}[/]", f"{format_}{escape(guess.evidence)}")
    if guess.columns:
        grid.add_row("", _columns(guess.columns, None if all_columns else _COLUMNS))
    for remark in guess.remarks:
        grid.add_row("", f"[yellow]{escape(printable(remark))}[/]")


def _notes(topic: Discovered) -> list[str]:
    from kafka_lake.discovery.discover import text_timestamps

    notes = []
    if envelope := topic.value.envelope:
        notes.append(
            f"changes of rows; format: envelope: {envelope} with write: upsert makes a table of the current rows"
        )
    if columns := text_timestamps(topic.value):
        names = escape(printable(", ".join(columns)))
        notes.append(f"timestamps as text: {names}; infer_timestamps makes timestamp columns of them")
    if topic.tombstones:
        notes.append(f"{topic.tombstones:,} of {topic.sampled:,} sampled records are tombstones")
    if topic.cleanup_policy and "compact" in topic.cleanup_policy:
        notes.append("compacted: Kafka keeps the newest record of each key, the table every record")
    return notes


def _columns(columns: Sequence[Column], limit: int | None) -> Text:
    parts = [
        Text.assemble(printable(column.name), (f" {column.type if limit is None else _short(column.type)}", "dim"))
        for column in columns[:limit]
    ]
    if limit is not None and len(columns) > limit:
        parts.append(Text(f"… {len(columns) - limit:,} more"))
    return Text(", ").join(parts)


def _short(kind: str) -> str:
    return kind if len(kind) <= _TYPE_LENGTH else f"{kind[: _TYPE_LENGTH - 1]}…"


def written_lines(written: Sequence[Document]) -> list[str]:
    """Return the written files, and the next commands."""
    lines = [
        f"{_relative(document.path)}: topic {document.topic} becomes table {document.table}" for document in written
    ]
    commands = {
        f"kafka-lake schema {written[0].topic}": "shows the columns that the first run would create",
        "dg check defs": "checks the documents",
        "kafka-lake reload": "loads them into the Dagster of `kafka-lake up`; its sensor starts the first run",
    }
    width = max(map(len, commands))
    return [*lines, "Edit them if you like; then", *(f"  {c:{width}}  {text}" for c, text in commands.items())]


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
