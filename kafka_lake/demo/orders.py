"""The pizza shop's orders: a seeded generator, and producers for the demo's topic."""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from threading import Event
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tenacity import retry, retry_if_exception, stop_after_delay, wait_exponential_jitter

from kafka_lake.errors import KafkaLakeError

TOPIC = "completed-pizzas"
PARTITIONS = 6
STORES = 40
TIMEOUT_S = 30.0

SAUCES = ("tomato", "pesto", "bbq", "alfredo", "none")
CHEESES = ("mozzarella", "three cheeses", "vegan", "gorgonzola", "none")
MEATS = ("pepperoni", "ham", "salami", "chicken", "bacon", "sausage")
VEGGIES = ("mushrooms", "olives", "onions", "peppers", "spinach", "tomatoes", "pineapple", "jalapenos")

_STORE_IDS = random.Random("stores").sample(range(1, STORES + 1), STORES)
# Zipf's law: a few stores sell most, as shops do.
_STORE_WEIGHTS = tuple(accumulate(1 / rank**0.6 for rank in range(1, STORES + 1)))


@dataclass(frozen=True, slots=True)
class Order:
    """One completed order; ``date_ordered`` is UTC in ISO 8601 with milliseconds."""

    order_id: int
    store_id: int
    sauce: str
    cheese: str
    meats: list[str]
    veggies: list[str]
    date_ordered: str


def generate_order(rng: random.Random, order_id: int, ordered: datetime) -> Order:
    """Return one order; the same generator state, id and time give the same order.

    Args:
        rng: Source of every choice.
        order_id: The order's unique number.
        ordered: When it was ordered, in UTC.
    """
    return Order(
        order_id=order_id,
        store_id=rng.choices(_STORE_IDS, cum_weights=_STORE_WEIGHTS)[0],
        sauce=rng.choice(SAUCES),
        cheese=rng.choice(CHEESES),
        meats=rng.sample(MEATS, rng.randrange(4)),
        veggies=rng.sample(VEGGIES, rng.randrange(5)),
        date_ordered=f"{ordered:%Y-%m-%dT%H:%M:%S}.{ordered.microsecond // 1000:03d}Z",
    )


def generate_orders(count: int, seed: int, first_id: int, end: datetime) -> Iterator[Order]:
    """Yield ``count`` orders of the day that ends at ``end``, oldest first, numbered from ``first_id``.

    The same arguments give the same orders; another ``first_id`` gives other ones.
    """
    rng = random.Random(f"{seed}/{first_id}")
    step = timedelta(days=1) / max(count, 1)
    for number in range(count):
        yield generate_order(rng, first_id + number, end - step * (count - 1 - number))


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


def next_order_id(bootstrap: str, topic: str) -> int:
    """Return an id greater than every order's in the topic.

    Ids rise within a partition, so the last record of each partition tells, also after a producer that was
    interrupted and left holes.

    Raises:
        KafkaLakeError: A partition's last record could not be read in 30 s.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "kafka-lake-demo-orders",
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
                highest = max(highest, int(json.loads(message.value())["order_id"]))
            elif time.monotonic() > deadline:
                raise KafkaLakeError(f"last orders of {topic}, partitions {sorted(waiting)}, could not be read in time")
        return highest + 1
    except KafkaException as error:
        raise KafkaLakeError(f"last orders of {topic} could not be read: {error.args[0].str()}") from error
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


class OrderProducer:
    """An idempotent producer of orders, keyed by store, that remembers the first failed delivery.

    A record whose delivery failed is reported by ``check`` or ``flush``; records before and after it may be in the
    topic.
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

    def send(self, order: Order) -> None:
        """Queue one order for delivery.

        Raises:
            KafkaLakeError: An earlier delivery failed.
        """
        value = json.dumps(asdict(order), separators=(",", ":"))
        while True:
            try:
                self._producer.produce(self._topic, value, str(order.store_id), on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        self.check()

    def flush(self) -> None:
        """Wait until every queued order is in the topic.

        Raises:
            KafkaLakeError: A delivery failed, or orders are still queued after 30 s.
        """
        left = self._producer.flush(TIMEOUT_S)
        self.check()
        if left:
            raise KafkaLakeError(f"{left} orders for topic {self._topic} were not delivered in {TIMEOUT_S:g} s")

    def check(self) -> None:
        """Raise a KafkaLakeError that names topic and partition if a delivery failed."""
        if self._failure:
            raise KafkaLakeError(self._failure)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = (
                f"an order was not delivered to topic {message.topic()} partition {message.partition()}: {error.str()}"
            )


def produce_orders(
    bootstrap: str, topic: str, count: int, seed: int, progress: Callable[[int], Any] | None = None
) -> int:
    """Produce ``count`` orders of the last day and wait until all are delivered.

    Args:
        bootstrap: The brokers, ``host:port``.
        topic: An existing topic.
        count: How many orders.
        seed: Makes the orders repeatable, but for their ids, which go on where the topic ends, and their times.
        progress: Called with the number of orders queued so far.

    Returns:
        The first order's id.

    Raises:
        KafkaLakeError: A delivery failed; part of the orders may be in the topic.
    """
    first_id = next_order_id(bootstrap, topic)
    producer = OrderProducer(bootstrap, topic)
    for number, order in enumerate(generate_orders(count, seed, first_id, datetime.now(UTC)), start=1):
        producer.send(order)
        if progress and number % 1000 == 0:
            progress(number)
    producer.flush()
    if progress:
        progress(count)
    return first_id


def trickle(bootstrap: str, topic: str, rate: float, stop: Event, seed: int | None = None) -> None:
    """Produce live orders until ``stop`` is set.

    Args:
        bootstrap: The brokers, ``host:port``.
        topic: An existing topic.
        rate: Orders per second.
        stop: Ends the trickle; what is queued is delivered first.
        seed: Makes the orders repeatable.

    Raises:
        KafkaLakeError: A delivery failed.
    """
    order_id = next_order_id(bootstrap, topic)
    rng = random.Random(seed)
    producer = OrderProducer(bootstrap, topic)
    while not stop.wait(1 / rate):
        producer.send(generate_order(rng, order_id, datetime.now(UTC)))
        order_id += 1
    producer.flush()
