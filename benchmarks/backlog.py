"""A long backlog: memory from its first commit to its last, a run that is killed in the midst, and a count at the end.

The run is a process of its own, as with `ours`, with Spark in it. Its memory is looked at once a second, by program:
Java is Spark, the rest is Python. After half of the backlog the run is killed in the middle of a commit, together with
all its processes, and another one continues. In the end DuckDB counts records and offsets of each partition.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from pyiceberg.table import Table

from benchmarks.data import Topic, fill, noted
from benchmarks.meter import adopt_orphans, cpu_seconds, memory_by_program
from benchmarks.ours import NAMESPACE, Engine, catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.catalog.positions import read_state
from kafka_lake.common.offsets import Watermarks
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable

_TABLE = "backlog"
_JAVA = "java"
_PHASES = 10


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int
    record_bytes: int = 200
    limits: Mapping[str, int] = field(default_factory=dict)
    engine: Engine = field(default_factory=lambda: Engine(heap="1g"))


@dataclass(frozen=True)
class Look:
    """The memory of a run at a moment.

    Args:
        at: Seconds of the system's monotonic clock.
        java: Bytes of Spark's JVM, as PSS.
        python: Bytes of the run's own process and of Spark's Python workers.
    """

    at: float
    java: int
    python: int

    @property
    def total(self) -> int:
        """Return the bytes of both."""
        return self.java + self.python


@dataclass
class Run:
    """A run as it was seen from outside.

    Args:
        began: When its process was started, by the monotonic clock.
        commits: What it told of each commit: ``at``, ``offsets``, ``remaining``.
        looks: At its memory, in the order of time.
        cpu: CPU seconds of all its processes, as of the last look.
        killed: Whether it was killed.
        ended: When it ended.
    """

    began: float
    commits: list[dict[str, Any]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    cpu: float = 0
    killed: bool = False
    ended: float = 0

    def reported(self) -> dict[str, Any]:
        """Return the run's figures."""
        records = sum(commit["offsets"] for commit in self.commits)
        seconds = self.ended - self.began
        return {
            "killed": self.killed,
            "commits": len(self.commits),
            "records": records,
            "seconds": seconds,
            "records_per_second": records / seconds,
            "cpu_seconds": self.cpu,
            "largest_commit": max((commit["offsets"] for commit in self.commits), default=0),
            "longest_commit_seconds": max(self._pauses(), default=0.0),
            **_peaks(self.looks),
            "phases": self._phases(),
        }

    def _pauses(self) -> list[float]:
        ends = [self.began, *(commit["at"] for commit in self.commits)]
        return [after - before for before, after in pairwise(ends)]

    def _phases(self) -> list[dict[str, Any]]:
        """Return the peaks of equal parts of the run's time, each with the records that were committed by its end."""
        width = (self.ended - self.began) / _PHASES
        found = []
        for number in range(_PHASES):
            start, stop = self.began + number * width, self.began + (number + 1) * width
            done = sum(commit["offsets"] for commit in self.commits if commit["at"] <= stop)
            found.append({"records": done, **_peaks([look for look in self.looks if start <= look.at < stop])})
        return found


def _peaks(looks: Sequence[Look]) -> dict[str, int]:
    return {
        "peak_memory": max((look.total for look in looks), default=0),
        "peak_java": max((look.java for look in looks), default=0),
        "peak_python": max((look.python for look in looks), default=0),
    }


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make the topic, ingest it by two runs of which the first is killed, and return the result as JSON has it."""
    from kafka_lake.devstack.servers import EmbeddedBroker

    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        tell_user(f"producing {settings.records:,} records of {settings.record_bytes:,} bytes")
        topic = fill(broker.bootstrap_servers, noted(settings.record_bytes), settings.records)
        now = KafkaCluster({"bootstrap.servers": broker.bootstrap_servers}).watermarks_of(topic.shape.name)
        tables = folder / "tables"
        tables.mkdir()
        runs = [_run(broker.bootstrap_servers, settings, topic, tables, True, tell_user)]
        if runs[0].killed:
            tell_user("the run was killed; another one continues")
            runs.append(_run(broker.bootstrap_servers, settings, topic, tables, False, tell_user))
        tell_user("counting")
        table = catalog_in(tables).open().table((NAMESPACE, _TABLE))
        if table is None:
            raise KafkaLakeError(f"Table {NAMESPACE}.{_TABLE} isn't there.")
        return document(
            "backlog",
            asdict(settings),
            size=topic.size,
            runs=[run.reported() for run in runs],
            partitions=counted(table, now),
            files=sum(1 for _ in table.scan().plan_files()),
        )


def counted(table: Table, now: Watermarks) -> list[dict[str, Any]]:
    """Return what DuckDB finds in the table of each partition, beside what the topic holds."""
    import duckdb

    position = read_state(table).position
    paths = [task.file.file_path.removeprefix("file://").removeprefix("file:") for task in table.scan().plan_files()]
    found = []
    with duckdb.connect(config={"memory_limit": "2GB", "threads": 2}) as connection:
        for partition in now.partitions:
            # Each on its own: to tell all records apart at once would take the memory that the run should have.
            row = connection.execute(
                "SELECT count(*), count(DISTINCT _kafka.offset), min(_kafka.offset), max(_kafka.offset) "
                "FROM read_parquet($paths) WHERE _kafka.partition = $partition",
                {"paths": paths, "partition": partition},
            ).fetchone()
            assert row is not None
            reported = dict(zip(("rows", "distinct", "first", "last"), row, strict=True))
            end, next_offset = now.end[partition], position.offsets.get(partition) if position else None
            found.append(
                {"partition": partition, "low": now.low[partition], "end": end, "next": next_offset, **reported}
            )
    return found


def is_exact(partition: Mapping[str, Any]) -> bool:
    """Return whether a partition, as `counted` gives it, has each record of the topic once."""
    held = partition["end"] - partition["low"]
    found = (partition["rows"], partition["distinct"], partition["next"])
    if not held:
        return found == (0, 0, partition["end"])
    ends = (partition["first"], partition["last"])
    return found == (held, held, partition["end"]) and ends == (partition["low"], partition["end"] - 1)


def _run(
    bootstrap: str, settings: Settings, topic: Topic, folder: Path, kill: bool, tell_user: Callable[[str], None]
) -> Run:
    task = {
        "bootstrap": bootstrap,
        "topic": topic.shape.name,
        "ddl": topic.shape.ddl,
        "limits": dict(settings.limits),
        "spark_config": settings.engine.spark_config(),
        "folder": str(folder),
    }
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    log = folder.parent / f"run-{'first' if kill else 'second'}.log"
    run, half = Run(time.monotonic()), threading.Event()
    with ExitStack() as stack:
        errors = stack.enter_context(log.open("w"))
        command = [sys.executable, "-m", "benchmarks.backlog", json.dumps(task)]
        child = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        )
        stack.callback(_kill, child.pid)
        watcher = threading.Thread(target=_watch, args=(child, run), daemon=True)
        watcher.start()
        killer = threading.Thread(target=_kill_amid, args=(child, run, half), daemon=True)
        killer.start()
        assert child.stdout is not None
        for line in child.stdout:
            item = json.loads(line)
            run.commits.append(item)
            memory = run.looks[-1].total >> 20 if run.looks else 0
            tell_user(
                f"{len(run.commits)} commits, {sum(c['offsets'] for c in run.commits):,} records, "
                f"{item['remaining']:,} to go, {memory:,} MiB"
            )
            if kill and item["remaining"] and item["remaining"] <= settings.records / 2:
                half.set()
        child.wait()
        run.ended = time.monotonic()
        half.set()
        watcher.join()
        killer.join()
    if child.returncode and not run.killed:
        raise KafkaLakeError("The ingest of the backlog failed.", f"See {log}.")
    return run


def _watch(child: "subprocess.Popen[str]", run: Run) -> None:
    while child.poll() is None:
        found = memory_by_program(child.pid)
        java = found.pop(_JAVA, 0)
        run.looks.append(Look(time.monotonic(), java, sum(found.values())))
        run.cpu = max(run.cpu, cpu_seconds(child.pid))
        time.sleep(1)


def _kill_amid(child: "subprocess.Popen[str]", run: Run, half: threading.Event) -> None:
    """Kill a run in the middle of its next commit, once half of the backlog is done."""
    half.wait()
    if child.poll() is not None:
        return
    ends = [run.began, *(commit["at"] for commit in run.commits)]
    with suppress(subprocess.TimeoutExpired):
        child.wait((ends[-1] - ends[-2]) / 2)
        return
    run.killed = True
    _kill(child.pid)


def _kill(root: int) -> None:
    """Kill a process and all that descend from it: none gets to clean up."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(root)
        for child in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def main() -> None:
    """Ingest as the one argument says, a commit's JSON a line; the process that is measured."""
    adopt_orphans()
    task = json.loads(sys.argv[1])
    kafka = KafkaResource(properties={"bootstrap.servers": task["bootstrap"]})
    catalog = catalog_in(Path(task["folder"]))
    spark = SparkResource(spark_config=task["spark_config"], catalog=catalog)
    connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(commit: Commit, plan: Plan) -> None:
        done = {"at": time.monotonic(), "offsets": plan.records_at_most, "remaining": plan.remaining}
        print(json.dumps(done), file=output, flush=True)

    spec = TopicTable(task["topic"], NAMESPACE, _TABLE, schema=task["ddl"], **task["limits"])
    ingest(spec, connections, f"backlog-{os.getpid()}", observer=Observer(on_commit=tell))
    spark.stop()


if __name__ == "__main__":
    main()
