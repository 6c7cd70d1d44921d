"""How far each topic's table is, from brokers and catalog, as plain data. No Spark, no Dagster, no scan."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Snapshot

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import TableState, live_row_count, row_count
from kafka_lake.common.offsets import Watermarks, lag
from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from kafka_lake.orchestration.runs import FailedRun

_POLL_SECONDS = 0.5


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
    """A topic and its table.

    Args:
        partitions: Ascending by number; empty where ``error`` is set.
        lag: Sum over the partitions; None where ``error`` is set.
        snapshot_id: Head of ``main``; None for a table that doesn't exist yet.
        committed_at: When that snapshot was committed, ISO 8601 in UTC.
        rows: Rows of that snapshot; those that are deleted by their values are counted until compaction.
        dead_letters: Rows of the dead-letter table.
        error: Why the topic could not be asked; empty if it could.
        cluster: Name of its Kafka cluster; None if that has none.
        last_failure: The topic's last run, if that failed and is over.
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
    last_failure: "FailedRun | None" = None


def clusters_of(specs: Sequence[TopicTable]) -> list[str | None]:
    """Return the names of the clusters that topics are of, in the topics' order; None alone if there are no topics."""
    return list(dict.fromkeys(spec.cluster for spec in specs)) or [None]


def collect(specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog) -> list[TopicStatus]:
    """Return the status of every topic given, in that order; of a topic with routes, of each of its tables."""
    answers = cluster.watermarks(spec.topic for spec in specs)
    return [_status(table, spec, answers[spec.topic], catalog) for spec in specs for table in spec.tables]


def unanswered(specs: Sequence[TopicTable], error: KafkaLakeError, catalog: LakeCatalog) -> list[TopicStatus]:
    """Return what the tables of topics tell without the brokers."""
    return [_status(table, spec, error, catalog) for spec in specs for table in spec.tables]


def awaited(
    specs: Sequence[TopicTable], cluster: KafkaCluster, catalog: LakeCatalog, seconds: float
) -> list[TopicStatus]:
    """Return the status of every topic given once no table lags, or when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = collect(specs, cluster, catalog)
        if not any(each.lag for each in found) or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_SECONDS)


def _status(spec: TopicTable, topic: TopicTable, now: Watermarks | KafkaLakeError, catalog: LakeCatalog) -> TopicStatus:
    table = catalog.table(spec.identifier)
    head = table.current_snapshot() if table else None
    # The position of a topic with routes is that of its own table.
    own = table if spec is topic else catalog.table(topic.identifier)
    state = state_of(topic, own) if own else None
    partitions = () if isinstance(now, KafkaLakeError) else _partitions(state, now)
    return TopicStatus(
        topic=spec.topic,
        table=".".join(spec.identifier),
        partitions=partitions,
        lag=None if isinstance(now, KafkaLakeError) else sum(each.lag for each in partitions),
        snapshot_id=head.snapshot_id if head else None,
        committed_at=_time(head) if head else None,
        rows=live_row_count(table),
        dead_letters=row_count(catalog.table(spec.dead_letter_table)),
        error=str(now) if isinstance(now, KafkaLakeError) else "",
        cluster=spec.cluster,
    )


def _partitions(state: TableState | None, now: Watermarks) -> tuple[PartitionStatus, ...]:
    position = state.position if state else None
    offsets = position.offsets if position else {}
    lags = lag(position, now)
    return tuple(PartitionStatus(p, offsets.get(p), now.end[p], lags[p]) for p in now.partitions)


def _time(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
