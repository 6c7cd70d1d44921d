"""Topics created and filled from Python: for the demo, for tests, and for trying a topic."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from kafka_lake.errors import ConfigurationError, KafkaError, KafkaLakeError, UnknownTopicError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BROKERS_DEFAULT = -1
_REFUSED = {
    ClientError.TOPIC_EXCEPTION,
    ClientError.INVALID_PARTITIONS,
    ClientError.INVALID_REPLICATION_FACTOR,
    ClientError.POLICY_VIOLATION,
}


def create_topic(cluster: KafkaCluster, topic: str, partitions: int) -> bool:
    """Create a topic with the brokers' default replication, and wait until all brokers know it."""
    if not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise ConfigurationError(
            f"{topic!r} can't be the name of a topic.", "Use up to 249 letters, digits, dots, underscores and dashes."
        )
    admin = cluster.made(AdminClient, {})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=_BROKERS_DEFAULT)
    futures = admin.create_topics([new], operation_timeout=cluster.timeout, request_timeout=cluster.timeout)
    try:
        futures[topic].result()
    except KafkaException as error:
        code = error.args[0].code()
        if code == ClientError.TOPIC_ALREADY_EXISTS:
            return False
        if code in _REFUSED:
            raise KafkaError(
                f"Topic {topic} was not created: the cluster at {cluster.bootstrap_servers} refuses it: "
                f"{error.args[0].str().rstrip('.')}."
            ) from error
        raise cluster.explained(f"Creating topic {topic}", error, Right("CREATE", "topic", topic)) from error
    _await_partitions(cluster, topic)
    return True


def _await_partitions(cluster: KafkaCluster, topic: str) -> None:
    """Wait until the brokers know the topic: just after its creation one may still deny it."""
    await_answer = Retrying(
        retry=retry_if_exception_type(KafkaError),
        stop=stop_after_delay(cluster.timeout),
        wait=wait_exponential_jitter(0.02, 1.0),
        reraise=True,
    )
    await_answer(cluster.watermarks_of, topic)


class RecordProducer:
    """An idempotent producer for one topic; ``check`` and ``flush`` raise the first failed delivery.

    Records before and after a failed one may be in the topic.

    Args:
        seconds: Most that a delivery may take.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, seconds: float = 30.0) -> None:
        self._cluster = cluster
        self._topic = topic
        self._seconds = seconds
        self._failure: KafkaLakeError | None = None
        settings: dict[str, Any] = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "compression.type": "zstd",
            "queue.buffering.max.messages": 1_000_000,
            "delivery.timeout.ms": int(seconds * 1000),
        }
        self._producer = cluster.made(Producer, settings)

    def send(self, key: str | bytes | None, value: str | bytes) -> None:
        """Queue one record for delivery."""
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise KafkaError(f"Topic {self._topic}: a record can't be sent: {error.args[0].str()}") from error
        with self._fatal_explained():
            self._producer.poll(0)
        self.check()

    def flush(self) -> None:
        """Wait until every queued record is in the topic."""
        with self._fatal_explained():
            left = self._producer.flush(self._seconds)
        self.check()
        if left:
            raise KafkaError(
                f"Topic {self._topic}: {left:,} records were not delivered to {self._cluster.bootstrap_servers} in "
                f"{self._seconds:g} s."
            )

    def check(self) -> None:
        """Raise a KafkaError that names topic and partition if a delivery failed."""
        if self._failure:
            raise self._failure

    @contextmanager
    def _fatal_explained(self) -> Iterator[None]:
        """Translate a fatal error, which any later call of the client raises, callbacks included."""
        try:
            yield
        except (KafkaException, SystemError) as error:
            fatal = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(fatal, KafkaException):
                raise
            raise self._explained(f"Producing to topic {self._topic}", fatal.args[0]) from error

    def _explained(self, what: str, error: ClientError) -> KafkaLakeError:
        # Without the right to write to any topic, the cluster refuses an idempotent producer.
        right = Right("WRITE", "topic", self._topic)
        return self._cluster.explained(what, KafkaException(error), right)

    def _delivered(self, error: ClientError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            what = f"Topic {message.topic()} partition {message.partition()}: a record was not delivered"
            refused = error.code() in (ClientError.TOPIC_AUTHORIZATION_FAILED, ClientError.CLUSTER_AUTHORIZATION_FAILED)
            self._failure = self._explained(what, error) if refused else KafkaError(f"{what}: {error.str()}")


def produce(cluster: KafkaCluster, topic: str, records: Iterable[tuple[bytes | None, bytes]]) -> int:
    """Produce records, given as keys and values, and return how many once all are in the topic."""
    try:
        cluster.watermarks_of(topic)
    except UnknownTopicError as error:
        raise UnknownTopicError(error.message, f"`kafka-lake topic create {topic}` creates it.") from error
    producer, count = RecordProducer(cluster, topic), 0
    for count, (key, value) in enumerate(records, 1):  # noqa: B007
        producer.send(key, value)
    producer.flush()
    return count
