"""Freshness while files are compacted: the same load without maintenance, and with a compaction each minute.

Another process compacts. The maintenance sensor requests one every 15 minutes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.snapshots import Operation

from benchmarks.freshness import Case, run_case
from benchmarks.ours import NAMESPACE
from benchmarks.results import document
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.tables import Totals, totals_of
from kafka_lake.errors import TableError
from kafka_lake.maintenance.maintain import Tables, maintain
from kafka_lake.orchestration.keys import MAINTENANCE_TAG
from kafka_lake.orchestration.resources import CatalogResource, SparkResource
from kafka_lake.orchestration.runs import dagster_at_hand
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable

_OFF = "{enabled: false}"
CASES = {
    "sensor": Case("sensor-driven, no compaction", 1, 6, 2000, maintenance=_OFF),
    "sensor-compacted": Case("sensor-driven, one beside it each minute", 1, 6, 2000, maintenance=_OFF),
}
_PAUSE = 60.0
HEADER = (
    "runs",
    "records",
    "p50",
    "p95",
    "p99",
    "max",
    "commits",
    "of these refused",
    "compactions",
    "of these refused",
    "CPU s per 100 s: Spark",
)
PAGE_HEADER = ("runs", "p50", "p95", "max", "commits", "commits refused", "compactions", "compactions refused")


@dataclass
class Compactor:
    """Compacts tables again and again, whenever there are two small files.

    Args:
        refused: Compactions that couldn't replace files, since others had changed them.
    """

    refused: int = 0

    def work(self, case: Case, stop: Event) -> None:
        """Go on until ``stop`` is set, on the Connect server of this process's environment."""
        resource = CatalogResource()
        catalog, spark = resource.open(), SparkResource(catalog=resource, spark_config={})
        tables = Tables(catalog, spark.live_session)
        settings = Maintenance(enabled=True, compact_every=2)
        try:
            while not stop.wait(_PAUSE):
                for name in case.names():
                    spec = TopicTable(name, NAMESPACE, name, maintenance=settings)
                    with suppress(NoSuchTableError):
                        self._compact(spec, tables)
        finally:
            spark.stop()

    def _compact(self, spec: TopicTable, tables: Tables) -> None:
        try:
            maintain(spec, tables)
        except TableError:
            self.refused += 1


def measure(
    seconds: float, warm_up: float, folder: Path, tell_user: Callable[[str], None], names: Sequence[str] = tuple(CASES)
) -> dict[str, Any]:
    """Run each case, and return the result as JSON has it."""
    found = []
    for name in names:
        case = CASES[name]
        compactor = Compactor()
        beside = [partial(compactor.work, case)] if name == "sensor-compacted" else []
        result = run_case(case, seconds, warm_up, folder / name, tell_user, beside=beside, look=_counts)
        found.append(result | {"compactions_refused": compactor.refused + result["failed_maintenance"]})
    return document("compaction", {"seconds": seconds, "warm_up": warm_up}, cases=found)


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return each case as the cells of a table, see `HEADER`."""
    return [
        (
            case["name"],
            f"{case['records']:,}",
            *(f"{case['seconds'][name]:.1f} s" for name in ("p50", "p95", "p99", "max")),
            *(f"{case[name]:,}" for name in ("commits", "refused", "compactions", "compactions_refused")),
            f"{case['cpu_seconds_per_100_s']['spark']:.0f}",
        )
        for case in result["cases"]
    ]


def page_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the benchmark's cases as the cells of a table, see `PAGE_HEADER`."""
    return [(row[0], *row[2:4], *row[5:10]) for row in rows(result)]


def _counts(catalog: LakeCatalog, case: Case) -> dict[str, int]:
    """Return the commits of a deployment's tables, those refused, the compactions, and the runs of them that failed."""
    found = Counter[str]()
    for name in case.names():
        table = catalog.table((NAMESPACE, name))
        assert table is not None, "all records are there"
        totals = totals_of(table) or Totals()
        operations = [
            snapshot.summary.operation for snapshot in table.metadata.snapshots if snapshot.summary is not None
        ]
        found += Counter(
            commits=totals.commits, refused=totals.refused, compactions=operations.count(Operation.REPLACE)
        )
    with dagster_at_hand() as instance:
        failed = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    maintenance = sum(MAINTENANCE_TAG in run.tags for run in failed)
    return {name: found[name] for name in ("commits", "refused", "compactions")} | {"failed_maintenance": maintenance}
