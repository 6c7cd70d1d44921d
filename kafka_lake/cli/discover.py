"""``kafka-lake discover``: shows topics and what their records seem to be, and writes the YAML of those chosen."""

import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from kafka_lake.cli import project
from kafka_lake.cli.console import FullWidth
from kafka_lake.common.text import printable
from kafka_lake.discovery.discover import Discovered, Document, discover, documents, times_of, topics_of, write
from kafka_lake.discovery.guess import Column, Guess
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.partitions import register

_COLUMNS = 12
_TYPE_LENGTH = 40
_INDENT = 8
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Request:
    """What the command was asked for.

    Args:
        topics: Topics named; none for all.
        sample: How many records of each to look at.
        internal: The cluster's own topics as well.
        into: Where to; None for the project's ``defs``.
        as_json: Whether to print for programs.
    """

    topics: Sequence[str]
    sample: int
    internal: bool = False
    write: bool = False
    into: Path | None = None
    as_json: bool = False


def run(request: Request, out: Console, err: Console) -> bool:
    """Do what was asked for."""
    asks = request.write and not request.topics
    if asks and (request.as_json or not _interactive()):
        raise ConfigurationError(
            "--write needs the names of topics.", "Name them, as in `kafka-lake discover orders --write`."
        )
    specs = project.topics_if_any()
    left_out = 0
    found: list[Discovered] = []
    for cluster, topics in _asked(request.topics):
        with (
            project.connections_at_hand(err.print, with_catalog=False, cluster=cluster) as connections,
            err.status("Looking at topics") as working,
        ):
            if not topics:
                topics, more = topics_of(connections.cluster, request.internal)
                left_out += more

            def on_topic(topic: str, working: Status = working) -> None:
                working.update(f"Looking at topic {escape(topic)}")

            found += discover(topics, specs, connections=connections, count=request.sample, on_topic=on_topic)
    if not request.as_json:
        out.print(*discovered_blocks(found, whole=bool(request.topics)))
        if not found:
            out.print("There are no topics yet." if not left_out else "There are no other topics yet.")
        if left_out:
            out.print(
                f"{left_out} internal {'topic is' if left_out == 1 else 'topics are'} left out; --all shows them."
            )
    picked = chosen(found) if asks else found
    planned = documents(picked, specs, request.into or project.defs_of_project()) if request.write else []
    write(planned)
    _register({each.topic for each in planned}, found, err)
    if request.as_json:
        written = {each.topic: str(each.path) for each in planned}
        typer.echo(json.dumps([{**asdict(each), "written": written.get(each.full_topic)} for each in found], indent=2))
    elif request.write:
        out.print(*written_lines(planned), sep="\n", soft_wrap=True, highlight=False, markup=False)
    return not any(each.error for each in found)


def _asked(topics: Sequence[str]) -> list[tuple[str | None, list[str]]]:
    """Return each cluster to look at, and which of its topics; none for all."""
    if not topics:
        return [(name, []) for name in project.configured_clusters()]
    by_cluster: dict[str | None, list[str]] = {}
    for cluster, topic in map(project.split, dict.fromkeys(topics)):
        by_cluster.setdefault(cluster, []).append(topic)
    return list(by_cluster.items())


def _register(topics: Collection[str], found: Sequence[Discovered], err: Console) -> None:
    """Tell Dagster of the partitions of topics that it loads from now on."""
    if topics:
        register({each.full_topic: range(each.partitions) for each in found if each.full_topic in topics}, err.print)


def discovered_blocks(found: Sequence[Discovered], whole: bool = False) -> list[RenderableType]:
    """Return topics as blocks: a line with what they hold, and below it what their records seem to be."""
    blocks: list[RenderableType] = []
    for each in found:
        blocks.append(Padding(_heading(each), (1, 0, 0, 0)))
        grid = FullWidth.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=_INDENT, no_wrap=True, justify="right")
        grid.add_column(ratio=1)
        if each.error:
            grid.add_row("", f"[red]{escape(printable(each.error))}[/]")
        else:
            _add_guess(grid, "values", each.value, whole)
            if each.key.format:
                _add_guess(grid, "keys", each.key, whole)
            for remark in _notes(each):
                grid.add_row("", remark)
        blocks.append(grid)
    return blocks


def _heading(found: Discovered) -> Table:
    grid = FullWidth.grid(padding=(0, 2, 0, 0))
    grid.add_column(ratio=1, overflow="fold")
    tables = "".join(f" [green]→ {escape(table)}[/]" for table in found.tables)
    cells = [f"[bold]{escape(found.full_topic)}[/]{tables}"]
    if not found.error:
        size = "" if found.estimated_bytes is None else f"≈ {size_of(found.estimated_bytes)}"
        cells += [f"{found.partitions:,} partition{'' if found.partitions == 1 else 's'}"]
        cells += [f"{found.offsets:,} offset{'' if found.offsets == 1 else 's'}", size]
        for width in (14, 22, 9):
            grid.add_column(min_width=width, justify="right", no_wrap=True)
    grid.add_row(*cells)
    return grid


def _add_guess(grid: Table, part: str, guess: Guess, whole: bool) -> None:
    format_ = f"[bold cyan]{guess.format}[/]: " if guess.format else ""
    grid.add_row(f"[dim]{part}[/]", f"{format_}{escape(guess.evidence)}")
    if guess.columns:
        grid.add_row("", _columns(guess.columns, None if whole else _COLUMNS))
    for remark in guess.remarks:
        grid.add_row("", f"[yellow]{escape(printable(remark))}[/]")


def _notes(found: Discovered) -> list[str]:
    notes = []
    if envelope := found.value.envelope:
        notes.append(
            f"changes of rows; format: envelope: {envelope} with write: upsert makes a table of the current rows"
        )
    if times := times_of(found.value):
        notes.append(f"text that is a time: {escape(printable(', '.join(times)))}; infer_timestamps makes it one")
    if found.tombstones:
        notes.append(f"{found.tombstones:,} of {found.sampled:,} sampled records are tombstones")
    if found.cleanup_policy and "compact" in found.cleanup_policy:
        notes.append("compacted: Kafka keeps the newest record of each key, the table all that it reads")
    return notes


def _columns(columns: Sequence[Column], limit: int | None) -> Text:
    told = [
        Text.assemble(printable(column.name), (f" {column.type if limit is None else _short(column.type)}", "dim"))
        for column in columns[:limit]
    ]
    if limit is not None and len(columns) > limit:
        told.append(Text(f"… {len(columns) - limit:,} more"))
    return Text(", ").join(told)


def _short(kind: str) -> str:
    return kind if len(kind) <= _TYPE_LENGTH else f"{kind[: _TYPE_LENGTH - 1]}…"


def size_of(size: int) -> str:
    """Return bytes in a unit that a person reads.

    >>> size_of(999), size_of(301_000_000), size_of(4_200)
    ('999 B', '301 MB', '4.2 kB')
    """
    number, unit = float(size), 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.1f} {_UNITS[unit]}" if unit and number < 9.95 else f"{number:.0f} {_UNITS[unit]}"


def written_lines(planned: Sequence[Document]) -> list[str]:
    """Return what was written, and what to do next."""
    if not planned:
        return ["Nothing was written: every topic that could be read has a table."]
    lines = [f"{_shown(each.path)}: topic {each.topic} becomes table {each.table}" for each in planned]
    commands = {
        f"kafka-lake schema {planned[0].topic}": "shows what the first run would make of its records",
        "dg check defs": "finds what is wrong with documents",
        "kafka-lake reload": "has the Dagster of `kafka-lake up` load them; its sensor starts the first run",
    }
    width = max(map(len, commands))
    return [*lines, "Edit them if you like; then", *(f"  {c:{width}}  {what}" for c, what in commands.items())]


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _interactive() -> bool:
    return sys.stdin.isatty()


def chosen(found: Sequence[Discovered]) -> list[Discovered]:
    """Return the topics that the user wants written: asked on the terminal, until the answer names some."""
    candidates = {each.full_topic: each for each in found if not each.tables and not each.error}
    if not candidates:
        return []

    def parsed(answer: str) -> list[Discovered]:
        names = list(dict.fromkeys(re.split(r"[\s,]+", answer.strip())))
        if names == ["all"]:
            return list(candidates.values())
        if unknown := [name for name in names if name not in candidates]:
            raise typer.BadParameter(f"{', '.join(unknown)}: no topic without a table has that name.")
        return [candidates[name] for name in names]

    answer: list[Discovered] = typer.prompt("Topics to write, or all", value_proc=parsed, err=True)
    return answer
