"""All committed records of a small topic, as control topics are; each partition in order."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.common.offsets import Watermarks
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.sample import Record, record_of

_SETTINGS: Mapping[str, Any] = {
    # librdkafka wants one, though partitions are assigned by hand and nothing is committed.
    "group.id": "kafka-lake.adopt",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,
}
# Who names the offsets to read needs no right on the group.
_NO_REFUSAL = {ClientError._PARTITION_EOF, ClientError.GROUP_AUTHORIZATION_FAILED}
_POLL_SECONDS = 0.2


def read_all(cluster: KafkaCluster, now: Watermarks) -> Iterator[Record]:
    """Yield every record from a topic's first offsets up to its ends.

    Args:
        cluster: Where the topic is. Aborted records are left out if it reads committed ones only.
        now: The topic and what it holds.

    Raises:
        KafkaError: If the brokers refuse, or nothing comes for as long as one question may take.
    """
    topic = now.identity.topic
    unread = {p for p in now.partitions if now.low[p] < now.end[p]}
    consumer = cluster.consumer(_SETTINGS)
    try:
        consumer.assign([TopicPartition(topic, p, now.low[p]) for p in sorted(unread)])
        until = time.monotonic() + cluster.timeout
        while unread:
            if time.monotonic() > until:
                raise cluster.explained(f"Reading topic {topic}", TimeoutError())
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() not in _NO_REFUSAL:
                raise cluster.explained(f"Reading topic {topic}", KafkaException(error))
            if message.topic() != topic or message.partition() not in unread:
                continue
            until = time.monotonic() + cluster.timeout
            partition = message.partition()
            if error is None and message.offset() < now.end[partition]:
                yield record_of(message)
            if error is not None or message.offset() >= now.end[partition] - 1:
                unread.discard(partition)
    finally:
        consumer.close()
