"""Real brokers, one or three, that clients reach through proxies only."""

import base64
import shutil
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_lake.common.processes import ServerProcess, free_port, port_open
from kafka_lake.engine.jars import jars_classpath
from kafka_lake.engine.java import find_java
from kafka_lake_tests.chaos.proxies import TcpProxy

_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised},INTERNAL://127.0.0.1:{internal}
controller.quorum.voters={voters}
log.dirs={log_dirs}
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=10485760
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""
_JVM = ["-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN"]
_START_SECONDS = 90


class Brokers:
    """A cluster of combined nodes on 127.0.0.1 whose data survive ``kill``; a context manager.

    Args:
        folder: Data and logs, a folder per node.
        count: Nodes; with three, topics have three replicas of which two must be in sync.

    Attributes:
        network: What clients pass through.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder.resolve()
        self.count = count
        self.replicas = count
        self._ports = [(free_port(), free_port(), free_port()) for _ in range(count)]
        self.network = TcpProxy([client for client, _, _ in self._ports])
        self._nodes: list[ServerProcess] = []

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.network.ports)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def __enter__(self) -> Self:
        self.network.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self._nodes:
            node.kill()
        self.network.__exit__(None, None, None)

    def _start(self) -> None:
        java = [str(find_java() / "bin" / "java"), *_JVM, "-cp", jars_classpath("broker")]
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        voters = ",".join(f"{n}@127.0.0.1:{controller}" for n, (_, _, controller) in enumerate(self._ports, 1))

        def prepare(index: int) -> None:
            client, internal, controller = self._ports[index]
            home = self.folder / f"node-{index + 1}"
            (home / "logs").mkdir(parents=True)
            file = home / "server.properties"
            file.write_text(
                _PROPERTIES.format(
                    node=index + 1,
                    port=client,
                    internal=internal,
                    controller=controller,
                    advertised=self.network.ports[index],
                    voters=voters,
                    log_dirs=home / "logs",
                    replicas=self.replicas,
                    in_sync=min(2, self.replicas),
                )
            )
            format_ = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file)]
            subprocess.run(format_, check=True, capture_output=True)

        with ThreadPoolExecutor() as pool:
            list(pool.map(prepare, range(self.count)))
        for index in range(self.count):
            home = self.folder / f"node-{index + 1}"
            command = [*java, "kafka.Kafka", str(home / "server.properties")]
            self._nodes.append(ServerProcess(command, log=home / "broker.log"))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.start(self._answers, _START_SECONDS), self._nodes))

    def _answers(self) -> bool:
        try:
            return len(self.admin().list_topics(timeout=2).brokers) == self.count
        except KafkaException:
            return False

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the id of the node that leads a partition, -1 if none does."""
        leader: int = self.admin().list_topics(topic, timeout=15).topics[topic].partitions[partition].leader
        return leader

    def kill(self, node: int) -> None:
        """End a node as a power cut would."""
        self._nodes[node - 1].kill()

    def remember(self, topic: str) -> None:
        """Take what the nodes have of a topic's first partition by now for what has reached their disks."""
        for log in self._logs(topic):
            shutil.copytree(log, log.parents[1] / f"kept-{log.name}")

    def lose(self, topic: str) -> None:
        """Cut the power of all nodes: what that partition got since `remember` is lost; start them again."""
        for node in self._nodes:
            node.kill()
        for log in self._logs(topic):
            shutil.rmtree(log)
            (log.parents[1] / f"kept-{log.name}").rename(log)
        for number in range(1, self.count):
            self.begin(number)
        self.revive(self.count)

    def _logs(self, topic: str) -> list[Path]:
        return sorted(self.folder.glob(f"node-*/logs/{topic}-0"))

    def begin(self, node: int) -> None:
        """Start a node again without waiting for it: alone with others that are gone it needn't answer."""
        self._nodes[node - 1].start(lambda: True, _START_SECONDS)

    def revive(self, node: int) -> None:
        """Start a node again and wait until all answer."""
        client = self._ports[node - 1][0]
        self._nodes[node - 1].start(lambda: port_open(client) and self._answers(), _START_SECONDS)
