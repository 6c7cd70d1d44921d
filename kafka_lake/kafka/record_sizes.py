"""How large the records of a topic are here and there: a few records at given offsets, seen by no consumer group."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.record_sizes import Probe
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right
from kafka_lake.kafka.sample import record_of

_SETTINGS: Mapping[str, Any] = {
    # librdkafka wants one, though partitions are assigned by hand and nothing is committed.
    "group.id": "kafka-lake.record-sizes",
    "auto.offset.reset": "earliest",
    # The only word that nothing comes any more where a topic ends in aborted or compacted records.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    # Brokers give a whole batch at least, and no more than that is needed.
    "max.partition.fetch.bytes": 64 * 1024,
    "fetch.max.bytes": 8 * 1024 * 1024,
    # A partition whose queue is full is left alone for a second otherwise.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 16,
    "queued.max.messages.kbytes": 16 * 1024,
}
# Who names the offsets to read needs no right on the group.
_NO_REFUSAL = {ClientError._PARTITION_EOF, ClientError.GROUP_AUTHORIZATION_FAILED}
_RECORDS, _BYTES = 16, 256 * 1024
_POLL_SECONDS = 0.2


def record_sizes(
    cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange], places: int, seconds: float = 10.0
) -> list[Probe]:
    """Return how large records are at the beginnings of equal parts of ranges, by a few records at each.

    Args:
        cluster: Where the topic is. To read it is right enough.
        ranges: The offsets that matter; one range of a partition at most.
        places: How many parts of each range.
        seconds: Most that this may take. What has not been found by then is left out.

    Raises:
        KafkaError: If the brokers refuse to give records of the topic.
    """
    left = {r.partition: parts(r, places) for r in ranges if len(r)}
    deadline = time.monotonic() + seconds
    found: list[Probe] = []
    consumer = cluster.consumer(_SETTINGS)
    try:
        consumer.assign([TopicPartition(topic, p, each[0].start) for p, each in left.items()])
        # By itself the client finds out but once a second who leads the partitions that it has been given. If this
        # fails, to read them tells why.
        with suppress(KafkaException):
            consumer.list_topics(topic, timeout=seconds)
        while left and time.monotonic() < deadline:
            at = {p: each[0] for p, each in left.items()}
            found += _read(cluster, consumer, topic=topic, at=at, deadline=deadline)
            left = {p: each[1:] for p, each in left.items() if each[1:]}
    finally:
        consumer.close()
    return found


def first_large_record(
    cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange], limit: int
) -> tuple[int, int, int | None] | None:
    """Return partition, offset and bytes of the first large record among some offsets; None if there is none.

    All records are read, one batch of each partition at a time: this process holds a batch of the largest twice.

    Args:
        ranges: The offsets; one range of a partition at most.
        limit: Bytes of key, value and headers that are not large yet.

    Returns:
        The bytes are None if the client refuses to expand the record's batch
        (``receive.message.max.bytes``, which it asks some codecs for).

    Raises:
        KafkaError: If the brokers refuse, or nothing comes for as long as one question may take.
    """
    left = {r.partition: r for r in ranges if len(r)}
    consumer = cluster.consumer(_SETTINGS)
    try:
        consumer.assign([TopicPartition(topic, p, each.start) for p, each in left.items()])
        until = time.monotonic() + cluster.timeout
        while left:
            if time.monotonic() > until:
                raise cluster.explained(f"Reading topic {topic}", TimeoutError())
            message = consumer.poll(_POLL_SECONDS)
            if message is None or message.topic() != topic or message.partition() not in left:
                continue
            until = time.monotonic() + cluster.timeout
            each, error, offset = left[message.partition()], message.error(), message.offset()
            if error is not None and error.code() == ClientError._BAD_COMPRESSION and offset < each.end:
                return each.partition, max(offset, each.start), None
            if error is not None and error.code() not in _NO_REFUSAL:
                raise cluster.explained(f"Reading topic {topic}", KafkaException(error), Right("READ", "topic", topic))
            if error is None and offset < each.end and (size := record_of(message).size) > limit:
                return each.partition, offset, size
            if error is not None or offset >= each.end - 1:
                del left[each.partition]
                consumer.incremental_unassign([TopicPartition(topic, each.partition)])
    finally:
        consumer.close()
    return None


def parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Return the equal parts that make up a range, none empty.

    >>> parts(OffsetRange(0, 100, 200), 2)
    [OffsetRange(partition=0, start=100, end=150), OffsetRange(partition=0, start=150, end=200)]
    >>> [len(each) for each in parts(OffsetRange(0, 7, 9), 4)]
    [1, 1]
    """
    borders = sorted({whole.start + len(whole) * number // count for number in range(count + 1)})
    return [OffsetRange(whole.partition, start, end) for start, end in pairwise(borders)]


def _read(
    cluster: KafkaCluster, consumer: Any, topic: str, at: Mapping[int, OffsetRange], deadline: float
) -> list[Probe]:
    """Return a probe of the beginning of a range of each partition."""
    consumer.assign([TopicPartition(topic, p, each.start) for p, each in at.items()])
    counts, sizes, probes = dict.fromkeys(at, 0), dict.fromkeys(at, 0), []
    while counts and (seconds := deadline - time.monotonic()) > 0:
        message = consumer.poll(min(seconds, _POLL_SECONDS))
        if message is None:
            continue
        partition, error = message.partition(), message.error()
        if error is not None and error.code() not in _NO_REFUSAL and message.topic() in (None, topic):
            right = Right("READ", "topic", topic)
            raise cluster.explained(f"Reading topic {topic}", KafkaException(error), right)
        if message.topic() != topic or partition not in counts:
            continue
        start, end = at[partition].start, at[partition].end
        if error is None and start <= message.offset() < end:
            counts[partition] += 1
            sizes[partition] += record_of(message).size
        done = error is not None or message.offset() >= end - 1
        if done or counts[partition] == _RECORDS or sizes[partition] >= _BYTES:
            reached = end if done else message.offset() + 1
            probes.append(Probe(partition, start, reached - start, sizes[partition]))
            del counts[partition]
            consumer.incremental_unassign([TopicPartition(topic, partition)])
    consumer.unassign()
    return probes
