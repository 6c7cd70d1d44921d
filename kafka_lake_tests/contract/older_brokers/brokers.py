"""Kafka brokers of earlier versions, each as a child process of the test."""

import os
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_lake.common.processes import Server, ServerProcess, free_port, port_open
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.engine import jars
from kafka_lake.engine.java import find_java

IVY_FILE = Path(__file__).with_name("ivy.xml")

_JVM = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_JVM += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]

_ZOOKEEPER = """\
dataDir={folder}/zookeeper
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
"""
_PROPERTIES = """\
broker.id=1
zookeeper.connect=127.0.0.1:{zookeeper}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/logs
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=10485760
"""


def class_path(version: str) -> str:
    """Return the class path of a version, which the Ivy file beside this module names."""
    with patch.object(jars, "IVY_FILE", IVY_FILE):
        conf: Any = f"kafka-{version}"
        return os.pathsep.join(map(str, jars.ensure_jars(conf)))


class Kafka39(EmbeddedBroker):
    """Kafka 3.9 in KRaft mode."""

    def class_path(self) -> str:
        return class_path("3.9")


class Kafka28(Server):
    """Kafka 2.8 with ZooKeeper.

    Args:
        folder: For the data of both.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._zookeeper_port = free_port(), free_port()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        java = [str(find_java() / "bin" / "java"), *_JVM, "-cp", class_path("2.8")]
        ports = {"port": self._zookeeper_port, "folder": self.folder}
        zookeeper, broker = self.folder / "zookeeper.properties", self.folder / "server.properties"
        zookeeper.write_text(_ZOOKEEPER.format(**ports))
        broker.write_text(_PROPERTIES.format(port=self.port, zookeeper=self._zookeeper_port, folder=self.folder))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._zookeeper = ServerProcess([*java, main, str(zookeeper)], log=self.folder / "zookeeper.log")
        self._zookeeper.start(lambda: port_open(self._zookeeper_port), 120)
        try:
            self._server = ServerProcess([*java, "kafka.Kafka", str(broker)], log=self.folder / "broker.log")
            self._server.start(self._answers, 120)
        except BaseException:
            self._zookeeper.kill()
            raise
        return self

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._zookeeper.kill()

    def _answers(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return port_open(self.port) and bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False
