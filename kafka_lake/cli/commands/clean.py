"""``kafka-lake clean``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AnyTopic
from kafka_lake.cli.output import Output, working
from kafka_lake.common.text import counted, seconds_of

if TYPE_CHECKING:
    from kafka_lake.maintenance.clean import Cleaned
    from kafka_lake.spec.topic_table import TopicTable

_FILES = 10


def clean(
    topic: AnyTopic = None,
    older_than: Annotated[str, typer.Option(help="Keep files and branches newer than this: 30m, 24h, 7d.")] = "24h",
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without this option, they are only listed.")] = False,
) -> None:
    """List the branches and files that killed runs left behind; --yes removes them.

    The files belong to no snapshot. New files and branches are kept, since a run may still be writing them. Use an age
    that is shorter than a commit takes only while nothing writes to the tables.
    """
    from kafka_lake.maintenance import clean as cleaning
    from kafka_lake.spec.topic_table import once_each

    seconds = seconds_of(older_than)
    specs, is_clean = project.topic_tables(topic), True
    with project.open_connections(with_broker=False) as connections:
        for spec in once_each(specs):
            with working(f"Cleaning {'.'.join(spec.identifier)}"):
                cleaned = cleaning.clean(spec, connections, seconds, dry_run=not yes)
            Output().lines(*cleaned_lines(spec, cleaned, yes))
            is_clean &= not (cleaned.branches or cleaned.files)
    if not (is_clean or yes):
        Output().lines("Nothing was removed. The same command with --yes removes these branches and files.")


def cleaned_lines(spec: TopicTable, cleaned: Cleaned, removed: bool) -> Iterator[str]:
    """Yield a line for the table, and one for each branch and the first files."""
    counts = f"{counted(len(cleaned.branches), 'branch', 'es')} and {counted(len(cleaned.files), 'file')}"
    yield f"{'.'.join(spec.identifier)}: {counts} {'removed' if removed else 'to remove'}"
    for name in (*cleaned.branches, *cleaned.files[:_FILES]):
        yield f"  {name}"
    if len(cleaned.files) > _FILES:
        yield f"  … {len(cleaned.files) - _FILES:,} files more"
