"""The records of given offsets, read by this process instead of Spark: exactly those, seen by no consumer group."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.record_times import is_time
from kafka_lake.errors import KafkaError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right

_SETTINGS: Mapping[str, Any] = {
    # librdkafka wants one, though partitions are assigned by hand and nothing is committed.
    "group.id": "kafka-lake.read",
    # What retention has taken meanwhile must not be skipped.
    "auto.offset.reset": "error",
    # The only word that nothing comes any more where a topic ends in aborted or compacted records.
    "enable.partition.eof": True,
    # As Java's client does.
    "check.crcs": True,
    "fetch.wait.max.ms": 20,
    "queued.max.messages.kbytes": 16 * 1024,
}
# Who names the offsets to read needs no right on the group.
_NO_REFUSAL = {ClientError._PARTITION_EOF, ClientError.GROUP_AUTHORIZATION_FAILED}
_POLL_SECONDS = 0.2
_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
"""The columns of Spark's Kafka source."""


def read_ranges(cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange]) -> pa.Table:
    """Return the records of ranges, in the columns of Spark's Kafka source; timestamps that are no time are null.

    Args:
        cluster: Where the topic is. Aborted records are left out if it reads committed ones only.
        ranges: One of a partition at most. All their records are in memory at once.

    Raises:
        KafkaError: If the brokers refuse, have lost an offset of the ranges, or give nothing for as long as one
            question may take.
    """
    what, right = f"Reading topic {topic}", Right("READ", "topic", topic)
    left = {r.partition: r for r in ranges if len(r)}
    found: list[Any] = []
    consumer, until = cluster.consumer(_SETTINGS), time.monotonic() + cluster.timeout
    try:
        consumer.assign([TopicPartition(topic, p, each.start) for p, each in left.items()])
        while left:
            if time.monotonic() > until:
                raise cluster.explained(what, TimeoutError(), right)
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() not in _NO_REFUSAL and message.topic() in (None, topic):
                raise cluster.explained(what, KafkaException(error), right)
            if message.topic() != topic or message.partition() not in left:
                continue
            until = time.monotonic() + cluster.timeout
            asked, offset = left[message.partition()], message.offset()
            if error is None and offset < asked.end:
                found.append(message)
            elif error is not None and offset < asked.end:
                raise KafkaError(
                    f"{what}: partition {asked.partition} ends at offset {offset}, and {asked.end} was planned.",
                    "Nothing was published. The next run plans again.",
                )
            if offset >= asked.end - 1:
                del left[asked.partition]
                consumer.incremental_unassign([TopicPartition(topic, asked.partition)])
    finally:
        consumer.close()
    return pa.Table.from_pylist([_row(each) for each in found], _SCHEMA)


def _row(message: Any) -> dict[str, Any]:
    kind, milliseconds = message.timestamp()
    headers: Iterable[tuple[str, bytes | None]] = message.headers() or ()
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": milliseconds * 1000 if is_time(milliseconds) else None,
        # Java's client counts them from -1 on.
        "timestampType": kind - 1,
        "headers": [{"key": name, "value": value} for name, value in headers] or None,
    }
