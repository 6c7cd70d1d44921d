"""A real Kafka broker of one node as a child process: for the demo, local development and the tests.

Not for production: one node, no replication, no security, bound to 127.0.0.1.
``python -m kafka_lake.local_stack.broker --data-dir … --port …`` runs it in the foreground.
"""

import argparse
import base64
import re
import subprocess
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_lake.common import environment
from kafka_lake.common.server_process import Server, ServerProcess, free_port, port_open, run_in_foreground
from kafka_lake.errors import ServerStartError
from kafka_lake.spark.jars import jars_classpath
from kafka_lake.spark.java import find_java

_JVM_OPTIONS = [
    "-Xms128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dlog4j2.level=WARN",
]

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024

# What differs from Kafka's defaults because there is one node: no replicas to wait for, internal topics of
# one partition, and sessions so short that a broker killed a moment ago is let back in within seconds.
_PROPERTIES = f"""\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}}
controller.quorum.voters=1@127.0.0.1:{{controller_port}}
log.dirs={{log_dirs}}
auto.create.topics.enable=false
message.max.bytes={_MAX_MESSAGE_BYTES}
replica.fetch.max.bytes={_MAX_MESSAGE_BYTES}
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=10485760
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""


class EmbeddedBroker(Server):
    """A single-node Kafka in KRaft mode whose data survive ``stop`` and ``kill``; a context manager.

    Args:
        data_dir: Folder of the broker's data, properties and log; made and formatted on first use.
        port: Port of 127.0.0.1 for clients; 0 picks a free one, which is kept over restarts of this object.
        controller_port: Port of 127.0.0.1 for the broker's controller; by default a free one at each start.
        heap: Maximum heap of its JVM.
        start_timeout: Seconds it may take until it answers clients.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        controller_port: int | None = None,
        heap: str = "512m",
        start_timeout: float = 60,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.port = port or free_port()
        self.controller_port = controller_port
        self.heap = heap
        self.start_timeout = start_timeout

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients' ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The file that the broker logs to; each start appends."""
        return self.data_dir / "broker.log"

    def start(self) -> Self:
        """Start the broker, formatting its folder on first use, and wait until it answers clients.

        Returns:
            The broker itself.

        Raises:
            ServerStartError: If a port is taken, another broker has the folder, or this one ends or doesn't
                answer in time. Data stay as they are.
            JarsError: If its jars can't be retrieved.
            JavaNotFoundError: If there is no Java.
        """
        if self.alive():
            return self
        controller_port = self.controller_port or free_port()
        for port in (self.port, controller_port):
            if port_open(port):
                raise ServerStartError(
                    f"Port {port} of 127.0.0.1 is taken by another program.",
                    "End it, or set KAFKA_LAKE_BROKER_PORT to another port.",
                )
        java = str(find_java() / "bin" / "java")
        classpath = ["-cp", self.class_path()]
        properties = self._write_properties(controller_port)
        self._format([java, *classpath], properties)
        self._server = ServerProcess(
            [java, *_JVM_OPTIONS, f"-Xmx{self.heap}", *classpath, "kafka.Kafka", str(properties)],
            log=self.log,
        )
        try:
            self._server.start(self._answers, self.start_timeout)
        except ServerStartError as error:
            raise ServerStartError(f"Kafka didn't start on {self.bootstrap_servers}: {error}") from None
        return self

    def class_path(self) -> str:
        """Return the Java class path of the broker; raises what `start` does."""
        return jars_classpath("broker")

    def _write_properties(self, controller_port: int) -> Path:
        logs = self.data_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        path = self.data_dir / "server.properties"
        path.write_text(_PROPERTIES.format(port=self.port, controller_port=controller_port, log_dirs=logs))
        return path

    def _format(self, java: list[str], properties: Path) -> None:
        if (self.data_dir / "logs" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        tool = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        done = subprocess.run([*tool, "-t", cluster_id, "-c", properties], capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerStartError(f"Formatting {self.data_dir} for Kafka failed:\n{done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        if not port_open(self.port):
            return False
        try:
            return bool(_admin(self.bootstrap_servers).list_topics(timeout=1).brokers)
        except KafkaException:
            return False


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def main() -> None:
    """Run a broker in the foreground until SIGTERM or SIGINT, or until it ends unexpectedly."""
    parser = argparse.ArgumentParser(prog="python -m kafka_lake.local_stack.broker", description=main.__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the broker's data")
    parser.add_argument(
        "--port", type=int, default=int(environment.BROKER_PORT.default), help="port of 127.0.0.1 (%(default)s)"
    )
    parser.add_argument("--heap", default="512m", help="maximum heap of its JVM (%(default)s)")
    options = parser.parse_args()
    if not re.fullmatch(r"\d+[kmgKMG]?", options.heap):
        parser.error(f"--heap {options.heap}: write a size like 512m")
    broker = EmbeddedBroker(options.data_dir, options.port, heap=options.heap)
    run_in_foreground(
        broker,
        f"Kafka listens on {broker.bootstrap_servers}; its log is {broker.log}",
        f"Kafka ended unexpectedly; see {broker.log}",
    )


if __name__ == "__main__":
    main()
