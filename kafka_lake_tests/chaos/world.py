"""All the systems of one chaos, started and stopped together, and the runs that are let loose in it."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from pydantic import TypeAdapter
from pyspark.sql import SparkSession

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.processes import ServerProcess
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectMemory, ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.chaos.brokers import Brokers
from kafka_lake_tests.chaos.catalog import RestCatalogServer
from kafka_lake_tests.chaos.proxies import CatalogProxy
from kafka_lake_tests.chaos.traffic import Topic, Traffic

RUN_SECONDS = 150.0
_OURS = ("KAFKA_LAKE_HOME", "KAFKA_LAKE_BOOTSTRAP", "KAFKA_LAKE_KAFKA", "SPARK_REMOTE", "PYICEBERG_", "PYSPARK_GATEWAY")


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: If it doesn't in time.
    """
    deadline = time.monotonic() + seconds
    tick = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:.0f} s still waiting: {what}")
        tick.wait(0.02)


class Run(ServerProcess):
    """A run of the ingestion in a process of its own.

    Args:
        run_id: Its name.
        command: How it is started.
        events: The file that it writes its events to.
        log: Where its output goes.
        env: Its configuration.
    """

    def __init__(self, run_id: str, command: list[str], events: Path, log: Path, env: Mapping[str, str]) -> None:
        super().__init__(command, log, env)
        self.run_id = run_id
        self.began = 0.0
        self._events = events

    def launch(self) -> Self:
        self.began = time.time()
        self.start(lambda: True, 10)
        return self

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        lines = self._events.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [e for e in found if kind is None or e["event"] == kind]

    def passed(self, step: str) -> bool:
        return any(e["step"] == step for e in self.events("step"))

    def halted(self) -> bool:
        """Tell whether the run has stopped itself."""
        with suppress(psutil.NoSuchProcess):
            return self.pid is not None and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def send(self, number: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def finish(self, seconds: float = RUN_SECONDS) -> int:
        """Wait for the end and return the exit code, negative for a signal.

        Raises:
            TimeoutError: If it hangs; it is killed then.
        """
        try:
            wait_for(lambda: not self.alive(), seconds, f"run {self.run_id}, last events {self.events()[-3:]}")
            assert self._process is not None
            code: int = self._process.returncode
            return code
        finally:
            # Also the watcher that would have killed it.
            self.kill()


class World:
    """Brokers, catalog, Spark and producers, with faulty networks between them; a context manager.

    Args:
        folder: Data and logs of everything.
        brokers: 1 or 3.
        seed: Of the records.
        sabotage: How each run breaks the protocol; None for not at all.
        tell_user: Called with a line of progress.

    Attributes:
        rolled_away: Snapshots that were taken from ``main`` by a rollback, by topic.
    """

    def __init__(
        self, folder: Path, brokers: int, seed: int, sabotage: str | None, tell_user: Callable[[str], None]
    ) -> None:
        self.folder = folder.resolve()
        self.sabotage = sabotage
        self.tell_user = tell_user
        self.brokers = Brokers(self.folder / "kafka", brokers)
        self.server = RestCatalogServer(self.folder / "catalog")
        self.proxy: CatalogProxy
        self.connect: ConnectServer
        self.traffic: Traffic
        self.runs: list[Run] = []
        self.rolled_away: dict[str, set[int]] = {}
        self.seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.proxy = self._stack.enter_context(CatalogProxy(self.server.port))
        catalog = LakeCatalog("lake", {"type": "rest", "uri": self.proxy.uri})
        conf = local_conf(catalog.for_spark(), "local[2]", spark_jars(), {"spark.sql.shuffle.partitions": "2"})
        self.connect = ConnectServer(self.folder / "connect", conf=conf, memory=ConnectMemory("1500m"))
        with ThreadPoolExecutor() as pool:
            starting = [
                pool.submit(self._stack.enter_context, server) for server in (self.brokers, self.server, self.connect)
            ]
            for future in starting:
                future.result()
        self._stack.callback(self._end_runs)
        self._start_traffic()

    def _start_traffic(self) -> None:
        self.traffic = Traffic(self.brokers.bootstrap_servers, self.brokers.admin(), self.brokers.replicas, self.seed)

    def _end_runs(self) -> None:
        for run in self.runs:
            run.kill()

    def catalog(self) -> LakeCatalog:
        """Return the catalog, reached without the faulty network."""
        return LakeCatalog("lake", {"type": "rest", "uri": self.server.uri})

    def cluster(self) -> KafkaCluster:
        return KafkaCluster({"bootstrap.servers": self.brokers.bootstrap_servers})

    def session(self) -> SparkSession:
        """Return a new session of the Connect server; the caller stops it."""
        return SparkSession.builder.remote(self.connect.remote).create()

    def run(self, topic: Topic, home: str = "home", **options: object) -> Run:
        """Start a run; ``finish`` it.

        Args:
            topic: What it ingests.
            home: Which deployment it belongs to.
            options: Of the runner, by name.
        """
        run_id = f"{len(self.runs) + 1}"
        folder = self.folder / "runs"
        folder.mkdir(exist_ok=True)
        events = folder / f"{run_id}.jsonl"
        command = [sys.executable, "-m", "kafka_lake_tests.chaos.runner"]
        command += [
            "--spec",
            TypeAdapter(TopicTable).dump_json(topic.spec, exclude_defaults=True).decode(),
            "--run-id",
            f"chaos-{run_id}",
            "--events",
            str(events),
        ]
        if self.sabotage:
            command += ["--sabotage", self.sabotage]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        environment = {
            "KAFKA_LAKE_HOME": str(self.folder / home),
            "KAFKA_LAKE_BOOTSTRAP_SERVERS": self.brokers.bootstrap_servers,
            "PYICEBERG_CATALOG__LAKE__TYPE": "rest",
            "PYICEBERG_CATALOG__LAKE__URI": self.proxy.uri,
            "SPARK_REMOTE": self.connect.remote,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        run = Run(run_id, command, events, folder / f"{run_id}.log", environment)
        self.runs.append(run)
        return run.launch()

    def resume(self, run: Run) -> None:
        run.send(signal.SIGCONT)
