"""Startup: seconds of commands, of the components' import, and of loading a code location with many topics."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from benchmarks.ours import catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.catalog.tables import ensure_table
from kafka_lake.config.systems import Kafka
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.topics import create_topic

HEADER = ("what", "topics", "CPU-seconds", "seconds")
_TOPIC = """\
type: kafka_lake.KafkaTopic
attributes:
  topic: topic-{number}
  table:
    name: lake.table_{number}
    columns: order_id bigint not null, customer string, amount decimal(12,2), at timestamp
    partition_by: [day(at)]
"""
_SCHEMA = Schema(NestedField(1, "order_id", LongType()))
_PROJECT = '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
_DEFINITIONS = """
from pathlib import Path
import dagster as dg
import kafka_lake

@dg.definitions
def defs():
    return kafka_lake.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
# A code server doesn't exit after it, which takes Python a second with so many objects.
_LOAD = (
    "from pathlib import Path; import os; import kafka_lake\n"
    "kafka_lake.load_from_defs_folder(path_within_project=Path.cwd()).get_repository_def().asset_graph; os._exit(0)"
)


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    topics: tuple[int, ...] = (1, 300)
    repeats: int = 3


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Run each command again and again, with a broker and tables without rows, and return the result as JSON has it."""
    cases = []
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        for topics in settings.topics:
            project = _project(folder, topics, broker.bootstrap_servers)
            for name, command in _commands(first=topics == settings.topics[0]).items():
                runs = [_run(command, project, broker.bootstrap_servers) for _ in range(settings.repeats)]
                cpu, wall = (statistics.median(figures) for figures in zip(*runs, strict=True))
                cases.append({"what": name, "topics": topics, "cpu_seconds": cpu, "seconds": wall})
                tell_user(f"{name}, {topics} topics: {cpu:.2f} CPU-seconds")
    return document("startup", asdict(settings), cases=cases)


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    return [(c["what"], str(c["topics"]), f"{c['cpu_seconds']:.2f}", f"{c['seconds']:.2f}") for c in result["cases"]]


def _commands(*, first: bool) -> dict[str, list[str]]:
    """Return what is measured with each number of topics, and before it what doesn't depend on the number."""
    kafka_lake, python = [str(Path(sys.executable).with_name("kafka-lake"))], [sys.executable, "-c"]
    sql = ["query", "topic-0", "SELECT count(*) FROM this"]
    alike = {
        "`kafka-lake --help`": [*kafka_lake, "--help"],
        "`kafka-lake topic tail`": [*kafka_lake, "topic", "tail", "topic-0"],
        "`kafka-lake env`": [*kafka_lake, "env"],
        "`kafka-lake history`": [*kafka_lake, "history", "table_0"],
        "`kafka-lake query TABLE SQL`": [*kafka_lake, *sql],
        "`kafka-lake query TABLE SQL --fresh`": [*kafka_lake, *sql, "--fresh"],
        "`import dagster`": [*python, "import dagster"],
        "`import kafka_lake.orchestration`": [*python, "import kafka_lake.orchestration"],
    }
    return (alike if first else {}) | {
        "`kafka-lake status`": [*kafka_lake, "status"],
        "load the code location": [*python, _LOAD],
    }


def _project(folder: Path, topics: int, bootstrap: str) -> Path:
    """Make a project with a document and an empty table for each topic."""
    project = folder / f"shop_{topics}"
    texts = {"pyproject.toml": _PROJECT, "shop/__init__.py": "", "shop/defs/__init__.py": ""}
    texts["shop/definitions.py"] = _DEFINITIONS
    texts["shop/defs/cluster/defs.yaml"] = "type: kafka_lake.KafkaCluster\n"
    texts |= {f"shop/defs/topic_{n}/defs.yaml": _TOPIC.format(number=n) for n in range(topics)}
    for path, text in texts.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    home = project / ".kafka_lake"
    home.mkdir()
    cluster = Kafka(properties={"bootstrap.servers": bootstrap}).cluster()
    catalog = catalog_in(home).open()
    for number in range(topics):
        create_topic(cluster, f"topic-{number}", 1)
        ensure_table(catalog, ("lake", f"table_{number}"), _SCHEMA)
    return project


def _run(command: list[str], project: Path, bootstrap: str) -> tuple[float, float]:
    """Return the CPU and the wall seconds of a command."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("DAGSTER", "KAFKA_LAKE"))}
    environment |= {"KAFKA_LAKE_BOOTSTRAP_SERVERS": bootstrap}
    began, before = time.monotonic(), os.times()
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - began, os.times()
    if done.returncode:
        raise KafkaLakeError(f"{' '.join(command)} failed.", done.stderr[-2000:])
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, seconds
