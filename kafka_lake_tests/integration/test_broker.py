"""The embedded broker for real: data outlive it, it does not outlive its parent, its errors can be read."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import ServerStartError

pytestmark = pytest.mark.integration

QUIET = {"log_level": 0}


def create_topic(broker: EmbeddedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)


def produce(broker: EmbeddedBroker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 16 * 1024 * 1024, **QUIET})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def consume(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = [message.value() for message in consumer.consume(count, timeout=20)]
    consumer.close()
    return values


@pytest.mark.exhaustive
def test_data_survive_stop_and_kill(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "kafka")
    with broker:
        address = broker.bootstrap_servers
        create_topic(broker, "orders")
        produce(broker, "orders", b"one")
        broker.stop()
        assert not broker.alive()

        broker.start()
        assert broker.bootstrap_servers == address
        produce(broker, "orders", b"two")
        broker.kill()
        assert not broker.alive()

        broker.start()
        produce(broker, "orders", b"three")
        assert consume(broker, "orders", 3) == [b"one", b"two", b"three"]
    assert broker.pid is None


@pytest.mark.exhaustive
def test_big_messages_pass_and_topics_are_not_made_by_themselves(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "kafka") as broker:
        create_topic(broker, "big")
        value = bytes(15 * 1024 * 1024)
        produce(broker, "big", value)
        assert consume(broker, "big", 1) == [value]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
        admin.list_topics("never-made", timeout=10)
        assert "never-made" not in admin.list_topics(timeout=10).topics


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerStartError, match=f"Port {port} .* is in use"):
            EmbeddedBroker(tmp_path / "kafka", port).start()


@pytest.mark.exhaustive
def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "kafka") as broker:
        create_topic(broker, "orders")
        with pytest.raises(ServerStartError, match="another server already runs in"):
            EmbeddedBroker(tmp_path / "kafka").start()
        produce(broker, "orders", b"still there")
        assert consume(broker, "orders", 1) == [b"still there"]


def test_a_broker_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "kafka", heap="1k")
    with pytest.raises(ServerStartError, match="heap") as failure:
        broker.start()
    assert str(broker.log) in str(failure.value)
    assert not broker.alive()


OWNER = """
import sys, time
from pathlib import Path
from kafka_lake.devstack.servers import EmbeddedBroker

EmbeddedBroker(Path(sys.argv[1])).start()
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.exhaustive
def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        children = psutil.Process(program.pid).children(recursive=True)
        assert any("kafka.Kafka" in child.cmdline() for child in children)
        program.kill()
    gone, _ = psutil.wait_procs(children, 10)
    assert len(gone) == len(children)
