"""Topics with records that can't be rows, beside one that has none: what the bad ones cost all the others."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from benchmarks import connect_sink, ours
from benchmarks.data import DIRTY, Shape, Topic, fill
from benchmarks.ours import Engine
from benchmarks.results import Repeat, Series, as_json, document
from benchmarks.throughput import OURS, SINK, scratch
from kafka_lake.devstack.servers import EmbeddedBroker


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int
    repeats: int = 2
    peers: bool = False
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make one topic after the other, let all contenders read it, and return the result as JSON has it."""
    result = document("dirty", asdict(settings))
    engine, warm = settings.engine, settings.repeats
    tasks = connect_sink.Settings(engine.cores, dead_letters=True)
    series: list[Series] = []
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        bootstrap, pid = broker.bootstrap_servers, broker.pid
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for name, shape in DIRTY.items():
            tell_user(f"{name}: producing {settings.records:,} records")
            topic = fill(bootstrap, shape, settings.records)
            repeats = {OURS: ours.cold_and_warm(bootstrap, pid, topic, engine, folder / name / "ours", warm)}
            if settings.peers:
                here = folder / name / "sink"
                repeats[SINK] = connect_sink.cold_and_warm(bootstrap, pid, topic, tasks, here, warm, heap=engine.heap)
            for contender, found in repeats.items():
                series += _cold_and_warm(contender, topic, found)
                rates = ", ".join(f"{repeat.figures()['records_per_cpu_second']:,.0f}" for repeat in found)
                tell_user(f"{name}, {contender}: {rates} records per CPU-s")
            # What has been read makes room on the disk.
            admin.delete_topics([name])[name].result(30)
    topics = {name: said(shape) for name, shape in DIRTY.items()}
    sizes = {entry.topic: entry.repeats[0].size / entry.repeats[0].records for entry in series}
    return {**result, "topics": topics, "bytes_per_record": sizes, "series": as_json(series)}


def said(shape: Shape) -> str:
    """Return what is wrong with a topic's records, as tables have it."""
    if shape.broken:
        return f"{shape.broken:.0%} truncated"
    return f"{shape.wrong_type:.0%} wrong type" if shape.wrong_type else "clean"


def _cold_and_warm(contender: str, topic: Topic, repeats: list[Repeat]) -> list[Series]:
    name = topic.shape.name
    return [Series(contender, name, "cold", tuple(repeats[:1])), Series(contender, name, "warm", tuple(repeats[1:]))]
