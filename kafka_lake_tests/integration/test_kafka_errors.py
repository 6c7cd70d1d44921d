"""What a broker that refuses, or isn't there, looks like to the user: the reason in seconds, and never a password."""

import socket
import socketserver
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import kafka_lake.kafka.client
from kafka_lake.common.offsets import OffsetRange, Position
from kafka_lake.common.processes import ServerProcess, free_port, port_open
from kafka_lake.engine.jars import jars_classpath
from kafka_lake.engine.java import find_java
from kafka_lake.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    UnknownTopicError,
)
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

ADMIN = ("admin", "admin-hush")
GUEST = ("guest", "guest-hush")
WRONG = "wrong-hush"
PATIENCE = 15.0
QUICK = 6.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=SASL_PLAINTEXT://127.0.0.1:{port}
controller.quorum.voters=1@127.0.0.1:{controller_port}
inter.broker.listener.name=SASL_PLAINTEXT
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required \
username="{admin[0]}" password="{admin[1]}" user_{admin[0]}="{admin[1]}" user_{guest[0]}="{guest[1]}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{admin[0]};User:ANONYMOUS
auto.create.topics.enable=false
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
log.cleaner.dedupe.buffer.size=10485760
"""


def secured(port: int, user: str, password: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        **more,
    }


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run a broker that wants user and password, with a topic `orders` that only the admin may touch."""
    folder = tmp_path_factory.mktemp("sasl")
    number = free_port()
    settings = folder / "server.properties"
    settings.write_text(
        _PROPERTIES.format(port=number, controller_port=free_port(), admin=ADMIN, guest=GUEST, logs=folder / "logs")
    )
    java = [str(find_java() / "bin" / "java"), "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += ["-Dlog4j2.level=WARN", "-cp", jars_classpath("broker")]
    cluster_id = "MkU3OEVBNTcwNTJENDM2Qk"
    tool = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings)]
    subprocess.run(tool, check=True, capture_output=True)
    admin = AdminClient({**secured(number, *ADMIN), "log_level": 0, "reconnect.backoff.max.ms": 200})
    server = ServerProcess([*java, "-Xmx256m", "kafka.Kafka", str(settings)], log=folder / "broker.log")

    def ready() -> bool:
        try:
            return port_open(number) and bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    server.start(ready, 60)
    try:
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(20)
        yield number
    finally:
        server.kill()


def topics(cluster: KafkaCluster) -> object:
    return cluster.topics()


def watermarks(cluster: KafkaCluster) -> object:
    return cluster.watermarks_of("orders")


def refusal(
    question: Callable[[KafkaCluster], Any], properties: dict[str, str], timeout: float
) -> tuple[KafkaError, float]:
    """Return the error that a question ends with, and after how many seconds."""
    cluster = KafkaCluster(properties, timeout)
    began = time.monotonic()
    with pytest.raises(KafkaError) as failed:
        question(cluster)
    assert "hush" not in str(failed.value)
    return failed.value, time.monotonic() - began


@pytest.mark.parametrize("question", [exhaustive(topics), watermarks])
def test_wrong_password_is_reported_within_seconds(question: Callable[[KafkaCluster], Any], port: int) -> None:
    error, seconds = refusal(question, secured(port, "guest", WRONG), PATIENCE)
    assert type(error) is AuthenticationError
    assert "refused the credentials of user guest" in str(error)
    assert "Invalid username or password" in str(error)
    assert "KAFKA_LAKE_KAFKA_SASL_PASSWORD" in str(error)
    assert seconds < QUICK


def test_unsupported_mechanism_is_refused_with_supported_ones(port: int) -> None:
    error, seconds = refusal(watermarks, secured(port, *GUEST, **{"sasl.mechanism": "SCRAM-SHA-512"}), PATIENCE)
    assert type(error) is AuthenticationError
    assert "supported mechanisms: PLAIN" in str(error)
    assert seconds < QUICK


def test_short_broker_refusal_is_reported(port: int) -> None:
    error, _ = refusal(watermarks, secured(port, "guest", WRONG), 1.0)
    assert type(error) is AuthenticationError


def test_broker_answer_clears_earlier_errors(port: int) -> None:
    """So that a connection lost later is not mistaken for a refusal."""
    cluster = KafkaCluster(secured(port, *ADMIN), 1.0)
    watermarks(cluster)
    cluster._reported.refusal = cluster._reported.failure = object()  # type: ignore[assignment]
    watermarks(cluster)
    assert (cluster._reported.refusal, cluster._reported.failure) == (None, None)


_COLLECTED_BY_LIBRDKAFKA = """\
import gc, socket, threading
from kafka_lake.kafka.cluster import KafkaCluster

silent = socket.socket()
silent.bind(("127.0.0.1", 0))
silent.listen()
ended = threading.Event()
gc.disable()

def ask():
    cluster = KafkaCluster({"bootstrap.servers": "127.0.0.1:%d" % silent.getsockname()[1]}, 1.0)
    cluster.itself = cluster
    answer = cluster._admin().describe_cluster(request_timeout=1)
    answer.add_done_callback(lambda _: (gc.collect(), ended.set()))

ask()
assert ended.wait(30)
print("alive")
"""


def test_client_that_librdkafka_collects_does_not_abort_the_process() -> None:
    """Python's garbage collector runs in any thread, also in the one that brings an answer nobody waits for."""
    command = [sys.executable, "-c", _COLLECTED_BY_LIBRDKAFKA]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_hidden_topic_is_reported(port: int) -> None:
    error, seconds = refusal(watermarks, secured(port, *GUEST), PATIENCE)
    assert type(error) is AuthorizationError
    assert "Topic orders" in str(error)
    assert "doesn't allow READ on topic orders to user guest" in str(error)
    assert "--allow-principal User:guest --operation READ --topic orders" in str(error)
    assert seconds < QUICK


def test_missing_right_on_group_is_reported(port: int) -> None:
    position = Position(watermarks_of_admin(port).identity, {0: 0})
    error, _ = refusal(lambda c: c.commit_group("lake", position), secured(port, *GUEST), PATIENCE)
    assert type(error) is AuthorizationError
    assert "consumer group lake" in str(error)
    assert "doesn't allow READ on group lake to user guest" in str(error)


def test_reader_without_other_rights_is_told_of_truncated_log(port: int) -> None:
    """No right on a group is needed, and none is there."""
    admin = AdminClient({**secured(port, *ADMIN), "log_level": 0})
    admin.create_topics([NewTopic("shared", 2, 1)])["shared"].result(20)
    whose = (ResourcePatternType.LITERAL, f"User:{GUEST[0]}", "*", AclOperation.READ, AclPermissionType.ALLOW)
    (granted,) = admin.create_acls([AclBinding(ResourceType.TOPIC, "shared", *whose)]).values()
    granted.result(20)
    producer = Producer({**secured(port, *ADMIN), "log_level": 0})
    for number in range(6):
        producer.produce("shared", b"", partition=number % 2)
    assert producer.flush(20) == 0
    cluster = KafkaCluster(secured(port, *GUEST), PATIENCE)
    now = cluster.watermarks_of("shared")
    assert (now.end, set(now.epochs)) == ({0: 3, 1: 3}, {0, 1})
    beyond = Position(now.identity, {0: 3, 1: 5}, now.epochs)
    assert cluster.cut_off(beyond, [0, 1]) == {1: 3}
    assert cluster.cut_off(beyond, [0]) == {}
    assert cluster.cut_off(Position(now.identity, {0: 3}), [0]) == {}
    assert cluster.cut_off(Position(now.identity, {0: 3}, {0: now.epochs[0] + 9}), [0]) == {0: None}
    # A leader that doesn't know yet how far its log goes shows less than there is.
    whole, more = OffsetRange(0, 1, 3), OffsetRange(1, 1, 5)
    found = cluster.last_records("shared", [whole, more])
    assert ([record.offset for record in found[whole]], found[more]) == ([1, 2], [])
    admin.delete_topics(["shared"])["shared"].result(20)


def test_an_offset_that_a_leader_does_not_know_yet_is_no_offset() -> None:
    """As long as it isn't sure of its high watermark; the client library gives -1001 for an answer then."""
    future: Future[Any] = Future()
    future.set_result(SimpleNamespace(offset=OFFSET_INVALID, leader_epoch=None))
    cluster = KafkaCluster({"bootstrap.servers": "127.0.0.1:1"})
    (reported,) = cluster._offsets({TopicPartition("orders", 0): future})["orders"].values()
    assert isinstance(reported, KafkaError)
    assert "topic orders partition 0" in str(reported)


def watermarks_of_admin(port: int) -> Any:
    return KafkaCluster(secured(port, *ADMIN), PATIENCE).watermarks_of("orders")


def test_authorized_client_is_answered(port: int) -> None:
    cluster = KafkaCluster(secured(port, *ADMIN), PATIENCE)
    assert cluster.topics() == ["orders"]
    assert watermarks_of_admin(port).end == {0: 0}
    with pytest.raises(UnknownTopicError, match="no such topic"):
        cluster.watermarks_of(f"nothing-{uuid.uuid4().hex}")


@pytest.mark.parametrize("question", [exhaustive(topics), watermarks])
def test_a_port_where_nothing_listens_is_named_with_the_reason(question: Callable[[KafkaCluster], Any]) -> None:
    dead = free_port()
    error, _ = refusal(question, secured(dead, *GUEST), 2.5)
    assert type(error) is KafkaError
    assert f"127.0.0.1:{dead}" in str(error)
    assert "Connection refused" in str(error)
    assert "after" not in str(error)


@pytest.mark.parametrize("question", [exhaustive(topics), watermarks])
def test_brokers_that_are_all_down_are_given_up_early(question: Callable[[KafkaCluster], Any]) -> None:
    cluster = KafkaCluster({"bootstrap.servers": f"127.0.0.1:{free_port()}"}, PATIENCE)
    with pytest.raises(KafkaError, match="Connection refused"):
        question(cluster)
    assert cluster._patience() < PATIENCE / 2


@pytest.mark.parametrize("question", [exhaustive(topics), watermarks])
def test_silent_server_is_given_up_early(
    question: Callable[[KafkaCluster], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_lake.kafka.client, "FIRST_ANSWER_SECONDS", 2.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KafkaError, match=f"{address} didn't answer") as failed:
            question(KafkaCluster({"bootstrap.servers": address}, 60.0))
    assert "KAFKA_LAKE_BOOTSTRAP_SERVERS" in failed.value.remedy


def test_address_without_broker_is_reported() -> None:
    class Refuses(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.connection.recv(1024)
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuses) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        with pytest.raises(KafkaError, match="sent a response that isn't from a Kafka broker"):
            KafkaCluster({"bootstrap.servers": f"127.0.0.1:{web.server_address[1]}"}, PATIENCE).check()
        web.shutdown()


def test_brokers_that_have_answered_before_are_waited_for(port: int) -> None:
    cluster = KafkaCluster(secured(port, *ADMIN), PATIENCE)
    cluster.check()
    cluster._reported.all_down = True
    assert cluster._patience() == PATIENCE


def test_a_host_that_is_not_known_is_named() -> None:
    error, _ = refusal(watermarks, {"bootstrap.servers": "no-such-host.invalid:9092"}, 1.5)
    assert type(error) is KafkaError
    assert "Failed to resolve 'no-such-host.invalid:9092'" in str(error)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"sasl.passwd": "x"}, 'No such configuration property: "sasl.passwd"'),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location failed"),
        ({"sasl.password": "hush", "client.dns.lookup": "hush"}, r"\*\*\*.*client.dns.lookup"),
    ],
)
def test_a_property_that_makes_no_client_is_named(properties: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as failed:
        KafkaCluster({"bootstrap.servers": "127.0.0.1:1", **properties}).topics()
    assert "hush" not in str(failed.value)
