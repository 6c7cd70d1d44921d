"""The Iceberg sink of Kafka Connect: a standalone worker in a JVM of its own that drains a topic into a table.

The worker's entry point is called through py4j, so that Connect's own metrics can be read from its JVM; nothing of the
worker's doing passes through it.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from benchmarks.data import ORDERS, SMALL, Shape, Topic
from benchmarks.meter import PeakMemory
from benchmarks.ours import NAMESPACE, Moment, catalog_in, verified
from benchmarks.results import Repeat
from benchmarks.verify import BY_ORDER
from examples.pizza_shop.topics import ensure_topic
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import row_count
from kafka_lake.common.processes import Server, ServerProcess, free_port, port_open
from kafka_lake.engine import jars
from kafka_lake.engine.java import find_java
from kafka_lake.errors import KafkaLakeError

IVY_FILE = Path(__file__).with_name("ivy.xml")

COMMIT_INTERVAL_S = 10
_PATIENCE_S = 300
_FROM_PYSPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "py4j-*.jar")

_WORKER = """\
bootstrap.servers={bootstrap}
listeners=http://127.0.0.1:{port}
offset.storage.file.filename={folder}/offsets
plugin.discovery=service_load
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
offset.flush.interval.ms=1000
consumer.max.poll.records=20000
consumer.max.partition.fetch.bytes=16777216
consumer.fetch.max.bytes=67108864
"""
"""An idle task looks at the control topic once per flush interval, so a long one would delay the last commit."""


def worker_jars() -> list[Path]:
    """Return the worker's class path, retrieving what isn't here yet; raises what ``ensure_jars`` raises."""
    return class_path("connect")


def class_path(conf: str) -> list[Path]:
    """Return the jars of a configuration of ``ivy.xml``, Hadoop and py4j."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    shipped = Path(spec.origin).parent / "jars"
    found = jars.retrieve_jars(IVY_FILE, conf, print)
    return found + [jar for pattern in _FROM_PYSPARK for jar in shipped.glob(pattern)]


@dataclass(frozen=True)
class Settings:
    """Of a connector."""

    tasks: int
    dead_letters: bool = False


def dead_letter_topic(table: str) -> str:
    """Return the topic for records that a connector can't make rows of."""
    return f"dead-letters-{table}"


class ConnectWorker(Server):
    """A standalone worker of Kafka Connect; a context manager.

    Args:
        folder: Its properties, offsets and log.
        bootstrap: The brokers, ``host:port``.
        heap: Maximum heap of its JVM.
    """

    def __init__(self, folder: Path, bootstrap: str, heap: str = "2g") -> None:
        self.folder = folder.resolve()
        self.bootstrap = bootstrap
        self.heap = heap
        self.port = free_port()
        self._gateway: JavaGateway | None = None

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "worker.properties"
        properties.write_text(_WORKER.format(bootstrap=self.bootstrap, port=self.port, folder=self.folder))
        gateway_port = free_port()
        command = [str(find_java() / "bin" / "java"), f"-Xmx{self.heap}", "-XX:+UseParallelGC", "-Dlog4j2.level=WARN"]
        # py4j calls methods of public classes in exported packages only.
        command += ["--add-exports=java.management/com.sun.jmx.mbeanserver=ALL-UNNAMED"]
        command += ["-cp", ":".join(map(str, worker_jars())), "py4j.GatewayServer", "--enable-auth", str(gateway_port)]
        self._server = ServerProcess(command, log=self.folder / "connect.log", cwd=self.folder)
        self._server.start(lambda: len(self._said()) >= 2 and port_open(gateway_port), 60)
        parameters = GatewayParameters(port=gateway_port, auth_token=self._said()[1], auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        threading.Thread(target=self._run, args=(str(properties),), daemon=True).start()
        self._await(self._answers, 60, "Connect's REST interface")
        return self

    def _said(self) -> list[str]:
        assert self._server is not None
        return [line for line in self._server.log_tail(50) if line and " " not in line]

    def _run(self, properties: str) -> None:
        assert self._gateway is not None
        arguments = self._gateway.new_array(self._gateway.jvm.java.lang.String, 1)
        arguments[0] = properties
        # The call returns when the worker ends; py4j logs then that the connection is closed.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        with suppress(Py4JError):
            self._gateway.jvm.org.apache.kafka.connect.cli.ConnectStandalone.main(arguments)

    def _answers(self) -> bool:
        return port_open(self.port) and self.ask("GET", "/connectors") is not None

    def stop(self) -> None:
        if self._gateway is not None:
            with suppress(Py4JError):
                self._gateway.close()
        super().stop()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer of the worker's REST interface; None if it doesn't know the path (yet)."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urlopen(request, timeout=60) as response:
                return json.loads(response.read() or "{}")
        except HTTPError as error:
            if error.code in (404, 409):
                return None
            raise KafkaLakeError(f"Connect refused {method} {path}: {error.read().decode()}") from error

    def handed_over(self, connector: str) -> int:
        """Return how many records a connector's tasks have written, by Connect's metric sink-record-send-total."""
        assert self._gateway is not None
        jvm = self._gateway.jvm
        beans = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        pattern = jvm.javax.management.ObjectName(f"kafka.connect:type=sink-task-metrics,connector={connector},*")
        # py4j finds no method for null; a name is a query too.
        names = beans.queryNames(pattern, pattern)
        return sum(int(beans.getAttribute(name, "sink-record-send-total")) for name in names)

    def check(self, connector: str) -> None:
        """Raise a KafkaLakeError with the trace if a connector or a task of it has failed."""
        status = self.ask("GET", f"/connectors/{connector}/status") or {"tasks": []}
        for part in (status.get("connector", {}), *status["tasks"]):
            if part.get("state") == "FAILED":
                raise KafkaLakeError(f"Connector {connector} failed: {part.get('trace', '')[:2000]}")

    def _await(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self._server is not None
            if not self.alive() or time.monotonic() > deadline:
                raise KafkaLakeError(f"Waited {seconds:.0f} s for {what}.", "\n".join(self._server.log_tail()))
            time.sleep(0.1)

    def drain(
        self,
        topic: Topic,
        catalog: LakeCatalog,
        table: str,
        settings: Settings,
        begin: Moment | None,
        broker: int,
    ) -> Repeat:
        """Drain a whole topic into a new table, and remove the connector."""
        assert self.pid is not None
        catalog.ensure_namespace(NAMESPACE)
        created = catalog.pyiceberg.create_table((NAMESPACE, table), schema_of(topic.shape), properties=_PROPERTIES)
        control = f"control-{table}"
        ensure_topic(self.bootstrap, control, 1)
        if settings.dead_letters:
            ensure_topic(self.bootstrap, dead_letter_topic(table), 1)
        config = connector_config(self.bootstrap, topic.shape, catalog, table, settings, control)
        self.ask("POST", "/connectors", {"name": table, "config": config})
        self._await_progress(table, lambda: self.handed_over(table) > 0)
        begin = begin or Moment.now(self.pid, broker)
        self._await_progress(table, lambda: self.handed_over(table) >= topic.records - topic.dirty)
        drained = Moment.now(self.pid, broker)
        self._await_progress(table, lambda: row_count(created.refresh()) >= topic.records - topic.dirty)
        self._await_progress(table, lambda: self._dead_letters(table, settings) >= topic.dirty)
        committed = Moment.now(self.pid, broker).since(begin, topic)
        self.ask("DELETE", f"/connectors/{table}")
        self._await(lambda: self.ask("GET", f"/connectors/{table}") is None, 60, f"connector {table} to go")
        done = replace(drained.since(begin, topic), dead_letters=self._dead_letters(table, settings))
        for name in [control, *([dead_letter_topic(table)] if settings.dead_letters else [])]:
            self._forget(name)
        return replace(
            done,
            committed_seconds=committed.seconds,
            committed_cpu_seconds=committed.cpu_seconds,
        )

    def _await_progress(self, connector: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        looked = time.monotonic()
        while not reached():
            if time.monotonic() - looked > 5:
                looked = time.monotonic()
                self.check(connector)
                if not self.alive() or looked > deadline:
                    raise KafkaLakeError(f"Connector {connector} stands still.", f"See {self.folder / 'connect.log'}.")
            time.sleep(0.2)

    def _dead_letters(self, table: str, settings: Settings) -> int:
        if not settings.dead_letters:
            return 0
        topic = TopicPartition(dead_letter_topic(table), 0)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        found = admin.list_offsets({topic: OffsetSpec.latest()})[topic].result(30)
        return int(found.offset)

    def _forget(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(30)


def connector_config(
    bootstrap: str, shape: Shape, catalog: LakeCatalog, table: str, settings: Settings, control: str
) -> dict[str, str]:
    """Return the sink's configuration, all of it by its documentation."""
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(settings.tasks),
        "topics": shape.name,
        "iceberg.tables": f"{NAMESPACE}.{table}",
        "iceberg.control.topic": control,
        "iceberg.kafka.bootstrap.servers": bootstrap,
        "iceberg.control.commit.interval-ms": str(COMMIT_INTERVAL_S * 1000),
        "iceberg.catalog": catalog.name,
        **{f"iceberg.catalog.{key}": value for key, value in jdbc_properties(catalog).items()},
        "consumer.override.auto.offset.reset": "earliest",
        **(_dead_letter_config(table, shape) if settings.dead_letters else {}),
    }


def jdbc_properties(catalog: LakeCatalog) -> dict[str, str]:
    """Return the properties of a SQL catalog for Java."""
    java = catalog.spark_conf()
    prefix = f"spark.sql.catalog.{catalog.name}."
    properties = {key.removeprefix(prefix): value for key, value in java.items() if key.startswith(prefix)}
    del properties["type"]
    return {"catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog", **properties}


def _dead_letter_config(table: str, shape: Shape) -> dict[str, str]:
    """Return Connect's own settings for bad records, with the reason in the headers as our dead letters have it.

    They hold for converters and transformations; the sink itself stops at a value that its column can't take. So where
    there are such values, Connect's transformation `Cast` looks at the column first.
    """
    config = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead_letter_topic(table),
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    if shape.wrong_type:
        config |= {
            "transforms": "cast",
            "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
            "transforms.cast.spec": "store_id:int32",
        }
    return config


_PROPERTIES = {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": "1"}

_STRINGS = ListType(element_id=20, element=StringType(), element_required=False)
_FIRST = (
    NestedField(1, "order_id", LongType(), required=True),
    NestedField(2, "store_id", IntegerType()),
    NestedField(3, "sauce", StringType()),
    NestedField(4, "cheese", StringType()),
)
_LAST = NestedField(7, "date_ordered", TimestamptzType())

_SCHEMAS = {
    ORDERS.ddl: Schema(
        *_FIRST,
        NestedField(5, "meats", _STRINGS),
        NestedField(6, "veggies", ListType(element_id=21, element=StringType(), element_required=False)),
        _LAST,
    ),
    SMALL.ddl: Schema(*_FIRST, NestedField(5, "total_price", DoubleType()), _LAST),
}


def schema_of(shape: Shape) -> Schema:
    """Return the columns of a shape's DDL, without the metadata column, which the sink can't write."""
    return _SCHEMAS[shape.ddl]


def cold_and_warm(
    bootstrap: str, broker: int, topic: Topic, settings: Settings, folder: Path, warm: int, heap: str = "2g"
) -> list[Repeat]:
    """Drain a topic with a new worker, then again and again with new connectors of the same worker."""
    catalog = catalog_in(folder).open()
    repeats = []
    # The jars are retrieved before time counts.
    worker_jars()
    start = Moment.of_a_start(broker)
    with ConnectWorker(folder / "connect", bootstrap, heap) as worker:
        assert worker.pid is not None
        with PeakMemory(worker.pid) as memory:
            for number in range(warm + 1):
                table = f"{folder.name}-{number}".replace("-", "_")
                done = worker.drain(topic, catalog, table, settings, start if number == 0 else None, broker)
                repeats.append(verified(replace(done, peak_memory=memory.take()), catalog, table, BY_ORDER))
    return repeats
