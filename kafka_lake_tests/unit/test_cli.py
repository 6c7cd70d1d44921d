"""The command line without engines: help is quick, errors are one line with a remedy, exit codes tell."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import kafka_lake.cli
import kafka_lake.cli_topics
import kafka_lake.demo.stack
import kafka_lake.doctor
import kafka_lake.status
from kafka_lake.cli import app
from kafka_lake.doctor import Diagnosis
from kafka_lake.status import PartitionStatus, TopicStatus

UP_TO_DATE = TopicStatus(
    "completed-pizzas",
    "pizza.completed_pizzas",
    (PartitionStatus(0, 7, 7, 0),),
    0,
    42,
    "2026-11-21T12:00:00+00:00",
    7,
    0,
)
UNREACHABLE = TopicStatus("gone", "pizza.gone", (), 0, None, None, 0, 0, "Topic gone: no such topic.")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    for name in ("BROKER_PORT", "UI_PORT", "CONNECT_PORT"):
        monkeypatch.delenv(f"KAFKA_LAKE_{name}", raising=False)


@pytest.fixture
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def at_hand(*_arguments: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(kafka_lake.demo.stack, "broker_at_hand", at_hand)


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("demo", "up", "ingest", "status", "doctor"):
        assert f" {command} " in result.output


def test_help_loads_no_engine() -> None:
    code = (
        "import sys, kafka_lake.cli; print([m for m in ('dagster', 'pyspark', 'confluent_kafka') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_taken_port_ends_the_demo_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setenv("KAFKA_LAKE_UI_PORT", str(port))
        result = run("demo")
    assert result.exit_code == 1
    assert f"port {port} for Dagster's UI is taken" in result.output
    assert "set KAFKA_LAKE_UI_PORT" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "home").exists()


def test_dotenv_file_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Set and deleted by monkeypatch, so that what the file sets is gone after the test.
    monkeypatch.setenv("KAFKA_LAKE_BROKER_PORT", "")
    monkeypatch.delenv("KAFKA_LAKE_BROKER_PORT")
    (tmp_path / ".env").write_text("KAFKA_LAKE_BROKER_PORT=kafka\n")
    result = run("demo")
    assert result.exit_code == 1
    assert "KAFKA_LAKE_BROKER_PORT=kafka is no port" in result.output


def test_no_orders_is_a_usage_error() -> None:
    assert run("demo", "--records", "0").exit_code == 2


@pytest.mark.parametrize("command", ["ingest", "status"])
def test_unknown_topic_names_the_known_ones(command: str) -> None:
    result = run(command, "pizzaz")
    assert result.exit_code == 1
    assert "Topic pizzaz has no table here; the topics are: completed-pizzas" in result.output
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("_no_broker")
def test_status_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_lake.status, "collect", lambda *_: [UP_TO_DATE])
    result = run("status", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["partitions"] == [{"partition": 0, "position": 7, "end": 7, "lag": 0}]


@pytest.mark.usefixtures("_no_broker")
def test_status_shows_a_topic_that_failed_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_lake.status, "collect", lambda *_: [UP_TO_DATE, UNREACHABLE])
    result = run("status")
    assert result.exit_code == 1
    assert "completed-pizzas" in result.output
    assert "no such topic" in result.output


@pytest.mark.parametrize("healthy", [True, False])
def test_doctor_shows_remedies_and_exits_by_health(monkeypatch: pytest.MonkeyPatch, healthy: bool) -> None:
    found = [Diagnosis("Java", True, "/usr/lib/jvm", ""), Diagnosis("Jars", healthy, "none", "Mend the network.")]
    monkeypatch.setattr(kafka_lake.doctor, "examine", lambda *_: found)
    result = run("doctor")
    assert result.exit_code == (0 if healthy else 1)
    assert ("Mend the network." in result.output) is not healthy
