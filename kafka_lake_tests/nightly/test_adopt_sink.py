"""Tables that the real Iceberg sink of Kafka Connect wrote are taken over: each record of the topic is there once.

A producer keeps on writing meanwhile. The sink is stopped, and killed while files that it has announced wait for their
commit: then it must finish first. What is in the table is read by PyIceberg and by DuckDB.
"""

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from benchmarks.connect_sink import ConnectWorker, Settings, connector_config, worker_jars
from benchmarks.data import ORDERS
from kafka_lake.catalog.positions import row_count
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import AdoptionRefusedError, TableError
from kafka_lake.ingest.jobs.adopt import Adoption, FromKafkaConnect, plan_adoption
from kafka_lake.ingest.run import adopt, ingest
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.steady_producer import Row, SteadyProducer, rows_of

# The first has the jars retrieved.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
# The broker takes no shorter ones; by default a dead connector's groups have members for 45 seconds.
SESSION_MS = "6000"


class Sink:
    """A connector of a worker of its own, and the table that it fills."""

    def __init__(self, worker: ConnectWorker, topic: Topic, catalog: Any, control: Topic) -> None:
        self.spec = topic.spec("id bigint, name string")
        self.name = topic.table
        self.group = f"connect-{self.name}"
        self.worker = worker
        catalog.ensure_namespace(self.spec.namespace)
        self.table: Table = catalog.pyiceberg.create_table(self.spec.identifier, COLUMNS)
        shape = replace(ORDERS, name=topic.name)
        self.config = {
            **connector_config(worker.bootstrap, shape, catalog, self.name, Settings(2), control.name),
            "iceberg.tables": ".".join(self.spec.identifier),
            # With a shorter one, the next files are announced before the connector has stopped.
            "iceberg.control.commit.interval-ms": "10000",
            "consumer.override.session.timeout.ms": SESSION_MS,
            "consumer.override.heartbeat.interval.ms": "2000",
            "iceberg.kafka.session.timeout.ms": SESSION_MS,
            "iceberg.kafka.heartbeat.interval.ms": "2000",
        }
        self.start()

    def start(self) -> None:
        self.worker.ask("POST", "/connectors", {"name": self.name, "config": self.config})

    def rows(self) -> int:
        return row_count(self.table.refresh())

    def await_commits(self, count: int) -> None:
        def committed() -> bool:
            self.worker.check(self.name)
            return len(self.table.refresh().metadata.snapshots) >= count

        wait_for(committed, 120, 0.5)

    def remove(self) -> None:
        """Stop it as its users do."""
        self.worker.ask("DELETE", f"/connectors/{self.name}")
        wait_for(lambda: self.worker.ask("GET", f"/connectors/{self.name}") is None, 60)

    def kill(self) -> None:
        assert self.worker.pid is not None
        os.kill(self.worker.pid, signal.SIGKILL)
        wait_for(lambda: not self.worker.alive(), 20)


def wait_for(condition: Callable[[], bool], seconds: float, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


@pytest.fixture
def sink(
    broker: EmbeddedBroker, new_topic: NewTopic, catalog_resource: CatalogResource, tmp_path: Path
) -> Iterator[Sink]:
    worker_jars()
    topic, control = new_topic(3), new_topic(2)
    with ConnectWorker(tmp_path / "connect", broker.bootstrap_servers, "512m") as worker:
        yield Sink(worker, topic, catalog_resource.open(), control)


@pytest.fixture
def producer(broker: EmbeddedBroker, sink: Sink) -> Iterator[SteadyProducer]:
    with SteadyProducer(broker.bootstrap_servers, sink.spec.topic, 2) as steady:
        yield steady


def taken_over(spec: TopicTable, connections: Connections, connector: str) -> Adoption:
    source = FromKafkaConnect(connector)
    found = plan_adoption(spec, connections, source)
    adopt(spec, connections, "adopting", found, source)
    return found


def await_empty(connections: Connections, sink: Sink) -> None:
    groups = connections.cluster
    wait_for(lambda: not groups.group_members(sink.group) and not groups.group_members(f"{sink.group}-coord"), 60, 0.2)


def finish(sink: Sink, connections: Connections) -> None:
    """Stop it, and start it again while it has announced files without their commit."""

    def finished() -> bool:
        sink.await_commits(len(sink.table.refresh().metadata.snapshots) + 1)
        sink.remove()
        await_empty(connections, sink)
        try:
            plan_adoption(sink.spec, connections, FromKafkaConnect(sink.name))
        except AdoptionRefusedError:
            sink.start()
            return False
        return True

    wait_for(finished, 300)


def by_duckdb(table: Table) -> Counter[Row]:
    """Read the data files of a table, which has no deletes, without a library for Iceberg's tables."""
    files = [task.file.file_path.removeprefix("file://") for task in table.refresh().scan().plan_files()]
    with duckdb.connect() as database:
        return Counter(database.execute("SELECT id, name FROM read_parquet(?)", [files]).fetchall())


def assert_each_record_once(sink: Sink, connections: Connections, producer: SteadyProducer) -> None:
    ingest(sink.spec, connections, "run-1")
    producer.await_count(len(producer.acknowledged) + 20)
    producer.stop()
    ingest(sink.spec, connections, "run-2")
    assert rows_of(sink.table) == Counter(producer.acknowledged)
    assert by_duckdb(sink.table) == Counter(producer.acknowledged)


def test_stopped_sink_is_taken_over_when_it_has_finished(
    sink: Sink, producer: SteadyProducer, connections: NewConnections
) -> None:
    sink.await_commits(2)
    with pytest.raises(AdoptionRefusedError, match=f"connector {sink.name} still runs"):
        plan_adoption(sink.spec, connections(), FromKafkaConnect(sink.name))
    finish(sink, connections())
    with pytest.raises(TableError, match="filled by the Iceberg sink of Kafka Connect"):
        ingest(sink.spec, connections(), "too early")
    found = taken_over(sink.spec, connections(), sink.name)
    assert sum(partition.offset for partition in found.partitions) == sink.rows() > 0
    assert_each_record_once(sink, connections(), producer)


def test_sink_killed_before_its_commit_must_finish_first(
    sink: Sink,
    producer: SteadyProducer,
    connections: NewConnections,
    broker: EmbeddedBroker,
    lake_home: Path,
    tmp_path: Path,
) -> None:
    """The consumer group is ahead of the table then, and a position from it would lose the records in those files."""
    sink.await_commits(2)
    groups = connections().cluster

    def announced() -> int:
        return sum(groups.group_offsets(sink.group, sink.spec.topic, range(3)).values())

    with closing(sqlite3.connect(lake_home / "catalog.db", isolation_level=None, timeout=30)) as catalog:
        # The catalog refuses every commit from here on.
        catalog.execute("BEGIN IMMEDIATE")
        committed = sink.rows()
        wait_for(lambda: announced() > committed, 120, 0.2)
        sink.kill()
        catalog.execute("ROLLBACK")
    assert announced() > sink.rows() == committed
    await_empty(connections(), sink)
    with pytest.raises(AdoptionRefusedError, match=f"connector {sink.name} has not finished"):
        plan_adoption(sink.spec, connections(), FromKafkaConnect(sink.name))
    with ConnectWorker(tmp_path / "again", broker.bootstrap_servers, "512m") as sink.worker:
        sink.start()
        wait_for(lambda: sink.rows() > committed, 120, 0.5)
        finish(sink, connections())
    found = taken_over(sink.spec, connections(), sink.name)
    assert sum(partition.offset for partition in found.partitions) == sink.rows() > committed
    assert_each_record_once(sink, connections(), producer)


def test_a_connector_that_never_wrote_to_the_table_is_refused(
    sink: Sink, producer: SteadyProducer, connections: NewConnections
) -> None:
    sink.await_commits(1)
    sink.remove()
    with pytest.raises(
        AdoptionRefusedError, match=rf"no snapshot in main's history is from connector other.*{sink.group}"
    ):
        plan_adoption(sink.spec, connections(), FromKafkaConnect("other"))
