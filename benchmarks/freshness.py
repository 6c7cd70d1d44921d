"""Freshness: how long a record waits from being produced until readers of its table see it, in a running deployment.

A record is visible at the moment when the head of ``main`` is a snapshot whose position covers its offset. That moment
is seen from outside: a thread looks every 50 ms whether the catalog has new metadata of a table, and reads its head.
"""

import os
import random
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from pyiceberg.exceptions import NoSuchTableError

from benchmarks.data import SMALL, values
from benchmarks.meter import adopt_orphans, cpu_seconds
from benchmarks.ours import NAMESPACE
from benchmarks.results import document
from examples.pizza_shop.topics import ensure_topic
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import read_state
from kafka_lake.cli.find_project import code_locations, dagster_folder, other_locations, targets
from kafka_lake.common.files import home
from kafka_lake.devstack.running import Ports, check_free
from kafka_lake.devstack.stack import Stack
from kafka_lake.errors import KafkaLakeError
from kafka_lake.orchestration.resources import CatalogResource

LOOK_SECONDS = 0.05
_TICK_SECONDS = 0.02
_PATIENCE_SECONDS = 600
_BINS = 40


@dataclass(frozen=True)
class Case:
    """A deployment and what is produced into it.

    Args:
        name: What it is called in tables.
        topics: How many.
        partitions: Of each topic.
        rate: Records per second and topic.
        continuous: The settings of continuous runs, as YAML has them; None for runs that the sensor asks for.
        sensor_seconds: Least time between two looks of the sensor.
        maintenance: Its settings, as YAML has them; None for the defaults.
    """

    name: str
    topics: int
    partitions: int
    rate: float
    continuous: str | None = None
    sensor_seconds: int = 2
    maintenance: str | None = None

    def names(self) -> list[str]:
        """Return the topics' names, which are their tables' too."""
        return [f"orders_{number}" for number in range(self.topics)]


CASES = {
    "sensor": Case("sensor-driven", 10, 6, 200),
    "sporadic": Case("sporadic", 30, 1, 1 / 150),
    "many": Case("50 topics", 50, 1, 20),
    "continuous": Case("continuous", 1, 6, 2000, "{}"),
}

_DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

_PROJECT = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "fresh"
defs_module = "fresh.defs"
"""

_CLUSTER = """\
type: kafka_lake.KafkaCluster
attributes:
  sensor_interval_seconds: {seconds}
"""

TOPIC = """\
type: kafka_lake.KafkaTopic
attributes:
  topic: {name}
  table:
    name: {namespace}.{name}
"""
"""A topic's document; settings of its table may follow."""


def write_project(case: Case, folder: Path) -> None:
    """Write a Dagster project with a case's topics and nothing else."""
    documents = {"cluster": _CLUSTER.format(seconds=case.sensor_seconds)}
    for name in case.names():
        documents[name] = TOPIC.format(name=name, namespace=NAMESPACE) + f'    columns: "{SMALL.ddl}"\n'
        if case.maintenance is not None:
            documents[name] += f"    maintenance: {case.maintenance}\n"
        if case.continuous is not None:
            documents[name] += f"  read: {{continuous: {case.continuous}}}\n"
    write_documents(documents, folder)


def write_documents(documents: Mapping[str, str], folder: Path) -> None:
    """Write a Dagster project."""
    package = folder / "fresh"
    for name, text in documents.items():
        (package / "defs" / name).mkdir(parents=True)
        (package / "defs" / name / "defs.yaml").write_text(text)
    for item in (package, package / "defs"):
        (item / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(_PROJECT)
    (package / "definitions.py").write_text(_DEFINITIONS)
    settings = (Path(__file__).parents[1] / "dagster.yaml").read_text()
    (folder / "dagster.yaml").write_text(settings)


@dataclass
class Ledger:
    """When which record was produced, and when it was seen; times are of the system's monotonic clock.

    Args:
        partitions: Of the topic, which must be new: its records' offsets begin at 0.
    """

    partitions: int
    produced: list["array[float]"] = field(init=False)
    seen: list["array[float]"] = field(init=False)
    commits: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.produced = [array("d") for _ in range(self.partitions)]
        self.seen = [array("d") for _ in range(self.partitions)]

    def see(self, position: dict[int, int], moment: float) -> None:
        """Take down that all offsets below a position are visible at a moment."""
        self.commits += any(end > len(self.seen[partition]) for partition, end in position.items())
        for partition, end in position.items():
            seen = self.seen[partition]
            seen.extend([moment] * (end - len(seen)))

    def complete(self) -> bool:
        """Tell whether everything that was produced has been seen."""
        return all(len(s) >= len(p) for s, p in zip(self.seen, self.produced, strict=True))

    def waits(self, begin: float, end: float) -> list[float]:
        """Return how many seconds each record waited that was produced between two moments."""
        return [
            seen - produced
            for made, found in zip(self.produced, self.seen, strict=True)
            for produced, seen in zip(made, found, strict=False)
            if begin <= produced < end
        ]


def produce(bootstrap: str, name: str, ledger: Ledger, rate: float, stop: threading.Event) -> None:
    """Produce records at a rate until ``stop`` is set, evenly in time and over the partitions.

    A few at a time go to one partition, as clients do that are told none: each batch is a request to the brokers. The
    first record is sent at once; of a topic with few records, the second comes at a random time within their distance.
    """
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    producer = Producer(settings)
    began = time.monotonic() - (random.uniform(0, 1 / rate) if rate < 1 else 0)
    source = values(SMALL, 100_000_000)
    sent = 0
    for tick in count():
        if stop.wait(_TICK_SECONDS):
            break
        due = int((time.monotonic() - began) * rate) + (rate < 1)
        partition = tick % ledger.partitions
        for _ in range(sent, due):
            producer.produce(name, next(source), partition=partition)
            ledger.produced[partition].append(time.monotonic())
        sent = due
        producer.poll(0)
    if producer.flush(30):
        raise KafkaLakeError(f"Topic {name}: not all records were delivered.")


def watch(catalog: LakeCatalog, ledgers: dict[str, Ledger], stop: threading.Event) -> None:
    """Take down what becomes visible when, until ``stop`` is set."""
    known: dict[str, str] = {}
    database = catalog.properties["uri"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
        while not stop.wait(LOOK_SECONDS):
            with suppress(sqlite3.OperationalError):
                for name, location in _pointers(connection):
                    if name in ledgers and known.get(name) != location:
                        known[name] = location
                        _look(catalog, name, ledgers[name])


def _pointers(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    query = "SELECT table_name, metadata_location FROM iceberg_tables WHERE table_namespace = ?"
    return connection.execute(query, (NAMESPACE,)).fetchall()


def _look(catalog: LakeCatalog, name: str, ledger: Ledger) -> None:
    with suppress(NoSuchTableError):
        position = read_state(catalog.pyiceberg.load_table((NAMESPACE, name))).position
        if position is not None:
            ledger.see(dict(position.offsets), time.monotonic())


def run_case(
    case: Case,
    seconds: float,
    warm_up: float,
    folder: Path,
    tell_user: Callable[[str], None],
    *,
    beside: Iterable[Callable[[threading.Event], None]] = (),
    look: Callable[[LakeCatalog, Case], Mapping[str, Any]] = lambda _, __: {},
) -> dict[str, Any]:
    """Run a deployment under load and return how fresh its tables were.

    This process's working folder and environment are the deployment's meanwhile.
    """
    adopt_orphans()
    write_project(case, folder)
    ledgers = {name: Ledger(case.partitions) for name in case.names()}
    with ExitStack() as context:
        stack, bootstrap, catalog = context.enter_context(deployed(folder, ledgers, case.partitions, tell_user))
        watching = context.enter_context(in_thread(lambda stop: watch(catalog, ledgers, stop)))
        with ExitStack() as load:
            tell_user(f"{case.name}: the load begins")
            producers = [
                load.enter_context(in_thread(lambda stop, n=name: produce(bootstrap, n, ledgers[n], case.rate, stop)))
                for name in ledgers
            ]
            threads = [watching, *producers, *(load.enter_context(in_thread(load_task)) for load_task in beside)]
            await_all(
                lambda: all(any(ledger.seen) for ledger in ledgers.values()), stack, threads, "every table to fill"
            )
            await_all(later(warm_up), stack, threads, "")
            tell_user(f"{case.name}: measuring for {seconds:.0f} s")
            begin, before, commits = time.monotonic(), _usage(), _commits(ledgers)
            await_all(later(seconds), stack, threads, "")
            end, after, commits = time.monotonic(), _usage(), _commits(ledgers) - commits
        await_all(lambda: all(ledger.complete() for ledger in ledgers.values()), stack, [watching], "the last records")
        more = look(catalog, case)
    waits = sorted(wait for ledger in ledgers.values() for wait in ledger.waits(begin, end))
    used = {part: after[part] - before[part] for part in after}
    return outcome(case, waits, end - begin, commits, used) | more


def outcome(case: Case, waits: Sequence[float], seconds: float, commits: int, cpu: dict[str, float]) -> dict[str, Any]:
    """Return what a case has shown, as JSON has it."""
    return {
        "name": case.name,
        "settings": asdict(case),
        "records": len(waits),
        "measured_seconds": seconds,
        "seconds": percentiles(waits),
        "histogram": histogram(waits),
        "commits_per_topic_and_minute": commits / case.topics / seconds * 60,
        "cpu_seconds_per_100_s": {part: used / seconds * 100 for part, used in cpu.items()},
    }


@contextmanager
def deployed(
    folder: Path, topics: Iterable[str], partitions: int, tell_user: Callable[[str], None]
) -> Iterator[tuple[Stack, str, LakeCatalog]]:
    """Run a project on a local stack of its own: brokers with empty topics, a Connect server, Dagster."""
    with _deployment(folder):
        ports = Ports.from_env()
        check_free(ports.broker, ports.ui, ports.connect)
        with Stack(ports, tell_user) as stack:
            bootstrap = stack.start_broker()
            for name in topics:
                ensure_topic(bootstrap, name, partitions)
            stack.start_connect(CatalogResource().open())
            found = targets()
            stack.start_dagster(code_locations(found), dagster_folder(found), other_locations(found))
            catalog = CatalogResource().open()
            catalog.ensure_namespace(NAMESPACE)
            yield stack, bootstrap, catalog


@contextmanager
def _deployment(folder: Path) -> Iterator[None]:
    """Make a folder this process's deployment for the block, whatever was configured."""
    ours = ("KAFKA_LAKE_HOME", "KAFKA_LAKE_BOOTSTRAP", "KAFKA_LAKE_KAFKA", "SPARK_REMOTE", "PYICEBERG_", "DAGSTER_HOME")
    before, there = dict(os.environ), Path.cwd()
    for name in [name for name in os.environ if name.startswith(ours)]:
        del os.environ[name]
    os.environ["KAFKA_LAKE_HOME"] = str(folder / "home")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), before.get("PYTHONPATH", "")]).strip(os.pathsep)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(there)
        os.environ.clear()
        os.environ.update(before)


@dataclass
class Running:
    """A thread and what went wrong in it."""

    failure: BaseException | None = None

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.failure is not None:
            raise self.failure


@contextmanager
def in_thread(work: Callable[[threading.Event], None]) -> Iterator[Running]:
    """Do something in a thread during the block; it is told to stop then, and what went wrong in it is raised."""
    running, stop = Running(), threading.Event()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            running.failure = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        stop.set()
        thread.join()
    running.check()


def later(seconds: float) -> Callable[[], bool]:
    """Return what tells whether so many seconds have gone by."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def await_all(reached: Callable[[], bool], stack: Stack, threads: Sequence[Running], what: str) -> None:
    """Wait until something is reached."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not reached():
        stack.check()
        for thread in threads:
            thread.check()
        if what and time.monotonic() > deadline:
            raise KafkaLakeError(f"Waited {_PATIENCE_SECONDS} s for {what}.", f"Logs are in {home()}.")
        time.sleep(0.1)


def _usage() -> dict[str, float]:
    """Return the CPU seconds of the deployment's parts; this process, which produces and watches, is none of them."""
    parts = {"broker": 0.0, "spark": 0.0}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if "kafka.Kafka" in command:
                parts["broker"] += cpu_seconds(child.pid)
            elif "SparkConnectServer" in command or "kafka_lake.engine.daemon" in command:
                parts["spark"] += cpu_seconds(child.pid)
    all_of_it = cpu_seconds(os.getpid()) - time.process_time()
    return {**parts, "dagster": all_of_it - sum(parts.values())}


def _commits(ledgers: dict[str, Ledger]) -> int:
    """Return how often any of the tables has shown something new."""
    return sum(ledger.commits for ledger in ledgers.values())


def percentiles(ordered: Sequence[float]) -> dict[str, float]:
    """Return the middle, the tail and the end of values in ascending order.

    >>> percentiles(range(1, 101))
    {'p50': 50, 'p95': 95, 'p99': 99, 'max': 100}
    """
    shares = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    return {name: ordered[max(0, -(-len(ordered) * share // 100) - 1)] for name, share in shares.items()}


def histogram(ordered: Sequence[float]) -> dict[str, list[float]]:
    """Return how many of some values in ascending order are in each of equal bins from 0 to the greatest."""
    edges = [ordered[-1] * number / _BINS for number in range(_BINS + 1)]
    counts = [sum(low <= value < high for value in ordered) for low, high in pairwise(edges)]
    counts[-1] += len(ordered) - sum(counts)
    return {"edges": edges, "counts": counts}


def measure(
    cases: Sequence[Case], seconds: float, warm_up: float, folder: Path, tell_user: Callable[[str], None]
) -> dict[str, Any]:
    """Run cases one after the other and return the result as JSON has it; arguments and errors are `run_case`'s."""
    result = document("freshness", {"seconds": seconds, "warm_up": warm_up})
    found = [
        run_case(case, seconds, warm_up, folder / f"case-{number}", tell_user) for number, case in enumerate(cases)
    ]
    return {**result, "cases": found}
