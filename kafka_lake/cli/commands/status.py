"""``kafka-lake status``: how far each table is, from brokers and catalog. It needs no Spark and reads no data file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kafka_lake.cli import output, project
from kafka_lake.cli.arguments import AnyTopic, AsJson
from kafka_lake.cli.output import Output, add_columns, working
from kafka_lake.common.offsets import Watermarks, lag
from kafka_lake.common.text import counted, rough, seconds_of
from kafka_lake.errors import EmbeddedBrokerStoppedError, KafkaError, KafkaLakeError

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.catalog.positions import TableState
    from kafka_lake.kafka.cluster import KafkaCluster
    from kafka_lake.orchestration.runs import FailedRun
    from kafka_lake.spec.topic_table import TopicTable

_POLL_SECONDS = 0.5


def status(
    topic: AnyTopic = None,
    as_json: AsJson = False,
    wait: Annotated[
        str | None, typer.Option(help="Wait until the tables have all records, at most this long: 90s, 5m.")
    ] = None,
) -> None:
    """Show the position and lag of each table; for one topic, of each Kafka partition.

    If a topic lags and its last run failed, also shows that run's error. Exit code 1 if a topic can't be read, or if
    --wait times out.
    """
    seconds = None if wait is None else seconds_of(wait)
    specs = project.topic_tables(topic)
    statuses, unreachable = _statuses(specs, seconds)
    if any(topic_status.lag for topic_status in statuses):
        statuses = _with_failures(statuses, specs)
    shown = Output(as_json)
    shown.json([asdict(topic_status) for topic_status in statuses])
    if not statuses:
        shown.lines("No topic has a table here. `kafka-lake discover TOPIC --write` creates one.")
    elif topic:
        shown.show(*map(status_table, statuses))
    else:
        shown.show(*overview(statuses, datetime.now(UTC)))
    for name, failure in {s.topic: s.last_failure for s in statuses if s.lag and s.last_failure}.items():
        output.err.print(failure.line(name), style="red", markup=False, soft_wrap=True)
    if unreachable or any(topic_status.error or (wait and topic_status.lag) for topic_status in statuses):
        raise typer.Exit(1)


@dataclass(frozen=True)
class PartitionStatus:
    """One Kafka partition of a topic.

    Args:
        position: Next offset that the table takes; None if the table has none yet.
        end: Exclusive end: the last stable offset.
        lag: Offsets between the two, or from the log's start where there is no position.
    """

    partition: int
    position: int | None
    end: int
    lag: int


@dataclass(frozen=True)
class TopicStatus:
    """A table and its topic.

    Args:
        partitions: Ascending by number; empty if ``error`` is set.
        lag: Sum over the partitions; None if ``error`` is set.
        snapshot_id: Head of ``main``; None for a table that doesn't exist yet.
        committed_at: When that snapshot was committed, ISO 8601 in UTC.
        rows: Rows of that snapshot; those that are deleted by their values are counted until compaction.
        dead_letters: Rows of the dead-letter table.
        error: Why the topic could not be read; empty if it could.
        cluster: Name of its Kafka cluster; None for the only cluster.
        last_failure: The topic's last finished run, if it failed.
    """

    topic: str
    table: str
    partitions: tuple[PartitionStatus, ...]
    lag: int | None
    snapshot_id: int | None
    committed_at: str | None
    rows: int
    dead_letters: int
    error: str = ""
    cluster: str | None = None
    last_failure: FailedRun | None = None


def _statuses(specs: Sequence[TopicTable], wait_seconds: float | None) -> tuple[list[TopicStatus], bool]:
    """Return the status of each table, and whether a cluster with a name didn't answer."""
    statuses: list[TopicStatus] = []
    unreachable, deadline = False, time.monotonic() + (wait_seconds or 0)
    for cluster in list(dict.fromkeys(spec.cluster for spec in specs)) or [None]:
        of_cluster = [spec for spec in specs if spec.cluster == cluster]
        try:
            with project.open_connections(cluster=cluster, only_metadata=True) as connections:
                found = collect(of_cluster, connections.cluster, connections.catalog)
                with working("Waiting for the tables"):
                    while wait_seconds and any(status.lag for status in found) and time.monotonic() < deadline:
                        time.sleep(_POLL_SECONDS)
                        found = collect(of_cluster, connections.cluster, connections.catalog)
                statuses += found
        except EmbeddedBrokerStoppedError as error:
            with project.open_connections(with_broker=False, cluster=cluster, only_metadata=True) as connections:
                statuses += [_status(table, error, connections.catalog) for spec in of_cluster for table in spec.tables]
        except KafkaError as error:
            if cluster is None:
                raise
            # The other clusters' topics are shown all the same.
            unreachable = True
            output.err.print(f"Kafka cluster {cluster}: {error}", style="red", markup=False, soft_wrap=True)
    return statuses, unreachable


def _with_failures(statuses: Sequence[TopicStatus], specs: Sequence[TopicTable]) -> list[TopicStatus]:
    from kafka_lake.orchestration import runs
    from kafka_lake.orchestration.keys import work_name

    names = {(spec.cluster, spec.topic): work_name(spec) for spec in specs}
    failures = runs.failed_runs(specs)
    return [
        replace(topic_status, last_failure=failures.get(names.get((topic_status.cluster, topic_status.topic), "")))
        for topic_status in statuses
    ]


def collect(specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog) -> list[TopicStatus]:
    """Return the status of each table of topics, in their order."""
    answers = cluster.watermarks(spec.topic for spec in specs)
    return [_status(table, answers[spec.topic], catalog) for spec in specs for table in spec.tables]


def _status(spec: TopicTable, now: Watermarks | KafkaLakeError, catalog: LakeCatalog) -> TopicStatus:
    from kafka_lake.catalog.positions import live_row_count, row_count, state_of

    table = catalog.table(spec.identifier)
    head = table.current_snapshot() if table else None
    state = state_of(spec, table) if table else None
    error = str(now) if isinstance(now, KafkaLakeError) else ""
    partitions = () if isinstance(now, KafkaLakeError) else _partitions(state, now)
    return TopicStatus(
        topic=spec.topic,
        table=".".join(spec.identifier),
        partitions=partitions,
        lag=None if error else sum(partition.lag for partition in partitions),
        snapshot_id=head.snapshot_id if head else None,
        committed_at=_committed_at(head) if head else None,
        rows=live_row_count(table),
        dead_letters=row_count(catalog.table(spec.dead_letter_table)),
        error=error,
        cluster=spec.cluster,
    )


def _partitions(state: TableState | None, now: Watermarks) -> tuple[PartitionStatus, ...]:
    position = state.position if state else None
    offsets = position.offsets if position else {}
    lags = lag(position, now)
    return tuple(PartitionStatus(p, offsets.get(p), now.end[p], lags[p]) for p in now.partitions)


def _committed_at(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def overview(statuses: Sequence[TopicStatus], now: datetime) -> Iterator[RenderableType]:
    """Yield a table with a row for each table, and below it the errors of topics."""
    from kafka_lake.spec.topic_table import full_topic

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    add_columns(table, "topic", "table", overflow="fold")
    add_columns(table, "rows", "dead", "lag", "last commit", justify="right", no_wrap=True)
    for topic_status in statuses:
        table.add_row(
            escape(full_topic(topic_status.cluster, topic_status.topic)),
            escape(topic_status.table),
            f"{topic_status.rows:,}",
            f"{topic_status.dead_letters:,}",
            "[red]?[/]" if topic_status.lag is None else f"{topic_status.lag:,}",
            _ago(topic_status.committed_at, now) if topic_status.committed_at else "no table",
        )
    yield table
    for error in dict.fromkeys(topic_status.error for topic_status in statuses if topic_status.error):
        yield Text(error, "red")


def _ago(committed_at: str, now: datetime) -> str:
    return f"{rough((now - datetime.fromisoformat(committed_at)).total_seconds())} ago"


def status_table(status: TopicStatus) -> Table:
    """Return the status of a table, a row per Kafka partition."""
    from kafka_lake.spec.topic_table import full_topic

    if status.error:
        caption = f"[red]{escape(status.error)}[/]"
    elif status.snapshot_id is None:
        caption = "no table yet"
    else:
        caption = f"snapshot {status.snapshot_id}, {status.committed_at}"
    caption += f"\n{counted(status.rows, 'row')}, {counted(status.dead_letters, 'dead letter')}"
    if status.lag is not None:
        caption += f", lag {status.lag:,}"
    title = escape(f"{full_topic(status.cluster, status.topic)} → {status.table}")
    table = Table("partition", title=title, caption=caption, min_width=60)
    add_columns(table, "position", "end", "lag", justify="right", no_wrap=True)
    for partition in status.partitions:
        position = "none" if partition.position is None else f"{partition.position:,}"
        table.add_row(str(partition.partition), position, f"{partition.end:,}", f"{partition.lag:,}")
    return table
