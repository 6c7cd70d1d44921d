"""What the commands share: where they write, how they ask, and the arguments that several of them have."""

import os
import sys
from typing import Annotated, TextIO

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

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
