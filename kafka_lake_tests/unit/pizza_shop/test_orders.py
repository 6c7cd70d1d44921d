"""The demo's orders: repeatable, unique over runs, delivered or reported."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event, Timer

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from examples.pizza_shop import orders, topics
from kafka_lake.errors import KafkaLakeError

NOON = datetime(2026, 11, 21, 12, 34, 56, 123_999, UTC)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    del mock


def consumed(bootstrap: str, topic: str) -> list[tuple[bytes, int, dict]]:
    """Every record of the topic as key, partition and order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        messages = consumer.consume(sum(ends.values()), timeout=20)
        assert len(messages) == sum(ends.values())
        return [(m.key(), m.partition(), json.loads(m.value())) for m in messages]
    finally:
        consumer.close()


def new_topic(bootstrap: str, name: str) -> str:
    """Let the mock broker create the topic, as it has no other way to."""
    Producer({"bootstrap.servers": bootstrap}).list_topics(name, timeout=10)
    return name


def test_same_arguments_give_the_same_orders() -> None:
    first = list(orders.generate_orders(100, seed=7, first_id=1, end=NOON))
    assert first == list(orders.generate_orders(100, seed=7, first_id=1, end=NOON))
    assert first != list(orders.generate_orders(100, seed=8, first_id=1, end=NOON))


def test_orders_are_numbered_and_dated_up_to_the_end() -> None:
    made = list(orders.generate_orders(3, seed=7, first_id=10, end=NOON))
    assert [order.order_id for order in made] == [10, 11, 12]
    assert [order.date_ordered for order in made] == [
        "2026-11-20T20:34:56.123Z",
        "2026-11-21T04:34:56.123Z",
        "2026-11-21T12:34:56.123Z",
    ]


def test_no_orders_of_none() -> None:
    assert list(orders.generate_orders(0, seed=7, first_id=1, end=NOON)) == []


@pytest.mark.slow
def test_a_few_stores_sell_most_and_every_store_sells() -> None:
    sold = Counter(order.store_id for order in orders.generate_orders(20_000, 7, 1, NOON))
    assert set(sold) == set(range(1, orders.STORES + 1))
    best = [count for _, count in sold.most_common(8)]
    assert sum(best) > 20_000 * 0.4
    assert best[0] > 1.3 * best[1]


def test_toppings_are_lists_without_repetition() -> None:
    for order in orders.generate_orders(500, 7, 1, NOON):
        assert len(set(order.meats)) == len(order.meats)
        assert set(order.veggies) <= set(orders.VEGGIES)


@pytest.mark.processes
def test_produced_orders_are_keyed_by_store_and_unique_over_runs(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "unique")
    seen: list[int] = []
    assert orders.produce_orders(bootstrap, topic, 2_500, 1, seen.append) == 1
    assert seen == [1_000, 2_000, 2_500]
    assert orders.produce_orders(bootstrap, topic, 500, 1) > 2_500
    records = consumed(bootstrap, topic)
    assert len(records) == 3_000
    assert len({order["order_id"] for _, _, order in records}) == 3_000
    assert all(key == str(order["store_id"]).encode() for key, _, order in records)
    assert len({(key, partition) for key, partition, _ in records}) == orders.STORES


@pytest.mark.processes
def test_ids_go_on_after_the_highest_even_if_records_are_missing(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "holes")
    producer = orders.OrderProducer(bootstrap, topic)
    rng = orders.random.Random(1)
    producer.send_order(orders.generate_order(rng, 900, NOON))
    producer.flush()
    assert orders.next_order_id(bootstrap, topic) == 901


@pytest.mark.processes
def test_trickle_ends_when_asked_and_has_delivered_all(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "trickle")
    stop = Event()
    Timer(1.0, stop.set).start()
    orders.trickle(bootstrap, topic, 50, stop, seed=1)
    found = len(consumed(bootstrap, topic))
    assert 10 <= found <= 50
    assert orders.next_order_id(bootstrap, topic) == found + 1


@pytest.mark.processes
def test_records_that_are_not_delivered_are_an_error_that_names_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TIMEOUT_S", 1.0)
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics("lost", timeout=10).brokers.values()))
    del mock
    producer = orders.OrderProducer(f"{broker.host}:{broker.port}", "lost")
    producer.send_order(orders.generate_order(orders.random.Random(1), 1, NOON))
    with pytest.raises(KafkaLakeError, match=r"Topic lost"):
        producer.flush()


@pytest.mark.processes
def test_no_broker_is_an_error_that_names_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TIMEOUT_S", 1.0)
    with pytest.raises(KafkaLakeError, match=orders.TOPIC):
        orders.produce_orders("127.0.0.1:1", orders.TOPIC, 1, 1)
    with pytest.raises(KafkaLakeError, match=orders.TOPIC):
        topics.ensure_topic("127.0.0.1:1", orders.TOPIC, 6)


def test_an_order_of_the_demo_is_known_by_its_id_and_other_records_are_none():
    values = [b'{"order_id": 7}', b'{"order_id": "x"}', b'{"order', b"[]", b"{}", None]
    assert [orders._id_of(each) for each in values] == [7, -1, -1, -1, -1, -1]
