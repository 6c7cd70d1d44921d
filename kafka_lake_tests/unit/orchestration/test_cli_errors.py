"""A command whose system isn't there ends with one sentence and exit code 1, whatever libraries log and raise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kafka_lake.cli.main import app
from kafka_lake.common.processes import free_port
from kafka_lake.engine import sessions
from kafka_lake.errors import EngineUnavailableError
from kafka_lake.kafka import client
from kafka_lake.orchestration.resources import CatalogResource, SparkResource

pytestmark = pytest.mark.processes

TOPIC = "completed-pizzas"
ON_BROKERS = [
    ("status",),
    ("discover",),
    ("schema", TOPIC),
    ("ingest", TOPIC),
    ("dead-letters", TOPIC, "--replay"),
    ("replay", TOPIC, "--yes"),
    ("reset", TOPIC, "--to", "earliest", "--yes"),
]
ON_CATALOG = [("dead-letters", TOPIC), ("clean",), ("schema", TOPIC, "--history"), ("schema", TOPIC, "--sample", "0")]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_MODULE_NAME", "kafka_lake.definitions")
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(client, "ALL_DOWN_SECONDS", 0.3)
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 0.1)


def reported(*arguments: str) -> str:
    """Return the one line that a command says, which must fail."""
    result: Result = CliRunner(env={"COLUMNS": "80"}).invoke(app, arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "hush" not in result.output
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize("command", ON_BROKERS)
def test_no_broker(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    port = free_port()
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", f"127.0.0.1:{port}")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA_SASL_PASSWORD", "hush")
    line = reported(*command)
    assert f"the cluster at 127.0.0.1:{port} didn't answer: " in line
    assert "Connection refused. Check that the brokers run and KAFKA_LAKE_BOOTSTRAP_SERVERS" in line


@pytest.mark.parametrize("command", ON_CATALOG)
def test_no_catalog(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    port = free_port()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://bob:hush@127.0.0.1:{port}")
    line = reported(*command)
    assert f"catalog lake (rest at http://127.0.0.1:{port}) didn't answer: Connection refused." in line
    assert "PYICEBERG_CATALOG__LAKE__URI" in line


@pytest.mark.parametrize("command", ON_CATALOG)
def test_an_unknown_type_of_catalog(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "oracle")
    assert "type oracle is not one of sql, rest, glue, hive. Set PYICEBERG_CATALOG__LAKE__TYPE." in reported(*command)


def test_no_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{port}/;token=hush")
    spark = SparkResource(spark_config={}, catalog=CatalogResource())
    for ask in (spark.check, spark.live_session):
        with pytest.raises(EngineUnavailableError) as failed:
            ask()
        assert f"Spark Connect at 127.0.0.1:{port} doesn't answer: Connection refused." in str(failed.value)
        assert "SPARK_REMOTE" in failed.value.remedy
        assert "hush" not in str(failed.value)


# What a JVM does, which has the descriptor and not Python's object, and what a library does.
_NOISY = """
import logging, os
from kafka_lake.cli.main import main
from kafka_lake.orchestration.resources import CatalogResource

def noisy(self, plain=CatalogResource.open):
    os.write(2, b"noise of a JVM\\n")
    logging.getLogger("lib").warning("noise of a library")
    return plain(self)

CatalogResource.open = noisy
main()
"""


def in_a_process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", _NOISY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.mark.exhaustive
def test_what_libraries_say_goes_to_a_file_unless_it_is_asked_for(tmp_path: Path) -> None:
    away = {"PYICEBERG_CATALOG__LAKE__TYPE": "rest", "PYICEBERG_CATALOG__LAKE__URI": f"http://127.0.0.1:{free_port()}"}
    ended = in_a_process("clean", **away)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("Error: ")
    log = (tmp_path / "home" / "logs" / "command.log").read_text()
    assert "noise of a JVM" in log
    assert "noise of a library" in log
    ended = in_a_process("--verbose", "clean", **away)
    assert ended.returncode == 1
    assert "noise of a JVM" in ended.stderr
    assert "noise of a library" in ended.stderr
    assert "Traceback" in ended.stderr
