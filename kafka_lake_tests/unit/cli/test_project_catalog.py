"""The catalog that a project's YAML names is that of `kafka-lake up` and of the doctor, as it is that of its runs."""

import json
import os
import re
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console
from typer.testing import CliRunner

from examples.pizza_shop import __main__ as demo
from kafka_lake.cli import output
from kafka_lake.cli.commands import doctor, up
from kafka_lake.cli.main import app
from kafka_lake.cli.project import configured_catalog, configured_clusters, open_connections
from kafka_lake.common.processes import free_port
from kafka_lake.devstack import stack
from kafka_lake.devstack.running import Ports
from kafka_lake.devstack.stack import Stack
from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.cluster import KafkaCluster

IN_YAML = """
type: kafka_lake.KafkaCluster
attributes:
  catalog_properties:
    type: sql
    uri: sqlite:///{folder}/mine.db
    warehouse: file://{folder}/warehouse
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The YAML document of a project in the working directory, whose catalog it has."""
    for name in [variable for variable in os.environ if variable.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    # Each test imports a package of its own.
    package = tmp_path / f"shop_{uuid4().hex}"
    (package / "defs" / "kafka").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{package.name}"\n'
    )
    document = package / "defs" / "kafka" / "defs.yaml"
    document.write_text(IN_YAML.format(folder=tmp_path))
    monkeypatch.chdir(tmp_path)
    return document


def _server_of_up(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], list[str]]:
    """Return what the Connect server of `kafka-lake up` would be started with, and what the user is told."""
    started: list[dict[str, str]] = []
    reported: list[str] = []

    def server(folder: Path, port: int, conf: dict[str, str], _: object) -> None:
        started.append(conf)
        raise SystemExit

    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr("kafka_lake.devstack.stack.spark_jars", lambda: "")
    monkeypatch.setattr("kafka_lake.devstack.stack.ConnectServer", server)
    monkeypatch.setattr(up, "check_free", lambda *_: None)
    with pytest.raises(SystemExit):
        up.stay_up(Ports.from_env(), reported.append)
    return started[0], reported


def test_the_server_of_up_has_the_projects_catalog(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf, _ = _server_of_up(monkeypatch)
    assert conf["spark.sql.catalog.lake.uri"].startswith(f"jdbc:sqlite:{document.parents[3] / 'mine.db'}")


def test_definitions_that_cannot_be_loaded_leave_the_environments(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document.write_text(document.read_text().replace("catalog_properties", "catalogue"))
    conf, reported = _server_of_up(monkeypatch)
    assert any("catalogue" in line for line in reported)
    assert conf["spark.sql.catalog.lake.uri"].startswith(f"jdbc:sqlite:{document.parents[3] / 'home' / 'catalog.db'}")


@pytest.mark.parametrize(
    ("named", "in_yaml", "starts"),
    [
        ("", "", True),
        ("127.0.0.1:21993", "", True),
        ("127.0.0.1:9", "", False),
        ("", "kafka_properties: {bootstrap.servers: 127.0.0.1:9}", False),
        ("", "no_such_setting: 1", False),
    ],
)
def test_the_embedded_broker_is_up_where_nothing_names_brokers(
    document: Path, monkeypatch: pytest.MonkeyPatch, *, named: str, in_yaml: str, starts: bool
) -> None:
    began: list[str] = []

    def broker(stack: Stack) -> None:
        began.append(stack.ports.broker.address)
        raise SystemExit

    def server(*_: object) -> None:
        raise SystemExit

    monkeypatch.setenv("KAFKA_LAKE_BROKER_PORT", "21993")
    monkeypatch.delenv("KAFKA_LAKE_BOOTSTRAP_SERVERS")
    if named:
        monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", named)
    document.write_text(document.read_text() + f"  {in_yaml}\n")
    monkeypatch.setattr(up, "check_free", lambda *_: None)
    monkeypatch.setattr(stack, "needs_connect", lambda _: True)
    monkeypatch.setattr(Stack, "start_broker", broker)
    monkeypatch.setattr(Stack, "start_connect", server)
    with pytest.raises(SystemExit):
        up.stay_up(Ports.from_env(), lambda _: None)
    assert began == (["127.0.0.1:21993"] if starts else [])


def test_a_projects_catalog_that_spark_cannot_have_starts_nothing(
    document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document.write_text(document.read_text().replace("type: sql", "type: nessie"))
    monkeypatch.setattr(stack, "needs_connect", lambda _: True)
    monkeypatch.setattr(up, "check_free", lambda *_: None)
    monkeypatch.setattr(Stack, "start_dagster", lambda *_: pytest.fail("Dagster is started"))
    with pytest.raises(ConfigurationError, match="type nessie is not one of"):
        up.stay_up(Ports.from_env(), lambda _: None)


@pytest.mark.usefixtures("document")
def test_the_doctor_examines_the_projects_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("check_java", "check_jars", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda *_: "not examined here")

    found = {
        check.part: check
        for check in doctor.check_all(lambda _: None, clusters=configured_clusters, catalog=configured_catalog)
    }
    assert found["Warehouse"].message == f"file://{tmp_path}/warehouse is writable"
    assert (tmp_path / "mine.db").is_file()
    assert not (tmp_path / "home" / "catalog.db").exists()


def test_the_doctor_asks_the_brokers_that_a_document_names(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", raising=False)
    nowhere = "127.0.0.1:9"
    document.write_text(
        document.read_text() + f"  kafka_properties: {{bootstrap.servers: '{nowhere}'}}\n"
        f"  registry_properties: {{url: 'http://{nowhere}'}}\n"
    )
    for part in ("check_java", "check_jars", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda *_: "not examined here")
    monkeypatch.setattr(doctor, "check_brokers", lambda kafka: f"asked {kafka.properties['bootstrap.servers']}")
    monkeypatch.setattr(doctor, "check_registry", lambda registry: f"asked {registry.properties['url']}")

    found = {check.part: check for check in doctor.check_all(lambda _: None, clusters=configured_clusters)}
    assert found["Brokers"].message == f"asked {nowhere}"
    assert found["Schema registry"].message == f"asked http://{nowhere}"


def test_a_command_asks_the_broker_that_a_document_names(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", raising=False)
    document.write_text(document.read_text() + "  kafka_properties: {bootstrap.servers: 'elsewhere:9'}\n")
    asked: list[str] = []
    monkeypatch.setattr(KafkaCluster, "check", lambda cluster: asked.append(cluster.bootstrap_servers))
    with open_connections(with_catalog=False):
        pass
    assert asked == ["elsewhere:9"]


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("discover", "orders"),
        ("discover", "orders", "--write"),
        ("doctor",),
        ("topic", "tail", "orders"),
        ("topics", "list"),
        ("topics", "refresh"),
        ("schema", "orders"),
        ("init", "new", "--topic", "orders"),
        ("ingest", "orders"),
        ("topic", "create", "orders"),
        ("adopt", "shop.orders", "--topic", "orders", "--from-offsets", "0:1"),
    ],
    ids=" ".join,
)
def test_command_without_the_embedded_broker_names_it(
    document: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    port = free_port()
    monkeypatch.setenv("KAFKA_LAKE_BROKER_PORT", str(port))
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "")
    monkeypatch.delenv("KAFKA_LAKE_BOOTSTRAP_SERVERS")
    for name, text in (
        ("orders", "type: kafka_lake.KafkaTopic\nattributes: {topic: orders, table: shop.orders}\n"),
        ("many", "type: kafka_lake.KafkaTopics\nattributes: {topics: ['web.*'], table: 'web.{topic}'}\n"),
    ):
        (document.parent.parent / name).mkdir()
        (document.parent.parent / name / "defs.yaml").write_text(text)
    for part in ("check_java", "check_jars", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda *_: "not examined here")
    monkeypatch.setattr(output, "out", Console(width=400))
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, command)
    assert done.exit_code == (0 if command == ("doctor",) else 1), done.output
    assert f"The embedded broker at 127.0.0.1:{port} isn't running. `kafka-lake up` starts it." in done.output
    if command == ("status",):
        assert re.search(r"^orders +shop.orders +0 +0 +\? +no table *$", done.stdout, re.MULTILINE)
        reported = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
        assert [(topic["topic"], topic["lag"], topic["partitions"]) for topic in reported] == [("orders", None, [])]


@pytest.mark.usefixtures("document")
@pytest.mark.parametrize("command", ["live", "demo"])
def test_demo_in_a_project_without_its_topics_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(Stack, "start_broker", lambda _: pytest.fail("a broker is started"))
    done = CliRunner(env={"COLUMNS": "200"}).invoke(demo.app, [command])
    assert done.exit_code == 1
    assert "topics completed-pizzas and pizza-deliveries, and this project has no table of them." in done.output
    assert not (tmp_path / "home" / "running.json").exists()
