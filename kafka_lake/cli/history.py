"""``kafka-lake history``: a table's commits for auditors, as plain data, as a table on the terminal, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.table import Table
from rich import box
from rich.markup import escape
from rich.table import Table as Shown

from kafka_lake.catalog.history import Consumed, LoggedCommit, oldest_are_gone, recorded_losses, snapshot_log
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import Loss
from kafka_lake.common.text import printable
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.orchestration.metadata import readable
from kafka_lake.spec.topic_table import TopicTable

_PARTITIONS = 6
# As much of it as Dagster shows; --json has all of it.
_RUN_ID = 8


@dataclass(frozen=True)
class History:
    """What is known of a table's commits.

    Args:
        older: How many older ones are known beside them.
        expired: Whether there were still older ones, whose snapshots have expired.
        losses: What was given up for lost by commits whose snapshots have expired, as a property of the table has it.
    """

    table: str
    commits: tuple[LoggedCommit, ...]
    older: int
    expired: bool
    losses: tuple[Loss, ...]


def identifier_of(name: str, specs: Sequence[TopicTable]) -> tuple[str, str]:
    """Return namespace and name of the table that a user means by the name of a topic or of a table."""
    by_topic = [each.identifier for each in specs if name in (each.topic, each.full_topic)]
    by_table = [
        known
        for spec in specs
        for each in spec.tables
        for known in each.identifiers
        if name in (".".join(known), known[1])
    ]
    found = list(dict.fromkeys(by_topic or by_table))
    if len(found) > 1:
        raise ConfigurationError(
            f"{name} may be one of several tables here.", f"Name one of them: {' or '.join(map('.'.join, found))}."
        )
    if found:
        return found[0]
    namespace, _, table = name.rpartition(".")
    if namespace and table:
        return namespace, table
    known = ", ".join(each.full_topic for each in specs) or "none"
    raise ConfigurationError(
        f"{name} is no topic and no table of a topic here; the topics are: {known}.",
        "Name a topic, or a table with its namespace, as in shop.orders.",
    )


def history_of(catalog: LakeCatalog, identifier: tuple[str, str], limit: int) -> History:
    """Return the newest commits of a table."""
    table = catalog.table(identifier)
    if table is None:
        raise TableError(
            f"Table {'.'.join(identifier)} doesn't exist.", "Check its name; a topic's first run makes its table."
        )
    commits = snapshot_log(table)
    return History(
        table=".".join(identifier),
        commits=tuple(commits[:limit]),
        older=max(0, len(commits) - limit),
        expired=oldest_are_gone(table),
        losses=_of_expired(table, commits),
    )


def _of_expired(table: Table, commits: Sequence[LoggedCommit]) -> tuple[Loss, ...]:
    known = {loss for each in commits for loss in each.losses}
    return tuple(loss for loss in recorded_losses(table) if loss not in known)


def history_json(found: History) -> dict[str, Any]:
    """Return a history for programs."""
    told = asdict(found)
    for each in told["commits"]:
        each["committed_at"] = each["committed_at"].isoformat(timespec="milliseconds")
    return told


def commit_table(found: History) -> Shown:
    """Return a history as a table, a row for each commit."""
    shown = Shown(title=escape(found.table), box=box.SIMPLE_HEAD)
    shown.add_column("when (UTC)", no_wrap=True)
    shown.add_column("what", overflow="fold", ratio=3)
    shown.add_column("who", overflow="fold", ratio=3)
    shown.add_column("offsets", no_wrap=True)
    shown.add_column("rows", justify="right", no_wrap=True)
    shown.add_column("snapshot", no_wrap=True)
    for each in found.commits:
        shown.add_row(
            each.committed_at.strftime("%Y-%m-%d\n%H:%M:%S"),
            "\n".join(
                [f"[bold]{escape(each.what)}[/]", *(f"[dim]{escape(printable(line))}[/]" for line in _more(each))]
            ),
            "\n".join(escape(printable(line)) for line in _who(each)),
            _offsets(each.offsets),
            _rows(each),
            str(each.snapshot_id),
            end_section=True,
        )
    return shown


def last_lines(found: History) -> list[str]:
    """Return what one should know beside the commits that are shown, a line each."""
    lines = [f"Of a commit whose snapshot has expired: {loss}" for loss in found.losses]
    if found.older:
        lines.append(f"{found.older:,} older commits are known: --limit shows more.")
    if found.expired:
        lines.append("Still older snapshots have expired: nobody can tell what they were.")
    else:
        lines.append("No snapshot of this table has expired.")
    return lines


def _more(commit: LoggedCommit) -> Iterator[str]:
    for change in commit.schema_changes:
        before, after = readable(change.before), readable(change.after)
        types = f"{before} → {after}" if before and after else before or after
        yield f"schema change: {change.column} {change.kind}: {types}"
    for loss in commit.losses:
        yield str(loss)
    if commit.note:
        yield commit.note


def _who(commit: LoggedCommit) -> list[str]:
    if commit.ours:
        place = " on ".join(filter(None, [commit.user, commit.host]))
        return [line for line in (f"run {commit.run_id[:_RUN_ID]}" if commit.run_id else "", place) if line]
    told = "others" if commit.ours is False else "not recorded"
    return [told, commit.engine] if commit.engine else [told]


def _rows(commit: LoggedCommit) -> str:
    counts = ((commit.rows_added, "+"), (commit.rows_deleted, "-"))
    return "\n".join(f"{sign}{count:,}" for count, sign in counts if count)


def _offsets(found: Sequence[Consumed]) -> str:
    lines = [f"{each.partition}: {_extent(each)}" for each in found[:_PARTITIONS]]
    if len(found) > _PARTITIONS:
        lines.append(f"… {len(found) - _PARTITIONS} partitions more")
    return "\n".join(lines)


def _extent(offsets: Consumed) -> str:
    if offsets.start is None:
        return f"up to {offsets.end - 1:,}" if offsets.end else "none"
    if offsets.end < offsets.start:
        return f"{offsets.start:,} back to {offsets.end:,}"
    return f"{offsets.start:,} to {offsets.end - 1:,}" if offsets.end - offsets.start > 1 else f"{offsets.start:,}"
