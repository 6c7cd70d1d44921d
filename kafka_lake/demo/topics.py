"""What the demo's producers have in common: their topics, where those end, and delivery that is checked."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tenacity import retry, retry_if_exception, stop_after_delay, wait_exponential_jitter

from kafka_lake.errors import KafkaLakeError

TIMEOUT_S = 30.0


def ensure_topic(bootstrap: str, topic: str, partitions: int) -> bool:
    """Create the topic unless it exists; one that exists is left as it is.

    Returns:
        True if it was created.

    Raises:
        KafkaLakeError: The broker refused, or didn't answer in 30 s.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    created = admin.create_topics([new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
    try:
        created[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise KafkaLakeError(f"topic {topic} could not be created on {bootstrap}: {error.args[0].str()}") from error
    return True


def next_id(bootstrap: str, topic: str, id_of: Callable[[Message], int]) -> int:
    """Return an id greater than every record's in the topic.

    Ids rise within a partition, so the last record of each partition tells, also after a producer that was
    interrupted and left holes.

    Args:
        bootstrap: The brokers, ``host:port``.
        topic: An existing topic.
        id_of: Reads a record's id.

    Raises:
        KafkaLakeError: A partition's last record could not be read in 30 s.
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


class TopicProducer:
    """An idempotent producer for one topic that remembers the first failed delivery.

    A record whose delivery failed is reported by ``check`` or ``flush``; records before and after it may be in the
    topic.

    Args:
        bootstrap: The brokers, ``host:port``.
        topic: An existing topic.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._failure: str | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "compression.type": "zstd",
                "queue.buffering.max.messages": 1_000_000,
                "delivery.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )

    def send(self, key: str, value: str | bytes) -> None:
        """Queue one record for delivery.

        Raises:
            KafkaLakeError: An earlier delivery failed.
        """
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        self.check()

    def flush(self) -> None:
        """Wait until every queued record is in the topic.

        Raises:
            KafkaLakeError: A delivery failed, or records are still queued after 30 s.
        """
        left = self._producer.flush(TIMEOUT_S)
        self.check()
        if left:
            raise KafkaLakeError(f"{left} records for topic {self._topic} were not delivered in {TIMEOUT_S:g} s")

    def check(self) -> None:
        """Raise a KafkaLakeError that names topic and partition if a delivery failed."""
        if self._failure:
            raise KafkaLakeError(self._failure)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = (
                f"a record was not delivered to topic {message.topic()} partition {message.partition()}: {error.str()}"
            )
