"""What a Connect server keeps for a commit it forgets with it, however little it remembers of what it has planned."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from kafka_lake.common.processes import free_port
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.run import derive
from kafka_lake.engine.frames import cached
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, Topic, View

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def asked(port: int, what: str) -> list[Any]:
    """Return what the REST API of a Spark tells whose UI has that port."""
    api = f"http://127.0.0.1:{port}/api/v1/applications"

    def get(path: str) -> Any:
        with urlopen(api + path) as answer:
            return json.load(answer)

    (application,) = get("")
    found: list[Any] = get(f"/{application['id']}{what}")
    return found


def kept_by(port: int) -> list[Any]:
    """Return what a Spark whose UI has that port keeps."""
    return asked(port, "/storage/rdd")


def running_in(port: int) -> list[Any]:
    """Return the jobs that a Spark is working at whose UI has that port."""
    return asked(port, "/jobs?status=running")


@pytest.fixture
def server(
    catalog_resource: CatalogResource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SparkResource, int]]:
    """Give the Spark of a run, and the port of its server's UI."""
    port = free_port()
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        # The busiest commit has forgotten its first plans by its end.
        "spark.connect.session.planCache.maxSize": "1",
    }
    whole = local_conf(catalog_resource.open().for_spark(), "local[2]", spark_jars(), conf)
    with ConnectServer(tmp_path, conf=whole) as connect:
        monkeypatch.setenv("SPARK_REMOTE", connect.remote)
        # PySpark sets it with the first session; here it is taken back.
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        resource = SparkResource(spark_config={}, catalog=catalog_resource)
        try:
            yield resource, port
        finally:
            resource.stop()


@pytest.mark.exhaustive
def test_a_server_keeps_nothing_of_commits_that_are_made(
    server: tuple[SparkResource, int],
    catalog_resource: CatalogResource,
    kafka_resource: KafkaResource,
    new_topic: Callable[..., Topic],
    view: Callable[[TopicTable], View],
) -> None:
    spark, ui = server
    catalog = catalog_resource.open()
    connections = Connections(kafka_resource.cluster(), kafka_resource.spark_options(), catalog, spark.live_session)
    schema = "id bigint, store string"
    plain, ruled, keyed = new_topic(), new_topic(), new_topic()
    specs = (
        (plain, plain.spec(schema)),
        # Spark is asked by these, after Arrow has written.
        (ruled, ruled.spec(schema, rules=(RuleEntry(unique=("id",)),))),
        (keyed, keyed.spec(schema, write="upsert")),
    )
    lots = DerivedTable(
        table=f"{plain.table}_lots",
        namespace=NAMESPACE,
        sources=(plain.table,),
        write="aggregate",
        sql=f"SELECT *, rand() AS lot FROM (SELECT store, count(*) AS n FROM {plain.table} GROUP BY ALL)",
        key={"store": "store"},
    )
    for topic, spec in specs:
        for number in range(10):
            topic.send({"id": number, "store": f"s{number % 2}"}, key=json.dumps({"id": number % 7}).encode())
        topic.send(b"broken", key=b'{"id": 3}')
        ingest(spec, connections, "r-1")
        assert kept_by(ui) == [], spec.topic
    derive(lots, Engine(catalog, spark.live_session, "d-1"))
    assert kept_by(ui) == [], lots.table
    assert [listTable.name for listTable in spark.live_session().catalog.listTables() if listTable.isTemporary] == []
    for topic, spec in specs[:2]:
        see = view(spec)
        see.assert_exactly_once(topic.ledger)
        # No task has written twice.
        folder = Path(see.table.location().removeprefix("file:"))
        assert len(list(folder.rglob("*.parquet"))) == see.table.inspect.all_data_files().num_rows


KILLED = """
import os, signal, sys, threading, time
from contextlib import ExitStack
from pathlib import Path
from pyspark.sql import functions as F
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.engine.frames import cached

session = SparkResource(spark_config={}, catalog=CatalogResource()).live_session("orders to pizza.orders")
session.range(3).createOrReplaceTempView("somebody_elses")
assert cached(session.range(5), ExitStack()).count() == 5
print(session.session_id, flush=True)
begun = sys.argv[1]

def slowly(number):
    with open(begun, "a") as told:
        told.write(f"{number}\\n")
    time.sleep(0.5)
    return 1

def die():
    while not Path(begun).exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=die, daemon=True).start()
session.range(0, 600, 1, 1).select(F.udf(slowly, "int")("id")).collect()
"""


@pytest.mark.exhaustive
def test_next_process_frees_frames_of_killed_process(
    server: tuple[SparkResource, int],
    catalog_resource: CatalogResource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark, ui = server
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    own = {
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": catalog_resource.properties["uri"],
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": catalog_resource.properties["warehouse"],
    }
    begun = tmp_path / "begun"
    command = [sys.executable, "-c", KILLED, str(begun)]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(kept_by(ui)) == 1
    # One that lives keeps what is its own.
    other, held = spark.live_session("refunds to pizza.refunds"), ExitStack()
    assert cached(other.range(7), held).count() == 7
    session = spark.live_session("orders to pizza.orders")
    assert session.session_id == done.stdout.strip()
    assert len(kept_by(ui)) == 1
    assert [listTable.name for listTable in session.catalog.listTables() if listTable.isTemporary] == ["somebody_elses"]
    held.close()
    assert kept_by(ui) == []
    deadline = time.monotonic() + 60
    while running_in(ui):
        assert time.monotonic() < deadline, "What the process had asked for goes on."
        time.sleep(0.2)
    assert len(begun.read_text().splitlines()) < 600
