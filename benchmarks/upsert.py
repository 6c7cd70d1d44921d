"""Changes into a keyed table: what a merge costs, of recent keys and of keys at random, and each row in the end.

The table is filled once; then, batch after batch, changes are produced and a run merges them. Time and CPU are those of
the run alone, with Spark in this process. In the end the table is read by PyIceberg and compared with what was
produced, row by row.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.keyed import TEXT_KEY, KeyedTable, keyed_table, own_cpu
from benchmarks.ours import NAMESPACE, Engine
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.errors import KafkaLakeError

HEADER = ("of keys", "changes", "seconds", "changes/s", "CPU-seconds", "changes per CPU-second", "rows", "differing")
PAGE_HEADER = ("rows of the table", "keys", "changes", "changes per CPU-s", "CPU-s", "s")
NAME = "upsert"
_SEED = 17
_RECENT = 20
KINDS = {"recent": "the newest 5%", "random": "random"}


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    rows: int
    changes: int = 100_000
    batches: int = 3
    engine: Engine = field(default_factory=Engine)
    through_kafka: bool = True
    peer: bool = False
    text_keys: bool = False


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Fill the table, change it, and return the result as JSON has it."""
    batches = []
    name, key = f"{NAME}-{settings.rows}", ("id",)
    if settings.text_keys:
        name, key = f"{name}-texts", TEXT_KEY
    with scratch() as folder, keyed_table(folder, settings.rows, settings.engine, {}, key=key) as keyed:
        tell_user(f"filling a table of {settings.rows:,} rows")
        if settings.through_kafka:
            keyed.produce(range(settings.rows))
            batches.append(_merged(keyed, "all, new", settings.rows))
        else:
            keyed.fill()
        for kind, keys in keys_of(settings):
            batches.append(changed(keyed, kind, keys))
            tell_user(f"{kind} keys: {batches[-1]['seconds']:.1f} s")
        differing = keyed.differing()
        if settings.peer:
            batches += _by_pyiceberg(keyed, settings, tell_user)
        return document(name, asdict(settings), batches=batches, differing=differing)


def keys_of(settings: Settings) -> Iterator[tuple[str, list[int]]]:
    """Yield the kind and the keys of each batch."""
    chance = random.Random(_SEED)
    for kind in ["random"] if settings.text_keys else KINDS:
        first = settings.rows - max(1, settings.rows // _RECENT) if kind == "recent" else 0
        for _ in range(settings.batches):
            yield kind, [chance.randrange(first, settings.rows) for _ in range(settings.changes)]


def changed(keyed: KeyedTable, kind: str, keys: Sequence[int]) -> dict[str, Any]:
    """Produce a batch of changes, and return what its merge cost."""
    keyed.produce(keys)
    return _merged(keyed, kind, len(keys))


def _by_pyiceberg(keyed: KeyedTable, settings: Settings, tell_user: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Upsert rows that are in memory already, into a plain table: PyIceberg at its best."""
    numbers, chance = np.arange(settings.rows), np.random.default_rng(_SEED)

    def rows_of(keys: Any, value: int) -> pa.Table:
        texts = pa.array([f"{key:0100d}" for key in keys.tolist()], pa.string())
        return pa.table({"id": keys, "value": np.full(len(keys), value), "text": texts})

    table = keyed.connections.catalog.pyiceberg.create_table((NAMESPACE, "peer"), rows_of(numbers[:0], 0).schema)
    table.append(rows_of(numbers, 0))
    expected = np.zeros(settings.rows, dtype=np.int64)
    for number in range(settings.batches):
        keys = chance.choice(settings.rows, settings.changes, replace=False)
        changes = rows_of(keys, number + 1)
        expected[keys] = number + 1
        began, cpu = time.monotonic(), own_cpu()
        table.upsert(changes, ["id"])
        batch = {"keys": "random, by PyIceberg", "changes": settings.changes}
        yield {**batch, "seconds": time.monotonic() - began, "cpu_seconds": own_cpu() - cpu}
        tell_user(f"random keys by PyIceberg, batch {number + 1}: {time.monotonic() - began:.1f} s")
    found = table.scan(selected_fields=("id", "value")).to_arrow().sort_by("id")
    if not np.array_equal(found["value"].to_numpy(), expected):
        raise KafkaLakeError("PyIceberg's table is not what was upserted.")


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of the table that the terminal shows."""
    return [
        (
            measured["keys"],
            f"{measured['changes']:,}",
            f"{measured['seconds']:.1f}",
            f"{measured['changes'] / measured['seconds']:,.0f}",
            f"{measured['cpu_seconds']:.1f}",
            f"{measured['changes'] / measured['cpu_seconds']:,.0f}",
            f"{result['settings']['rows']:,}",
            f"{result['differing']:,}",
        )
        for measured in result["batches"]
    ]


def page_rows(results: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the medians of each table and kind of keys as the cells of a table, see `PAGE_HEADER`."""
    found: list[tuple[str, ...]] = []
    for result in results:
        kinds = {"random": "random texts of 32 characters"} if result["settings"].get("text_keys") else KINDS
        for kind, of_keys in kinds.items():
            batches = [batch for batch in result["batches"] if batch["keys"] == kind]
            cpu, seconds = (statistics.median(batch[name] for batch in batches) for name in ("cpu_seconds", "seconds"))
            changes = result["settings"]["changes"]
            figures = (f"{changes:,}", f"{changes / cpu:,.0f}", f"{cpu:.1f}", f"{seconds:.1f}")
            found.append((f"{result['settings']['rows']:,}", of_keys, *figures))
    return found


def _merged(keyed: KeyedTable, keys: str, changes: int) -> dict[str, Any]:
    began, cpu = time.monotonic(), own_cpu()
    keyed.ingest(f"bench-{keys.replace(', ', '-')}")
    return {"keys": keys, "changes": changes, "seconds": time.monotonic() - began, "cpu_seconds": own_cpu() - cpu}
