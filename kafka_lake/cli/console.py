"""What the commands share: where they write and log, how they ask, and the arguments that several of them have."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from kafka_lake.common.files import ensure_home, home

_PIPE_COLUMNS = 500


def _console(stream: TextIO, *, stderr: bool) -> Console:
    # A pipe or file has no width, and Rich takes 80 columns for it: programs would get broken lines.
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if has_width else _PIPE_COLUMNS)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)


class FullWidth(Table):
    """A table as wide as the terminal; in a pipe or file as wide as its content."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.expand = options.max_width < _PIPE_COLUMNS
        yield from super().__rich_console__(console, options)


Topic = Annotated[str, typer.Argument(help="The Kafka topic; with its cluster's name if several have it: eu/orders.")]
AnyTopic = Annotated[str | None, typer.Argument(help="The Kafka topic; all of them by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def agree(question: str) -> None:
    """Ask the user, and end the command with exit code 1 unless the answer is yes."""
    if not typer.confirm(question, err=True):
        err.print("Nothing was changed.")
        raise typer.Exit(1)


_LARGEST_BYTES = 5_000_000


def log_file() -> Path:
    """Return the file that takes what is said beside a command's own output."""
    return home() / "logs" / "command.log"


def log_to_file() -> None:
    """Send what loggers report, and what the JVM and C libraries write to standard error, to `log_file` from now on.

    Python's own ``sys.stderr`` stays where it was. Where the file can't be written they are silenced.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    path = log_file()
    try:
        ensure_home()
        path.parent.mkdir(exist_ok=True)
        fresh = path.exists() and path.stat().st_size > _LARGEST_BYTES
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0), 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 2)
    logging.basicConfig(
        stream=os.fdopen(log, "w", buffering=1, errors="backslashreplace"),
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def log_to_terminal() -> None:
    """Show what loggers report, from their information level on."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
