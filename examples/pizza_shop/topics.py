"""What the demo's producers have in common: their topics, and where those end."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tenacity import retry, retry_if_exception, stop_after_delay, wait_exponential_jitter

from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.topics import RecordProducer, create_topic

TIMEOUT_S = 30.0


def ensure_topic(bootstrap: str, topic: str, partitions: int) -> bool:
    """Create the topic unless it exists; one that exists is left as it is."""
    return create_topic(KafkaCluster({"bootstrap.servers": bootstrap}, TIMEOUT_S), topic, partitions)


def next_id(bootstrap: str, topic: str, id_of: Callable[[Message], int]) -> int:
    """Return an id greater than every record's in the topic.

    Ids rise within a partition, so the last record of each partition tells, also after a producer that was
    interrupted and left holes.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "kafka-lake-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        last = _last_offsets(consumer, topic)
        highest: int = sum(end.offset + 1 for end in last)
        consumer.assign(last)
        waiting = {end.partition for end in last}
        deadline = time.monotonic() + TIMEOUT_S
        while waiting:
            message = consumer.poll(1.0)
            if message is not None and message.error():
                raise KafkaException(message.error())
            if message is not None:
                waiting.discard(message.partition())
                highest = max(highest, id_of(message))
            elif time.monotonic() > deadline:
                missing = f"partitions {sorted(waiting)}"
                raise KafkaLakeError(f"last records of {topic}, {missing}, could not be read in {TIMEOUT_S:g} s")
        return highest + 1
    except KafkaException as error:
        raise KafkaLakeError(f"last records of {topic} could not be read: {error.args[0].str()}") from error
    finally:
        consumer.close()


def _leader_is_coming(error: BaseException) -> bool:
    # A topic that has just been made has no leaders for a moment.
    transient = (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
    return isinstance(error, KafkaException) and error.args[0].code() in transient


@retry(
    retry=retry_if_exception(_leader_is_coming),
    stop=stop_after_delay(TIMEOUT_S),
    wait=wait_exponential_jitter(0.05, 1.0),
    reraise=True,
)
def _watermarks(consumer: Consumer, member: TopicPartition) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(member, timeout=TIMEOUT_S)
    return low, high


def _last_offsets(consumer: Consumer, topic: str) -> list[TopicPartition]:
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    found = []
    for partition in sorted(partitions):
        low, high = _watermarks(consumer, TopicPartition(topic, partition))
        if high > low:
            found.append(TopicPartition(topic, partition, high - 1))
    return found


class TopicProducer(RecordProducer):
    """A producer for one topic of a broker without security."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(KafkaCluster({"bootstrap.servers": bootstrap}, TIMEOUT_S), topic, TIMEOUT_S)
