"""A look at the newest records of topics, as bytes: bounded in time, records and memory, seen by no consumer group."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.common.offsets import Watermarks
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right

_GROUP = "kafka-lake.sample"
_SETTINGS: Mapping[str, Any] = {
    # librdkafka wants one, though partitions are assigned by hand and nothing is committed.
    "group.id": _GROUP,
    "auto.offset.reset": "earliest",
    # The only word that nothing comes any more where a topic ends in aborted or compacted records.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,
    "max.partition.fetch.bytes": 1024 * 1024,
    "fetch.max.bytes": 8 * 1024 * 1024,
    "queued.max.messages.kbytes": 16 * 1024,
}
# Who names the offsets to read needs no right on the group.
_NO_REFUSAL = {ClientError._PARTITION_EOF, ClientError.GROUP_AUTHORIZATION_FAILED}
_STEP = 8
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Record:
    """A record as the broker has it.

    Args:
        offset: Where it is in it.
        timestamp_ms: Milliseconds since the epoch, whatever its producer gave; -1 if it has no time.
        key: Its key, None for none.
        value: Its value; None makes it a tombstone.
        size: Bytes of key, value and headers.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    size: int


@dataclass(frozen=True)
class Sample:
    """The newest records of a topic.

    Args:
        records: The oldest first, tombstones among them.
        offsets: How many offsets were looked at for them; those without a record held transaction markers, or records
            that were aborted or compacted away.
        complete: Whether all those offsets were reached before the time was over or the bytes were used up.
    """

    records: tuple[Record, ...]
    offsets: int
    complete: bool


class _Budget:
    """What may still be spent on a topic."""

    def __init__(self, seconds: float, size: int) -> None:
        self._deadline = time.monotonic() + seconds
        self._size = size

    def spend(self, size: int) -> None:
        """Take bytes off."""
        self._size -= size

    def seconds(self) -> float:
        """Return the seconds that are left; 0 also if no bytes are."""
        return max(0.0, self._deadline - time.monotonic()) if self._size > 0 else 0.0


class Sampler:
    """Reads the newest records of one topic after the other; a context manager, since it holds a connection.

    Args:
        seconds: Most that one topic may take.
        max_bytes: After so many bytes of a topic's records no more are read.
        farthest: Offsets before a partition's end beyond which no value is looked for.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        seconds: float = 5.0,
        max_bytes: int = 16 * 1024 * 1024,
        farthest: int = 100_000,
    ) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._farthest = farthest
        self._consumer = cluster.consumer(_SETTINGS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.close()

    def newest(self, now: Watermarks, count: int) -> Sample:
        """Return the newest records of a topic that have a value, and the tombstones between them.

        Each partition gives its share, see `shares`. Where its last offsets hold too few values, those before are
        looked at, in steps that grow.

        Args:
            now: The topic and what it holds.
            count: How many values to find.

        Raises:
            KafkaLakeError: If the brokers refuse to give records of this topic. The next topic may be asked for.
        """
        wanted = shares({p: now.end[p] - now.low[p] for p in now.partitions}, count)
        first = {p: max(now.low[p], now.end[p] - self._farthest) for p in wanted}
        windows = {p: (max(first[p], now.end[p] - share), now.end[p]) for p, share in wanted.items()}
        found: dict[int, list[Record]] = {p: [] for p in wanted}
        budget = _Budget(self._seconds, self._max_bytes)
        if windows:
            self._locate(now.identity.topic, budget.seconds())
        offsets, complete = 0, True
        while windows and complete:
            offsets += sum(stop - start for start, stop in windows.values())
            records, complete = self._read(now.identity.topic, windows, budget)
            for p in windows:
                found[p] = _newest([r for r in records if r.partition == p] + found[p], wanted[p])
            windows = {
                p: _before(window, first[p])
                for p, window in windows.items()
                if sum(r.value is not None for r in found[p]) < wanted[p]
            }
            windows = {p: (start, stop) for p, (start, stop) in windows.items() if start < stop}
        by_time = sorted((r for each in found.values() for r in each), key=lambda r: (r.timestamp_ms, r.offset))
        return Sample(tuple(by_time), offsets, complete)

    def _locate(self, topic: str, seconds: float) -> None:
        # By itself the client finds out but once a second who leads the partitions that it has been given. If this
        # fails, to read them tells why.
        with suppress(KafkaException):
            self._consumer.list_topics(topic, timeout=seconds)

    def _read(self, topic: str, windows: Mapping[int, tuple[int, int]], budget: _Budget) -> tuple[list[Record], bool]:
        """Return the records of a window of offsets in each partition, and whether these are all of them."""
        self._consumer.assign([TopicPartition(topic, p, start) for p, (start, _) in windows.items()])
        records: list[Record] = []
        unread = set(windows)
        while unread and (seconds := budget.seconds()):
            message = self._consumer.poll(min(seconds, _POLL_SECONDS))
            if message is None:
                continue
            partition, error = message.partition(), message.error()
            if error is not None and error.code() not in _NO_REFUSAL and message.topic() in (None, topic):
                right = Right("READ", "topic", topic)
                raise self._cluster.explained(f"Reading topic {topic}", KafkaException(error), right)
            if message.topic() != topic or partition not in unread:
                continue
            last = windows[partition][1] - 1
            if error is None and message.offset() <= last:
                records.append(record_of(message))
                budget.spend(records[-1].size)
            if error is not None or message.offset() >= last:
                unread.discard(partition)
                self._consumer.incremental_unassign([TopicPartition(topic, partition)])
        self._consumer.unassign()
        return records, not unread


def shares(available: Mapping[int, int], count: int) -> dict[int, int]:
    """Return how many of a topic's newest records each partition gives: alike, as far as it has them.

    Args:
        available: Offsets that each partition holds.
        count: How many records are wanted; if there are more partitions, the longest ones give one each.

    >>> shares({0: 1, 1: 100, 2: 0, 3: 100}, 20)
    {0: 1, 1: 9, 3: 10}
    """
    left, given = count, {}
    waiting = sorted((held, p) for p, held in available.items() if held > 0)
    for index, (held, p) in enumerate(waiting):
        if share := min(held, left // (len(waiting) - index)):
            given[p] = share
            left -= share
    return given


def _before(window: tuple[int, int], first: int) -> tuple[int, int]:
    """Return the offsets to look at next, where a window held too few values: those before it, and more of them."""
    start, stop = window
    return max(first, start - _STEP * (stop - start)), start


def _newest(records: Sequence[Record], count: int) -> list[Record]:
    """Return what begins with the oldest of the newest values."""
    values = [index for index, record in enumerate(records) if record.value is not None]
    return list(records[values[-count] :] if len(values) >= count else records)


def record_of(message: Any) -> Record:
    """Return a client's message, which is no error, as a record."""
    key, value, headers = message.key(), message.value(), message.headers() or []
    size = len(key or b"") + len(value or b"") + sum(len(name) + len(content or b"") for name, content in headers)
    return Record(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=key,
        value=value,
        size=size,
    )
