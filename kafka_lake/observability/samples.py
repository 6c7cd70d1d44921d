"""Samples of metrics from the state of a topic and its tables. Pure: it uses no broker, no catalog, no clock."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from kafka_lake.catalog.tables import STEPS, Totals
from kafka_lake.common.offsets import Loss, LossReason, Position, Watermarks, in_topic
from kafka_lake.common.offsets import lag as lag_of
from kafka_lake.maintenance.policy import TableHealth
from kafka_lake.observability import metrics as m
from kafka_lake.observability.metrics import MAX_PARTITIONS, Metric
from kafka_lake.spec.topic_table import TopicTable

Key = tuple[str, str]
"""A topic's full name, and its table as ``namespace.table``."""


def key_of(spec: TopicTable) -> Key:
    """Return the labels of a topic's table."""
    return spec.full_topic, ".".join(spec.identifier)


@dataclass(frozen=True)
class Sample:
    """A value of a metric.

    Args:
        labels: Values of its labels, in their order.
        since: Of an age: its beginning, in seconds since the epoch, instead of a value.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float = 0.0
    since: float | None = None

    def at(self, now: float) -> float:
        """Return the value at a time in seconds since the epoch; ages are at least 0."""
        return self.value if self.since is None else max(0.0, now - self.since)


@dataclass(frozen=True)
class TableFacts:
    """One of a topic's tables.

    Args:
        committed_at: Time of the newest snapshot, in seconds since the epoch; None without one.
        compacted_at: Time of the newest compaction; None if its snapshot has expired.
    """

    name: str
    health: TableHealth
    overdue: bool
    committed_at: float | None
    compacted_at: float | None


@dataclass(frozen=True)
class TopicTables:
    """The tables of a topic.

    Args:
        position: Of the topic's table; None if it has none.
        committed_at: Time of the newest commit by a run, in seconds since the epoch; None if its snapshot has expired.
        dead_letters: Rows of its dead-letter table.
        totals: Counters of all runs; None if the table has none.
        losses: Offsets recorded as lost.
        tables: The existing tables of the topic.
    """

    position: Position | None
    committed_at: float | None
    dead_letters: int
    totals: Totals | None
    losses: tuple[Loss, ...]
    tables: tuple[TableFacts, ...]


def table_samples(key: Key, found: TopicTables) -> Iterator[Sample]:
    """Yield the samples of a topic's tables."""
    yield from topic_samples(key, found)
    yield Sample(m.WAITING, key, found.dead_letters)
    # Zeros before the first commit: alerts see its values as an increase.
    yield from _totals(key, found.totals or Totals())
    for table in found.tables:
        yield from _health(key, table)


def topic_samples(key: Key, found: TopicTables) -> Iterator[Sample]:
    """Yield the samples of one of several topics that fill a table."""
    if found.committed_at is not None:
        yield Sample(m.LAST_COMMIT, key, found.committed_at)
    yield from _losses(key, found.losses)


def _losses(key: Key, losses: Iterable[Loss]) -> Iterator[Sample]:
    counts, records = Counter[str](), Counter[str]()
    for loss in losses:
        counts[loss.reason] += 1
        if loss.end is not None:
            records[loss.reason] += max(0, loss.end - loss.start)
    # Only these two losses have a known end. Zeros before the first loss make it an increase.
    for reason in ("retention", "skipped"):
        yield Sample(m.LOST, (*key, reason), records[reason])
    for reason in sorted({*get_args(LossReason)} | counts.keys()):
        yield Sample(m.LOSSES, (*key, reason), counts[reason])


def _totals(key: Key, totals: Totals) -> Iterator[Sample]:
    for metric, value in (
        (m.COMMITS, totals.commits),
        (m.REFUSED, totals.refused),
        (m.RECORDS, totals.records),
        (m.ROWS, totals.rows),
        (m.DEAD_LETTERS, totals.dead_letters),
        (m.TOMBSTONES, totals.tombstones),
        (m.MOVED, totals.moved),
        (m.EXPIRED, totals.expired),
        (m.BYTES_READ, totals.bytes_read),
    ):
        yield Sample(metric, key, value)
    for step, seconds in sorted({**dict.fromkeys(STEPS, 0.0), **totals.seconds}.items()):
        yield Sample(m.STEP_SECONDS, (*key, step), seconds)


def _health(key: Key, found: TableFacts) -> Iterator[Sample]:
    labels, health = (key[0], found.name), found.health
    for metric, value in (
        (m.TABLE_ROWS, health.rows),
        (m.TABLE_DELETED_ROWS, health.deleted_rows),
        (m.TABLE_DELETED_SHARE, health.deleted_share),
        (m.TABLE_FILES, health.data_files),
        (m.TABLE_DELETE_FILES, health.delete_files),
        (m.TABLE_BYTES, health.size),
        (m.TABLE_FILE_BYTES, health.average_size),
        (m.TABLE_SNAPSHOTS, health.snapshots),
        (m.TABLE_UNCOMPACTED, health.commits),
        (m.TABLE_OVERDUE, found.overdue),
        (m.TABLE_TIME, found.committed_at),
        (m.TABLE_COMPACTED, found.compacted_at),
    ):
        if value is not None:
            yield Sample(metric, labels, value)


def broker_samples(key: Key, now: Watermarks) -> Iterator[Sample]:
    """Yield the samples of a topic's brokers."""
    yield Sample(m.PARTITIONS, key, len(now.partitions))
    yield from _by_partition(m.LOG_START, key, now.low)
    yield from _by_partition(m.LOG_END, key, now.end)


def lag_samples(key: Key, now: Watermarks, position: Position | None) -> Iterator[Sample]:
    """Yield the samples of a table's position and lag; a position in an older topic of this name is ignored."""
    current = in_topic(position, now)
    if current is not None:
        known = {p: o for p, o in current.offsets.items() if p in now.end}
        if len(now.partitions) <= MAX_PARTITIONS or len(known) == len(now.partitions):
            yield from _by_partition(m.POSITION, key, known)
    yield from _by_partition(m.LAG, key, lag_of(current, now))


def unread_samples(key: Key, lags: Mapping[int, int], oldest: Mapping[int, float | None]) -> Iterator[Sample]:
    """Yield the ages of the oldest unread records; none for a partition whose age is unknown."""
    unread = {p for p, lag in lags.items() if lag}
    if len(lags) > MAX_PARTITIONS:
        if unread <= oldest.keys():
            waiting = [at for p in unread if (at := oldest[p]) is not None]
            yield Sample(m.LAG_SECONDS, (*key, ""), since=min(waiting, default=None))
        return
    for partition in sorted(lags):
        if partition not in unread:
            yield Sample(m.LAG_SECONDS, (*key, str(partition)))
        elif partition in oldest:
            yield Sample(m.LAG_SECONDS, (*key, str(partition)), since=oldest[partition])


def _by_partition(metric: Metric, key: Key, values: Mapping[int, int]) -> Iterator[Sample]:
    if len(values) > MAX_PARTITIONS:
        yield Sample(metric, (*key, ""), sum(values.values()))
        return
    for partition in sorted(values):
        yield Sample(metric, (*key, str(partition)), values[partition])
