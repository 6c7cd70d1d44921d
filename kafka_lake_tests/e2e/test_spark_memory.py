"""What a Connect server keeps for a commit it forgets with it, however little it remembers of what it has planned."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from kafka_lake.common.processes import free_port
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.run import derive
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
        verify=0,
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
