"""What a local stack writes down for the commands beside it: found while the stack lives, ignored once it is dead."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import kafka_lake.cli.commands.status
import kafka_lake.cli.main
import kafka_lake.cli.project
from kafka_lake.cli.commands.status import TopicStatus
from kafka_lake.devstack.running import Ports, Running, RunningFile, check_alone, running
from kafka_lake.devstack.stack import needs_connect
from kafka_lake.errors import KafkaLakeError
from kafka_lake.spec.topic_table import TopicTable

STACK = Running("127.0.0.1:7", "http://127.0.0.1:8/apis", "sc://127.0.0.1:9", "http://127.0.0.1:10", {"kafka-lake": 1})
HOLDER = """
import sys
from kafka_lake.devstack.running import Running, RunningFile
file = RunningFile()
file.write(Running("127.0.0.1:7", pids={"kafka-lake": 1}))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_MODULE_NAME", "kafka_lake.definitions")
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def other_stack(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has written down what it runs."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "written\n"
            yield process
        finally:
            process.kill()


def test_what_runs_is_found_until_it_is_removed(folder: Path) -> None:
    assert running() is None
    file = RunningFile()
    assert running() is None
    file.write(STACK)
    assert running() == STACK
    assert stat.S_IMODE((folder / "running.json").stat().st_mode) == 0o600
    assert json.loads((folder / "running.json").read_text())["pids"] == {"kafka-lake": 1}
    file.remove()
    file.remove()
    assert running() is None
    check_alone()


@pytest.mark.processes
def test_what_a_killed_stack_left_is_ignored_and_written_over(other_stack: subprocess.Popen[str], folder: Path) -> None:
    assert running() == Running("127.0.0.1:7", pids={"kafka-lake": 1})
    other_stack.send_signal(signal.SIGKILL)
    other_stack.wait(10)
    assert (folder / "running.json").exists()
    assert running() is None
    check_alone()
    file = RunningFile()
    file.write(STACK)
    assert running() == STACK
    file.remove()


@pytest.mark.processes
@pytest.mark.usefixtures("other_stack")
def test_a_second_stack_in_the_same_folder_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    result = CliRunner(env={"COLUMNS": "400"}).invoke(kafka_lake.cli.main.app, ["up"])
    assert result.exit_code == 1
    assert f"A local stack runs in {folder} already: process 1" in result.output
    monkeypatch.setattr("kafka_lake.devstack.running._LOCK_SECONDS", 0.0)
    with pytest.raises(KafkaLakeError, match=r"runs in .* already"):
        RunningFile()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"unknown": 1}'])
def test_a_file_that_says_nothing_is_no_stack(folder: Path, text: str) -> None:
    file = RunningFile()
    (folder / "running.json").write_text(text)
    assert running() is None
    file.remove()


def test_commands_use_what_runs_unless_the_environment_says_otherwise() -> None:
    environment = {"KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_LAKE_REGISTRY_PORT": "3457"}
    STACK.use(environment)
    assert environment == {
        "KAFKA_LAKE_BOOTSTRAP_SERVERS": "127.0.0.1:7",
        "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "http://127.0.0.1:8/apis",
        "SPARK_REMOTE": "sc://127.0.0.1:9",
        "KAFKA_LAKE_REGISTRY_PORT": "3457",
    }
    mine = {
        "KAFKA_LAKE_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
        "KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "",
        "SPARK_REMOTE": "sc://spark:15002",
    }
    environment = dict(mine)
    STACK.use(environment)
    assert environment == mine
    environment = {}
    Running().use(environment)
    assert environment == {}


def test_the_catalog_that_runs_is_used_unless_one_is_configured() -> None:
    stack = Running(catalog={"type": "rest", "s3.secret-access-key": "hush"})
    environment: dict[str, str] = {}
    stack.use(environment)
    reported = {"PYICEBERG_CATALOG__LAKE__TYPE": "rest", "PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY": "hush"}
    assert environment == reported
    mine = {"PYICEBERG_CATALOG__LAKE__URI": "http://mine"}
    environment = dict(mine)
    stack.use(environment)
    assert environment == mine
    environment = {"KAFKA_LAKE_CATALOG": "prod"}
    stack.use(environment)
    assert environment["PYICEBERG_CATALOG__PROD__TYPE"] == "rest"


@pytest.mark.processes
@pytest.mark.usefixtures("other_stack")
def test_a_command_asks_the_broker_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    # Set and deleted by monkeypatch, so that what the command sets is gone after the test.
    for name in ("KAFKA_LAKE_BOOTSTRAP_SERVERS", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def topics(_: object) -> list[object]:
        asked.append(os.environ.get("KAFKA_LAKE_BOOTSTRAP_SERVERS"))
        raise KafkaLakeError("enough")

    monkeypatch.setattr(kafka_lake.cli.project, "topic_tables", topics)
    result = CliRunner().invoke(kafka_lake.cli.main.app, ["status"])
    assert "enough" in result.output
    assert asked == ["127.0.0.1:7"]


class _Dagster(BaseHTTPRequestHandler):
    """A webserver that answers every query in the same way, once it has been asked to reload."""

    answer: ClassVar[dict[str, object]] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert "reloadWorkspace" in asked["query"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"reloadWorkspace": self.answer}}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def dagster() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Dagster) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        ({"locationEntries": [{"name": "lake", "locationOrLoadError": {}}]}, "/assets/shop/orders", 0),
        (
            {"locationEntries": [{"name": "lake", "locationOrLoadError": {"message": "no such type"}}]},
            "can't load lake: no such type",
            1,
        ),
        ({"message": "read only"}, "can't load its definitions again: read only.", 1),
    ],
)
def test_definitions_are_loaded_again(
    monkeypatch: pytest.MonkeyPatch, dagster: str, answer: dict[str, object], said: str, code: int
) -> None:
    monkeypatch.setattr(_Dagster, "answer", answer)
    specs = [TopicTable("orders", "shop", "orders")]
    monkeypatch.setattr(kafka_lake.cli.project, "topic_tables", lambda topic=None: specs)
    file = RunningFile()
    file.write(Running(ui_url=dagster))
    try:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(kafka_lake.cli.main.app, ["reload"])
    finally:
        file.remove()
    assert result.exit_code == code
    assert said in result.output


def test_without_a_stack_nothing_is_loaded_again(folder: Path) -> None:
    result = CliRunner(env={"COLUMNS": "400"}).invoke(kafka_lake.cli.main.app, ["reload"])
    assert result.exit_code == 1
    assert f"No local stack with Dagster runs in {folder}." in result.output


@pytest.mark.parametrize(("lags", "code"), [([2, 1, 0], 0), ([2] * 10_000, 1)])
def test_status_waits_until_no_table_lags_or_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, lags: list[int], code: int
) -> None:
    left = iter(lags)

    @contextmanager
    def at_hand(*_: object, **__: object) -> Iterator[object]:
        yield SimpleNamespace(cluster=None, catalog=None)

    def collect(*_: object) -> list[TopicStatus]:
        return [TopicStatus("orders", "shop.orders", (), next(left), 1, None, 0, 0)]

    monkeypatch.setattr(kafka_lake.cli.project, "topic_tables", lambda topic=None: [])
    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", at_hand)
    monkeypatch.setattr(kafka_lake.cli.commands.status, "collect", collect)
    monkeypatch.setattr(kafka_lake.cli.commands.status, "_POLL_SECONDS", 0.01)
    result = CliRunner().invoke(kafka_lake.cli.main.app, ["status", "orders", "--wait", "300ms", "--json"])
    assert result.exit_code == code, result.output
    assert json.loads(result.stdout)[0]["lag"] == lags[-1]


def test_a_stack_starts_its_own_engine_where_the_variable_names_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = Ports.from_env()
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert needs_connect(ports)
    monkeypatch.setattr("kafka_lake.devstack.running.Port.is_free", lambda _: True)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{ports.connect.number}/;token=of-then")
    assert needs_connect(ports)
    monkeypatch.setattr("kafka_lake.devstack.running.Port.is_free", lambda _: False)
    assert not needs_connect(ports)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://elsewhere:{ports.connect.number}")
    monkeypatch.setattr("kafka_lake.devstack.running.Port.is_free", lambda _: True)
    assert not needs_connect(ports)
