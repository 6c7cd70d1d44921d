"""Tables from tables: whatever happens to the upstream table, a derived one is what its query gives for it."""

from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.engine import Engine
from kafka_lake.derive.run import derive
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.ingest.run import ingest
from kafka_lake_tests.conftest import NAMESPACE, Topic

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
SCHEMA = "id bigint, store string, total double, at timestamp"


def engine(connections: NewConnections, run_id: str, observer: Observer | None = None) -> Engine:
    made = connections()
    return Engine(made.catalog, made.spark, run_id, observer or Observer(), RetryPolicy(attempts=1))


def rows(connections: NewConnections, spec: DerivedTable) -> list[dict[str, Any]]:
    table = connections().catalog.table(spec.identifier)
    assert table is not None
    return table.scan().to_arrow().to_pylist()


def test_first(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic(2)
    spec = topic.spec(SCHEMA)
    for n in range(10):
        topic.send({"id": n, "store": f"s{n % 3}", "total": n * 1.0, "at": f"2026-01-01T0{n % 5}:30:00Z"}, n % 2)
    ingest(spec, connections(), "run-1")
    big = DerivedTable(table=f"{topic.table}_big", namespace=NAMESPACE, sources=(topic.table,), write="append",
        sql=f"SELECT id, store, total, at FROM {topic.table} WHERE id <> 3")
    hourly = DerivedTable(table=f"{topic.table}_h", namespace=NAMESPACE, sources=(big.table,), write="aggregate",
        key={"hour": "date_trunc('hour', at)", "store": "store"},
        sql=f"SELECT date_trunc('hour', at) AS hour, store, sum(total) AS revenue, count(*) AS orders FROM {big.table} GROUP BY ALL")
    newest = DerivedTable(table=f"{topic.table}_n", namespace=NAMESPACE, sources=(topic.table,), write="upsert", key={"store": "store"}, order_by=("total",),
        sql=f"SELECT store, id, total FROM {topic.table}")
    whole = DerivedTable(table=f"{topic.table}_w", namespace=NAMESPACE, sources=(topic.table,), write="replace",
        sql=f"SELECT store, count(*) n FROM {topic.table} GROUP BY store ORDER BY n DESC")
    for s in (big, hourly, newest, whole):
        print(derive(s, engine(connections, "d-1")))
        print(rows(connections, s)[:3])
    for n in range(10, 14):
        topic.send({"id": n, "store": f"s{n % 3}", "total": n * 1.0, "at": f"2026-01-01T0{n % 5}:30:00Z"}, n % 2)
    ingest(spec, connections(), "run-2")
    for s in (big, hourly, newest, whole):
        print(derive(s, engine(connections, "d-2")))
        print([{k: v for k, v in r.items() if k != "_kafka"} for r in rows(connections, s)])
        print(derive(s, engine(connections, "d-3")))
