"""kafka_lake itself: ingests of one topic into one new table after the other, in a process and a JVM of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.data import ALL, Shape, Topic
from benchmarks.meter import TICK_SECONDS, PeakMemory, adopt_orphans, cpu_seconds
from benchmarks.results import Repeat
from benchmarks.verify import BY_LETTER, BY_OFFSET, contents
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

NAMESPACE = "bench"


@dataclass(frozen=True)
class Moment:
    """Time and CPU used until now: of the contender's processes, and of the broker.

    Args:
        seconds: Of the system's monotonic clock.
        cpu: CPU seconds of the contender.
        broker_cpu: CPU seconds of the broker.
    """

    seconds: float
    cpu: float
    broker_cpu: float

    @staticmethod
    def now(contender: int, broker: int) -> "Moment":
        """Look at two trees of processes by their first one's id."""
        return Moment(time.monotonic(), cpu_seconds(contender), cpu_seconds(broker))

    @staticmethod
    def of_a_start(broker: int) -> "Moment":
        """Return now, for a contender whose first process is about to start."""
        return Moment(time.monotonic(), 0, cpu_seconds(broker))

    def since(self, begin: "Moment", topic: Topic) -> Repeat:
        """Return what became of a topic since another moment; nothing is verified yet."""
        return Repeat(
            topic.records,
            topic.size,
            self.seconds - begin.seconds,
            # Less than a tick can't be seen, and something it was.
            max(self.cpu - begin.cpu, TICK_SECONDS),
            self.broker_cpu - begin.broker_cpu,
        )


@dataclass(frozen=True)
class Engine:
    """How Spark is set up.

    Args:
        cores: Of ``local[…]``.
        heap: Of the driver's JVM, which does the work.
        conf: More settings.
    """

    cores: int = 2
    heap: str = "2g"
    conf: Mapping[str, str] = field(default_factory=dict)

    def spark_config(self) -> dict[str, str]:
        """Return Spark's settings; all others are the product's own."""
        return {"spark.master": f"local[{self.cores}]", "spark.driver.memory": self.heap, **self.conf}


def catalog_in(folder: Path) -> CatalogResource:
    """Return a catalog of its own, SQLite and local files, in a folder."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder / 'warehouse'}",
    }
    return CatalogResource(name="lake", properties=properties)


def ingest_once(
    connections: Connections, topic: Topic, table: str, begin: Moment | None, broker: int, contender: int | None = None
) -> Repeat:
    """Ingest a whole topic into a new table, metadata column and gates as by default."""
    contender = contender or os.getpid()
    begin = begin or Moment.now(contender, broker)
    ingest(_spec(topic.shape, table), connections, f"bench-{table}")
    return Moment.now(contender, broker).since(begin, topic)


def _spec(shape: Shape, table: str) -> TopicTable:
    return TopicTable(shape.name, NAMESPACE, table, schema=shape.ddl)


def with_dead_letters(repeat: Repeat, catalog: LakeCatalog, topic: Topic, table: str) -> Repeat:
    """Return a repeat with what is in its table's dead-letter table, which is removed then; there may be none."""
    identifier = _spec(topic.shape, table).dead_letter_table
    letters = catalog.table(identifier)
    if letters is None:
        return repeat
    found = contents(letters, BY_LETTER)
    catalog.pyiceberg.purge_table(identifier)
    return replace(repeat, dead_letters=found.rows, duplicates=repeat.duplicates + found.duplicates)


def verified(repeat: Repeat, catalog: LakeCatalog, table: str, identity: str = BY_OFFSET) -> Repeat:
    """Return a repeat with what is in its table, which is removed then."""
    found = catalog.table((NAMESPACE, table))
    if found is None:
        raise KafkaLakeError(f"Table {NAMESPACE}.{table} isn't there.")
    done = replace(repeat, **asdict(contents(found, identity)))
    catalog.pyiceberg.purge_table((NAMESPACE, table))
    return done


def cold_and_warm(
    bootstrap: str,
    broker: int,
    topic: Topic,
    engine: Engine,
    folder: Path,
    warm: int,
    catalog: CatalogResource | None = None,
    contender: int | None = None,
) -> list[Repeat]:
    """Ingest a topic in a new process, then again and again in the same session, each time into a new table.

    The tables are local files in the folder, or in a catalog of the caller's. The CPU is that of the new process and
    its children, or of a contender, a process id, and its children.
    """
    catalog = catalog or catalog_in(folder)
    folder.mkdir(parents=True)
    names = [f"t{number}" for number in range(warm + 1)]
    start = Moment.of_a_start(broker)
    reported = {"topic": topic.shape.name, "tables": names, "begin": asdict(start)}
    task = {
        **task_of(bootstrap, broker, topic, engine=engine, folder=folder),
        **reported,
        "catalog": catalog.properties,
        "contender": contender,
    }
    failure = f"The ingest of {topic.shape.name} failed."
    repeats = measured("benchmarks.ours", task, folder / "engine.log", len(names), failure)
    opened = catalog.open()
    return [
        with_dead_letters(verified(repeat, opened, name), opened, topic, name)
        for repeat, name in zip(repeats, names, strict=True)
    ]


def measured(module: str, task: Mapping[str, Any], log: Path, count: int, failure: str) -> list[Repeat]:
    """Run a module in a process of its own and return the repeats that it prints, each with its peak of memory."""
    # This package is found, and no Connect server is used.
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", module, json.dumps(task)]
    with ExitStack() as stack:
        errors = stack.enter_context(log.open("w"))
        child = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        )
        memory = stack.enter_context(PeakMemory(child.pid))
        assert child.stdout is not None
        repeats = [replace(Repeat(**json.loads(line)), peak_memory=memory.take()) for line in child.stdout]
    if child.returncode or len(repeats) != count:
        raise KafkaLakeError(failure, f"See {log}.")
    return repeats


def task_of(bootstrap: str, broker: int, topic: Topic, engine: Engine, folder: Path) -> dict[str, Any]:
    """Return what each process that `measured` starts is told; it begins by `asked`."""
    return {
        "bootstrap": bootstrap,
        "broker": broker,
        "records": topic.records,
        "size": topic.size,
        "spark_config": engine.spark_config(),
        "folder": str(folder),
        "catalog": catalog_in(folder).properties,
    }


@dataclass(frozen=True)
class Asked:
    """What a process that is measured works with.

    Args:
        task: What it was told.
        connections: What to ingest with.
        tell: Called with each repeat.
    """

    task: Mapping[str, Any]
    connections: Connections
    tell: Callable[[Repeat], None]


@contextmanager
def asked() -> Iterator[Asked]:
    """Give what the one argument says, with a Spark of its own during the block; the process that is measured."""
    adopt_orphans()
    task = json.loads(sys.argv[1])
    kafka = KafkaResource(properties={"bootstrap.servers": task["bootstrap"]})
    catalog = CatalogResource(name="lake", properties=task["catalog"])
    spark = SparkResource(spark_config=task["spark_config"], catalog=catalog)
    connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
    # What Python and the JVM say goes to the log; the results alone are the output.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    yield Asked(task, connections, lambda repeat: print(json.dumps(asdict(repeat)), file=output, flush=True))
    spark.stop()


def main() -> None:
    """Ingest a topic into one new table after the other; the process that is measured."""
    with asked() as it:
        topic = Topic(ALL[it.task["topic"]], it.task["records"], it.task["size"])
        begin: Moment | None = Moment(**it.task["begin"])
        for table in it.task["tables"]:
            it.tell(ingest_once(it.connections, topic, table, begin, it.task["broker"], it.task["contender"]))
            begin = None


if __name__ == "__main__":
    main()
