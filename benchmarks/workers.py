"""Standalone Spark clusters of 1, 2 and 4 workers of one core each: records per second and CPU of all their processes.

The topic has twelve partitions. Runs are warm: the first two of each cluster aren't counted.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import ours
from benchmarks.data import ORDERS, fill
from benchmarks.ours import Engine
from benchmarks.results import Series, as_json, document, is_exact
from benchmarks.throughput import scratch
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import KafkaLakeError
from kafka_lake_tests.contract.spark_cluster.standalone import standalone_cluster

HEADER = ("workers", "records", "records/s", "relative to one worker", "records per CPU-s", "s")
_WORKERS = (1, 2, 4)
_WARM_UP = 2
_PARTITIONS = 12


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int
    repeats: int = 3


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Ingest the same topic by each cluster, and return the result as JSON has it."""
    # Executors have a Python of their own.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made, series = document("workers", asdict(settings)), list[Series]()
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        tell_user(f"producing {settings.records:,} records")
        assert broker.pid is not None
        topic = fill(broker.bootstrap_servers, replace(ORDERS, partitions=_PARTITIONS), settings.records)
        for count in _WORKERS:
            with standalone_cluster(folder / f"cluster-{count}", count) as (master, _):
                # The workers are children of this process, as the broker is, whose share is subtracted.
                engine = Engine(conf={"spark.master": master, "spark.executor.memory": "512m"})
                repeats = ours.cold_and_warm(
                    broker.bootstrap_servers,
                    broker.pid,
                    topic,
                    engine,
                    folder / f"tables-{count}",
                    _WARM_UP - 1 + settings.repeats,
                    contender=os.getpid(),
                )[_WARM_UP:]
            repeats = [
                replace(repeat, cpu_seconds=repeat.cpu_seconds - repeat.broker_cpu_seconds) for repeat in repeats
            ]
            if not all(map(is_exact, map(asdict, repeats))):
                raise KafkaLakeError(f"{count} workers: rows are missing or there twice.", str(repeats))
            series.append(Series(str(count), topic.shape.name, "warm", tuple(repeats)))
            tell_user(f"{count} workers: {series[-1].median()['records_per_second']:,.0f} records/s")
    return {**made, "series": as_json(series)}


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the medians of each cluster as the cells of a table, see `HEADER`."""
    alone = result["series"][0]["median"]["records_per_second"]
    return [
        (
            item["contender"],
            f"{item['median']['records']:,.0f}",
            f"{item['median']['records_per_second']:,.0f}",
            f"{item['median']['records_per_second'] / alone:.2f}",
            f"{item['median']['records_per_cpu_second']:,.0f}",
            f"{item['median']['seconds']:.1f}",
        )
        for item in result["series"]
    ]
