"""The topics that benchmarks read: seeded records of a known shape, produced fast and spread evenly."""

import json
import random
import re
import string
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache

from confluent_kafka import Producer

from examples.pizza_shop.orders import CHEESES, MEATS, SAUCES, STORES, VEGGIES
from examples.pizza_shop.topics import ensure_topic
from kafka_lake.errors import KafkaLakeError

_SEED = 1
_TEMPLATES = 4096
FIRST_ID = 10_000_000
_BATCH = 10_000
_PER_SECOND = 100
# A record of `SMALL`, and what a note takes that has no characters.
_SMALLEST = 144 + len(', "note": ""')
_QUEUED_RECORDS, _QUEUED_BYTES = 500_000, 256 << 20
_STORE = re.compile(rb'("store_id": )(\d+)')


@dataclass(frozen=True)
class Shape:
    """What the records of a topic look like.

    Args:
        name: The topic's name.
        partitions: How many the topic has.
        ddl: The columns of the table, as Spark DDL.
        broken: Share of the records that are cut off somewhere, 0 to 1.
        wrong_type: Share of the records whose ``store_id`` is a text, 0 to 1.
        note: Characters of a text ``note`` at the end of each record; 0 for none.
        kinds: How many kinds of records there are, as a text ``kind`` at the beginning: nine in ten are ``k0``. 0 for
            no such text.
    """

    name: str
    partitions: int
    ddl: str
    broken: float = 0
    wrong_type: float = 0
    note: int = 0
    kinds: int = 0


ORDERS = Shape(
    "pizza-orders",
    6,
    "order_id bigint not null, store_id int, sauce string, cheese string, "
    "meats array<string>, veggies array<string>, date_ordered timestamp",
)
"""The demo's orders with more toppings, 251 bytes on average."""

SMALL = Shape(
    "small-orders",
    5,
    "order_id bigint not null, store_id int, sauce string, cheese string, total_price double, date_ordered timestamp",
)
"""Records of OLake's published size and partitions: 144 bytes, 5."""


def noted(size: int) -> Shape:
    """Return the shape of records of so many bytes each, most of them in one text."""
    if size <= _SMALLEST:
        raise KafkaLakeError(f"A record of the backlog has more than {_SMALLEST} bytes.", "Ask for more of them.")
    return replace(SMALL, name="backlog-orders", partitions=6, ddl=f"{SMALL.ddl}, note string", note=size - _SMALLEST)


SHAPES = {shape.name: shape for shape in (ORDERS, SMALL)}
"""Topics without a bad record."""

EVENTS = Shape(
    "order-events",
    5,
    "order_id bigint, customer_id bigint, session_id string, email string, phone string, latitude double, "
    "longitude double, store_id int, courier_id int, sauce string, cheese string, first_name string, "
    "last_name string, street string, city string, country string, status string, payment string, comment string, "
    "quantity int, subtotal double, tax double, tip double, total_price double, paid boolean, delivery boolean, "
    "first_order boolean, date_placed timestamp, date_ordered timestamp",
)
"""29 columns, seven of them unique or nearly so; 727 bytes on average, and as many partitions as OLake publishes."""

DIRTY = {
    shape.name: shape
    for shape in (
        ORDERS,
        replace(ORDERS, name="pizza-orders-1-broken", broken=0.01),
        replace(ORDERS, name="pizza-orders-10-broken", broken=0.1),
        replace(ORDERS, name="pizza-orders-1-wrong-type", wrong_type=0.01),
        replace(ORDERS, name="pizza-orders-10-wrong-type", wrong_type=0.1),
    )
}
"""The same orders, of which some can't be rows. The first topic has none of those."""

ALL = {**SHAPES, **DIRTY, EVENTS.name: EVENTS}


@dataclass(frozen=True)
class Topic:
    """A topic that has been filled.

    Args:
        shape: Of its records.
        records: How many it has.
        size: Bytes of all their values.
        dirty: How many of the records can't be rows.
    """

    shape: Shape
    records: int
    size: int
    dirty: int = 0


@cache
def _templates(shape: Shape) -> list[bytes]:
    """Return what stands between the id at a value's beginning and the time at its end."""
    rng = random.Random(_SEED)
    found = []
    for _ in range(_TEMPLATES):
        order: dict[str, object] = {
            "store_id": rng.randint(1, STORES),
            "sauce": rng.choice(SAUCES),
            "cheese": rng.choice(CHEESES),
        }
        if shape is EVENTS:
            order = _event(rng, order)
        elif shape.ddl.startswith(SMALL.ddl):
            order["total_price"] = rng.randrange(800, 3000) / 100
        else:
            order["meats"] = rng.sample(MEATS, rng.randint(2, 5))
            order["veggies"] = rng.sample(VEGGIES, rng.randint(4, 8))
        found.append(json.dumps(order).encode()[1:-1])
    return found


def _event(rng: random.Random, order: dict[str, object]) -> dict[str, object]:
    first, last, city, status, payment = (
        rng.choice(words.split())
        for words in (
            "Ada Grace Alan Edsger Barbara Donald Frances John",
            "Lovelace Hopper Turing Dijkstra Liskov Knuth Allen Backus",
            "Rome Naples Milan Turin Bologna Palermo Genoa Bari",
            "placed baked sent delivered",
            "cash card voucher",
        )
    )
    subtotal, tip = rng.randrange(800, 9000) / 100, rng.randrange(500) / 100
    return {
        "store_id": order["store_id"],
        "courier_id": rng.randrange(5000),
        "sauce": order["sauce"],
        "cheese": order["cheese"],
        "first_name": first,
        "last_name": last,
        "street": f"{rng.randrange(1, 400)} Via {rng.choice(VEGGIES)}",
        "city": city,
        "country": "Italy",
        "status": status,
        "payment": payment,
        "comment": " ".join(rng.choices(VEGGIES, k=6)),
        "quantity": rng.randint(1, 9),
        "subtotal": subtotal,
        "tax": round(subtotal * 0.1, 2),
        "tip": tip,
        "total_price": round(subtotal * 1.1 + tip, 2),
        "paid": payment != "cash",
        "delivery": rng.random() < 0.7,
        "first_order": rng.random() < 0.1,
        "date_placed": f"2026-11-20T{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}.000Z",
    }


def _unique(number: int) -> bytes:
    """Return what each record of `EVENTS` has for itself."""
    mixed = number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)
    mixed = (mixed ^ mixed >> 61) * 0xDA942042E4DD58B5DA942042E4DD58B5 % (1 << 128)
    return (
        b'"customer_id": %d, "session_id": "%032x", "email": "guest-%d@example.org", "phone": "+39 %09d", '
        b'"latitude": %d.%06d, "longitude": %d.%06d, '
    ) % (
        mixed >> 94,
        mixed,
        mixed >> 108,
        mixed % 10**9,
        37 + mixed % 9,
        (mixed >> 40) % 10**6,
        8 + mixed % 10,
        (mixed >> 70) % 10**6,
    )


def values(shape: Shape, count: int) -> Iterator[bytes]:
    """Yield the values of a topic's records, ids and times rising; the same arguments give the same values."""
    templates = _templates(shape)
    text = _text(shape.note)
    begin = datetime(2026, 11, 21, tzinfo=UTC)
    for second in range(count // _PER_SECOND + 1):
        moment = (begin + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S").encode()
        for number in range(second * _PER_SECOND, min(count, (second + 1) * _PER_SECOND)):
            kind = 0 if shape.kinds < 2 or number % 10 else 1 + number // 10 % (shape.kinds - 1)
            yield b'{%b"order_id": %d, %b%b, "date_ordered": "%b.%03dZ"%b}' % (
                b'"kind": "k%d", ' % kind if shape.kinds else b"",
                FIRST_ID + number,
                _unique(number) if shape is EVENTS else b"",
                templates[number * 7 % _TEMPLATES],
                moment,
                number * 37 % 1000,
                b', "note": "%b"' % text[(at := number * 13 % _TEMPLATES) : at + shape.note] if shape.note else b"",
            )


@cache
def _text(note: int) -> bytes:
    """Return random letters, of which each part of a length is another note."""
    return "".join(random.Random(_SEED).choices(string.ascii_letters, k=note + _TEMPLATES)).encode() if note else b""


def dirtied(shape: Shape, clean: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield values, some of them spoilt as the shape says, and whether each is; the same ones whenever it is asked."""
    rng = random.Random(_SEED)
    for value in clean:
        lot = rng.random()
        if lot < shape.broken:
            # Whatever is cut off an object, what is left is no JSON.
            yield value[: rng.randrange(1, len(value))], True
        elif lot < shape.broken + shape.wrong_type:
            yield _STORE.sub(rb'\1"x\2"', value, count=1), True
        else:
            yield value, False


def fill(bootstrap: str, shape: Shape, count: int, seconds_ago: int = 0) -> Topic:
    """Make the topic and produce its records, uncompressed and round robin in batches."""
    ensure_topic(bootstrap, shape.name, shape.partitions)
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": 8 << 20,
            "delivery.report.only.error": True,
        }
    )
    batches: list[list[dict[str, bytes]]] = [[] for _ in range(shape.partitions)]
    # No more than a sixteenth of what may be queued in each batch.
    most = max(1, _QUEUED_BYTES // 16 // (shape.note or 1))
    small = max(1, min(_BATCH, most, count // shape.partitions // 4))
    size = dirty = 0
    stamp = int(time.time() - seconds_ago) * 1000
    for number, (value, spoilt) in enumerate(dirtied(shape, values(shape, count))):
        size += len(value)
        dirty += spoilt
        partition = number % shape.partitions
        if seconds_ago:
            # What is produced in batches can't have a timestamp.
            _room(producer, shape)
            producer.produce(shape.name, value, partition=partition, timestamp=stamp, on_delivery=delivered)
            continue
        batch = batches[partition]
        batch.append({"value": value})
        if len(batch) == small:
            _send(producer, shape, partition, batch, delivered)
            batch.clear()
    for partition, batch in enumerate(batches):
        _send(producer, shape, partition, batch, delivered)
    left = producer.flush(120)
    if left or failures:
        raise KafkaLakeError(f"Topic {shape.name}: {left or len(failures)} records were not delivered. {failures[:1]}")
    return Topic(shape, count, size, dirty)


def _send(producer: Producer, shape: Shape, partition: int, batch: list[dict[str, bytes]], delivered: object) -> None:
    topic = shape.name
    _room(producer, shape)
    if batch and (queued := producer.produce_batch(topic, batch, partition, delivered)) != len(batch):
        raise KafkaLakeError(f"Topic {topic}: {len(batch) - queued} records could not be queued.")
    producer.poll(0)


def _room(producer: Producer, shape: Shape) -> None:
    while len(producer) > min(_QUEUED_RECORDS, _QUEUED_BYTES // (shape.note or 1)):
        producer.poll(0.05)
