"""The records of a topic behind a table's position, read by one consumer and cached between reads."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.common.text import counted
from kafka_lake.errors import TailTooLongError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right
from kafka_lake.kafka.records import as_batch

_MOST_AT_ONCE, _WAIT_SECONDS = 10_000, 0.02
_SETTINGS: Mapping[str, Any] = {
    "group.id": "kafka-lake.fresh",
    "auto.offset.reset": "error",
    # The only sign that nothing more comes where a topic ends in aborted or compacted records.
    "enable.partition.eof": True,
    # A broker answers at once if there are records. Without any, it reports the end of the log after this time.
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 2,
    "max.partition.fetch.bytes": 8 << 20,
    "queued.max.messages.kbytes": 64 << 10,
    "check.crcs": True,
}


@dataclass(frozen=True)
class MaxTail:
    """The most that a fresh read takes from Kafka.

    Args:
        records: Offsets between the table's position and the ends of the topic's partitions.
        size: Bytes of keys, values and headers in memory.
        seconds: Time to read the records.
    """

    records: int = 1_000_000
    size: int = 1 << 30
    seconds: float = 30.0


@dataclass
class Chunk:
    """Records in the columns of Spark's Kafka source, and what they were decoded into; None if they weren't yet."""

    records: pa.RecordBatch
    decoded: Any = field(default=None, compare=False)


class Tail:
    """Reads a topic from a position to its ends; each read continues where the previous one ended.

    Args:
        table: The table's name, for errors.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, table: str) -> None:
        self._cluster, self._topic, self._table = cluster, topic, table
        self._consumer = cluster.consumer(_SETTINGS)
        self._chunks: list[Chunk] = []
        self._start: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._log: tuple[TopicIdentity, Mapping[int, int]] | None = None

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read(
        self, ranges: Sequence[OffsetRange], before: Position, limit: MaxTail
    ) -> tuple[list[Chunk], tuple[OffsetRange, ...]]:
        """Return the records of ranges, and of what has arrived since; and the ranges with their new ends.

        Args:
            before: The position before the ranges. Cached records of another topic, or of other leaders, are dropped.

        Raises:
            TailTooLongError: If the limit is reached.
            KafkaError: If the brokers don't answer, or no longer have the records.
        """
        wanted = sum(map(len, ranges))
        if wanted > limit.records:
            raise self._too_long(wanted, f"more than max_tail's {limit.records:,} records")
        if (log := (before.identity, before.epochs)) != self._log:
            if self._log is not None:
                # The consumer may still report errors of the log before.
                self._consumer.close()
                self._consumer = self._cluster.consumer(_SETTINGS)
            self._log, self._next = log, {}
        self._begin_at({r.partition: r.start for r in ranges})
        ends = {r.partition: r.end for r in ranges}
        began = progress = time.monotonic()
        while missing := sum(max(0, ends[p] - self._next[p]) for p in ends):
            messages = self._consumer.consume(min(missing, _MOST_AT_ONCE), _WAIT_SECONDS)
            now = time.monotonic()
            if self._take(messages):
                progress = now
            elif now - progress > self._cluster.timeout:
                raise self._explained(TimeoutError())
            if (size := sum(chunk.records.nbytes for chunk in self._chunks)) > limit.size:
                raise self._too_long(wanted, f"{size:,} bytes of them are more than max_tail's {limit.size:,}")
            if now - began > limit.seconds:
                raise self._too_long(wanted, f"reading them takes longer than max_tail's {limit.seconds:g} s")
        return self._chunks, tuple(OffsetRange(r.partition, r.start, self._next[r.partition]) for r in ranges)

    def _begin_at(self, starts: dict[int, int]) -> None:
        """Drop the records before some offsets; read anew from there unless all later ones are cached."""
        is_cached = starts.keys() == self._next.keys() and all(
            self._start[p] <= offset <= self._next[p] for p, offset in starts.items()
        )
        if not is_cached:
            self._chunks, self._next = [], dict(starts)
            self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in starts.items()])
            # By itself the client looks only once a second for the leaders of newly assigned partitions.
            try:
                self._consumer.list_topics(self._topic, timeout=self._cluster.timeout)
            except KafkaException as error:
                raise self._explained(error) from error
        elif starts != self._start:
            self._chunks = [Chunk(kept)] if len(kept := _from_offsets(self._chunks, starts)) else []
        self._start = starts

    def _take(self, messages: Sequence[Any]) -> bool:
        """Add messages to the cached records; return whether a partition has advanced."""
        records, before = [], dict(self._next)
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._next[message.partition()] = message.offset() + 1
            elif error.code() == ClientError._PARTITION_EOF:
                self._next[message.partition()] = max(self._next[message.partition()], message.offset())
            # Reading needs no right on the group.
            elif error.code() != ClientError.GROUP_AUTHORIZATION_FAILED:
                raise self._explained(KafkaException(error))
        if records:
            self._chunks.append(Chunk(as_batch(self._topic, records)))
        return self._next != before

    def _explained(self, error: Exception) -> Exception:
        # The next read begins anew.
        self._next = {}
        return self._cluster.explained(f"Reading topic {self._topic}", error, Right("READ", "topic", self._topic))

    def _too_long(self, records: int, why: str) -> TailTooLongError:
        return TailTooLongError(
            f"Table {self._table} is {counted(records, 'record')} of topic {self._topic} behind: {why}.",
            "Bring the table up to date (`kafka-lake ingest`, or more frequent runs), raise max_tail, or query the "
            "table without its unread records.",
        )


def _from_offsets(chunks: Sequence[Chunk], starts: Mapping[int, int]) -> pa.RecordBatch:
    """Return the cached records from some offsets on, as one batch."""
    first = np.zeros(max(starts) + 1, dtype=np.int64)
    first[list(starts)] = list(starts.values())
    kept = []
    for chunk in chunks:
        partitions, offsets = (chunk.records.column(name).to_numpy() for name in ("partition", "offset"))
        kept.append(chunk.records.filter(pa.array(offsets >= first[partitions])))
    return pa.concat_batches(kept) if kept else as_batch("", [])
