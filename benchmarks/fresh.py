"""Fresh reads: how long after a record was produced a query sees it, and what reading an unread tail takes.

A producer writes at a rate, a run commits every few seconds, and a reader queries again and again, all in this process.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.data import SMALL, values
from benchmarks.freshness import Ledger, histogram, in_thread, percentiles, produce
from benchmarks.ours import NAMESPACE, Engine, catalog_in
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.catalog.positions import read_state
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.fresh.table import FreshTable
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

HEADER = ("what", "records", "p50 s", "p95 s", "max s")
_PARTITIONS = 6
_VISIBLE = "SELECT _kafka.partition, max(_kafka.offset) + 1 FROM this GROUP BY ALL"
_SUM = "SELECT count(*), sum(order_id) FROM this"


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        seconds: How long records are produced and queried.
        rate: Records per second.
        every: Seconds between commits.
        tail: Unread records of a read.
        repeats: Reads of such a tail.
    """

    seconds: float = 60
    rate: float = 2000
    every: float = 5
    tail: int = 50_000
    repeats: int = 5
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Measure, and return the result as JSON has it."""
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        catalog = catalog_in(folder)
        kafka = KafkaResource(properties={"bootstrap.servers": broker.bootstrap_servers})
        spark = SparkResource(spark_config=settings.engine.spark_config(), catalog=catalog)
        connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
        try:
            seen = _freshness(settings, broker.bootstrap_servers, connections, tell_user)
            tails = [
                _tail(settings, broker.bootstrap_servers, connections, write=write) for write in ("append", "upsert")
            ]
        finally:
            spark.stop()
    return document("fresh", asdict(settings), cases=[*seen, *(case for cases in tails for case in cases)])


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows."""
    return [
        (case["name"], f"{case['records']:,}", *(f"{case['seconds'][name]:.2f}" for name in ("p50", "p95", "max")))
        for case in result["cases"]
    ]


def _spec(bootstrap: str, topic: str, **settings: Any) -> TopicTable:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result(20)
    return TopicTable(topic, NAMESPACE, topic.replace("-", "_"), schema=SMALL.ddl, **settings)


def _freshness(
    settings: Settings, bootstrap: str, connections: Connections, tell_user: Callable[[str], None]
) -> list[dict[str, Any]]:
    spec, ledger, queries = _spec(bootstrap, "fresh"), Ledger(_PARTITIONS), list[float]()
    committed = Ledger(_PARTITIONS)
    committed.produced = ledger.produced
    _send(bootstrap, spec.topic, 0, 100)
    ingest(spec, connections, "first")
    first = connections.cluster.watermarks_of(spec.topic).end

    def commit(stop: threading.Event) -> None:
        for number in count():
            began = time.monotonic()
            ingest(spec, connections, f"run-{number}")
            table = connections.catalog.table(spec.identifier)
            position = read_state(table).position if table else None
            ends = position.offsets if position else {}
            committed.see({p: ends.get(p, 0) - first.get(p, 0) for p in range(_PARTITIONS)}, time.monotonic())
            if stop.wait(max(0.0, settings.every - (time.monotonic() - began))):
                return

    def query(stop: threading.Event) -> None:
        with FreshTable(spec, connections) as table:
            while not stop.is_set() or not ledger.complete():
                began = time.monotonic()
                found = table.query(_VISIBLE)
                now = time.monotonic()
                queries.append(now - began)
                ends = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
                ledger.see({p: ends.get(p, 0) - first.get(p, 0) for p in range(_PARTITIONS)}, now)

    with (
        in_thread(query),
        in_thread(commit),
        in_thread(lambda stop: produce(bootstrap, spec.topic, ledger, settings.rate, stop)),
    ):
        tell_user(f"{settings.rate:,.0f} records a second, a commit every {settings.every:g} s")
        time.sleep(5)
        began = time.monotonic()
        time.sleep(settings.seconds)
        ended = time.monotonic()

    def case(name: str, seen: Ledger) -> dict[str, Any]:
        waits = sorted(seen.waits(began, ended))
        return {"name": name, "records": len(waits), "seconds": percentiles(waits), "histogram": histogram(waits)}

    return [
        case("produced to seen by a fresh read", ledger),
        case("produced to committed", committed),
        {"name": "one query meanwhile", "records": len(queries), "seconds": percentiles(sorted(queries))},
    ]


def _send(bootstrap: str, topic: str, first: int, number: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for index, value in enumerate(values(SMALL, first + number)):
        if index >= first:
            producer.produce(topic, value, partition=index % _PARTITIONS)
    producer.flush(60)


def _tail(settings: Settings, bootstrap: str, connections: Connections, *, write: Any) -> list[dict[str, Any]]:
    """Read a tail again and again: by a new consumer, and by one that has read up to the tail before."""
    keyed: dict[str, Any] = {"write": "upsert", "key": ("order_id",)} if write == "upsert" else {}
    spec = _spec(bootstrap, f"tail-{write}", **keyed)
    _send(bootstrap, spec.topic, 0, settings.tail)
    ingest(spec, connections, "first")
    warm, cold = list[float](), list[float]()
    with FreshTable(spec, connections) as table:
        table.query(_SUM)
        for number in range(settings.repeats):
            _send(bootstrap, spec.topic, settings.tail * (number + 1), settings.tail)
            for times, read in ((warm, table.query), (cold, lambda sql: _once(spec, connections, sql))):
                began = time.monotonic()
                (total,) = read(_SUM).column(0).to_pylist()
                times.append(time.monotonic() - began)
                assert total == settings.tail * (number + 2), f"{total} rows"
            ingest(spec, connections, f"run-{number}")
            table.query(_SUM)
    return [
        {"name": f"{write}, {kind}", "records": settings.tail, "seconds": percentiles(sorted(times))}
        for kind, times in (("table kept open", warm), ("table just opened", cold))
    ]


def _once(spec: TopicTable, connections: Connections, sql: str) -> Any:
    with FreshTable(spec, connections) as table:
        return table.query(sql)
