"""The demo's deliveries on a real broker and a real registry; and the stack where the registry can't be had."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Event, Timer

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from examples.pizza_shop import deliveries
from examples.pizza_shop.deliveries import DeliveryProducer
from examples.pizza_shop.up import start_demo
from kafka_lake.common.processes import free_port
from kafka_lake.devstack.running import Ports
from kafka_lake.devstack.servers import EmbeddedBroker, EmbeddedRegistry
from kafka_lake.devstack.stack import Stack
from kafka_lake.engine.jars import ensure_jars, jars_root
from kafka_lake_tests.conftest import Topic

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def consumed(bootstrap: str, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    try:
        partitions = [
            TopicPartition(topic, p, 0) for p in consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ]
        expected = sum(consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions)
        consumer.assign(partitions)
        messages = consumer.consume(expected, timeout=20)
        assert len(messages) == expected
        return sorted(messages, key=lambda message: int(message.key()))
    finally:
        consumer.close()


def decoded(registry: EmbeddedRegistry, topic: str, messages: list[Message]) -> list[dict]:
    decode = AvroDeserializer(SchemaRegistryClient({"url": registry.url}), conf={"subject.name.strategy.type": "TOPIC"})
    return [decode(message.value(), SerializationContext(topic, MessageField.VALUE)) for message in messages]


@pytest.mark.exhaustive
def test_deliveries_change_their_schema_in_the_middle(
    new_topic: NewTopic, broker: EmbeddedBroker, registry: EmbeddedRegistry
) -> None:
    topic, bootstrap = new_topic(3).name, broker.bootstrap_servers
    made = list(deliveries.generate_deliveries(40, 1, 1, NOON - timedelta(hours=1), NOON))
    assert deliveries.registered_version(registry.url, topic) == 1
    producer = DeliveryProducer(bootstrap, topic, registry.url, 1)
    assert deliveries.registered_version(registry.url, topic) == 1
    for answer in made[:20]:
        producer.send_delivery(answer)
    producer.use(2)
    assert deliveries.registered_version(registry.url, topic) == 2
    for answer in made[20:]:
        producer.send_delivery(answer)
    producer.flush()
    messages = consumed(bootstrap, topic)
    assert [message.key() for message in messages] == [str(number).encode() for number in range(1, 41)]
    values = decoded(registry, topic, messages)
    assert all("tip" not in value for value in values[:20])
    assert [value["tip"] for value in values[20:]] == [answer.tip for answer in made[20:]]
    assert [value["price"] for value in values] == [answer.price for answer in made]
    assert isinstance(values[0]["price"], Decimal)
    assert deliveries.next_order_id(bootstrap, topic) == 41


@pytest.mark.exhaustive
def test_live_deliveries_announce_their_schema_change(
    new_topic: NewTopic, broker: EmbeddedBroker, registry: EmbeddedRegistry
) -> None:
    topic, bootstrap, stop = new_topic().name, broker.bootstrap_servers, Event()
    said: list[str] = []
    Timer(2.0, stop.set).start()
    producer = DeliveryProducer(bootstrap, topic, registry.url, 1)
    deliveries.trickle(producer, 1, 50, 0.5, stop, said.append, seed=1)
    tips = ["tip" in value for value in decoded(registry, topic, consumed(bootstrap, topic))]
    assert tips == sorted(tips)
    assert set(tips) == {False, True}
    assert said == [f"From now on deliveries have a tip: version 2 of {topic}-value is registered"]


@pytest.mark.exhaustive
def test_demo_without_registry_download_omits_deliveries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = Path(ensure_jars("broker")[0]).parents[1].relative_to(jars_root().parent)
    (tmp_path / "cache" / jars).mkdir(parents=True)
    (tmp_path / "cache" / jars / "broker").symlink_to(jars_root().parent / jars / "broker")
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KAFKA_LAKE_IVY_SETTINGS", str(tmp_path / "nowhere.xml"))
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KAFKA_LAKE_BROKER_PORT", str(free_port()))
    for name in ("KAFKA_LAKE_BOOTSTRAP_SERVERS", "KAFKA_LAKE_SCHEMA_REGISTRY_URL"):
        # So that what the stack sets is undone after the test.
        monkeypatch.setenv(name, "")
    said: list[str] = []
    with Stack(Ports.from_env(), said.append) as stack:
        assert len(start_demo(stack, 5, said.append)) == 1
        assert os.environ["KAFKA_LAKE_SCHEMA_REGISTRY_URL"] == ""
        stack.check()
    assert (
        "without the schema registry and the topic that needs it, pizza-deliveries. KAFKA_LAKE_IVY_SETTINGS" in said[-1]
    )
