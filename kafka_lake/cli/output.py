"""How commands show results: tables and lines for people, or one JSON document for programs."""

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.status import Status
from rich.table import Table

from kafka_lake.common.files import ensure_home, home

_PIPE_COLUMNS = 500
_MAX_LOG_BYTES = 5_000_000
_PARTITIONS = 6


def _console(stream: TextIO, *, stderr: bool) -> Console:
    # A pipe or file has no width, and Rich assumes 80 columns for it: programs would get broken lines.
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if has_width else _PIPE_COLUMNS)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)


class Output:
    """The results of a command, on standard output. Each method writes in one of the two forms only."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json

    def show(self, *blocks: RenderableType) -> None:
        """Print tables and texts with Rich's markup, for people."""
        if blocks and not self._as_json:
            out.print(*blocks, sep="\n", soft_wrap=all(isinstance(block, str) for block in blocks), highlight=False)

    def lines(self, *lines: str) -> None:
        """Print lines as they are, for people."""
        if lines and not self._as_json:
            out.print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)

    def json(self, document: Any) -> None:
        """Print the document, for programs."""
        if self._as_json:
            typer.echo(json.dumps(document, indent=2))


def note(line: str) -> None:
    """Print a line for the user on standard error."""
    err.print(line, markup=False, soft_wrap=True)


def working(text: str) -> Status:
    """Return a context manager that shows on standard error what the command is doing."""
    return err.status(text)


def confirm(question: str) -> None:
    """Ask the user, and end the command with exit code 1 unless the answer is yes."""
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)


class WideTable(Table):
    """A table as wide as the terminal; in a pipe or file as wide as its content."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.expand = options.max_width < _PIPE_COLUMNS
        yield from super().__rich_console__(console, options)


def add_columns(table: Table, *headings: str, **settings: Any) -> Table:
    """Add columns with the same settings to a table, and return it."""
    for heading in headings:
        table.add_column(heading, **settings)
    return table


def first_partitions(lines: Sequence[str]) -> str:
    """Return the lines of the first partitions, and the number of the others."""
    more = [f"… {len(lines) - _PARTITIONS:,} partitions more"] if len(lines) > _PARTITIONS else []
    return "\n".join([*lines[:_PARTITIONS], *more])


def log_file() -> Path:
    """Return the log of commands: what loggers, the JVM and C libraries write."""
    return home() / "logs" / "command.log"


def log_to_file() -> None:
    """Redirect loggers, and the standard error of the JVM and C libraries, to `log_file`.

    Python's own ``sys.stderr`` stays. If the file can't be written, the output is discarded.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    path = log_file()
    try:
        ensure_home()
        path.parent.mkdir(exist_ok=True)
        is_full = path.exists() and path.stat().st_size > _MAX_LOG_BYTES
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if is_full else 0), 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 2)
    logging.basicConfig(
        stream=os.fdopen(log, "w", buffering=1, errors="backslashreplace"),
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def log_to_terminal() -> None:
    """Show messages of loggers, from the level INFO on."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
