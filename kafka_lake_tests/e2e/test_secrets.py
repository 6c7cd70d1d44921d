"""No engine shows a configured secret: in command lines, files, logs, event logs, Spark's UI, or errors."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.processes import HOST, free_port
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectMemory, ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake_tests.contract.spark_cluster.standalone import standalone_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MARK = "hush"
_FOUND = re.compile(rf"{MARK}-\w+")

# Recognisable values for each kind of secret that a deployment can have.
CATALOG = {
    "credential": f"me:{MARK}-credential",
    "token": f"{MARK}-token",
    "s3.access-key-id": f"{MARK}-s3_key",
    "s3.secret-access-key": f"{MARK}-s3_secret",
    "s3.session-token": f"{MARK}-s3_session",
    "adls.account-key": f"{MARK}-adls_key",
    "adls.sas-token": f"{MARK}-adls_sas",
    "adls.account-name": "acme",
    "gcs.oauth2.token": f"{MARK}-gcs",
    "header.Authorization": f"Bearer {MARK}-header",
    "jdbc.password": f"{MARK}-jdbc",
    "oauth2-server-uri": f"https://me:{MARK}-in_address@idp.example/token",
}
KAFKA = {
    "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_LAKE_KAFKA_SASL_MECHANISM": "PLAIN",
    "KAFKA_LAKE_KAFKA_SASL_USERNAME": "me",
    "KAFKA_LAKE_KAFKA_SASL_PASSWORD": f"{MARK}-sasl",
    "KAFKA_LAKE_KAFKA_SSL_KEYSTORE_PASSWORD": f"{MARK}-keystore",
    "KAFKA_LAKE_KAFKA_JAVA_SSL_KEY_PASSWORD": f"{MARK}-key_password",
    "KAFKA_LAKE_KAFKA_JAVA_SSL_TRUSTSTORE_PASSWORD": f"{MARK}-truststore",
    "KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO": f"me:{MARK}-registry",
}
ENGINE = {
    "spark.hadoop.fs.s3a.secret.key": f"{MARK}-s3a",
    "spark.hadoop.fs.azure.account.key.me": f"{MARK}-azure",
    "spark.executorEnv.MY_PASSWORD": f"{MARK}-executor_env",
}
TOKEN = f"{MARK}-connect_token"

RUN = """
import json, os, sys
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.orchestration.resources import SparkResource
from pyspark.sql import functions as F

catalog = CatalogResource(properties=json.loads(os.environ["TEST_CATALOG"]))
spark = SparkResource(spark_config=json.loads(os.environ["TEST_CONF"]), catalog=catalog)
session = spark.live_session()
session.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
session.sql("CREATE TABLE IF NOT EXISTS lake.shop.t (a bigint) USING iceberg")
session.range(10).toDF("a").withColumn("a", F.udf(lambda a: a + 1, "long")("a")).writeTo("lake.shop.t").append()
options = {**KafkaResource().spark_options(), "kafka.default.api.timeout.ms": "600", "kafka.request.timeout.ms": "500"}
for ask in (
    lambda frame: frame.explain("extended"),
    lambda frame: frame.collect(),
    lambda frame: frame.select("none").collect(),
    lambda frame: session.sql("SET").show(1000, False),
):
    try:
        reader = session.read.format("kafka").options(**options).option("assign", '{"x":[0]}')
        ask(reader.option("endingOffsets", '{"x":{"0":5}}').load())
    except Exception as error:
        print("an error:", error, repr(error))
print("rows:", session.table("lake.shop.t").count())
print("all is done", flush=True)
sys.stdin.readline()
spark.stop()
"""


class Watch:
    """Looks for secrets in the arguments of the test's processes, again and again, while others start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: set[str] = set()
        self.private: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.look()

    def look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (process / "cmdline").read_bytes().decode(errors="replace")
                if MARK in arguments and self._is_ours(process):
                    self.found |= {f"arguments of {arguments.split(chr(0))[0]}: {item}" for item in _told(arguments)}
                if MARK in (process / "environ").read_bytes().decode(errors="replace"):
                    mode = (process / "environ").stat().st_mode & 0o077
                    self.found |= {f"environment of {process.name} is open to others"} if mode else set()
                    self.private.add(process.name)
            except OSError:
                # It has ended meanwhile.
                continue
        for file in self.folder.rglob("*"):
            try:
                if file.is_file() and file.stat().st_mode & 0o077:
                    reported = _told(file.read_bytes().decode(errors="replace"))
                    self.found |= {f"file {file.name}: {secret}" for secret in reported}
            except OSError:
                continue

    def _is_ours(self, process: Path) -> bool:
        """Tell whether a process is of this test: other tests have secrets of their own in their arguments."""
        if str(self.folder) in (process / "environ").read_bytes().decode(errors="replace"):
            return True
        with suppress(psutil.Error):
            return os.getpid() in {parent.pid for parent in psutil.Process(int(process.name)).parents()}
        return False


def _told(text: str) -> list[str]:
    return sorted(set(_FOUND.findall(text)))


def test_the_watch_sees_the_arguments_of_the_tests_own_processes(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    command = [sys.executable, "-c", "print(flush=True); input()", "hush-argument"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as mine:
        # Before it runs, the kernel may tell nothing of its arguments.
        assert mine.stdout is not None
        mine.stdout.readline()
        watch.look()
        mine.communicate(b"\n")
    assert watch.found == {f"arguments of {sys.executable}: hush-argument"}


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    database, warehouse = tmp_path / "catalog.db", tmp_path / "warehouse"
    return {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": f"file://{warehouse}", **CATALOG}


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, str]:
    """Settings that make Spark show all that it can."""
    (tmp_path / "events").mkdir()
    return {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(free_port()),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{tmp_path / 'events'}",
        "spark.log.level": "INFO",
    }


@contextmanager
def asked(
    folder: Path, catalog: Mapping[str, str], conf: Mapping[str, str], more: Mapping[str, str | None]
) -> Iterator[str]:
    """Have a process use the engine in all the ways that a run does; give what it printed, while it waits."""
    ours = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"},
        **KAFKA,
        "KAFKA_LAKE_HOME": str(folder / "home"),
        "KAFKA_LAKE_BOOTSTRAP_SERVERS": f"{HOST}:{free_port()}",
        "TEST_CATALOG": json.dumps(dict(catalog)),
        "TEST_CONF": json.dumps(dict(conf)),
        **more,
    }
    environment = {name: value for name, value in ours.items() if value is not None}
    output = folder / "printed"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        while "all is done" not in output.read_text():
            assert process.poll() is None, output.read_text()
            time.sleep(0.1)
        yield output.read_text()
        process.communicate(b"\n", timeout=60)
        assert process.returncode == 0, output.read_text()
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()


def pages(port: str) -> str:
    """Return all that Spark's UI and its REST interface tell."""
    address = f"http://{HOST}:{port}"
    (application,) = json.loads(urlopen(f"{address}/api/v1/applications", timeout=30).read())
    api = f"api/v1/applications/{application['id']}"
    reported = []
    of_the_ui = ("environment/", "SQL/", "jobs/", "executors/", "connect/")
    for page in (*of_the_ui, f"{api}/environment", f"{api}/sql?details=true"):
        try:
            reported.append(urlopen(f"{address}/{page}", timeout=30).read().decode())
        except URLError:
            # Only a Connect server has that page.
            assert page == "connect/"
    assert "spark.sql.catalog.lake" in reported[0]
    assert "(redacted)" in reported[0]
    return "\n".join(reported)


def nothing_is_told(folder: Path, watch: Watch, printed: str, ui: str) -> None:
    watch.look()
    assert sorted(watch.found) == []
    # It has looked where secrets are: those who own the processes have them in their environment.
    assert watch.private
    assert "rows: 10" in printed
    assert "an error:" in printed
    assert _told(printed) == []
    assert _told(ui) == []
    events = "".join(file.read_text(errors="replace") for file in (folder / "events").rglob("events_*"))
    assert "SparkListenerEnvironmentUpdate" in events
    assert "SparkListenerJobStart" in events
    assert _told(events) == []
    assert "kafka-lake-spark" not in " ".join(path.name for path in (folder / "tmp").iterdir())


@pytest.mark.exhaustive
def test_spark_in_the_run_s_process(tmp_path: Path, catalog: dict[str, str], shown: dict[str, str]) -> None:
    (tmp_path / "tmp").mkdir()
    conf = {**shown, **ENGINE, "spark.master": "local[1]"}
    with Watch(tmp_path) as watch, asked(tmp_path, catalog, conf, {"TMPDIR": str(tmp_path / "tmp")}) as printed:
        nothing_is_told(tmp_path, watch, printed, pages(shown["spark.ui.port"]))


def test_own_connect_server_shows_no_secret(
    tmp_path: Path, catalog: dict[str, str], shown: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name, value in KAFKA.items():
        monkeypatch.setenv(name, value)
    extra = {**shown, **ENGINE, "spark.connect.authenticate.token": TOKEN}
    conf = local_conf(LakeCatalog("lake", catalog).for_spark(), "local[1]", spark_jars(), extra)
    server = ConnectServer(tmp_path / "connect", 0, conf, ConnectMemory("768m"))
    with (
        Watch(tmp_path) as watch,
        server,
        asked(tmp_path, catalog, {}, {"SPARK_REMOTE": server.remote}) as printed,
    ):
        nothing_is_told(tmp_path, watch, printed, pages(shown["spark.ui.port"]))
        assert _told(server.log.read_text()) == []


@pytest.mark.exhaustive
def test_a_cluster_with_its_driver_in_the_run_s_process(
    tmp_path: Path, catalog: dict[str, str], shown: dict[str, str]
) -> None:
    (tmp_path / "tmp").mkdir()
    small = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    with standalone_cluster(tmp_path, workers=1) as (master, environment), Watch(tmp_path) as watch:
        more = {**environment, "KAFKA_LAKE_SPARK_MASTER": master, "TMPDIR": str(tmp_path / "tmp")}
        with asked(tmp_path, catalog, {**shown, **ENGINE, **small}, more) as printed:
            nothing_is_told(tmp_path, watch, printed, pages(shown["spark.ui.port"]))
