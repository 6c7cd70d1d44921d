"""``kafka-lake history``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table as Shown

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output, first_partitions
from kafka_lake.common.offsets import Loss
from kafka_lake.common.text import offset_span, printable, readable
from kafka_lake.errors import ConfigurationError, TableError

if TYPE_CHECKING:
    from kafka_lake.catalog.history import Consumed, LoggedCommit
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.spec.topic_table import TopicTable

# Dagster shows as much of it; --json has all of it.
_RUN_ID = 8


def history(
    table: Annotated[
        str, typer.Argument(help="Topic or table, such as orders, shop.orders or shop.orders__dead_letters.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of commits.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a table, newest first.

    Reads only the table's snapshots, without Spark and Kafka. Expired snapshots are missing.
    """
    identifier = identifier_of(table, project.topics_if_any())
    catalog = project.configured_catalog().open()
    from kafka_lake.catalog.lake_catalog import metadata_by_fsspec

    with metadata_by_fsspec():
        commits = history_of(catalog, identifier, limit)
    output = Output(as_json)
    output.json(history_json(commits))
    output.show(commit_table(commits))
    output.lines(*last_lines(commits))


@dataclass(frozen=True)
class History:
    """The newest commits of a table.

    Args:
        older: How many older commits have snapshots.
        expired: Whether snapshots of still older commits have expired.
        losses: Lost offsets that were recorded by commits whose snapshots have expired.
    """

    table: str
    commits: tuple[LoggedCommit, ...]
    older: int
    expired: bool
    losses: tuple[Loss, ...]


def identifier_of(name: str, specs: Sequence[TopicTable]) -> tuple[str, str]:
    """Return namespace and name of the table that the name of a topic or of a table refers to."""
    by_topic = [spec.identifier for spec in specs if name in (spec.topic, spec.full_topic)]
    by_table = [
        identifier
        for topic_spec in specs
        for spec in topic_spec.tables
        for identifier in spec.identifiers
        if name in (".".join(identifier), identifier[1])
    ]
    matches = list(dict.fromkeys(by_topic or by_table))
    if len(matches) > 1:
        raise ConfigurationError(
            f"{name} matches several tables of this project.",
            f"Name one of them: {' or '.join(map('.'.join, matches))}.",
        )
    if matches:
        return matches[0]
    namespace, _, table = name.rpartition(".")
    if namespace and table:
        return namespace, table
    topics = ", ".join(spec.full_topic for spec in specs) or "none"
    raise ConfigurationError(
        f"{name} is neither a topic of this project nor a topic's table; the topics are: {topics}.",
        "Name a topic, or a table with its namespace, as in shop.orders.",
    )


def history_of(catalog: LakeCatalog, identifier: tuple[str, str], limit: int) -> History:
    """Return the newest commits of a table."""
    from kafka_lake.catalog.history import oldest_are_gone, recorded_losses, snapshot_log

    table = catalog.table(identifier)
    if table is None:
        raise TableError(
            f"Table {'.'.join(identifier)} doesn't exist.", "Check its name; a topic's first run creates its table."
        )
    commits = snapshot_log(table)
    return History(
        table=".".join(identifier),
        commits=tuple(commits[:limit]),
        older=max(0, len(commits) - limit),
        expired=oldest_are_gone(table),
        losses=tuple(loss for loss in recorded_losses(table) if not any(loss in commit.losses for commit in commits)),
    )


def history_json(history: History) -> dict[str, Any]:
    """Return a history for programs."""
    document = asdict(history)
    for commit in document["commits"]:
        commit["committed_at"] = commit["committed_at"].isoformat(timespec="milliseconds")
    return document


def commit_table(history: History) -> Shown:
    """Return a history as a table, a row for each commit."""
    shown = Shown(title=escape(history.table), box=box.SIMPLE_HEAD)
    shown.add_column("when (UTC)", no_wrap=True)
    shown.add_column("what", overflow="fold", ratio=3)
    shown.add_column("who", overflow="fold", ratio=3)
    shown.add_column("offsets", no_wrap=True)
    shown.add_column("rows", justify="right", no_wrap=True)
    shown.add_column("snapshot", no_wrap=True)
    for commit in history.commits:
        details = (f"[dim]{escape(printable(line))}[/]" for line in _details(commit))
        shown.add_row(
            commit.committed_at.strftime("%Y-%m-%d\n%H:%M:%S"),
            "\n".join([f"[bold]{escape(commit.what)}[/]", *details]),
            "\n".join(escape(printable(line)) for line in _who(commit)),
            first_partitions([f"{part.partition}: {_span(part)}" for part in commit.offsets]),
            _rows(commit),
            str(commit.snapshot_id),
            end_section=True,
        )
    return shown


def last_lines(history: History) -> list[str]:
    """Return the lines below the table: recorded losses, and whether there are older commits."""
    lines = [f"From a commit whose snapshot has expired: {loss}" for loss in history.losses]
    if history.older:
        lines.append(f"{history.older:,} older commits are known: --limit shows more.")
    if history.expired:
        lines.append("Older snapshots have expired, so their commits are unknown.")
    else:
        lines.append("No snapshot of this table has expired.")
    return lines


def _details(commit: LoggedCommit) -> Iterator[str]:
    for change in commit.schema_changes:
        before, after = readable(change.before), readable(change.after)
        types = f"{before} → {after}" if before and after else before or after
        yield f"schema change: {change.column} {change.kind}: {types}"
    for loss in commit.losses:
        yield str(loss)
    if commit.note:
        yield commit.note


def _who(commit: LoggedCommit) -> list[str]:
    if commit.managed:
        place = " on ".join(filter(None, [commit.user, commit.host]))
        return [line for line in (f"run {commit.run_id[:_RUN_ID]}" if commit.run_id else "", place) if line]
    writer = "another program" if commit.managed is False else "not recorded"
    return [writer, commit.engine] if commit.engine else [writer]


def _rows(commit: LoggedCommit) -> str:
    counts = ((commit.rows_added, "+"), (commit.rows_deleted, "-"))
    return "\n".join(f"{sign}{count:,}" for count, sign in counts if count)


def _span(offsets: Consumed) -> str:
    if offsets.start is None:
        return f"up to {offsets.end - 1:,}" if offsets.end else "none"
    if offsets.end < offsets.start:
        return f"{offsets.start:,} back to {offsets.end:,}"
    return offset_span(offsets.start, offsets.end)
