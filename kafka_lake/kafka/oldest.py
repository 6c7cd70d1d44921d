"""When the record at an offset came: of many partitions at once, by one record of each, seen by no consumer group."""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.common.offsets import Position, Watermarks, in_topic, lag
from kafka_lake.common.record_times import is_time
from kafka_lake.kafka.cluster import KafkaCluster

_SETTINGS: Mapping[str, Any] = {
    # librdkafka wants one, though partitions are assigned by hand and nothing is committed.
    "group.id": "kafka-lake.oldest",
    # What retention has taken is not unread any more.
    "auto.offset.reset": "earliest",
    # The only word that nothing comes any more where a topic ends in aborted or compacted records.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,
    # Brokers give a whole batch at least, and no more than that is needed.
    "max.partition.fetch.bytes": 1024,
    "fetch.max.bytes": 8 * 1024 * 1024,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 16 * 1024,
}
# Who names the offsets to read needs no right on the group.
_NO_REFUSAL = {ClientError._PARTITION_EOF, ClientError.GROUP_AUTHORIZATION_FAILED}
_POLL_SECONDS = 0.2


@dataclass(frozen=True, order=True)
class Place:
    """An offset in a partition of a topic. The topic's id tells it from others that had its name."""

    topic: str
    partition: int
    offset: int
    topic_id: str = ""


def unread(now: Watermarks, position: Position | None) -> dict[int, Place]:
    """Return where the oldest unread record of each partition is that has any.

    Args:
        position: The table's, in this topic or in an older one of that name; None if it has none.
    """
    ours = in_topic(position, now)
    offsets = ours.offsets if ours else {}
    return {
        p: Place(now.identity.topic, p, max(offsets.get(p, 0), now.low[p]), now.identity.topic_id)
        for p, count in lag(ours, now).items()
        if count
    }


def arrival_times(cluster: KafkaCluster, places: Collection[Place], seconds: float) -> dict[Place, float | None]:
    """Return the Kafka timestamp of the first record at or after an offset of each partition.

    Args:
        cluster: Where the topics are. To read them is right enough.
        seconds: Most that this may take. What has not been found by then is left out, and so is a partition that the
            brokers refuse to give, or whose record has no time.

    Returns:
        Seconds since the epoch; None where no record follows, as offsets of transactions' markers have none.
    """
    if not places:
        return {}
    left, deadline = {(each.topic, each.partition): each for each in places}, time.monotonic() + seconds
    found: dict[Place, float | None] = {}
    consumer = cluster.consumer(_SETTINGS)
    try:
        consumer.assign([TopicPartition(each.topic, each.partition, each.offset) for each in sorted(places)])
        # By itself the client finds out but once a second who leads the partitions that it has been given.
        with suppress(KafkaException):
            consumer.list_topics(timeout=seconds)
        while left and (rest := deadline - time.monotonic()) > 0:
            message = consumer.poll(min(rest, _POLL_SECONDS))
            if message is None or (of := (message.topic(), message.partition())) not in left:
                continue
            place = left[of]
            error = message.error()
            if error is None:
                _, at = message.timestamp()
                if is_time(at):
                    found[place] = at / 1000
            elif error.code() == ClientError._PARTITION_EOF:
                found[place] = None
            elif error.code() in _NO_REFUSAL:
                continue
            del left[of]
            consumer.incremental_unassign([TopicPartition(*of)])
    finally:
        consumer.close()
    return found
