"""Throughput as a ratio: the CPU of an ingest beside that of the same records in a loop of Arrow's, in turn.

The loop parses the records' JSON and writes Parquet, in the process that ingests, just before each ingest. How fast the
machine is, and how busy, cancels out; so a ratio can be compared with the one that was kept.
"""

import io
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json
from pyarrow import parquet

from benchmarks.data import ORDERS, Topic, fill, values
from benchmarks.limits import arrow_schema
from benchmarks.meter import TICK_SECONDS
from benchmarks.ours import Engine, asked, ingest_once, measured, task_of
from benchmarks.results import KEPT, Repeat, document, load
from benchmarks.throughput import scratch
from kafka_lake.devstack.servers import EmbeddedBroker

HEADER = ("ingest", "CPU-us a record", "CPU-us of the loop", "ratio")
WORSE = 1.2
"""A ratio is worse than the kept one if it is more than so many times it; what is left of the noise is below that."""
_BATCH = 10_000


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int = 400_000
    warm: int = 5
    warm_up: int = 3
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Ingest a topic again and again, the loop before each time, and return the result as JSON has it."""
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        topic = fill(broker.bootstrap_servers, ORDERS, settings.records)
        task = task_of(broker.bootstrap_servers, broker.pid, topic, engine=settings.engine, folder=folder)
        count = settings.warm_up + settings.warm
        reported = {**task, "ingests": count}
        repeats = measured("benchmarks.ratio", reported, folder / "engine.log", 2 * count, "The ratio wasn't measured.")
    loops, ingests = repeats[::2][settings.warm_up :], repeats[1::2][settings.warm_up :]
    pairs = [(_micros(ingest), _micros(loop)) for ingest, loop in zip(ingests, loops, strict=True)]
    ratio = statistics.median(ours / loop for ours, loop in pairs)
    tell_user(f"An ingest takes {ratio:.2f} times the CPU of the loop.")
    return document("ratio", asdict(settings), pairs=pairs, ratio=ratio)


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    pairs = enumerate(result["pairs"], 1)
    return [(str(number), f"{ours:.2f}", f"{loop:.2f}", f"{ours / loop:.2f}") for number, (ours, loop) in pairs]


def kept() -> float:
    """Return the ratio that was kept."""
    return float(load("ratio", KEPT)["ratio"])


def loop(count: int) -> Repeat:
    """Parse the values of a topic of orders and write them to a file in memory, by one thread; return what it took."""
    schema, given = arrow_schema(ORDERS), values(ORDERS, count)
    size, seconds, written = 0, 0.0, io.BytesIO()
    with parquet.ParquetWriter(written, schema, compression="zstd", compression_level=1) as writer:
        while batch := list(islice(given, _BATCH)):
            lines = b"\n".join(batch)
            size += len(lines)
            begun = time.thread_time()
            writer.write_table(_parsed(lines, schema))
            seconds += time.thread_time() - begun
    return Repeat(count, size, seconds, seconds, 0)


def _parsed(lines: bytes, schema: pa.Schema) -> pa.Table:
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return arrow_json.read_json(pa.BufferReader(lines), reading, parsing)


def _micros(repeat: Repeat) -> float:
    return max(repeat.cpu_seconds, TICK_SECONDS) / repeat.records * 1e6


def main() -> None:
    """Run the loop and ingest, in turn; the process that is measured."""
    with asked() as it:
        topic = Topic(ORDERS, it.task["records"], it.task["size"])
        for number in range(it.task["ingests"]):
            it.tell(loop(topic.records))
            it.tell(ingest_once(it.connections, topic, f"t{number}", None, it.task["broker"]))


if __name__ == "__main__":
    main()
