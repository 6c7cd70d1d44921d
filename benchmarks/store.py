"""Commits to an object store: its requests, and their time if each one takes 30 ms more, beside local files."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.data import ORDERS, fill
from benchmarks.ours import NAMESPACE, Engine
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.devstack.servers import BUCKET, EmbeddedBroker, EmbeddedObjectStore
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.contract.counting import Requests, connections_of, counted_store

HEADER = ("commit", "S3, SQLite catalog", "S3, REST catalog", "local files, SQLite")
_WRITES: Mapping[str, Mapping[str, Any]] = {"append": {}, "upsert": {"write": "upsert", "key": ("order_id",)}}


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    records: int = 400
    commits: int = 10
    warm_up: int = 4
    delay_ms: int = 30
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Commit small batches to files and to S3, and return the result as JSON has it."""
    cases = []
    with (
        scratch() as folder,
        EmbeddedBroker(folder / "broker", heap="512m") as broker,
        EmbeddedObjectStore(folder / "store") as store,
        counted_store(store.endpoint) as asked,
    ):
        asked.delay = settings.delay_ms / 1000
        s3 = {**store.s3_properties(), "s3.endpoint": asked.uri}
        places = {
            ("S3", "SQLite"): {**_sqlite(f"{folder}/s3.db", f"s3://{BUCKET}/bench"), **s3},
            ("S3", "REST"): {**store.catalog_properties(), **s3},
            # The last, when Java is warm.
            ("local", "SQLite"): _sqlite(f"{folder}/files.db", f"file://{folder}/warehouse"),
        }
        kafka = KafkaResource(properties={"bootstrap.servers": broker.bootstrap_servers})
        catalog = CatalogResource(name="lake", properties=places["S3", "SQLite"])
        spark = SparkResource(spark_config=settings.engine.spark_config(), catalog=catalog)
        try:
            for (files, kind), properties in places.items():
                for write in _WRITES:
                    connect = connections_of(properties, kafka, spark)
                    medians = _medians(settings, write, broker.bootstrap_servers, connect, asked)
                    cases.append({"files": files, "catalog": kind, "write": write, **medians})
                    tell_user(
                        f"{files}, {kind}, {write}: {medians['requests']:.0f} requests, {medians['seconds']:.1f} s"
                    )
        finally:
            spark.stop()
    return document("store", asdict(settings), cases=cases)


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    cells: dict[str, list[str]] = {write: [] for write in _WRITES}
    for case in result["cases"]:
        requests = f"{case['requests']:.0f} requests, " if case["files"] == "S3" else ""
        cells[case["write"]].append(f"{requests}{case['seconds']:.1f} s")
    return [(write, *found) for write, found in cells.items()]


def _sqlite(database: str, warehouse: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": warehouse}


def _medians(
    settings: Settings, write: str, bootstrap: str, connect: Callable[[], Any], asked: Requests
) -> dict[str, Any]:
    spec = TopicTable(ORDERS.name, NAMESPACE, write, schema=ORDERS.ddl, **_WRITES[write])
    found = []
    for number in range(settings.warm_up + settings.commits):
        fill(bootstrap, ORDERS, settings.records)
        connections = connect()
        asked.clear()
        began = time.monotonic()
        ingest(spec, connections, f"store-{number}")
        seconds, methods = time.monotonic() - began, Counter(method for method, _ in asked.seen)
        if number >= settings.warm_up:
            gets, puts = methods.pop("GET", 0), methods.pop("PUT", 0)
            found.append(
                {"seconds": seconds, "requests": len(asked.seen), "GET": gets, "PUT": puts, "other": methods.total()}
            )
    return {name: statistics.median(commit[name] for commit in found) for name in found[0]}
