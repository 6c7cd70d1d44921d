"""Days of commits, by a fast writer: does a table that is maintained stay as quick as it was?

Each commit appends a file of a few rows, by PyIceberg. After as many as a continuous run makes in the five minutes
between two looks of the sensor, the table is maintained by its settings. What a commit takes, what the planning of a
query takes, and what the table has are taken down along the way; in the end the rows are counted.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from benchmarks.ours import Engine, catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.maintenance.maintain import maintain
from kafka_lake.ingest.maintenance.tables import Tables
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.planning import planning_of
from kafka_lake.lake.positions import POSITION
from kafka_lake.lake.tables.create import ensure_table, schema_of

HEADER = (
    "commits",
    "a commit, median ms",
    "95 % ms",
    "planning, ms",
    "data files",
    "manifests",
    "snapshots",
    "metadata, KiB",
    "maintenance so far, s",
)
_SPEC = TopicTable("clicks", "bench", "clicks")
_ROWS = 10


@dataclass(frozen=True)
class Settings:
    """What is simulated.

    Args:
        commits: How many.
        every: Commits between two looks at the table.
        samples: How often the table is measured.
        engine: Spark, for the maintenance.
    """

    commits: int
    every: int
    samples: int
    engine: Engine


def measure(settings: Settings, tell: Callable[[str], object]) -> dict[str, Any]:
    """Return what was measured.

    Args:
        settings: What is simulated.
        tell: Is told of each sample.
    """
    with scratch() as folder:
        resource = catalog_in(folder)
        spark = SparkResource(spark_config=settings.engine.spark_config(), catalog=resource)
        try:
            tables = Tables(resource.open(), lambda: spark.spark_session, "bench")
            return document("maintenance", asdict(settings)) | _measured(settings, tables, tell)
        finally:
            spark.stop()


def _measured(settings: Settings, tables: Tables, tell: Callable[[str], object]) -> dict[str, Any]:
    catalog, identity = tables.catalog, TopicIdentity("bench", "id", _SPEC.topic)
    catalog.ensure_namespace(_SPEC.namespace)
    rows = pa.table({"id": pa.array(range(_ROWS), pa.int64())})
    ensure_table(catalog, _SPEC.identifier, schema_of(rows.schema))
    samples, took, maintained = list[dict[str, float]](), list[float](), 0.0
    for number in range(1, settings.commits + 1):
        began = time.perf_counter()
        position = Position(identity, {0: number * _ROWS})
        _table(catalog).append(rows, snapshot_properties={POSITION: position.to_json()})
        took.append(time.perf_counter() - began)
        if number % settings.every == 0:
            maintained += sum(each.seconds for each in maintain(_SPEC, tables))
        if number % max(1, settings.commits // settings.samples) == 0:
            samples.append(_sample(_table(catalog), number, took) | {"maintained": maintained})
            tell(f"{number:,} of {settings.commits:,} commits: {samples[-1]['commit'] * 1000:.0f} ms each")
            took = []
    return {"samples": samples, "rows": _table(catalog).scan().count(), "expected": settings.commits * _ROWS}


def _table(catalog: LakeCatalog) -> Table:
    table = catalog.table(_SPEC.identifier)
    assert table is not None, "it was made here"
    return table


def _sample(table: Table, number: int, took: Sequence[float]) -> dict[str, float]:
    planning = planning_of(table)
    return {
        "commits": number,
        "commit": statistics.median(took),
        "commit_95": sorted(took)[int(len(took) * 0.95)],
        "planning": planning.seconds or 0.0,
        "files": len(list(table.scan().plan_files())),
        "manifests": planning.manifests,
        "snapshots": len(table.metadata.snapshots),
        "metadata": len(table.io.new_input(table.metadata_location)),
    }


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a result as lines of a table."""
    return [
        (
            f"{each['commits']:,}",
            f"{each['commit'] * 1000:.0f}",
            f"{each['commit_95'] * 1000:.0f}",
            f"{each['planning'] * 1000:.0f}",
            f"{each['files']:,}",
            f"{each['manifests']:,}",
            f"{each['snapshots']:,}",
            f"{each['metadata'] / 1024:,.0f}",
            f"{each['maintained']:.0f}",
        )
        for each in result["samples"]
    ]
