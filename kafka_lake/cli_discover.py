"""``kafka-lake discover``: shows topics and what their records seem to be, and writes the YAML of those chosen."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kafka_lake import cli_topics
from kafka_lake.cli_render import printable
from kafka_lake.discover import Discovered, Document, discover, documents, topics_of, write
from kafka_lake.errors import ConfigurationError
from kafka_lake.guess import Guess
from kafka_lake.json_columns import Column

_COLUMNS = 12
_TYPE_LENGTH = 40
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Request:
    """What the command was asked for.

    Args:
        topics: Topics named; none for all.
        sample: How many records of each to look at.
        internal: The cluster's own topics as well.
        write: Whether to write documents.
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
    """Do what was asked for.

    Args:
        request: What.
        out: Gets what was found.
        err: Gets progress.

    Returns:
        Whether every topic could be looked at.

    Raises:
        KafkaLakeError: If the cluster can't be asked at all, or a document can't be written.
    """
    asks = request.write and not request.topics
    if asks and (request.as_json or not _interactive()):
        raise ConfigurationError(
            "--write doesn't know which topics to write.", "Name them, as in `kafka-lake discover orders --write`."
        )
    specs = cli_topics.topic_tables()
    left_out = 0
    with cli_topics.systems_at_hand(err.print) as systems, err.status("Looking at topics") as working:
        topics: Sequence[str] = list(dict.fromkeys(request.topics))
        if not topics:
            topics, left_out = topics_of(systems.cluster, request.internal)

        def say(topic: str) -> None:
            working.update(f"Looking at topic {escape(topic)}")

        found = discover(topics, specs, systems, request.sample, say)
    if not request.as_json:
        out.print(discovered_table(found, whole=bool(request.topics)))
        if left_out:
            out.print(
                f"{left_out} internal {'topic is' if left_out == 1 else 'topics are'} left out; --all shows them."
            )
    chosen = _chosen(found) if asks else found
    planned = documents(chosen, specs, request.into or cli_topics.FOLDER) if request.write else []
    write(planned)
    if request.as_json:
        written = {each.topic: str(each.path) for each in planned}
        typer.echo(json.dumps([{**asdict(each), "written": written.get(each.topic)} for each in found], indent=2))
    elif request.write:
        out.print(*written_lines(planned), sep="\n", soft_wrap=True, highlight=False, markup=False)
    return not any(each.error for each in found)


def discovered_table(found: Sequence[Discovered], whole: bool = False) -> Table:
    """Return topics as a table, and in its last column what their records seem to be.

    Args:
        found: The topics.
        whole: All columns of each topic instead of the first ones.
    """
    table = Table(box=box.SIMPLE_HEAD, expand=True)
    table.add_column("topic", overflow="fold", max_width=28)
    table.add_column("partitions", justify="right", no_wrap=True)
    table.add_column("offsets", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("records", ratio=1)
    for each in found:
        name = f"[bold]{escape(each.topic)}[/]"
        for line in each.tables:
            name += f"\n[dim]→ {escape(line)}[/]"
        if each.error:
            table.add_row(name, "", "", "", f"[red]{escape(printable(each.error))}[/]", end_section=True)
            continue
        size = "" if each.estimated_bytes is None else f"≈ {size_of(each.estimated_bytes)}"
        records = "\n".join(_records(each, None if whole else _COLUMNS))
        table.add_row(name, str(each.partitions), f"{each.offsets:,}", size, records, end_section=True)
    return table


def _records(found: Discovered, limit: int | None) -> list[str]:
    lines = [_guess("values", found.value)]
    if found.tombstones and found.value.format:
        lines[0] += f"; tombstones between them: {found.tombstones}"
    if found.value.columns:
        lines.append(f"[dim]{_columns(found.value.columns, limit)}[/]")
    lines += [f"[yellow]{escape(printable(remark))}[/]" for remark in found.value.remarks]
    if found.key.evidence:
        lines.append(_guess("keys", found.key))
    if found.key.columns:
        lines.append(f"[dim]{_columns(found.key.columns, limit)}[/]")
    lines += [f"[yellow]{escape(printable(remark))}[/]" for remark in found.key.remarks]
    if found.cleanup_policy and "compact" in found.cleanup_policy:
        lines.append("[yellow]compacted: Kafka keeps the newest record of each key[/]")
    return lines


def _guess(what: str, guess: Guess) -> str:
    format_ = f"[bold]{guess.format}[/]: " if guess.format else ""
    return f"{what} {format_}{escape(guess.evidence)}"


def _columns(columns: Sequence[Column], limit: int | None) -> str:
    told = [_short(column.ddl) for column in columns[:limit]]
    if limit is not None and len(columns) > limit:
        told.append(f"… {len(columns) - limit:,} more")
    return escape(printable(", ".join(told)))


def _short(ddl: str) -> str:
    return ddl if len(ddl) <= _TYPE_LENGTH else f"{ddl[:_TYPE_LENGTH]}…"


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
        return ["Nothing was written."]
    lines = [f"{_shown(each.path)}: topic {each.topic} becomes table {each.table}" for each in planned]
    return [
        *lines,
        f"Next: edit {'it' if len(planned) == 1 else 'them'} as you like; `dg check defs` tells what is wrong with it,",
        f"`kafka-lake schema {planned[0].topic}` what the first run would make of the records.",
    ]


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _interactive() -> bool:
    return sys.stdin.isatty()


def _chosen(found: Sequence[Discovered]) -> list[Discovered]:
    """Ask which topics to write, until the answer is one."""
    candidates = {each.topic: each for each in found if not each.tables and not each.error}
    if not candidates:
        return []

    def parsed(answer: str) -> list[Discovered]:
        names = list(dict.fromkeys(re.split(r"[\s,]+", answer.strip())))
        if names == ["all"]:
            return list(candidates.values())
        if unknown := [name for name in names if name not in candidates]:
            raise typer.BadParameter(f"{', '.join(unknown)}: no topic without a table has that name.")
        return [candidates[name] for name in names]

    chosen: list[Discovered] = typer.prompt("Topics to write, or all", value_proc=parsed, err=True)
    return chosen
