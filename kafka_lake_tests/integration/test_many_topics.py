"""One document for many topics of a real cluster: by the command, the sensor and the tables."""

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from typer.testing import CliRunner

import kafka_lake.cli.output
from kafka_lake.cli import load_definitions
from kafka_lake.cli.main import app
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.unit.cli.test_project_catalog import DEFINITIONS
from kafka_lake_tests.unit.orchestration.test_clusters import write

pytestmark = pytest.mark.integration


class Project:
    """A project in a folder of its own, as a user has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = f"many_{uuid.uuid4().hex[:8]}"
        defs = folder / self.package / "defs"
        defs.mkdir(parents=True)
        (defs.parent / "__init__.py").touch()
        (defs.parent / "definitions.py").write_text(DEFINITIONS)
        (folder / "pyproject.toml").write_text(
            f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{self.package}"\n'
        )

    def write(self, documents: dict[str, str]) -> None:
        write(self.folder / self.package / "defs", documents)

    def command(self, *arguments: str) -> str:
        """Run kafka-lake in the project's folder, as a process of its own would."""
        load_definitions.evaluated.cache_clear()
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 0, done.output
        return done.output

    def definitions(self) -> dg.Definitions:
        return dg.load_from_defs_folder(path_within_project=self.folder / self.package)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", raising=False)
    for console in ("out", "err"):
        monkeypatch.setattr(kafka_lake.cli.output, console, Console(width=200))
    return Project(tmp_path)


@pytest.mark.exhaustive
def test_tables_by_value_are_assets_after_refresh(
    project: Project,
    broker: EmbeddedBroker,
    catalog_resource: CatalogResource,
    connections: Callable[[], Connections],
    new_topic: Callable[..., Topic],
) -> None:
    topic = new_topic(1)
    by = f"field: type, name: '{NAMESPACE}.{topic.table}_{{value}}', columns: 'id int'"
    project.write(
        {
            "cluster": f"KafkaCluster\nkafka_properties: {{bootstrap.servers: '{broker.bootstrap_servers}'}}\n"
            f"catalog_properties: {json.dumps(dict(catalog_resource.properties))}",
            "routed": f"KafkaTopic\ntopic: {topic.name}\n"
            f"table: {{name: {NAMESPACE}.{topic.table}, columns: id int}}\ntables_by: {{{by}}}",
        }
    )

    def tables() -> set[str]:
        repository = project.definitions().get_repository_def()
        # The job maintains each of them.
        assert [len(document.tables) for document in topics_of(repository)] == [
            len(repository.get_job("maintain_tables").nodes)
        ]
        return {
            key.path[-1].removeprefix(topic.table) for key in repository.assets_defs_by_key if key.path[0] == NAMESPACE
        }

    assert tables() == {""}
    assert "Nothing has changed." in project.command("topics", "refresh")
    for number, kind in enumerate(("a", "B b", "a")):
        topic.send({"type": kind, "id": number})
    (spec,) = topics_of(project.definitions().get_repository_def())
    warned: list[str] = []
    ingest(spec, connections(), "run", observer=Observer(warn=warned.append))
    assert [message for message in warned if "They become assets once `kafka-lake topics refresh` has run" in message]
    reported = json.loads(project.command("topics", "list", "--json"))
    assert [(row["value"], row["table"], row["state"]) for row in reported] == [
        ("a", f"{NAMESPACE}.{topic.table}_a", "new"), ("B b", f"{NAMESPACE}.{topic.table}_b_b", "new"),
    ]  # fmt: skip
    assert tables() == {""}, "the catalog isn't asked"
    assert "new: no asset yet" in project.command("topics", "refresh")
    assert tables() == {"", "_a", "_b_b"}
    assert "Nothing has changed." in project.command("topics", "refresh")
    # A run by such definitions knows them, and others that come.
    topic.send({"type": "c", "id": 3})
    topic.send({"type": "a", "id": 4})
    (spec,) = topics_of(project.definitions().get_repository_def())
    report = ingest(spec, connections(), "again")
    rows = {table[1].removeprefix(topic.table): value.total("rows") for table, value in report.others.items()}
    assert rows == {"_a": 1, "_b_b": 0, "_c": 1}


@pytest.mark.exhaustive
def test_matching_topics_get_tables_and_new_ones_are_reported(
    project: Project,
    broker: EmbeddedBroker,
    catalog_resource: CatalogResource,
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
) -> None:
    name = f"shop{uuid.uuid4().hex[:6]}"
    address = {"bootstrap.servers": broker.bootstrap_servers}
    admin, producer = AdminClient(address), Producer(address)

    def topic(of: str, between: str = ".") -> Topic:
        made = Topic(f"{name}{between}{of}", f"{name}_{of.lower()}", admin, producer)
        made.create(1)
        return made

    topics = {item: topic(item) for item in ("Orders", "users")}
    several = {item: topic(item, "_") for item in "ac"}
    several["a"].send({"id": 7})
    topic("users.internal")
    for number, value in enumerate(topics.values()):
        value.send({"id": number, "who": value.name})
    project.write(
        {
            "cluster": f"KafkaCluster\nkafka_properties: {{bootstrap.servers: '{broker.bootstrap_servers}'}}",
            "many": f"KafkaTopics\ntopics: {{pattern: '{name}\\..*', exclude: .*internal}}\n"
            f"table: '{NAMESPACE}.{{topic}}'\n"
            f"overrides: {{{name}.users: {{table: {{write: {{mode: upsert, key: [id]}}}}}}}}",
            "several": f"KafkaTopic\ntopics: {{pattern: '{name}_.*', exclude: .*c}}\ntable: {NAMESPACE}.{name}",
        }
    )
    reported = json.loads(project.command("topics", "list", "--json"))
    assert [(row["topic"], row["table"], row["state"]) for row in reported] == [
        (f"{name}.Orders", "", "new"), (f"{name}.users", "", "new"), (f"{name}_a", f"{NAMESPACE}.{name}", "new"),
    ]  # fmt: skip
    assert re.search(rf"{name}_a +{NAMESPACE}\.{name} +new: not in the table yet", project.command("topics", "refresh"))
    # What the documents name is there: no broker of our own is started beside it.
    assert not (project.folder / "home" / "kafka").exists()
    # The sensor asks for a run of each, and the runs have the settings.
    later = topic("later")
    repository = project.definitions().get_repository_def()
    resources: dict[str, Any] = {**dict(project.definitions().resources or {}), "catalog": catalog_resource}
    needed = {item: resources[item] for item in ("kafka", "catalog")}
    instance = dg.DagsterInstance.ephemeral()

    def tick() -> Any:
        context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=needed)
        return repository.get_sensor_def("kafka_offsets").evaluate_tick(context)

    asked = tick()
    for added in asked.dynamic_partitions_requests:
        instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)
    assert {key for request in asked.run_requests for key in request.asset_selection} == {
        dg.AssetKey([NAMESPACE, table]) for table in (*(table.table for table in topics.values()), name)
    }
    shared = next(document for document in topics_of(repository) if document.topics)
    ingest(shared, connections(), "run")
    # Another topic is told of before it joins the table.
    several["b"] = topic("b", "_")
    several["b"].send({"id": 8})
    for value, keyed in ((topics["Orders"], {}), (topics["users"], {"write": "upsert", "key": ("id",)})):
        spec = value.spec(None, **keyed)
        ingest(spec, connections(), "run")
        assert [(row["id"], row["who"]) for row in view(spec).rows()] == [
            (json.loads(sent.value or b"")["id"], value.name) for sent in value.ledger
        ]
    skipped = tick().skip_message
    instance.dispose()
    assert f"1 new topic matches and has no table yet: {later.name}; " in skipped
    assert f"isn't in {NAMESPACE}.{name} yet: {name}_b. Run `kafka-lake topics refresh`" in skipped
    admin.delete_topics([topics["users"].name])[topics["users"].name].result(20)
    later.wait_for(lambda: topics["users"].name not in admin.list_topics(timeout=10).topics)
    shown = project.command("topics", "list")
    assert "deleted from Kafka; the table stays" in shown
    assert "new: no table yet" in shown
    project.command("topics", "refresh")
    shared = next(document for document in topics_of(project.definitions().get_repository_def()) if document.topics)
    for topic_spec in shared.each_topic:
        ingest(topic_spec, connections(), "again")
    found = sorted((row["id"], row["_kafka"]["topic"]) for row in view(shared).rows())
    assert found == [(7, f"{name}_a"), (8, f"{name}_b")]
