"""The engines a run can have beside its own process: a Connect server that dies, and a cluster of two workers."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectMemory, ConnectServer
from kafka_lake.engine.settings import PARALLELISM, local_conf
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections, Observer, RetryPolicy
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.spark_cluster.standalone import standalone_cluster
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration import test_history, test_rules
from kafka_lake_tests.integration.test_names import all_that_can_be_done
from kafka_lake_tests.supervised import supervised

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NewSession = Callable[[], SparkResource]

TRANSFORM = """
from pyspark.sql import functions as F


def loud(rows):
    shout = F.udf(lambda text: text.upper() + "!", "string")
    return rows.withColumn("name", shout("name"))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that everything is started in, with the user's own code."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "shop_transforms.py").write_text(TRANSFORM)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture(scope="module")
def server(project: Path, catalog_resource: CatalogResource) -> Iterator[ConnectServer]:
    extra = {"spark.sql.shuffle.partitions": "2"}
    conf = local_conf(catalog_resource.open().for_spark(), "local[2]", spark_jars(), extra)
    connect = ConnectServer(project / "connect", 0, conf, ConnectMemory("768m"))
    with supervised(connect) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_REMOTE", running.remote)
        # PySpark sets it with the first session; here it is taken back.
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        yield running


@pytest.fixture
def new_session(server: ConnectServer, catalog_resource: CatalogResource) -> Iterator[NewSession]:
    """Return a function that gives the Spark of a run of its own."""
    with ExitStack() as opened:

        def make() -> SparkResource:
            resource = SparkResource(spark_config={}, catalog=catalog_resource)
            opened.callback(resource.stop)
            return resource

        yield make


@pytest.fixture
def connect_connections(
    new_session: NewSession, kafka_resource: KafkaResource, catalog_resource: CatalogResource
) -> Connections:
    """What a run works with, Spark being the server."""
    kafka, spark = kafka_resource, new_session()
    return Connections(kafka.cluster(), kafka.spark_options(), catalog_resource.open(), spark.live_session)


@pytest.mark.exhaustive
def test_a_server_with_another_catalog_of_that_name_is_refused(new_session: NewSession, tmp_path: Path) -> None:
    """As one has that takes the environment's, if the catalog is in YAML alone."""
    for properties, said in (
        ({"type": "rest", "uri": "http://127.0.0.1:1"}, "catalog.db, the project no SQLite file"),
        (
            {"type": "sql", "uri": f"sqlite:///{tmp_path / 'other.db'}", "warehouse": "file:///lake"},
            "catalog.db, the project .*other.db",
        ),
    ):
        resource = SparkResource(spark_config={}, catalog=CatalogResource(name="lake", properties=properties))
        with pytest.raises(ConfigurationError, match=said) as refused:
            resource.live_session()
        assert "PYICEBERG_CATALOG__LAKE__" in refused.value.remedy
    assert new_session().live_session().range(1).count() == 1


@pytest.mark.exhaustive
def test_rules_are_kept_through_a_connect_server(
    connect_connections: Connections, new_topic: Callable[..., Topic], view: Callable[[TopicTable], View]
) -> None:
    test_rules.rules_are_kept(new_topic(2), lambda: connect_connections, view, {})
    test_rules.rules_are_kept(new_topic(2), lambda: connect_connections, view, {}, rules=test_rules.SET_APART)
    topic = new_topic()
    topic.send_ids([1, 2])
    wrong, later = (RuleEntry(expression=text, name="it") for text in ("id + 1", "later > 1 OR id > 1"))
    with pytest.raises(ConfigurationError, match=r"rules: it: 'id [+] 1' isn't a condition"):
        ingest(topic.spec(None, rules=(wrong,)), connect_connections, "wrong")
    report = ingest(topic.spec(None, rules=(later,)), connect_connections, "later")
    (finding,) = [result for result in report.findings() if result.is_rule]
    assert (finding.facts["passed"], finding.facts["null"], finding.facts["not_in_table"]) == (2, 1, "later")


@pytest.mark.exhaustive
def test_times_that_overflow_become_null_through_a_server(
    connect_connections: Connections, new_topic: Callable[..., Topic], view: Callable[[TopicTable], View]
) -> None:
    topic = new_topic(1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    for number, stamp in enumerate((1_767_323_045_123, 1_767_323_045_123_000_000)):
        topic.send({"id": number}, timestamp_ms=stamp, headers=[("h", b"\xff")])
    report = ingest(topic.spec(), connect_connections, "run")
    assert report.total("untimed") == 1
    assert {row["id"]: row["_kafka"]["timestamp"] is None for row in view(topic.spec()).rows()} == {0: False, 1: True}
    view(topic.spec()).assert_exactly_once(topic.ledger)


def test_session_settings_are_not_shared(new_session: NewSession, tmp_path: Path) -> None:
    (tmp_path / "only_mine.py").write_text("ANSWER = 42\n")

    def answer(_: int) -> int:
        import only_mine

        return only_mine.ANSWER

    mine, other = new_session().live_session(), new_session().live_session()
    ask = F.udf(answer, "int")
    mine.conf.set("spark.sql.shuffle.partitions", "7")
    mine.range(3).createOrReplaceTempView("kept_here")
    mine.addArtifacts(str(tmp_path / "only_mine.py"), pyfile=True)
    assert mine.range(1).select(ask("id")).collect()[0][0] == 42
    assert other.conf.get("spark.sql.shuffle.partitions") == "2"
    assert not other.catalog.tableExists("kept_here")
    with pytest.raises(PySparkException, match="only_mine"):
        other.range(1).select(ask("id")).collect()
    assert mine.table("kept_here").count() == 3
    assert other.conf.get(PARALLELISM) == "2"


@pytest.mark.parametrize("reported", ["", ";token=another"], ids=("none", "another"))
def test_client_without_token_is_refused(
    server: ConnectServer, new_session: NewSession, monkeypatch: pytest.MonkeyPatch, reported: str
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", f"{server.address}/{reported}")
    with pytest.raises(ConfigurationError, match="requires a token") as refused:
        new_session().live_session()
    assert "another" not in str(refused.value)
    monkeypatch.setenv("SPARK_REMOTE", server.remote)
    assert new_session().live_session().range(3).count() == 3


def test_workers_leave_imported_modules_alone_between_tasks(new_session: NewSession) -> None:
    def found(_: int) -> str:
        import gc
        import sys

        return f"{gc.get_freeze_count() > 50_000} {[path for path in sys.path_importer_cache if 'pyspark.zip' in path]}"

    assert new_session().live_session().range(1).select(F.udf(found)("id")).collect()[0][0] == "True []"


def test_ended_python_daemon_is_restarted_on_demand(new_session: NewSession) -> None:
    session = new_session().live_session()

    def tell(number: int) -> int:
        if number:
            raise ValueError(f"of daemon {os.getppid()}.")
        return os.getppid()

    reported = F.udf(tell, "int")
    with pytest.raises(PySparkException, match="of daemon") as failed:
        session.range(1, 2, 1, 1).select(reported("id")).collect()
    # Spark ends the worker then; without any the daemon would end soon, too.
    daemon = psutil.Process(int(re.search(r"of daemon (\d+)", str(failed.value))[1]))
    daemon.terminate()
    daemon.wait(30)
    assert session.range(0, 1, 1, 1).select(reported("id")).collect()[0][0] != daemon.pid


def test_garbage_collected_session_does_not_block(new_session: NewSession) -> None:
    resource = new_session()
    forgotten = resource.live_session()
    # A circle, which only the garbage collector ends.
    forgotten.circle = forgotten
    ended = weakref.ref(forgotten)
    del forgotten
    resource.stop()
    other = new_session().live_session()
    assert other.range(2).count() == 2

    def collect_while_the_pool_is_locked() -> None:
        with ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()._shutdown_lock:
            gc.collect()

    collecting = threading.Thread(target=collect_while_the_pool_is_locked, daemon=True)
    collecting.start()
    collecting.join(20)
    assert not collecting.is_alive()
    assert ended() is None
    assert other.range(3).count() == 3


def test_run_completes_after_connect_server_is_killed(
    server: ConnectServer,
    connect_connections: Connections,
    new_topic: Callable[..., Topic],
    view: Callable[[TopicTable], View],
) -> None:
    topic = new_topic(2)
    for number in range(20):
        topic.send({"id": number, "name": f"pizza {number}"}, number % 2)
    spec = topic.spec("id bigint, name string", transform="shop_transforms:loud")
    connections = replace(connect_connections, retry=RetryPolicy(max_seconds=1.0))
    killed: list[int] = []

    def kill_once(step: str) -> None:
        if step == "table staged" and not killed:
            assert server.pid is not None
            killed.append(server.pid)
            os.kill(server.pid, signal.SIGKILL)

    said: list[str] = []
    ingest(spec, connections, "run-1", observer=Observer(step_done=kill_once, warn=said.append))
    assert killed
    assert server.pid not in (None, *killed)
    assert any("attempt 1 of" in line for line in said), said
    view(spec).assert_exactly_once(topic.ledger)
    assert {row["name"] for row in view(spec).rows()} == {f"PIZZA {number}!" for number in range(20)}
    topic.send({"id": 20, "name": "one more"})
    ingest(spec, connections, "run-2")
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [exhaustive("orders.by-topic-alone", id="dots"), pytest.param("y" * 249, id="longest")]
)
def test_the_shortest_document_makes_a_table(
    name: str, connect_connections: Connections, new_topic: Callable[..., Topic], view: Callable[[TopicTable], View]
) -> None:
    topic = new_topic(called=name)
    all_that_can_be_done(topic, KafkaTopic(topic=name).topic_table(), lambda: connect_connections, view)


@pytest.mark.exhaustive
def test_dead_letters_that_become_rows_are_taken_out(
    connect_connections: Connections, new_topic: Callable[..., Topic], view: Callable[[TopicTable], View]
) -> None:
    topic = new_topic()
    all_that_can_be_done(topic, topic.spec("id bigint not null"), lambda: connect_connections, view)


@pytest.mark.exhaustive
def test_a_history_and_a_delete_without_an_order(
    connect_connections: Connections, new_topic: Callable[..., Topic], view: Callable[[TopicTable], View]
) -> None:
    """A batch is joined with itself there, which PySpark's Connect client refuses of one that is observed."""
    test_history.test_a_late_change_splits_the_interval_that_it_falls_in(new_topic, lambda: connect_connections, view)


RUN = """
import json, sys
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.orchestration.resources import SparkResource

kafka, catalog = KafkaResource(), CatalogResource()
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.cores.max": "2"}
spark = SparkResource(spark_config=conf, catalog=catalog)
connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), spark.live_session)
report = ingest(TopicTable(**json.loads(sys.argv[1])), connections, "run-1")
executors = spark.spark_session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(json.dumps({"rows": report.total("rows"), "executors": executors}))
spark.stop()
"""


@pytest.mark.exhaustive
def test_two_workers_of_a_cluster_do_the_same_job(
    tmp_path: Path,
    new_topic: Callable[..., Topic],
    view: Callable[[TopicTable], View],
    kafka_resource: KafkaResource,
    catalog_resource: CatalogResource,
) -> None:
    topic = new_topic(4)
    topic.send_ids(range(40), 4)
    with standalone_cluster(tmp_path, workers=2) as (master, environment):
        spec = topic.spec()
        settings = {"topic": spec.topic, "namespace": spec.namespace, "table": spec.table, "schema": spec.schema}
        ours = {
            "KAFKA_LAKE_SPARK_MASTER": master,
            "KAFKA_LAKE_BOOTSTRAP_SERVERS": kafka_resource.cluster().bootstrap_servers,
            "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
            "PYICEBERG_CATALOG__LAKE__URI": catalog_resource.properties["uri"],
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": catalog_resource.properties["warehouse"],
        }
        inherited = {k: v for k, v in {**os.environ, **environment}.items() if v is not None}
        done = subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(settings)],
            env={**inherited, **ours},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows": 40, "executors": 2}
    view(spec).assert_exactly_once(topic.ledger)
