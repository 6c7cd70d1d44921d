"""The pizza shop's deliveries in Avro: two versions of their schema, a generator and producers.

Version 2 has one more field. The table gets its column automatically.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from threading import Event
from typing import Any, Literal

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from examples.pizza_shop.topics import TopicProducer, next_id
from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.registry import SchemaRegistry, http_errors

TOPIC = "pizza-deliveries"
TABLE = ("pizza", "deliveries")
PARTITIONS = 3
NEW_FIELD = "tip"

Version = Literal[1, 2]

COURIERS = {"Ada": "bike", "Blaise": "scooter", "Grace": "bike", "Edsger": "car", "Barbara": "scooter", "Alan": "foot"}
NOTES = ("Ring twice", "Beware of the cat", "Leave it at the door", "Third floor, no lift")

_MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
_MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
_COURIER = {
    "type": "record",
    "name": "Courier",
    "fields": [
        {"name": "name", "type": "string"},
        {
            "name": "vehicle",
            "type": {"type": "enum", "name": "Vehicle", "symbols": ["foot", "bike", "scooter", "car"]},
        },
    ],
}
_FIELDS: list[dict[str, Any]] = [
    {"name": "courier", "type": _COURIER, "doc": "Who brought it."},
    {"name": "price", "type": _MONEY, "doc": "What the order cost."},
    {"name": "left_at", "type": _MOMENT, "doc": "When it left the shop."},
    {"name": "delivered_at", "type": _MOMENT, "doc": "When it was handed over."},
    {"name": "note", "type": ["null", "string"], "default": None, "doc": "What the customer asked for."},
]
_TIP = {"name": NEW_FIELD, "type": ["null", _MONEY], "default": None, "doc": "What the courier got; null for none."}


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of an order; times are in UTC, money is in the shop's currency."""

    order_id: int
    courier: str
    vehicle: str
    price: Decimal
    left_at: datetime
    delivered_at: datetime
    note: str | None
    tip: Decimal | None


def schema(version: Version) -> str:
    """Return a version of the deliveries' Avro schema; the order's id is the record's key, and not in it."""
    fields = [*_FIELDS, _TIP] if version == 2 else _FIELDS
    return json.dumps({"type": "record", "name": "Delivery", "namespace": "pizza", "fields": fields})


def generate_delivery(rng: random.Random, order_id: int, delivered: datetime) -> Delivery:
    """Return one delivery; the same generator state, id and time give the same delivery."""
    courier = rng.choice(list(COURIERS))
    delivered = delivered.replace(microsecond=delivered.microsecond // 1000 * 1000)
    price = Decimal(rng.randrange(800, 6_000)).scaleb(-2)
    return Delivery(
        order_id=order_id,
        courier=courier,
        vehicle=COURIERS[courier],
        price=price,
        left_at=delivered - timedelta(seconds=rng.randrange(300, 2_400)),
        delivered_at=delivered,
        note=rng.choice(NOTES) if rng.random() < 0.2 else None,
        tip=(price / rng.randrange(5, 20)).quantize(Decimal("0.01")) if rng.random() < 0.6 else None,
    )


def generate_deliveries(number: int, seed: int, first_id: int, begin: datetime, end: datetime) -> Iterator[Delivery]:
    """Yield ``number`` deliveries after ``begin`` up to ``end``, oldest first, numbered from ``first_id``.

    The same arguments give the same deliveries; another ``first_id`` gives other ones.
    """
    rng = random.Random(f"{seed}/{first_id}")
    step = (end - begin) / max(number, 1)
    for position in range(number):
        yield generate_delivery(rng, first_id + position, end - step * (number - 1 - position))


def subject_of(topic: str) -> str:
    """Return the registry's subject of a topic's values."""
    return f"{topic}-value"


def registered_version(registry_url: str, topic: str) -> Version:
    """Return the newest version of the schema in the registry."""
    latest = SchemaRegistry({"url": registry_url}).latest(subject_of(topic))
    fields = [field["name"] for field in json.loads(latest.text)["fields"]] if latest else []
    return 2 if NEW_FIELD in fields else 1


class DeliveryProducer(TopicProducer):
    """A producer of deliveries in Confluent's Avro format, keyed by order id as text.

    Args:
        registry_url: The schema registry, which gets the schemas under ``<topic>-value``.
        version: The version to begin with; registered at once.

    Attributes:
        subject: The registry's name for the values' schemas.

    Raises:
        KafkaLakeError: The registry doesn't take the schema.
    """

    def __init__(self, bootstrap: str, topic: str, registry_url: str, version: Version) -> None:
        super().__init__(bootstrap, topic)
        self.subject = subject_of(topic)
        self._context = SerializationContext(topic, MessageField.VALUE)
        self._registry_url = registry_url
        self._registry = SchemaRegistryClient({"url": registry_url})
        self.use(version)

    def use(self, version: Version) -> None:
        """Register a version of the schema, and write it from now on."""
        try:
            self._registry.register_schema(self.subject, Schema(schema(version), "AVRO"))
        except (SchemaRegistryError, *http_errors("HTTPError")) as error:
            raise KafkaLakeError(
                f"version {version} of {self.subject} could not be registered at {self._registry_url}: {error}"
            ) from error
        self._serializer = AvroSerializer(self._registry, schema(version), conf={"subject.name.strategy.type": "TOPIC"})
        self.version = version

    def send_delivery(self, delivery: Delivery) -> None:
        """Queue one delivery, with the fields of the current version."""
        self.send(str(delivery.order_id), self._serializer(datum(delivery), self._context))


def datum(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery for Avro's encoder, which ignores fields that its schema lacks."""
    fields = asdict(delivery)
    return {**fields, "courier": {"name": fields["courier"], "vehicle": fields["vehicle"]}}


def next_order_id(bootstrap: str, topic: str) -> int:
    """Return an id greater than every delivered order's in the topic."""
    return next_id(bootstrap, topic, lambda record: int(record.key or b"0"))


def trickle(
    producer: DeliveryProducer,
    first_id: int,
    rate: float,
    upgrade_after: float,
    stop: Event,
    tell_user: Callable[[str], None],
    seed: int | None = None,
) -> None:
    """Produce deliveries until ``stop`` is set; after some seconds with version 2."""
    rng = random.Random(seed)
    upgrade_at = time.monotonic() + upgrade_after
    for order_id in count(first_id):
        if stop.wait(1 / rate):
            break
        if producer.version == 1 and time.monotonic() >= upgrade_at:
            producer.use(2)
            tell_user(f"From now on deliveries have a {NEW_FIELD}: version 2 of {producer.subject} is registered")
        producer.send_delivery(generate_delivery(rng, order_id, datetime.now(UTC)))
    producer.flush()
