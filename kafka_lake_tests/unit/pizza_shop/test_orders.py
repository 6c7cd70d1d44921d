"""The demo's orders: repeatable, unique over runs, delivered or reported."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from examples.pizza_shop import orders, topics
from kafka_lake.errors import KafkaLakeError

NOON = datetime(2026, 11, 21, 12, 34, 56, 123_999, UTC)


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
def test_no_broker_is_an_error_that_names_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TIMEOUT_S", 1.0)
    with pytest.raises(KafkaLakeError, match=r"127\.0\.0\.1:1"):
        orders.produce_orders("127.0.0.1:1", orders.TOPIC, 1, 1)
    with pytest.raises(KafkaLakeError, match=orders.TOPIC):
        topics.ensure_topic("127.0.0.1:1", orders.TOPIC, 6)


def test_an_order_of_the_demo_is_known_by_its_id_and_other_records_are_none():
    values = [b'{"order_id": 7}', b'{"order_id": "x"}', b'{"order', b"[]", b"{}", None]
    assert [orders.id_of(value) for value in values] == [7, -1, -1, -1, -1, -1]
