"""Arguments and options that several commands have."""

import re
from typing import Annotated

import typer

from kafka_lake.errors import ConfigurationError

Topic = Annotated[str, typer.Argument(help="Kafka topic; eu/orders if several clusters have it.")]
AnyTopic = Annotated[str | None, typer.Argument(help="Kafka topic. Default: all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
Partitions = Annotated[str | None, typer.Option(help="Only these Kafka partitions, such as 0,3.")]

OFFSETS = "earliest, latest, an offset, an ISO 8601 time, or offsets by partition as in 0:17,1:4"
"""The forms of a place in a topic, for help texts."""


def parse_partitions(text: str | None) -> frozenset[int] | None:
    """Return the Kafka partitions of a list; None, for all, without a list.

    >>> sorted(parse_partitions("0, 3"))
    [0, 3]
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+", part, re.ASCII) for part in parts):
        raise ConfigurationError(f"--partitions: {text!r} is not a list of partitions.", "Write for example 0,3.")
    return frozenset(map(int, parts))
