"""A cluster of three workers: whoever is killed during a write, every record is in the table once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kafka_lake.orchestration.resources import CatalogResource, KafkaResource
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.spark_cluster.standalone import standalone_cluster

pytestmark = [pytest.mark.contract, pytest.mark.e2e, pytest.mark.timeout(600)]

RECORDS = 300_000
PARTITIONS = 6
# More tasks than cores: while the first file is there, others are being written.
SIZES = {
    "spark.default.parallelism": str(PARTITIONS),
    "spark.driver.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}
FIXED = {**SIZES, "spark.cores.max": "3"}
DYNAMIC = {
    **SIZES,
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "3",
}


@dataclass(frozen=True)
class Cluster:
    """What a driver has to know to run a topic on the cluster."""

    environment: Mapping[str, str]
    warehouse: Path
    folder: Path

    def start(self, spec: TopicTable, conf: Mapping[str, str]) -> "Driver":
        topic = {"topic": spec.topic, "namespace": spec.namespace, "table": spec.table, "schema": spec.schema}
        module = "kafka_lake_tests.contract.spark_cluster.ingest_once"
        log = self.folder / f"{spec.table}-{time.monotonic_ns()}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(topic), json.dumps(conf)],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Driver(process, log)

    def files(self, spec: TopicTable) -> list[Path]:
        """Return the data files of a topic's table, published or not."""
        return list(self.warehouse.glob(f"**/{spec.table}-*/data/**/*.parquet"))

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs that work for a driver; other clusters may be on the same machine."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                backend = any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
                if backend and Path(process.cwd()).is_relative_to(self.folder):
                    found.append(process)
        return found


@dataclass(frozen=True)
class Driver:
    """A run in a process of its own."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + 300
        while not (found := condition()):
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"no {what}"
            time.sleep(0.02)
        return found

    def published(self) -> int:
        assert self.process.wait(300) == 0, self.log.read_text()[-3000:]
        # Spark's log is in the same file, and may go on for a while.
        (result,) = (line for line in self.log.read_text().splitlines() if line.startswith('{"rows"'))
        return int(json.loads(result)["rows"])

    def kill(self) -> None:
        for process in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
            process.kill()
        self.process.wait(30)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, kafka_resource: KafkaResource, catalog_resource: CatalogResource
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder, workers=3) as (master, environment):
        reported = {
            **os.environ,
            **environment,
            "KAFKA_LAKE_SPARK_MASTER": master,
            "KAFKA_LAKE_BOOTSTRAP_SERVERS": kafka_resource.cluster().bootstrap_servers,
            "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
            "PYICEBERG_CATALOG__LAKE__URI": catalog_resource.properties["uri"],
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": catalog_resource.properties["warehouse"],
        }
        warehouse = Path(catalog_resource.properties["warehouse"].removeprefix("file://"))
        yield Cluster({name: value for name, value in reported.items() if value is not None}, warehouse, folder)


@pytest.fixture
def topic(new_topic: Callable[..., Topic]) -> Topic:
    topic = new_topic(PARTITIONS)
    for number in range(RECORDS):
        topic.producer.produce(topic.name, b'{"id": %d}' % number, partition=number % PARTITIONS)
        if number % 50_000 == 0:
            assert topic.producer.flush(60) == 0
    assert topic.producer.flush(60) == 0
    return topic


def assert_every_record_is_there_once(seen: View) -> None:
    rows = seen.table.scan().to_arrow()
    assert sorted(rows.column("id").to_pylist()) == list(range(RECORDS))
    assert not seen.dead_letters()
    assert seen.position() == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
    seen.assert_no_branches()


@pytest.mark.parametrize("conf", [FIXED, DYNAMIC], ids=("fixed", "dynamic"))
def test_an_executor_is_killed_during_a_write(
    conf: Mapping[str, str], cluster: Cluster, topic: Topic, view: Callable[[TopicTable], View]
) -> None:
    spec = topic.spec()
    driver = cluster.start(spec, conf)
    driver.until(lambda: cluster.files(spec), "data file")
    (killed, *_) = driver.until(cluster.executors, "executor")
    killed.kill()
    assert driver.process.poll() is None
    assert driver.published() == RECORDS
    assert "Lost executor" in driver.log.read_text()
    assert_every_record_is_there_once(view(spec))


def test_next_run_continues_after_driver_is_killed(
    cluster: Cluster, topic: Topic, view: Callable[[TopicTable], View]
) -> None:
    spec = topic.spec()
    first = cluster.start(spec, FIXED)
    written = first.until(lambda: cluster.files(spec), "data file")
    first.kill()
    assert view(spec).position() == {}
    assert cluster.start(spec, FIXED).published() == RECORDS
    assert_every_record_is_there_once(view(spec))
    published = {Path(task.file.file_path.removeprefix("file://")) for task in view(spec).table.scan().plan_files()}
    assert not published & set(written)
