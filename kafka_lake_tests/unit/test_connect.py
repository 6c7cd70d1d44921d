"""The supervised server: restarted when it dies, stopped while idle, started at the next use; with real processes."""

import inspect
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from pyspark.errors.utils import is_debugging_enabled
from pyspark.sql.connect.client import DefaultChannelBuilder

from kafka_lake.common.server_process import ServerProcess, port_open
from kafka_lake.common.spark_catalog import SparkCatalog
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.spark import __main__ as alone
from kafka_lake.spark import supervisor
from kafka_lake.spark.class_archive import class_archive
from kafka_lake.spark.connect import TOKEN, ConnectServer
from kafka_lake.spark.private_conf import properties_file
from kafka_lake.spark.settings import local_conf, local_cores
from kafka_lake.spark.supervisor import (
    MAX_UNEXPECTED_ENDS,
    ConnectSettings,
    ConnectSupervisor,
    idle_seconds,
    pause_seconds,
)

LISTENS = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    held = []
    while True:
        held.append(listener.accept())
"""


class Listener(ConnectServer):
    """What listens on the port and does nothing else, in place of a JVM."""

    program = LISTENS

    def start(self, cancelled: Callable[[], bool] = lambda: False) -> Self:
        command = [sys.executable, "-c", self.program, str(self.port)]
        self._server = ServerProcess(command, self.log)
        self._server.start(lambda: self._ready(cancelled), 10)
        return self


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.02)


@contextmanager
def kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, idle: float | None = None
) -> Iterator[tuple[ConnectSupervisor, Listener, list[str]]]:
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "pause_seconds", lambda deaths: 0.0)
    said: list[str] = []
    listener = Listener(folder)
    with ConnectSupervisor(listener, idle, said.append) as server:
        yield server, listener, said
    assert not port_open(listener.port)


@pytest.mark.processes
def test_a_server_that_dies_is_back_on_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path, monkeypatch) as (server, listener, said):
        first, remote = server.pid, server.remote
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: server.pid not in (None, first) and port_open(listener.port), "another process on the port")
        assert server.alive()
        assert server.remote == remote
        assert len(said) == 1
        assert "restarted in 0 s" in said[0]
        assert str(listener.log) in said[0]


@pytest.mark.processes
def test_one_that_can_not_stay_up_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path, monkeypatch) as (server, listener, said):
        assert server.pid is not None
        listener.program = "raise SystemExit('no more room')"
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.alive(), "an end")
        assert f"{MAX_UNEXPECTED_ENDS + 1} times in a row" in said[-1]
        assert sum("no more room" in line for line in said) == MAX_UNEXPECTED_ENDS


@pytest.mark.processes
def test_while_idle_it_is_stopped_and_a_client_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path, monkeypatch, idle=0.5) as (server, listener, said):
        first = server.pid
        until(lambda: server.pid is None, "be stopped")
        assert server.alive()
        until(lambda: port_open(listener.port), "someone who listens meanwhile")
        until(lambda: server.pid not in (None, first), "another process")
        assert ["is stopped" in line for line in said] == [True, False]


@pytest.mark.processes
def test_while_a_client_is_connected_it_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path, monkeypatch, idle=0.5) as (server, listener, said):
        with socket.create_connection(("127.0.0.1", listener.port)):
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 1.5, "three times the idle time")
            assert server.pid is not None
            assert said == []
        until(lambda: server.pid is None, "be stopped once the client has gone")


@pytest.mark.processes
@pytest.mark.parametrize("idle", [None, 3600.0])
def test_one_with_leaked_threads_is_stopped_as_soon_as_it_has_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: float | None
) -> None:
    monkeypatch.setattr(supervisor, "_POLLS_PER_IDLE_TIME", 50_000)
    monkeypatch.setattr(supervisor, "_MAX_THREADS", 2)
    with kept(tmp_path, monkeypatch, idle) as (server, listener, said):
        with socket.create_connection(("127.0.0.1", listener.port)):
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 0.5, "several looks")
            assert said == []
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 0.5, "several looks")
        assert said == [], "it has only one thread"
        monkeypatch.setattr(supervisor, "_MAX_THREADS", 0)
        until(lambda: server.pid is None, "be stopped")
        assert "is stopped" in said[0]


@pytest.mark.processes
def test_it_can_be_ended_while_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path, monkeypatch, idle=0.1) as (server, _listener, said):
        until(lambda: server.pid is None, "be stopped")
    assert not server.alive()
    assert ["is stopped" in line for line in said] == [True]


def test_pauses_grow_up_to_a_minute() -> None:
    pauses = [pause_seconds(deaths) for deaths in range(1, 20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 60.0)


def test_settings_come_from_the_environment() -> None:
    assert ConnectSettings.from_env({}) == ConnectSettings("1g", "512m", "512m", 900.0)
    given = {"HEAP": "2G", "DIRECT": "256m", "METASPACE": "300m", "IDLE": "never"}
    assert ConnectSettings.from_env({f"KAFKA_LAKE_CONNECT_{k}": v for k, v in given.items()}) == ConnectSettings(
        "2g", "256m", "300m", None
    )


@pytest.mark.parametrize(("name", "value"), [("HEAP", "lots"), ("DIRECT", "0m"), ("METASPACE", "1t"), ("IDLE", "15")])
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"KAFKA_LAKE_CONNECT_{name}\b.*{value}"):
        ConnectSettings.from_env({f"KAFKA_LAKE_CONNECT_{name}": value})


def test_idle_times_have_units() -> None:
    assert [idle_seconds(text) for text in ("90s", "2h")] == [90.0, 7200.0]


def test_memory_is_bounded_whatever_options_a_user_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kafka_lake.spark.connect.spark_jars", lambda: "")
    settings = ConnectSettings("2g", "300m", "200m")
    conf = settings.server(tmp_path, 1, {"spark.driver.defaultJavaOptions": "-Dmine=1"}).spark_conf()
    assert conf["spark.driver.memory"] == "2g"
    options = conf["spark.driver.defaultJavaOptions"].split()
    assert {"-XX:MaxDirectMemorySize=300m", "-XX:MaxMetaspaceSize=200m", "-XX:+ExitOnOutOfMemoryError"} < set(options)
    assert options[-1] == "-Dmine=1"


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[3, 2]", 3), ("local[*]", os.cpu_count()), ("yarn", None)],
)
def test_a_session_can_ask_how_many_tasks_run_at_once(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
    told = local_conf(catalog_anywhere(), master, "", {}).get("spark.default.parallelism")
    assert told == (None if cores is None else str(cores))


def test_alone_it_says_what_is_wrong_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["kafka_lake.spark", "--work-dir", str(tmp_path / "connect")]
    monkeypatch.setattr(sys, "argv", [*arguments, "--conf", "spark.x"])
    with pytest.raises(SystemExit):
        alone.main()
    assert "--conf spark.x: write KEY=VALUE" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv("KAFKA_LAKE_CONNECT_HEAP", "much")
    with pytest.raises(SystemExit, match="KAFKA_LAKE_CONNECT_HEAP=much is not a size"):
        alone.main()
    assert not (tmp_path / "connect").exists()


def test_alone_it_is_a_server_with_the_catalog_and_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[ConnectSupervisor] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_LAKE_CONNECT_IDLE", "never")
    monkeypatch.setattr("kafka_lake.spark.__main__.spark_jars", lambda: "")
    monkeypatch.setattr("kafka_lake.spark.connect.spark_jars", lambda: "")
    monkeypatch.setattr(alone, "run_in_foreground", lambda server, *_: kept.append(server))
    given = ["--work-dir", "connect", "--port", "17", "--master", "local[3]", "--conf", "spark.x=1=2"]
    monkeypatch.setattr(sys, "argv", ["kafka_lake.spark", *given])
    alone.main()
    (server,) = kept
    conf = server._connect.spark_conf()
    assert server.address == "sc://localhost:17"
    assert server.remote == f"sc://localhost:17/;token={conf['spark.connect.authenticate.token']}"
    assert (conf["spark.master"], conf["spark.default.parallelism"], conf["spark.x"]) == ("local[3]", "3", "1=2")
    assert conf["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"


def test_the_token_stays_the_same_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    first = ConnectServer(tmp_path / "connect", 1)
    assert len(first.token) > 30
    assert first.token_file.read_text() == first.token
    assert first.token_file.stat().st_mode & 0o777 == 0o600
    assert ConnectServer(tmp_path / "connect", 1).remote == first.remote
    assert ConnectServer(tmp_path / "other", 1).token != first.token
    given = ConnectServer(tmp_path / "given", 1, {TOKEN: "a b;c"})
    assert DefaultChannelBuilder(given.remote).token == "a b;c"
    assert not given.token_file.exists()


def test_settings_lie_in_a_file_for_its_owner_alone_and_only_while_it_is_needed() -> None:
    with properties_file({"spark.a": "b\\c = d", "spark.e": "ü\n"}) as file:
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert file.read_text("utf-8") == "spark.a=b\\\\c\\ \\=\\ d\nspark.e=ü\\n\n"
    assert not file.parent.exists()


def test_a_host_that_replaces_another_takes_over_its_kept_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that many share would keep the sessions of hosts that are gone: each run of a pod is such a host."""

    def kept(warehouse: str = "s3://lake", password: str = "one", host: str = "a") -> str:
        uri = f"postgresql+psycopg2://me:{password}@db/lake"
        monkeypatch.setattr("socket.gethostname", lambda: host)
        catalog = CatalogResource(name="lake", properties={"type": "sql", "uri": uri, "warehouse": warehouse})
        return SparkResource(spark_config={}, catalog=catalog)._kept_id("orders to pizza.orders", 0)

    monkeypatch.setenv("DAGSTER_HOME", "/opt/dagster")
    assert kept(host="pod-1") == kept(host="pod-2") == kept(password="another")
    assert kept() != kept(warehouse="s3://staging")
    before = kept()
    monkeypatch.setenv("DAGSTER_HOME", "/opt/other")
    assert kept() != before


def catalog_anywhere() -> SparkCatalog:
    return LakeCatalog("lake", {"type": "rest", "uri": "http://127.0.0.1:1"}).for_spark()


def test_a_local_spark_has_the_jars_on_its_class_path_and_a_cluster_is_sent_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    mine = {"spark.driver.extraClassPath": "mine.jar", "spark.jars": "more.jar"}
    local = local_conf(catalog_anywhere(), "local[2]", "a.jar,b.jar", mine)
    assert local["spark.driver.extraClassPath"] == "mine.jar:a.jar:b.jar"
    assert local["spark.jars"] == "more.jar"
    cluster = local_conf(catalog_anywhere(), "yarn", "a.jar,b.jar", {})
    assert cluster["spark.jars"] == "a.jar,b.jar"
    assert "spark.driver.extraClassPath" not in cluster
    assert "spark.driver.host" not in cluster


def test_python_workers_come_from_our_daemon_unless_they_are_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "spark.python.daemon.module"
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert local_conf(catalog_anywhere(), "local", "a.jar", {})[key] == "kafka_lake.spark.daemon"
    assert local_conf(catalog_anywhere(), "local", "a.jar", {key: "mine"})[key] == "mine"
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python3")
    assert key not in local_conf(catalog_anywhere(), "local", "a.jar", {})
    assert key not in local_conf(catalog_anywhere(), "yarn", "a.jar", {})


def test_spark_is_not_told_which_line_built_each_column_unless_somebody_asks_for_it() -> None:
    asked = inspect.getsource(is_debugging_enabled)
    key = "spark.python.sql.dataFrameDebugging.enabled"
    assert key in asked, "PySpark asks for another setting"
    for master in ("local[2]", "yarn"):
        assert local_conf(catalog_anywhere(), master, "", {})[key] == "false"
        assert local_conf(catalog_anywhere(), master, "", {key: "true"})[key] == "true"


def test_the_archive_of_classes_is_used_where_there_is_one_for_this_class_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "spark.driver.defaultJavaOptions"
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path))
    without = local_conf(catalog_anywhere(), "local", "a.jar,b.jar", {})[key]
    assert "SharedArchiveFile" not in without
    archive = class_archive("a.jar:b.jar")
    archive.parent.mkdir()
    archive.touch()
    options = local_conf(catalog_anywhere(), "local", "a.jar,b.jar", {key: "-Dmine=1"})[key].split()
    assert options[0] == f"-XX:SharedArchiveFile={archive}"
    assert options[-1] == "-Dmine=1"
    assert local_conf(catalog_anywhere(), "local", "other.jar", {})[key] == without
    # Spark splits the options at blanks.
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path / "my cache"))
    spaced = class_archive("a.jar:b.jar")
    spaced.parent.mkdir(parents=True)
    spaced.touch()
    assert local_conf(catalog_anywhere(), "local", "a.jar,b.jar", {})[key] == without


def test_an_archive_of_classes_is_of_the_files_that_were_there_when_it_was_written(tmp_path: Path) -> None:
    jar, other = tmp_path / "a.jar", tmp_path / "b.jar"
    jar.write_bytes(b"one")
    other.write_bytes(b"two")
    classpath = f"{jar}:{other}"
    os.utime(jar, (1_000, 1_000))
    written_for = class_archive(classpath)
    assert class_archive(classpath) == written_for
    # Java compares times and sizes, so a virtual environment recreated at the same place needs an archive of its own.
    os.utime(jar, (2_000, 2_000))
    assert class_archive(classpath) != written_for
    jar.write_bytes(b"one more")
    os.utime(jar, (1_000, 1_000))
    assert class_archive(classpath) != written_for
    jar.write_bytes(b"one")
    os.utime(jar, (1_000, 1_000))
    assert class_archive(classpath) == written_for
