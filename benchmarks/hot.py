"""Hot keys: a keyed table that is changed without a pause, with its maintenance on. Does it stay as fast as it was?

A fifth of the keys get four fifths of the changes. A run merges what has come every few seconds, and after each the
table is maintained if its settings say so. Time of the merges, memory of this process with Spark in it, files, and the
time that a reader takes are taken down; in the end each row is compared with what was produced.
"""

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.keyed import KeyedTable, keyed_table, own_cpu
from benchmarks.meter import memory_bytes, resident_bytes
from benchmarks.ours import Engine
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.maintenance.policy import table_health

HEADER = (
    "minutes",
    "merges",
    "merge, median s",
    "95 % s",
    "CPU s",
    "a change waits, median s",
    "95 % s",
    "compactions",
    "median s",
    "memory, most",
    "live heap, MiB",
    "delete files, most",
    "data files, most",
    "snapshots, most",
    "a read, s",
)
MODES: dict[str, dict[str, str]] = {
    "merge-on-read": {},
    "deletion-vectors": {"format-version": "3"},
    "copy-on-write": {
        "write.merge.mode": "copy-on-write",
        "write.delete.mode": "copy-on-write",
        "write.update.mode": "copy-on-write",
    },
}
_SEED = 17
_HOT, _HOT_SHARE = 5, 0.8
_TICK_SECONDS = 0.02
_READ_EVERY = 60.0
_LIVE_EVERY = 300.0


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    rows: int = 2_000_000
    minutes: float = 60.0
    rate: float = 1000.0
    every: float = 5.0
    mode: str = "merge-on-read"
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Fill the table, change it for the time, and return the result as JSON has it."""
    with scratch() as folder, keyed_table(folder, settings.rows, settings.engine, MODES[settings.mode]) as keyed:
        tell_user(f"filling a table of {settings.rows:,} rows")
        keyed.fill()
        merges, reads, live = [], [], []
        with _changing(keyed, settings.rate):
            began, read, looked = time.monotonic(), float("-inf"), float("-inf")
            while (at := time.monotonic() - began) < settings.minutes * 60:
                merges.append({"at": at, **_merge(keyed)})
                if compacted := merges[-1]["maintained"]:
                    tell_user(f"minute {at / 60:.0f}: {compacted}")
                if time.monotonic() - read >= _READ_EVERY:
                    read = time.monotonic()
                    reads.append({"at": at, "seconds": _read(keyed)})
                if time.monotonic() - looked >= _LIVE_EVERY:
                    looked = time.monotonic()
                    live.append({"at": at, **_live(keyed)})
                time.sleep(max(0.0, began + at + settings.every - time.monotonic()))
        keyed.produce(())
        keyed.ingest("last")
        return document("hot", asdict(settings), merges=merges, reads=reads, live=live, differing=keyed.differing())


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of the table that the terminal shows: a sixth of the time each."""
    length = result["settings"]["minutes"] * 10
    return [_row(result, part * length, (part + 1) * length) for part in range(6)]


def _row(result: Mapping[str, Any], begin: float, end: float) -> tuple[str, ...]:
    merges = [merge for merge in result["merges"] if begin <= merge["at"] < end]
    reads = [read["seconds"] for read in result["reads"] if begin <= read["at"] < end]
    seconds = sorted(merge["seconds"] for merge in merges)
    maintenance = [merge["maintenance_seconds"] for merge in merges if merge["maintained"]]

    def most(name: str) -> int:
        return max((merge[name] for merge in merges), default=0)

    return (
        f"{begin / 60:.0f} to {end / 60:.0f}",
        f"{len(merges):,}",
        _median(seconds),
        f"{seconds[int(len(seconds) * 0.95)]:.1f}" if seconds else "",
        _median([merge["cpu_seconds"] for merge in merges]),
        _median([merge["waits"][0] for merge in merges]),
        _median([merge["waits"][1] for merge in merges]),
        f"{len(maintenance)}",
        _median(maintenance),
        f"{most('memory') / 2**20:,.0f} MiB",
        _median([sample["heap"] / 2**20 for sample in result["live"] if begin <= sample["at"] < end]),
        f"{most('delete_files'):,}",
        f"{most('data_files'):,}",
        f"{most('snapshots'):,}",
        _median(reads),
    )


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f}" if values else ""


def _merge(keyed: KeyedTable) -> dict[str, Any]:
    before, began, cpu = keyed.ends(), time.monotonic(), own_cpu()
    keyed.ingest("merge")
    merged, cpu = time.monotonic(), own_cpu() - cpu
    health, ends = table_health(keyed.table), keyed.ends()
    waits = sorted(
        merged - at for partition, end in ends.items() for at in keyed.sent[partition][before.get(partition, 0) : end]
    )
    done = maintain(keyed.spec, keyed.connections)
    return {
        "seconds": merged - began,
        "cpu_seconds": cpu,
        # Of the changes of this merge, from their production until readers see them: the median, and 95 % of them.
        "waits": [waits[len(waits) // 2], waits[int(len(waits) * 0.95)]] if waits else [0.0, 0.0],
        "maintenance_seconds": time.monotonic() - merged,
        "maintained": ", ".join(
            f"{table.identifier[1]}: {table.before.data_files} + {table.before.delete_files} files to "
            f"{table.after.data_files} + {table.after.delete_files}, {table.expired} snapshots expired, "
            f"{table.seconds:.0f} s"
            for table in done
        ),
        "memory": memory_bytes(os.getpid()),
        "delete_files": health.delete_files,
        "data_files": health.data_files,
        "snapshots": health.snapshots,
    }


def _read(keyed: KeyedTable) -> float:
    began = time.monotonic()
    spark, name = keyed.connections.spark(), keyed.connections.catalog.spark_name(keyed.spec.identifier)
    spark.sql(f"SELECT sum(value), max(text) FROM {name}").collect()
    return time.monotonic() - began


def _live(keyed: KeyedTable) -> dict[str, int]:
    """Return what Spark's heap holds behind a collection, and the resident memory of its JVM and of Python; bytes."""
    java = keyed.connections.spark()._jvm.java.lang
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    return {
        "heap": runtime.totalMemory() - runtime.freeMemory(),
        "jvm": resident_bytes(java.ProcessHandle.current().pid()),
        "python": resident_bytes(os.getpid()),
    }


@contextmanager
def _changing(keyed: KeyedTable, rate: float) -> Iterator[None]:
    """Change rows at a rate while the block runs."""
    chance, stop, count = random.Random(_SEED), threading.Event(), len(keyed.produced)

    def produce() -> None:
        began, sent = time.monotonic(), 0
        while not stop.wait(_TICK_SECONDS):
            due = int((time.monotonic() - began) * rate)
            for _ in range(sent, due):
                hot = chance.random() < _HOT_SHARE
                # Every fifth key is a hot one, so that they are in all files.
                keyed.send(chance.randrange(count // _HOT) * _HOT if hot else chance.randrange(count))
            sent = due

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
