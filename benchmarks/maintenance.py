"""Days of commits, by a fast writer: does a table that is maintained stay as quick as it was?

Each commit appends a file of a few rows. After as many as a continuous run makes in the quarter of an hour that the
sensor leaves a table alone, it is maintained by its settings. Before each measurement some commits are made by
PyIceberg, as ours are, and timed; all others by a writer that is as fast as Iceberg. What a commit takes, what the
planning of a query takes, and what the table has are taken down along the way; in the end the rows are counted.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from benchmarks.fast_commits import FastWriter
from benchmarks.ours import Engine, catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.maintenance.maintain import Tables, maintain
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.spec.topic_table import TopicTable

HEADER = (
    "commits",
    "a commit, median ms",
    "95 % ms",
    "its CPU, ms",
    "planning, ms",
    "its CPU, ms",
    "data files",
    "manifests",
    "snapshots",
    "metadata, KiB",
    "maintenance so far, s",
)
PAGE_HEADER = ("commits", "CPU of a commit, ms", "CPU of planning a scan, ms", "data files", "snapshots")
_SPEC = TopicTable("clicks", "bench", "clicks")
_ROWS = 10
# Of these the time is taken.
_TIMED = 15


@dataclass(frozen=True)
class Settings:
    """What is simulated."""

    commits: int
    minutes: float
    every: int
    samples: int
    engine: Engine


def measure(settings: Settings, tell: Callable[[str], object]) -> dict[str, Any]:
    """Return what was measured."""
    with scratch() as folder:
        resource = catalog_in(folder)
        spark = SparkResource(spark_config=settings.engine.spark_config(), catalog=resource)
        try:
            tables = Tables(resource.open(), lambda: spark.spark_session)
            return document("maintenance", asdict(settings)) | _measured(settings, tables, tell)
        finally:
            spark.stop()


def _measured(settings: Settings, tables: Tables, tell: Callable[[str], object]) -> dict[str, Any]:
    catalog, identity = tables.catalog, TopicIdentity("bench", "id", _SPEC.topic)
    catalog.ensure_namespace(_SPEC.namespace)
    rows = pa.table({"id": pa.array(range(_ROWS), pa.int64())})
    ensure_table(catalog, _SPEC.identifier, schema_of(rows.schema))
    samples, maintained, committed = list[dict[str, float]](), 0.0, 0
    _timed_commits(catalog, rows, identity, 0, 1)
    writer = FastWriter(tables.spark(), catalog.name, _table(catalog))
    committed, end = 1, time.monotonic() + settings.minutes * 60
    step = max(_TIMED + 1, settings.commits // settings.samples)
    while committed < settings.commits and time.monotonic() < end:
        committed += 1
        if timed := committed % step == step - _TIMED:
            took = _timed_commits(catalog, rows, identity, committed, _TIMED)
            committed += _TIMED - 1
            samples.append(_sample(_table(catalog), committed, took) | {"maintained": maintained})
            tell(f"{committed:,} of {settings.commits:,} commits: {samples[-1]['commit'] * 1000:.0f} ms each")
        else:
            writer.commit({POSITION: Position(identity, {0: committed * _ROWS}).to_json()})
        if committed % settings.every == 0 or (timed and committed % settings.every < _TIMED):
            maintained += sum(done.seconds for done in maintain(_SPEC, tables))
            writer.refresh()
    return {"samples": samples, "rows": _table(catalog).scan().count(), "expected": committed * _ROWS}


def _timed_commits(
    catalog: LakeCatalog, rows: pa.Table, identity: TopicIdentity, number: int, count: int
) -> list[tuple[float, float]]:
    """Make some commits by PyIceberg, and return the seconds and CPU seconds of each."""
    took = []
    for commit in range(number, number + count):
        began, cpu = time.perf_counter(), time.process_time()
        position = Position(identity, {0: commit * _ROWS})
        _table(catalog).append(rows, snapshot_properties={POSITION: position.to_json()})
        took.append((time.perf_counter() - began, time.process_time() - cpu))
    return took


def _table(catalog: LakeCatalog) -> Table:
    table = catalog.table(_SPEC.identifier)
    assert table is not None, "it was made here"
    return table


def _sample(table: Table, number: int, took: Sequence[tuple[float, float]]) -> dict[str, float]:
    began, cpu = time.perf_counter(), time.process_time()
    files = len(list(table.scan().plan_files()))
    planning, planning_cpu = time.perf_counter() - began, time.process_time() - cpu
    snapshot = table.current_snapshot()
    seconds = sorted(item for item, _ in took)
    return {
        "commits": number,
        "commit": statistics.median(seconds),
        "commit_95": seconds[int(len(seconds) * 0.95)],
        "commit_cpu": statistics.median(item for _, item in took),
        "planning": planning,
        "planning_cpu": planning_cpu,
        "files": files,
        "manifests": len(snapshot.manifests(table.io)) if snapshot else 0,
        "snapshots": len(table.metadata.snapshots),
        "metadata": len(table.io.new_input(table.metadata_location)),
    }


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a result as lines of a table."""
    return [
        (
            f"{part['commits']:,}",
            f"{part['commit'] * 1000:.0f}",
            f"{part['commit_95'] * 1000:.0f}",
            f"{part['commit_cpu'] * 1000:.0f}",
            f"{part['planning'] * 1000:.0f}",
            f"{part['planning_cpu'] * 1000:.0f}",
            f"{part['files']:,}",
            f"{part['manifests']:,}",
            f"{part['snapshots']:,}",
            f"{part['metadata'] / 1024:,.0f}",
            f"{part['maintained']:.0f}",
        )
        for part in result["samples"]
    ]


def page_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's growth in a few lines, see `PAGE_HEADER`."""
    found = rows(result)
    return [(row[0], row[3], row[5], row[6], row[8]) for row in (found[0], found[len(found) // 2], found[-1])]
