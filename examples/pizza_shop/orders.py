"""The pizza shop's orders, in JSON: a seeded generator, and producers for their topic."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from threading import Event
from typing import Any

from examples.pizza_shop.topics import TopicProducer, next_id

TOPIC = "completed-pizzas"
PARTITIONS = 6
STORES = 40

SAUCES = ("tomato", "pesto", "bbq", "alfredo", "none")
CHEESES = ("mozzarella", "three cheeses", "vegan", "gorgonzola", "none")
MEATS = ("pepperoni", "ham", "salami", "chicken", "bacon", "sausage")
VEGGIES = ("mushrooms", "olives", "onions", "peppers", "spinach", "tomatoes", "pineapple", "jalapenos")

_STORE_IDS = random.Random("stores").sample(range(1, STORES + 1), STORES)
# Zipf's law: a few stores sell most.
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
    """Return one order; the same generator state, id and time give the same order."""
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


def next_order_id(bootstrap: str, topic: str) -> int:
    """Return an id greater than every order's in the topic."""
    return next_id(bootstrap, topic, lambda record: id_of(record.value))


def id_of(value: bytes | None) -> int:
    """Return an order's id, or -1 for another record: users try how such records are handled."""
    try:
        return int(json.loads(value or b"")["order_id"])
    except (ValueError, TypeError, KeyError):
        return -1


class OrderProducer(TopicProducer):
    """A producer of orders as JSON, keyed by store."""

    def send_order(self, order: Order) -> None:
        """Queue one order for delivery."""
        self.send(str(order.store_id), json.dumps(asdict(order), separators=(",", ":")))


def produce_orders(
    bootstrap: str, topic: str, count: int, seed: int, progress: Callable[[int], Any] | None = None
) -> int:
    """Produce ``count`` orders of the last day and wait until all are delivered."""
    first_id = next_order_id(bootstrap, topic)
    producer = OrderProducer(bootstrap, topic)
    for number, order in enumerate(generate_orders(count, seed, first_id, datetime.now(UTC)), start=1):
        producer.send_order(order)
        if progress and number % 1000 == 0:
            progress(number)
    producer.flush()
    if progress:
        progress(count)
    return first_id


def trickle(bootstrap: str, topic: str, rate: float, stop: Event, seed: int | None = None) -> None:
    """Produce live orders until ``stop`` is set."""
    order_id = next_order_id(bootstrap, topic)
    rng = random.Random(seed)
    producer = OrderProducer(bootstrap, topic)
    while not stop.wait(1 / rate):
        producer.send_order(generate_order(rng, order_id, datetime.now(UTC)))
        order_id += 1
    producer.flush()
