"""Small commits: what an append of a few records costs beside its records, warm, in CPU seconds by process.

Each commit is a run of its own, as the sensor asks for them, in one process: Spark in it, or by a Connect server.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.data import ORDERS, fill
from benchmarks.meter import adopt_orphans
from benchmarks.ours import NAMESPACE, Engine, catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

HEADER = ("Spark", "commits", "seconds", "CPU-seconds", "driver", "JVM", "tasks")
PARTS = ("driver", "jvm", "tasks")


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int = 400
    commits: int = 20
    warm_up: int = 10
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Append small batches to a table, by each kind of Spark session, and return the result as JSON has it."""
    cases = []
    with scratch() as folder:
        for spark in ("local", "connect"):
            with EmbeddedBroker(folder / f"broker-{spark}", heap="512m") as broker:
                commits = _measured(settings, spark, broker.bootstrap_servers, folder / spark)
            medians = {name: statistics.median(commit[name] for commit in commits) for name in commits[0]}
            cases.append({"spark": spark, "commits": len(commits), **medians})
            tell_user(f"{spark}: {medians['cpu_seconds']:.2f} CPU-seconds a commit of {settings.records} records")
    return document("small", asdict(settings), cases=cases)


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    figures = ("seconds", "cpu_seconds", *PARTS)
    return [(c["spark"], str(c["commits"]), *(f"{c[name]:.2f}" for name in figures)) for c in result["cases"]]


def _measured(settings: Settings, spark: str, bootstrap: str, folder: Path) -> list[dict[str, float]]:
    folder.mkdir(parents=True)
    task = {"spark": spark, "bootstrap": bootstrap, "folder": str(folder), "conf": settings.engine.spark_config()}
    counts = {name: getattr(settings, name) for name in ("records", "commits", "warm_up")}
    log = folder / "engine.log"
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    with log.open("w") as errors:
        command = [sys.executable, "-m", "benchmarks.small", json.dumps(task | counts)]
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, check=False)
    if found.returncode:
        raise KafkaLakeError("The small commits failed.", f"See {log}.")
    return [json.loads(line) for line in found.stdout.splitlines()]


def _parts() -> dict[str, float]:
    """Return the CPU seconds of this process and all that descend from it, ended children too, by what they are."""
    own = psutil.Process()
    found: dict[str, float] = defaultdict(float)
    for process in [own, *own.children(recursive=True)]:
        times, name = process.cpu_times(), process.name()
        part = "driver" if process == own else "jvm" if name == "java" else "tasks"
        found[part] += times.user + times.system
        found["tasks"] += times.children_user + times.children_system
    return found


@contextmanager
def _session(task: dict[str, Any]) -> Iterator[SparkResource]:
    catalog = catalog_in(Path(task["folder"]))
    if task["spark"] == "local":
        yield SparkResource(spark_config=task["conf"], catalog=catalog)
        return
    conf = local_conf(catalog.open().for_spark(), task["conf"]["spark.master"], spark_jars(), {})
    with ConnectServer(Path(task["folder"], "connect"), conf=conf) as server:
        os.environ["SPARK_REMOTE"] = server.remote
        yield SparkResource(spark_config={}, catalog=catalog)


def main() -> None:
    """Append small batches and print what each costs; the process that is measured."""
    adopt_orphans()
    task = json.loads(sys.argv[1])
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bootstrap, spec = task["bootstrap"], TopicTable(ORDERS.name, NAMESPACE, "small", schema=ORDERS.ddl)
    with _session(task) as spark:
        kafka, catalog = KafkaResource(properties={"bootstrap.servers": bootstrap}), spark.catalog.open()
        connections = Connections(kafka.cluster(), kafka.spark_options(), catalog, spark.live_session)
        for number in range(task["warm_up"] + task["commits"]):
            fill(bootstrap, ORDERS, task["records"])
            began, before = time.monotonic(), _parts()
            ingest(spec, connections, f"small-{number}")
            seconds, after = time.monotonic() - began, _parts()
            parts = {part: after[part] - before[part] for part in PARTS}
            if number >= task["warm_up"]:
                reported = {"seconds": seconds, "cpu_seconds": sum(parts.values()), **parts}
                print(json.dumps(reported), file=output, flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
