"""Throughput: kafka_lake cold and warm, beside the limits of the machine and, if wanted, a peer."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import connect_sink, ours
from benchmarks.data import SHAPES, Topic, fill
from benchmarks.limits import limit
from benchmarks.ours import Engine
from benchmarks.results import Repeat, Series, as_json, document
from kafka_lake.devstack.servers import EmbeddedBroker

OURS = "kafka_lake"
SINK = "Iceberg sink"
CONSUMER = "limit: consumer"
ONE_PROCESS = "limit: consumer, Arrow, Parquet"


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int
    repeats: int = 3
    topics: tuple[str, ...] = tuple(SHAPES)
    peers: bool = False
    engine: Engine = field(default_factory=Engine)


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is gone afterwards; after an error its logs stay."""
    folder = Path(tempfile.mkdtemp(prefix="kafka-lake-bench-"))
    failed = False
    try:
        yield folder
    except Exception:
        failed = True
        raise
    finally:
        if failed:
            for path in folder.rglob("*"):
                if path.is_file() and path.suffix != ".log":
                    path.unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make the topics, let all contenders read them, and return the result as JSON has it."""
    result = document("throughput-peers" if settings.peers else "throughput", asdict(settings))
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        series: list[Series] = []
        for number, name in enumerate(settings.topics):
            tell_user(f"{name}: producing {settings.records:,} records")
            topic = fill(broker.bootstrap_servers, SHAPES[name], settings.records)
            contest = Contest(settings, broker.bootstrap_servers, broker.pid, topic, folder / name, tell_user)
            if number == 0:
                series += contest.limits()
                series += contest.ours(processes=settings.repeats, warm=1)
                series += contest.sink() if settings.peers else []
            else:
                series += contest.ours(processes=1, warm=settings.repeats)
    return {**result, "bytes_per_record": _bytes_per_record(series), "series": as_json(series)}


def _bytes_per_record(series: list[Series]) -> dict[str, float]:
    return {entry.topic: entry.repeats[0].size / entry.repeats[0].records for entry in series}


@dataclass(frozen=True)
class Contest:
    """The contenders on one topic.

    Args:
        settings: What is measured.
        bootstrap: The brokers, ``host:port``.
        broker: Process id of the broker.
        topic: What they read.
        folder: For all they write.
        tell_user: Called with a line of progress.
    """

    settings: Settings
    bootstrap: str
    broker: int
    topic: Topic
    folder: Path
    tell_user: Callable[[str], None]

    def limits(self) -> list[Series]:
        """Return what one process reaches that only consumes, and one that writes too."""
        found = []
        for name, write in ((CONSUMER, False), (ONE_PROCESS, True)):
            repeats = []
            for _ in range(self.settings.repeats):
                repeats.append(limit(self.bootstrap, self.broker, self.topic, self.folder, write))
                self._tell(name, repeats[-1])
            found.append(Series(name, self.topic.shape.name, "limit", tuple(repeats)))
        return found

    def ours(self, processes: int, warm: int) -> list[Series]:
        """Return kafka_lake's ingests: in each of some processes a cold one, and then some that are warm."""
        found = []
        for number in range(processes):
            folder, engine = self.folder / f"ours-{number}", self.settings.engine
            found.append(ours.cold_and_warm(self.bootstrap, self.broker, self.topic, engine, folder, warm))
            self._tell(OURS, *found[-1])
        return self._cold_and_warm(OURS, found)

    def sink(self) -> list[Series]:
        """Return the peer's drains with as many tasks as cores or as partitions, whichever is faster."""
        numbers = sorted({self.settings.engine.cores, self.topic.shape.partitions})
        trials = {tasks: [self._drains(tasks, 0)] for tasks in numbers}
        best = min(numbers, key=lambda tasks: trials[tasks][0][-1].seconds)
        for number in range(1, self.settings.repeats):
            trials[best].append(self._drains(best, number))
        return self._cold_and_warm(SINK, trials[best])

    def _drains(self, tasks: int, number: int) -> list[Repeat]:
        folder = self.folder / f"sink-{tasks}-{number}"
        heap = self.settings.engine.heap
        pair = connect_sink.cold_and_warm(
            self.bootstrap, self.broker, self.topic, connect_sink.Settings(tasks), folder, warm=1, heap=heap
        )
        self._tell(f"{SINK}, {tasks} tasks", *pair)
        return pair

    def _cold_and_warm(self, contender: str, pairs: list[list[Repeat]]) -> list[Series]:
        name = self.topic.shape.name
        return [
            Series(contender, name, "cold", tuple(pair[0] for pair in pairs)),
            Series(contender, name, "warm", tuple(result for pair in pairs for result in pair[1:])),
        ]

    def _tell(self, contender: str, *repeats: Repeat) -> None:
        rates = [repeat.figures() for repeat in repeats]
        reported = "; then ".join(
            f"{rate['records_per_second']:,.0f} records/s, {rate['records_per_cpu_second']:,.0f} per CPU-s"
            for rate in rates
        )
        self.tell_user(f"{self.topic.shape.name}, {contender}: {reported}")
