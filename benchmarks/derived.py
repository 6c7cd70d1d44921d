"""What derived tables cost: a chain of three below a topic's table, everything first, then a hundredth of new rows."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.data import SMALL, Topic, fill
from benchmarks.ours import NAMESPACE, Engine, Moment, asked, catalog_in, measured, task_of
from benchmarks.results import document
from benchmarks.throughput import scratch
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.derived.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine as Deriving
from kafka_lake.derived.run import derive
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections, Observer, RetryPolicy
from kafka_lake.spec.topic_table import TopicTable

TOPIC = TopicTable(SMALL.name, NAMESPACE, "orders", schema=SMALL.ddl)
HOUR = "date_trunc('hour', date_ordered)"
BIG = DerivedTable(
    table="big",
    namespace=NAMESPACE,
    sources=("orders",),
    write="append",
    sql="SELECT order_id, store_id, total_price, date_ordered FROM orders WHERE total_price >= 10",
)
HOURLY = DerivedTable(
    table="hourly",
    namespace=NAMESPACE,
    sources=("big",),
    write="aggregate",
    key={"hour": HOUR, "store_id": "store_id"},
    sql=f"SELECT {HOUR} AS hour, store_id, sum(total_price) AS revenue, count(*) AS orders FROM big GROUP BY ALL",
)
BEST = DerivedTable(
    table="best",
    namespace=NAMESPACE,
    sources=("hourly",),
    write="replace",
    sql="SELECT store_id, max(revenue) AS best_hour, sum(orders) AS orders FROM hourly GROUP BY store_id",
)
CHAIN = (BIG, HOURLY, BEST)
STEPS = ("ingest", *(each.table for each in CHAIN))
PASSES = ("everything", "a hundredth more", "nothing new")
HEADER = ("pass", "table", "seconds", "CPU-s", "rows that came", "upstream rows", "verified")


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        records: In the topic at first; a hundredth comes then.
        engine: How Spark is set up.
    """

    records: int
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Make a topic, ingest it and derive a chain of tables from it, twice, and return the result as JSON has it.

    Args:
        settings: What is measured.
        tell_user: Called with a line of progress.

    Raises:
        KafkaLakeError: If a run fails, or a table isn't what a plain computation gives.
    """
    result = document("derived", asdict(settings))
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        assert broker.pid is not None
        tell_user(f"producing {settings.records:,} records")
        topic = fill(broker.bootstrap_servers, SMALL, settings.records)
        task = task_of(broker.bootstrap_servers, broker.pid, topic, engine=settings.engine, folder=folder)
        task |= {"more": max(1000, settings.records // 100), "told": str(folder / "told.json")}
        names = [(each, step) for each in PASSES for step in STEPS]
        repeats = measured("benchmarks.derived", task, folder / "engine.log", len(names), "A derived table failed.")
        told = json.loads((folder / "told.json").read_text())
        verify(catalog_in(folder).open())
    steps = [
        {"pass": name, "table": step, **asdict(repeat), **more}
        for (name, step), repeat, more in zip(names, repeats, told, strict=True)
    ]
    return {**result, "steps": steps}


def verify(catalog: LakeCatalog) -> None:
    """Compare the last table of the chain, and the one before it, with what DuckDB computes from the first.

    Raises:
        KafkaLakeError: If one has other rows.
    """
    # Not above: what is measured imports this module and computes nothing.
    import duckdb

    def rows(table: str) -> Any:
        found = catalog.table((NAMESPACE, table))
        assert found is not None, "it was derived"
        return found.scan().to_arrow()

    with duckdb.connect() as connection:
        for table in ("orders", "hourly", "best"):
            connection.register(table, rows(table))
        hours = (
            "SELECT date_trunc('hour', date_ordered) AS hour, store_id, round(sum(total_price), 2) AS revenue, "
            "count(*) AS orders FROM orders WHERE total_price >= 10 GROUP BY ALL"
        )
        best = f"SELECT store_id, max(revenue) AS best_hour, sum(orders) AS orders FROM ({hours}) GROUP BY ALL"
        of_hours = "SELECT hour, store_id, round(revenue, 2), orders FROM hourly"
        of_best = "SELECT store_id, round(best_hour, 2), orders FROM best"
        for table, expected, found in (("hourly", hours, of_hours), ("best", best, of_best)):
            both = (f"({one}) EXCEPT ALL ({other})" for one, other in ((expected, found), (found, expected)))
            others = connection.execute(f"SELECT count(*) FROM (({') UNION ALL ('.join(both)}))").fetchone()
            if others != (0,):
                raise KafkaLakeError(f"Table {table}: {others} rows are others than those of a plain computation.")


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows, one for each run."""
    return [
        (
            each["pass"],
            each["table"],
            f"{each['seconds']:.1f}",
            f"{each['cpu_seconds']:.1f}",
            f"{each['came']:,}",
            f"{each['upstream']:,}" if each["upstream"] else "",
            f"{each['verified']:,}" if each["upstream"] else "",
        )
        for each in result["steps"]
    ]


def main() -> None:
    """Do what the one argument says, a repeat's JSON a line; the process that is measured."""
    with asked() as it:
        topic = Topic(SMALL, it.task["records"], it.task["size"])
        told: list[dict[str, int]] = []
        for number, _ in enumerate(PASSES):
            if number == 1:
                fill(it.task["bootstrap"], SMALL, it.task["more"])
            for step in STEPS:
                begin = Moment.now(os.getpid(), it.task["broker"])
                told.append(
                    _ingested(it.connections, number) if step == "ingest" else _derived(it.connections, step, number)
                )
                it.tell(Moment.now(os.getpid(), it.task["broker"]).since(begin, topic))
        Path(it.task["told"]).write_text(json.dumps(told))


def _ingested(connections: Connections, number: int) -> dict[str, int]:
    report = ingest(TOPIC, connections, f"bench-{number}")
    return {"came": report.total("rows"), "upstream": 0, "verified": 0}


def _derived(connections: Connections, step: str, number: int) -> dict[str, int]:
    spec = next(each for each in CHAIN if each.table == step)
    engine = Deriving(connections.catalog, connections.spark, f"bench-{step}-{number}", Observer(), RetryPolicy())
    report = derive(spec, engine)
    upstream = sum(each.rows for each in report.upstream.values())
    return {"came": report.rows, "upstream": upstream, "verified": report.verified}


if __name__ == "__main__":
    main()
