"""What the commands share: where they write, how they ask, and the arguments that several of them have."""

from typing import Annotated

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)

Topic = Annotated[str, typer.Argument(help="The Kafka topic; with its cluster's name if several have it: eu/orders.")]
AnyTopic = Annotated[str | None, typer.Argument(help="The Kafka topic; all of them by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def agree(question: str) -> None:
    """Ask the user, and end the command with exit code 1 unless the answer is yes."""
    if not typer.confirm(question, err=True):
        err.print("Nothing was changed.")
        raise typer.Exit(1)
