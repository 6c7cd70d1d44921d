"""The Connect server: its memory, its token, its settings, and what a Spark in this process gets."""

import inspect
import os
import sys
from pathlib import Path

import pytest
from pyspark.errors.utils import is_debugging_enabled
from pyspark.sql.connect.client import DefaultChannelBuilder

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.environment import SparkCatalog
from kafka_lake.engine import __main__ as alone
from kafka_lake.engine.server import TOKEN, ConnectMemory, ConnectServer
from kafka_lake.engine.settings import local_conf, local_cores, properties_file
from kafka_lake.errors import ConfigurationError


def test_memory_comes_from_the_environment() -> None:
    assert ConnectMemory.from_env({}) == ConnectMemory("1g", "512m", "512m")
    given = {"KAFKA_LAKE_CONNECT_HEAP": "2G", "KAFKA_LAKE_CONNECT_DIRECT": "256m"}
    assert ConnectMemory.from_env(given) == ConnectMemory("2g", "256m", "512m")


@pytest.mark.parametrize(("name", "value"), [("HEAP", "lots"), ("DIRECT", "0m"), ("METASPACE", "1t")])
def test_a_wrong_size_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"KAFKA_LAKE_CONNECT_{name}\b.*{value}"):
        ConnectMemory.from_env({f"KAFKA_LAKE_CONNECT_{name}": value})


def test_memory_is_bounded_whatever_options_a_user_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kafka_lake.engine.server.spark_jars", lambda: "")
    given = {"spark.driver.defaultJavaOptions": "-Dmine=1"}
    conf = ConnectServer(tmp_path, 1, given, ConnectMemory("2g", "300m", "200m")).spark_conf()
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
    reported = local_conf(catalog_anywhere(), master, "", {}).get("spark.default.parallelism")
    assert reported == (None if cores is None else str(cores))


def test_a_cluster_among_the_settings_gets_the_jars() -> None:
    conf = local_conf(catalog_anywhere(), "local[*]", "/a.jar", {"spark.master": "spark://host:7077"})
    assert conf["spark.master"] == "spark://host:7077"
    assert conf["spark.jars"] == "/a.jar"
    assert "spark.driver.bindAddress" not in conf


def test_alone_it_says_what_is_wrong_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["kafka_lake.engine", "--work-dir", str(tmp_path / "connect")]
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
    kept: list[ConnectServer] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kafka_lake.engine.__main__.spark_jars", lambda: "")
    monkeypatch.setattr("kafka_lake.engine.server.spark_jars", lambda: "")
    monkeypatch.setattr(alone, "run", kept.append)
    given = ["--work-dir", "connect", "--port", "17", "--master", "local[3]", "--conf", "spark.x=1=2"]
    monkeypatch.setattr(sys, "argv", ["kafka_lake.engine", *given])
    alone.main()
    (server,) = kept
    conf = server.spark_conf()
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
    assert local_conf(catalog_anywhere(), "local", "a.jar", {})[key] == "kafka_lake.engine.daemon"
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
