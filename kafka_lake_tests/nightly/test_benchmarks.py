"""Each benchmark with a handful of records: that it counts, verifies, writes and draws; never how fast.

The peers need jars and processes of their own: `make bench-peers N=20000 REPEATS=1` and
`make bench-anchors N=20000 REPEATS=1` are their smoke, by hand.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from benchmarks import backlog, backlog_tables, compaction, freshness, ours, results, soak
from benchmarks.chart import draw
from benchmarks.data import DIRTY, ORDERS, SMALL, Topic, fill
from benchmarks.dirty import said
from benchmarks.limits import limit
from benchmarks.results import DIRTY_HEADER, HEADER, Series, as_json, dirty_rows, document, throughput_rows
from examples.pizza_shop.topics import ensure_topic
from kafka_lake.common.processes import free_port
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

pytestmark = pytest.mark.integration

RECORDS = 2000


@pytest.fixture(scope="module")
def topic(broker: EmbeddedBroker) -> Topic:
    return fill(broker.bootstrap_servers, ORDERS, RECORDS)


def test_throughput_is_counted_verified_written_and_drawn(
    broker: EmbeddedBroker,
    topic: Topic,
    connections: Callable[[], Connections],
    catalog_resource: CatalogResource,
    tmp_path: Path,
) -> None:
    assert broker.pid is not None
    catalog = catalog_resource.open()
    done = ours.ingest_once(connections(), topic, "smoke", None, broker.pid)
    repeat = ours.verified(done, catalog, "smoke")
    assert (repeat.rows, repeat.duplicates, repeat.commits > 0, repeat.files > 0) == (RECORDS, 0, True, True)
    assert catalog.table((ours.NAMESPACE, "smoke")) is None
    consumed, written = (limit(broker.bootstrap_servers, broker.pid, topic, tmp_path, write) for write in (False, True))
    assert (consumed.rows, written.rows) == (RECORDS, RECORDS)
    assert all(item.seconds > 0 and item.peak_memory > 10 << 20 for item in (consumed, written))
    assert written.bytes > 0

    series = [Series("kafka_lake", ORDERS.name, "warm", (repeat,)), Series("limit", ORDERS.name, "limit", (written,))]
    sizes = {ORDERS.name: topic.size / RECORDS}
    settings = {"records": RECORDS, "repeats": 1}
    result = document("throughput", settings, bytes_per_record=sizes, series=as_json(series))
    results.save(result, tmp_path)
    kept = results.load("throughput", tmp_path)
    assert {"benchmark", "made", "machine", "versions", "settings", "series"} <= kept.keys()
    assert kept["series"][0]["median"]["rows"] == RECORDS
    rows = [dict(zip(HEADER, row, strict=True)) for row in throughput_rows(kept, ORDERS.name)]
    assert [row["exactly once"] for row in rows] == ["yes", ""]
    assert draw(kept, tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["pizza-orders-10-broken", "pizza-orders-10-wrong-type"])
def test_benchmark_counts_dead_letters_where_they_are_kept(
    broker: EmbeddedBroker,
    connections: Callable[[], Connections],
    catalog_resource: CatalogResource,
    tmp_path: Path,
    name: str,
) -> None:
    assert broker.pid is not None
    dirty = fill(broker.bootstrap_servers, DIRTY[name], RECORDS)
    assert dirty.dirty > 0
    catalog, table = catalog_resource.open(), name.replace("-", "_")
    done = ours.ingest_once(connections(), dirty, table, None, broker.pid)
    found = ours.with_dead_letters(ours.verified(done, catalog, table), catalog, dirty, table)
    assert (found.rows, found.dead_letters, found.duplicates) == (RECORDS - dirty.dirty, dirty.dirty, 0)
    assert catalog.table((ours.NAMESPACE, f"{table}__dead_letters")) is None

    series = [Series("kafka_lake", name, "warm", (found,))]
    content = {"topics": {name: said(DIRTY[name])}, "series": as_json(series)}
    results.save(document("dirty", {"records": RECORDS, "repeats": 1}, **content), tmp_path)
    kept = results.load("dirty", tmp_path)
    [row] = [dict(zip(DIRTY_HEADER, row, strict=True)) for row in dirty_rows(kept)]
    assert (row["dead letters"], row["every record once"]) == (f"{dirty.dirty:,}", "yes")
    assert draw(kept, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_benchmark_reports_doubled_and_missing_records(
    broker: EmbeddedBroker, topic: Topic, connections: Callable[[], Connections], catalog_resource: CatalogResource
) -> None:
    assert broker.pid is not None
    done = ours.ingest_once(connections(), topic, "doubled", None, broker.pid)
    catalog = catalog_resource.open()
    table = catalog.table((ours.NAMESPACE, "doubled"))
    assert table is not None
    rows = table.scan().to_arrow()
    table.overwrite(rows.slice(1))
    table.append(rows.slice(7, 1))
    found = ours.verified(done, catalog, "doubled")
    assert (found.rows, found.duplicates) == (RECORDS, 1)


def test_an_engine_of_its_own_is_measured_cold_and_warm(
    broker: EmbeddedBroker, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the test session's own Spark has been, its gateway must not be the child's.
    for name in [name for name in os.environ if name.startswith(("PYSPARK_GATEWAY", "SPARK_"))]:
        monkeypatch.delenv(name)
    assert broker.pid is not None
    engine = ours.Engine(heap="512m", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    cold, warm = ours.cold_and_warm(broker.bootstrap_servers, broker.pid, topic, engine, tmp_path / "own", warm=1)
    assert [(r.rows, r.duplicates) for r in (cold, warm)] == [(RECORDS, 0), (RECORDS, 0)]
    assert cold.cpu_seconds > warm.cpu_seconds > 0
    assert cold.peak_memory > 100 << 20
    assert (tmp_path / "own" / "engine.log").exists()


def test_freshness_is_seen_from_outside(
    broker: EmbeddedBroker,
    connections: Callable[[], Connections],
    catalog_resource: CatalogResource,
    tmp_path: Path,
) -> None:
    name, partitions = "fresh_orders", 3
    ensure_topic(broker.bootstrap_servers, name, partitions)
    catalog = catalog_resource.open()
    catalog.ensure_namespace(ours.NAMESPACE)
    ledger = freshness.Ledger(partitions)
    spec = TopicTable(name, ours.NAMESPACE, name, schema=SMALL.ddl)
    with ExitStack() as stack:
        watching = freshness.in_thread(lambda stop: freshness.watch(catalog, {name: ledger}, stop))
        watcher = stack.enter_context(watching)
        producing = freshness.in_thread(
            lambda stop: freshness.produce(broker.bootstrap_servers, name, ledger, 500, stop)
        )
        with producing as producer:
            for number in range(20):
                ingest(spec, connections(), f"fresh-{number}")
                producer.check()
                if ledger.commits > 1:
                    break
        # The producer has delivered all it queued.
        ingest(spec, connections(), "fresh-last")
        for _ in range(200):
            watcher.check()
            if ledger.complete():
                break
            threading.Event().wait(0.05)
    waits = sorted(ledger.waits(0, float("inf")))
    assert len(waits) == sum(map(len, ledger.produced)) > 0
    assert waits[0] > 0
    case = replace(freshness.CASES["continuous"], topics=1)
    result = document(
        "freshness",
        {"seconds": 1},
        cases=[freshness.outcome(case, waits, 1.0, ledger.commits, {"spark": 1.0, "dagster": 1.0, "broker": 1.0})],
    )
    kept = json.loads(results.save(result, tmp_path).read_text())
    assert sum(kept["cases"][0]["histogram"]["counts"]) == len(waits)
    assert results.freshness_rows(kept)[0][2] == f"{len(waits):,}"
    assert draw(kept, tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("case", [*freshness.CASES.values(), *compaction.CASES.values()], ids=lambda case: case.name)
def test_freshness_deployments_are_valid_for_dagster(case: freshness.Case, tmp_path: Path) -> None:
    case = replace(case, topics=2)
    freshness.write_project(case, tmp_path)
    written = yaml.safe_load((tmp_path / "fresh" / "defs" / "orders_1" / "defs.yaml").read_text())
    assert ("read" in written["attributes"]) == (case.continuous is not None)
    assets = freshness_assets(tmp_path)
    assert {"bench/orders_0", "bench/orders_1", "kafka/orders_0", "kafka/orders_1"} <= assets
    assert not any("orders_2" in asset for asset in assets)


def freshness_assets(folder: Path) -> set[str]:
    script = (
        "import importlib\n"
        "from kafka_lake.cli.find_project import targets\n"
        "[target] = targets()\n"
        "assert target.module == 'fresh.definitions', target\n"
        "found = importlib.import_module(target.module).defs()\n"
        "print(*(key.to_user_string() for key in found.resolve_asset_graph().get_all_asset_keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_backlog_is_read_once_after_its_run_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PYSPARK_GATEWAY", "SPARK_"))]:
        monkeypatch.delenv(name)
    said: list[str] = []
    limits = {"max_records_per_commit": 300}
    engine = ours.Engine(heap="512m", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    result = backlog.measure(backlog.Settings(3000, 300, limits, engine), said.append)
    first, second = result["runs"]
    assert (first["killed"], second["killed"]) == (True, False)
    assert 1500 <= first["records"] < 3000
    assert first["records"] + second["records"] >= 3000 - limits["max_records_per_commit"]
    assert all(map(backlog.is_exact, result["partitions"]))
    assert min(item["peak_java"] for item in (first, second)) > 100 << 20
    for header, rows in (
        (backlog_tables.HEADER, backlog_tables.rows(result)),
        (backlog_tables.PHASES_HEADER, backlog_tables.phase_rows(result)),
        (backlog_tables.PARTITIONS_HEADER, backlog_tables.partition_rows(result)),
    ):
        assert rows
        assert {len(row) for row in rows} == {len(header)}


@pytest.mark.timeout(900)
def test_soak_of_one_minute_leaves_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER", "UI", "CONNECT", "REGISTRY"):
        monkeypatch.setenv(f"KAFKA_LAKE_{name}_PORT", str(free_port()))
    result = soak.measure(soak.Soak(minutes=1, rate=10, every=5, kill_every=20), tmp_path, print)
    assert result["problems"] == []
    assert result["kills"]
    assert result["records"] > 6000
    assert sum(part["records"] for part in result["slices"]) > 5000
    assert {"broker", "Spark", "daemon", "webserver", "code server"} <= set(result["samples"][-1]["memory"])
    assert any("a run" in sample["memory"] for sample in result["samples"])
    assert all(health["snapshots"] for health in result["health"].values())
    assert draw(json.loads(json.dumps(result)), tmp_path).stat().st_size > 10_000


def test_benchmark_reports_differences(catalog_resource: CatalogResource) -> None:
    """A row too many, one that is missing, and a value that is another one."""
    catalog, ledger = catalog_resource.open(), soak.Sent(1)
    catalog.ensure_namespace(ours.NAMESPACE)
    ledger.numbers[0].extend((0, 1, 2))
    made = [{**soak.row(number), "_kafka": {"partition": 0, "offset": number}} for number in (0, 1, 1)]
    made[0]["store"] = "other"
    rows = pa.Table.from_pylist(made)
    dead = pa.Table.from_pylist([{"partition": 0, "offset": 9}])
    for name, content in (("plain_0", rows), ("plain_0__dead_letters", dead)):
        catalog.pyiceberg.create_table((ours.NAMESPACE, name), content.schema).append(content)
    try:
        found = soak.differing(catalog, "plain_0", ledger)
    finally:
        for name in ("plain_0", "plain_0__dead_letters"):
            catalog.pyiceberg.drop_table((ours.NAMESPACE, name))
    assert [problem.partition(" instead")[0].partition(", such")[0] for problem in found] == [
        f"plain_0: { ({**soak.row(0), 'store': 'other'}) }",
        "plain_0: 1 missing",
        "plain_0: 1 too many",
        "plain_0: dead letters: 1 too many",
    ]
