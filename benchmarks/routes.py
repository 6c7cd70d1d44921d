"""What tables of routes cost: the same topic into one table and into several, in turn, in one warm process."""

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.data import SMALL, Topic, fill
from benchmarks.ours import NAMESPACE, Engine, Moment, asked, catalog_in, measured, task_of
from benchmarks.results import Repeat, document
from benchmarks.throughput import scratch
from benchmarks.verify import BY_OFFSET, contents
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.spec.topic_table import Route, TopicTable, When

SHAPE = replace(SMALL, name="events", ddl=f"kind string, {SMALL.ddl}", kinds=100)
"""Records of which nine in ten are of one kind, and the others of 99 kinds."""
CASES: Mapping[str, int] = {"no routes": 0, "1 route": 1, "10 routes": 10, "100 routes": 100}
HEADER = (
    "case",
    "seconds",
    "records/s",
    "CPU-s",
    "seconds beside no routes",
    "CPU beside no routes",
    "memory",
    "files",
)


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        records: In the topic.
        repeats: Of each case, one case after the other, after a first one that isn't counted.
        cases: Names of those to be measured; the first one is what the others are compared with.
        engine: How Spark is set up.
    """

    records: int
    repeats: int = 2
    cases: tuple[str, ...] = tuple(CASES)
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make a topic, ingest it with and without routes, and return the result as JSON has it.

    Args:
        settings: What is measured.
        tell_user: Called with a line of progress.

    Raises:
        KafkaLakeError: If an ingest fails, or a table isn't what it is to be.
    """
    result = document("routes", asdict(settings))
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        tell_user(f"producing {settings.records:,} records")
        topic = fill(broker.bootstrap_servers, SHAPE, settings.records)
        names = [f"{case}@{n}" for n in range(settings.repeats + 1) for case in settings.cases]
        task = task_of(broker.bootstrap_servers, broker.pid, topic, engine=settings.engine, folder=folder) | {
            "cases": names
        }
        repeats = measured(
            "benchmarks.routes", task, folder / "engine.log", len(names), "An ingest with routes failed."
        )
        catalog = catalog_in(folder).open()
        found: dict[str, list[Repeat]] = {case: [] for case in settings.cases}
        for number, (name, repeat) in enumerate(zip(names, repeats, strict=True)):
            case = name.partition("@")[0]
            done = _verified(repeat, catalog, _spec(number, CASES[case]))
            if number >= len(settings.cases):
                found[case].append(done)
    return {**result, "cases": {case: [asdict(each) for each in every] for case, every in found.items()}}


def _verified(repeat: Repeat, catalog: LakeCatalog, spec: TopicTable) -> Repeat:
    """Return a repeat with what its tables have; each record must be in one of them, once."""
    tables = [catalog.table(each.identifier) for each in spec.tables]
    every = [contents(table, BY_OFFSET) for table in tables if table is not None]
    rows, files = sum(each.rows for each in every), sum(each.files for each in every)
    if rows != repeat.records or any(each.duplicates for each in every) or files > 2 * len(spec.tables):
        raise KafkaLakeError(f"{len(spec.tables)} tables have {rows} rows of {repeat.records} in {files} files.")
    return replace(repeat, rows=rows, files=files)


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows: medians of each case."""
    records = result["settings"]["records"]
    told: list[tuple[str, ...]] = []
    plain: tuple[float, float] | None = None
    for case, every in result["cases"].items():
        names = ("seconds", "cpu_seconds", "peak_memory", "files")
        seconds, cpu, memory, files = (statistics.median(each[name] for each in every) for name in names)
        plain = plain or (seconds, cpu)
        beside = (f"{seconds / plain[0]:.2f}", f"{cpu / plain[1]:.2f}")
        figures = (f"{seconds:.1f}", f"{records / seconds:,.0f}", f"{cpu:.1f}")
        told.append((case, *figures, *beside, f"{memory / 2**20:,.0f} MiB", f"{files:.0f}"))
    return told


def _spec(number: int, routes: int) -> TopicTable:
    def to(kind: int) -> TopicTable:
        return TopicTable(SHAPE.name, NAMESPACE, f"t{number}_k{kind}", schema=SHAPE.ddl)

    routed = tuple(Route(When(field="kind", values=(f"k{kind}",)), to(kind)) for kind in range(routes))
    return TopicTable(SHAPE.name, NAMESPACE, f"t{number}", schema=SHAPE.ddl, routes=routed)


def main() -> None:
    """Do what the one argument says, a repeat's JSON a line; the process that is measured."""
    with asked() as it:
        topic = Topic(SHAPE, it.task["records"], it.task["size"])
        for number, name in enumerate(it.task["cases"]):
            begin = Moment.now(os.getpid(), it.task["broker"])
            ingest(_spec(number, CASES[name.partition("@")[0]]), it.connections, f"bench-{number}")
            it.tell(Moment.now(os.getpid(), it.task["broker"]).since(begin, topic))


if __name__ == "__main__":
    main()
