"""Several Kafka clusters in one project: names that can't collide, secrets that stay apart, and mistakes by name."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from typer.testing import CliRunner

import kafka_lake.cli.documents
import kafka_lake.cli.load_definitions
import kafka_lake.cli.project
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.commands import doctor
from kafka_lake.cli.commands.status import TopicStatus
from kafka_lake.cli.load_definitions import explanation
from kafka_lake.cli.main import app
from kafka_lake.common.environment import own_variables
from kafka_lake.common.offsets import TopicIdentity, Watermarks
from kafka_lake.discovery.discover import Discovered, document, documents
from kafka_lake.errors import AuthenticationError, ConfigurationError, KafkaError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration import jobs as replay_job
from kafka_lake.orchestration import partitions as register_partitions
from kafka_lake.orchestration.keys import TOPIC_TAG
from kafka_lake.orchestration.resources import KafkaResource, RegistryResource
from kafka_lake.orchestration.sensors.requests import Pace, Sharing
from kafka_lake.orchestration.sensors.topics import evaluate
from kafka_lake.spec.topic_table import TopicTable

EU, US = TopicTable("orders", "eu", cluster="eu"), TopicTable("orders", "us", cluster="us")

Documents = Mapping[str, str]

TWO: Documents = {
    "cluster_eu": "KafkaCluster\nname: eu\nkafka_properties: {bootstrap.servers: 'eu:9092'}",
    "cluster_us": "KafkaCluster\nname: us\nkafka_properties: {bootstrap.servers: 'us:9092'}",
    "orders_eu": "KafkaTopic\ntopic: orders\ncluster: eu\ntable: eu.orders",
    "orders_us": "KafkaTopic\ntopic: orders\ncluster: us\ntable: us.orders",
}


def write(folder: Path, documents: Documents) -> None:
    """Write of each document its kind and its attributes, into a folder of its own."""
    for name, text in documents.items():
        kind, _, attributes = text.partition("\n")
        (folder / name).mkdir()
        body = textwrap.indent(attributes or "{}", "  ")
        (folder / name / "defs.yaml").write_text(f"type: kafka_lake.{kind}\nattributes:\n{body}\n")


@contextmanager
def loaded(documents: Documents) -> Iterator[dg.Definitions]:
    """Load a defs folder through Dagster."""
    with create_defs_folder_sandbox() as sandbox:
        write(sandbox.defs_folder_path, documents)
        with sandbox.build_all_defs() as definitions:
            yield definitions


def refusal(documents: Documents) -> str:
    with create_defs_folder_sandbox() as sandbox:
        write(sandbox.defs_folder_path, documents)
        with pytest.raises(Exception, match="luster") as refused, sandbox.build_all_defs():
            pass
        said = explanation(refused.value, sandbox.defs_folder_path)
    assert said is not None
    return str(said)


def test_a_topic_of_the_same_name_in_two_clusters_shares_nothing() -> None:
    with loaded(TWO) as definitions:
        repository = definitions.get_repository_def()
        graph = repository.asset_graph
        tables = {key.to_user_string(): graph.get(key) for key in graph.materializable_asset_keys}
        assert tables.keys() == {"eu/orders", "us/orders"}
        for name, node in tables.items():
            cluster = name.partition("/")[0]
            assert [key.to_user_string() for key in node.parent_keys] == [f"kafka/{cluster}/orders"]
            assert node.partitions_def
            assert node.partitions_def.name == f"kafka/{cluster}/orders"
            assert node.pools == {f"table_{cluster}_orders"}
            needed = repository.assets_defs_by_key[node.key].required_resource_keys
            assert needed - {"io_manager"} == {f"kafka_{cluster}", f"registry_{cluster}", "catalog", "spark"}
        resources: Any = definitions.resources
        own = {f"{kind}_{cluster}" for kind in ("kafka", "registry") for cluster in ("eu", "us")}
        assert resources.keys() == own | {"catalog", "spark"}
        assert resources["kafka_eu"].cluster().bootstrap_servers == "eu:9092"
        assert resources["kafka_us"].spark_options()["kafka.bootstrap.servers"] == "us:9092"
        sensors = {sensor.name: sensor for sensor in repository.sensor_defs}
        kinds = ("kafka_offsets", "kafka_maintenance")
        assert sensors.keys() == {f"{kind}_{cluster}" for kind in kinds for cluster in ("eu", "us")}
        chosen: Any = sensors["kafka_offsets_eu"].asset_selection
        assert {key.to_user_string() for key in chosen.resolve(graph)} == {"eu/orders"}
        jobs = {job.name: job for job in repository.get_all_jobs()}
        assert jobs.keys() >= {"replay_dead_letters_eu", "replay_dead_letters_us"}
        for cluster in ("eu", "us"):
            assert sensors[f"kafka_maintenance_{cluster}"].job_name == f"maintain_tables_{cluster}"
            (node,) = jobs[f"maintain_tables_{cluster}"].nodes
            assert (node.name, node.definition.pools) == (
                f"{cluster}__orders__table_health",
                {f"maintenance_table_{cluster}_orders"},
            )


def test_a_single_cluster_with_a_name_has_it_everywhere_too() -> None:
    one = {name: text for name, text in TWO.items() if name.endswith("eu")}
    with loaded(one) as definitions:
        assert definitions.resources is not None
        assert definitions.resources.keys() == {"kafka_eu", "registry_eu", "catalog", "spark"}
        sensors = {sensor.name for sensor in definitions.get_repository_def().sensor_defs}
        assert sensors == {"kafka_offsets_eu", "kafka_maintenance_eu"}


def test_catalog_and_spark_are_in_one_of_the_documents() -> None:
    written = "\ncatalog_properties: {type: rest, uri: 'http://lake:8181'}\nspark_config: {spark.app.name: two}"
    with loaded({**TWO, "cluster_us": TWO["cluster_us"] + written}) as definitions:
        resources: Any = definitions.resources
        assert resources["catalog"].properties == {"type": "rest", "uri": "http://lake:8181"}
        assert resources["spark"].spark_config == {"spark.app.name": "two"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"orders_us": "KafkaTopic\ntopic: orders\ntable: us.orders"},
            ["Topic orders (", "orders_us/defs.yaml) names no Kafka cluster", "names: eu, us.", "as in cluster: eu"],
        ),
        (
            {"orders_us": "KafkaTopic\ntopic: orders\ncluster: asia\ntable: us.orders"},
            ["orders_us/defs.yaml) names Kafka cluster asia, and no document", "The project has the clusters eu, us."],
        ),
        ({"cluster_us": "KafkaCluster"}, ["cluster_us/defs.yaml has no name", "cluster_eu/defs.yaml", "cluster: eu"]),
        ({"cluster_us": "KafkaCluster\nname: eu"}, ["the name eu", "cluster_eu/defs.yaml", "cluster_us/defs.yaml"]),
        ({"cluster_us": "KafkaCluster\nname: U-S"}, ["'U-S' can't be the name of a cluster"]),
        ({"cluster_us": "KafkaCluster\nname: u__s"}, ["'u__s' can't be the name of a cluster"]),
        (
            {
                name: TWO[name] + "\nspark_config: {spark.app.name: " + name + "}"
                for name in ("cluster_eu", "cluster_us")
            },
            ["spark_config: differs between", "cluster_eu/defs.yaml and", "cluster_us/defs.yaml", "another project"],
        ),
        ({"orders_us": "KafkaTopic\ntopic: orders\ncluster: us\ntable: eu.orders"}, ["Table eu.orders would belong"]),
    ],
)
def test_a_mistake_is_refused_with_its_documents(changed: Documents, said: list[str]) -> None:
    reported = refusal({**TWO, **changed})
    assert [message for message in said if message not in reported] == [], reported


def test_a_topic_of_a_cluster_where_the_only_one_has_no_name_is_refused() -> None:
    reported = refusal({"cluster": "KafkaCluster", "orders_eu": TWO["orders_eu"]})
    assert "names Kafka cluster eu, and no document" in reported
    assert "cluster/defs.yaml, has no name" in reported


VARIABLES = {
    "KAFKA_LAKE_BOOTSTRAP_SERVERS": "only:9092",
    "KAFKA_LAKE_KAFKA_SASL_PASSWORD": "only-hush",
    "KAFKA_LAKE_KAFKA__EU__BOOTSTRAP_SERVERS": "eu:9092",
    "KAFKA_LAKE_KAFKA__EU__SASL_PASSWORD": "eu-hush",
    "KAFKA_LAKE_KAFKA__EU_2__SASL_PASSWORD": "eu-2-hush",
    "KAFKA_LAKE_SCHEMA_REGISTRY_URL": "http://only:8081",
    "KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO": "only:only-hush",
    "KAFKA_LAKE_REGISTRY__EU__URL": "http://eu:8081",
    "KAFKA_LAKE_REGISTRY__EU__BEARER_AUTH_TOKEN": "eu-hush",
}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("variables")
def test_a_clusters_secrets_are_told_to_no_other_cluster() -> None:
    found = {
        name: KafkaResource(cluster_name=name, properties={} if name != "us" else {"bootstrap.servers": "us:9092"})
        .cluster()
        .properties
        for name in (None, "eu", "us")
    }
    assert found == {
        None: {"bootstrap.servers": "only:9092", "sasl.password": "only-hush"},
        "eu": {"bootstrap.servers": "eu:9092", "sasl.password": "eu-hush"},
        "us": {"bootstrap.servers": "us:9092"},
    }


@pytest.mark.usefixtures("variables")
def test_a_registrys_secrets_are_told_to_no_other_registry() -> None:
    def settings(cluster: str | None, **properties: str) -> dict[str, Any]:
        found = RegistryResource(cluster_name=cluster, properties=properties).registry()
        assert found is not None
        return {key: value for key, value in found._settings.items() if "auth" in key or key == "url"}

    only = {"url": "http://only:8081", "basic.auth.user.info": "only:only-hush"}
    assert settings(None) == only
    assert settings("us") == only, "a registry that all clusters share"
    assert settings("us", url="http://us:8081") == {"url": "http://us:8081"}
    eu = settings("eu")
    assert (eu["url"], eu["bearer.auth.token"]) == ("http://eu:8081", "eu-hush")
    assert "basic.auth.user.info" not in eu


def test_a_cluster_without_brokers_is_refused_with_its_variable() -> None:
    with pytest.raises(ConfigurationError) as refused:
        KafkaResource(cluster_name="us").cluster()
    assert "brokers of Kafka cluster us" in refused.value.message
    assert "KAFKA_LAKE_KAFKA__US__BOOTSTRAP_SERVERS" in refused.value.remedy


@pytest.mark.slow
def test_an_error_names_the_clusters_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AuthenticationError(
        "refused bob.", "Check KAFKA_LAKE_KAFKA_SASL_PASSWORD, KAFKA_LAKE_BOOTSTRAP_SERVERS and KAFKA_LAKE_KAFKA_*."
    )
    said = (
        "refused bob. Check KAFKA_LAKE_KAFKA__EU__SASL_PASSWORD, KAFKA_LAKE_KAFKA__EU__BOOTSTRAP_SERVERS and "
        "KAFKA_LAKE_KAFKA__EU__*."
    )
    assert str(own_variables(error, "eu")) == said
    assert str(own_variables(error, "eu")) == said, "twice is once"
    monkeypatch.setenv("KAFKA_LAKE_KAFKA__EU__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA__EU__SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA__EU__SSL_KEY_LOCATION", "/nowhere.pem")
    monkeypatch.setenv("KAFKA_LAKE_KAFKA__EU__SSL_CERTIFICATE_LOCATION", "/nowhere.pem")
    with pytest.raises(ConfigurationError, match="KAFKA_LAKE_KAFKA__EU__SSL_CERTIFICATE_LOCATION"):
        KafkaResource(cluster_name="eu").spark_options()
    with pytest.raises(ConfigurationError, match=r"KAFKA_LAKE_KAFKA__EU__\*"):
        KafkaResource(cluster_name="eu").cluster().check()
    monkeypatch.setenv("KAFKA_LAKE_KAFKA__EU__SECURITY_PROTOCOL", "PLAINTEXT")
    with pytest.raises(KafkaError, match="KAFKA_LAKE_KAFKA__EU__BOOTSTRAP_SERVERS"):
        KafkaCluster({"bootstrap.servers": "127.0.0.1:1"}, 1.0, name="eu").check()
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY__EU__URL", "http://127.0.0.1:1")
    registry = RegistryResource(cluster_name="eu").registry()
    assert registry is not None
    with pytest.raises(Exception, match="KAFKA_LAKE_REGISTRY__EU__URL is right"):
        registry.by_id(7)


def test_work_of_one_cluster_keeps_no_topic_of_another_waiting(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    catalog = LakeCatalog("lake", properties)
    now = Watermarks(TopicIdentity("c", "t", "orders"), {0: 0}, {0: 9})
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance)
        first: Any = evaluate(context, [EU], {"orders": now}, catalog, Pace(10), Sharing(3))
        (request,) = first.run_requests
        assert request.tags[TOPIC_TAG] == "eu/orders"
        assert first.dynamic_partitions_requests[0].partitions_def_name == "kafka/eu/orders"
        assert first.asset_events[0].asset_key.path == ["kafka", "eu", "orders"]

        @dg.job
        def running() -> None:
            pass

        instance.create_run_for_job(running, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
        instance.add_dynamic_partitions("kafka/eu/orders", ["0"])
        assert isinstance(evaluate(context, [EU], {"orders": now}, catalog, Pace(10), Sharing(3)), dg.SkipReason)
        second: Any = evaluate(context, [US], {"orders": now}, catalog, Pace(10), Sharing(3))
        assert second.run_requests[0].run_key != request.run_key


def test_the_job_replays_the_topics_of_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(repository_def=None)
    monkeypatch.setattr(replay_job, "topics_of", lambda _: [EU, US])
    assert replay_job._chosen(context, "us", "orders") == [US]
    with pytest.raises(ConfigurationError, match="none"):
        replay_job._chosen(context, None, "orders")


def test_partitions_are_registered_by_the_full_name(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = dg.DagsterInstance.ephemeral()
    monkeypatch.setattr(register_partitions, "dagster_at_hand", lambda: nullcontext(instance))
    cluster: Any = SimpleNamespace(
        watermarks=lambda names: {n: Watermarks(TopicIdentity("c", "t", n), {0: 0}, {0: 9, 1: 2}) for n in names}
    )
    register_partitions.register_topics([EU], cluster, print)
    assert instance.get_dynamic_partitions("kafka/eu/orders") == ["0", "1"]
    shared = TopicTable("a", table="both", cluster="eu", topics=("a", "b...c"))
    register_partitions.register_topics(shared.each_topic, cluster, print)
    keys = ["a/0", "a/1", "b%2E%2E%2Ec/0", "b%2E%2E%2Ec/1"]
    assert instance.get_dynamic_partitions("kafka/lake/both/topics") == keys


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run with the two clusters' definitions as those of the project."""
    with loaded(TWO) as definitions:
        monkeypatch.setattr(kafka_lake.cli.project, "target", lambda: Path("here"))
        monkeypatch.setattr(kafka_lake.cli.documents, "read", lambda _: None)
        monkeypatch.setattr(kafka_lake.cli.load_definitions, "definitions", lambda _: definitions)
        monkeypatch.setattr(kafka_lake.cli.load_definitions, "file_of", lambda _: Path("here"))
        yield


@pytest.mark.usefixtures("project")
def test_a_command_takes_a_topic_with_its_clusters_name() -> None:
    assert [table.cluster for table in kafka_lake.cli.project.topic_tables("us/orders")] == ["us"]
    with pytest.raises(ConfigurationError) as refused:
        kafka_lake.cli.project.topic_tables("orders")
    assert str(refused.value) == (
        "Topic orders is in several Kafka clusters of this project. Name one of them: eu/orders or us/orders."
    )
    with pytest.raises(ConfigurationError, match="the topics are: eu/orders, us/orders"):
        kafka_lake.cli.project.topic_tables("asia/orders")


@pytest.mark.usefixtures("project")
def test_a_command_asks_the_cluster_that_is_named() -> None:
    at_hand = kafka_lake.cli.project.open_connections
    with at_hand(with_broker=False, with_catalog=False, cluster="us") as connections:
        assert connections.cluster.bootstrap_servers == "us:9092"
        assert connections.kafka_options["kafka.bootstrap.servers"] == "us:9092"
    with pytest.raises(
        ConfigurationError, match=r"No Kafka cluster of this project has the name asia. Name one of eu, us."
    ):
        at_hand(cluster="asia").__enter__()
    with pytest.raises(ConfigurationError, match=r"several Kafka clusters: eu, us.*as in eu/orders"):
        at_hand().__enter__()


@pytest.mark.usefixtures("project")
def test_env_prints_the_brokers_of_each_cluster() -> None:
    done = CliRunner().invoke(app, ["env"])
    assert done.exit_code == 0, done.output
    assert "export KAFKA_BOOTSTRAP_SERVERS_EU=eu:9092" in done.output
    assert "export KAFKA_BOOTSTRAP_SERVERS_US=us:9092" in done.output


@pytest.mark.usefixtures("project")
def test_status_shows_the_clusters_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def at_hand(*_: object, cluster: str, **__: object) -> Iterator[Any]:
        if cluster == "eu":
            raise KafkaError("The cluster at eu:9092 didn't answer within 8 s.")
        yield SimpleNamespace(cluster=cluster, catalog=None)

    def collected(specs: list[TopicTable], cluster: str, _: object) -> list[TopicStatus]:
        return [TopicStatus(s.topic, ".".join(s.identifier), (), 0, None, None, 0, 0, cluster=cluster) for s in specs]

    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", at_hand)
    monkeypatch.setattr("kafka_lake.cli.commands.status.collect", collected)
    done = CliRunner().invoke(app, ["status", "--json"])
    assert done.exit_code == 1
    assert "Kafka cluster eu: The cluster at eu:9092 didn't answer" in done.stderr
    assert [(load["cluster"], load["table"]) for load in json.loads(done.stdout)] == [("us", "us.orders")]


def test_a_document_by_discover_names_the_cluster(tmp_path: Path) -> None:
    assert "attributes:\n  topic: orders\n  cluster: eu\n" in document(Discovered("orders", cluster="eu"))
    both = [Discovered("orders", cluster=name) for name in ("eu", "us")]
    with pytest.raises(ConfigurationError, match=r"topics us/orders and eu/orders would have the same table"):
        documents(both, [], tmp_path)


@pytest.mark.usefixtures("project")
def test_the_doctor_examines_each_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY__US__URL", "nonsense")
    monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
    for part in ("check_java", "check_jars", "check_catalog", "check_warehouse", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda *_: "not examined here")
    monkeypatch.setattr(doctor, "check_brokers", lambda resource: resource.cluster().bootstrap_servers)

    found = {check.part: check for check in doctor.check_all(print, kafka_lake.cli.project.configured_clusters)}
    assert (found["Brokers eu"].message, found["Brokers us"].message) == ("eu:9092", "us:9092")
    assert found["Schema registry eu"].passed
    assert "KAFKA_LAKE_REGISTRY__US__URL" in found["Schema registry us"].remedy
    assert "Brokers" not in found

    def broken() -> dict[str | None, tuple[KafkaResource, RegistryResource]]:
        raise ConfigurationError("Topic orders names no Kafka cluster.", "Add one.")

    ill = doctor.check_all(print, broken)[0]
    assert (ill.part, ill.message, ill.remedy) == ("Project", "Topic orders names no Kafka cluster.", "Add one.")


def test_a_cluster_without_an_address_is_told_by_its_name():
    with pytest.raises(ConfigurationError, match=r"no address for the brokers of Kafka cluster eu\."):
        KafkaResource(cluster_name="eu").cluster()
