"""What other tools are told of the catalog: all of it that is harmless, nothing that is secret unless asked for."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.commands.env import variables
from kafka_lake.orchestration.how_to_read import how_to_read, how_to_read_page

REST = {
    "type": "rest",
    "uri": "https://lake.example.com/catalog",
    "warehouse": "s3://ware house",
    "credential": "me:hidden-1",
    "oauth2-server-uri": "https://id.example.com/token",
    "s3.access-key-id": "hidden-2",
    "s3.secret-access-key": "hidden-3",
    "s3.region": "eu-central-1",
    "header.authorization": "hidden-4",
}
SQL = {"type": "sql", "uri": "postgresql://me:hidden-5@db/lake", "warehouse": "file:///w"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # No configuration file of the machine's user.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)


@pytest.mark.parametrize("properties", [REST, SQL])
def test_a_page_names_what_is_secret_and_never_shows_it(properties: dict[str, str]) -> None:
    page = how_to_read_page("lake", ("shop", "orders"), properties)
    assert "hidden" not in page
    assert "kafka-lake env --secrets" in page
    for name, value in properties.items():
        assert ("hidden" in value) is (f"`{name}`" in page)
        assert ("hidden" in value) is (value not in page)


def test_a_page_of_a_catalog_without_secrets_names_none() -> None:
    page = how_to_read_page("lake", ("shop", "orders"), {"type": "sql", "uri": "sqlite:////c.db"})
    assert "Only the environment" not in page
    assert page.count("```python") == 4


@pytest.mark.parametrize("properties", [None, REST])
@pytest.mark.parametrize("name", ["orders", "order-events", 'a"b', "ünï`c"])
def test_the_code_is_python_whatever_the_table_is_called(properties: dict[str, str] | None, name: str) -> None:
    found = how_to_read("lake", ("shop", name), properties)
    assert list(found) == ["Spark", "PyIceberg", "DuckDB through PyIceberg", "Polars"]
    for tool, code in found.items():
        compile(code, tool, "exec")


@pytest.mark.parametrize("properties", [REST, SQL])
def test_what_a_shell_is_told_pyiceberg_understands(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    stack = {"SPARK_REMOTE": "sc://127.0.0.1:7", "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "http://127.0.0.1:8"}
    found = variables(LakeCatalog("lake", properties), {None: "kafka:9092"}, stack)
    script = "\n".join([*(variable.line(True) for variable in found), "env"])
    done = subprocess.run(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    reported = dict(line.split("=", 1) for line in done.stdout.splitlines())
    for name, value in reported.items():
        monkeypatch.setenv(name, value)
    assert Config().get_catalog_config("lake") == properties
    assert reported["SPARK_REMOTE"] == "sc://127.0.0.1:7"
    assert reported["KAFKA_BOOTSTRAP_SERVERS"] == "kafka:9092"
    assert reported["SCHEMA_REGISTRY_URL"] == "http://127.0.0.1:8"


@pytest.mark.parametrize("properties", [REST, SQL])
def test_a_shell_is_told_no_secret_that_nobody_asked_for(properties: dict[str, str]) -> None:
    stack = {"SPARK_REMOTE": "sc://host:443/;token=hidden-6", "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "http://u:hidden-7@r"}
    found = variables(LakeCatalog("lake", properties), {None: "kafka:9092"}, stack)
    reported = [variable.line(False) for variable in found]
    assert "hidden" not in "\n".join(reported)
    assert "# SPARK_REMOTE is a secret: kafka-lake env --secrets shows it" in reported
    assert f"export PYICEBERG_CATALOG__LAKE__WAREHOUSE={shlex.quote(properties['warehouse'])}" in reported


def test_a_shell_is_told_that_there_is_no_engine() -> None:
    found = variables(LakeCatalog("lake", SQL), {None: "kafka:9092"}, {})
    assert [tool.name for tool in found][-1] == "KAFKA_BOOTSTRAP_SERVERS"
