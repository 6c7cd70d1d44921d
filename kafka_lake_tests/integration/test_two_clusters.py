"""Two real clusters in one project, with a topic of the same name in each."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_lake.catalog.positions import read_state
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import TopicReplacedError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.unit.orchestration.test_clusters import loaded

pytestmark = pytest.mark.integration

NewView = Callable[[TopicTable], View]
CLUSTERS = ("eu", "us")


@pytest.fixture(scope="module")
def brokers(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EmbeddedBroker]]:
    with EmbeddedBroker(tmp_path_factory.mktemp("us"), heap="256m") as another:
        yield dict(zip(CLUSTERS, (broker, another), strict=True))


@pytest.fixture
def topics(brokers: dict[str, EmbeddedBroker]) -> dict[str, Topic]:
    """Create a topic of one name in each, of as many partitions."""
    name, found = f"orders-{uuid.uuid4().hex[:6]}", {}
    for cluster, broker in brokers.items():
        address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        table = f"{name}_{cluster}".replace("-", "_")
        found[cluster] = Topic(name, table, AdminClient(address), Producer({**address, "linger.ms": 0}))
        found[cluster].create(2)
    return found


def spec_of(topics: dict[str, Topic], cluster: str) -> TopicTable:
    return topics[cluster].spec("id bigint, place string", cluster=cluster)


_sessions: list[Any] = []


class SharedSpark(SparkResource):
    """The test session's Spark, of which Dagster makes a copy for each run."""

    @property
    def spark_session(self) -> Any:
        return _sessions[0]

    def stop(self) -> None:
        pass


@pytest.fixture
def resources(
    brokers: dict[str, EmbeddedBroker],
    topics: dict[str, Topic],
    catalog_resource: CatalogResource,
    spark_resource: SparkResource,
) -> Iterator[tuple[dg.Definitions, dict[str, Any]]]:
    """Load the documents of both clusters and both topics; catalog and Spark are the test session's."""
    documents = {}
    for cluster, topic in topics.items():
        address = brokers[cluster].bootstrap_servers
        documents[f"cluster_{cluster}"] = (
            f"KafkaCluster\nname: {cluster}\nkafka_properties: {{bootstrap.servers: '{address}'}}"
        )
        documents[f"orders_{cluster}"] = (
            f"KafkaTopic\ntopic: {topic.name}\ncluster: {cluster}\n"
            f"table: {{name: {NAMESPACE}.{topic.table}, columns: 'id bigint, place string'}}"
        )
    _sessions[:] = [spark_resource.spark_session]
    spark = SharedSpark(catalog=catalog_resource, spark_config={})
    with loaded(documents) as definitions:
        yield definitions, {**(definitions.resources or {}), "catalog": catalog_resource, "spark": spark}


def tick(definitions: dg.Definitions, resources: dict[str, Any], cluster: str, instance: dg.DagsterInstance) -> Any:
    repository = definitions.get_repository_def()
    needed = {name: resources[name] for name in (f"kafka_{cluster}", "catalog")}
    context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=needed)
    return repository.get_sensor_def(f"kafka_offsets_{cluster}").evaluate_tick(context)


def test_same_topic_name_in_two_clusters_fills_two_tables(
    resources: tuple[dg.Definitions, dict[str, Any]], topics: dict[str, Topic], view: NewView
) -> None:
    for number in range(6):
        topics["eu"].send({"id": number, "place": "eu"}, number % 2)
    for number in range(3):
        topics["us"].send({"id": 100 + number, "place": "us"}, number % 2)
    definitions, given = resources
    assets = {
        key: asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition) for key in asset.keys
    }
    with dg.DagsterInstance.ephemeral() as instance:
        for cluster in CLUSTERS:
            key = table_key(spec_of(topics, cluster))
            asked = tick(definitions, given, cluster, instance)
            (request,) = asked.run_requests
            assert request.asset_selection == [key]
            (added,) = asked.dynamic_partitions_requests
            assert (added.partitions_def_name, added.partition_keys) == (
                f"kafka/{cluster}/{topics[cluster].name}",
                ["0", "1"],
            )
            instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)
            done = dg.materialize([assets[key]], instance=instance, resources=given, tags=request.tags)
            assert done.success
        for cluster in CLUSTERS:
            assert not tick(definitions, given, cluster, instance).run_requests, "each is up to date"
    identities = set()
    for cluster, topic in topics.items():
        seen = view(spec_of(topics, cluster))
        seen.assert_exactly_once(topic.ledger)
        expected = {sent.place: sent.value for sent in topic.ledger}
        assert len(expected) == {"eu": 6, "us": 3}[cluster]
        for row in seen.rows():
            value = expected[row["_kafka"]["partition"], row["_kafka"]["offset"]]
            assert value == b'{"id": %d, "place": "%s"}' % (row["id"], row["place"].encode())
        position = read_state(seen.table).position
        assert position is not None
        identities.add(position.identity.cluster_id)
    assert len(identities) == 2, "each position has the cluster that it is of"


def test_table_pointed_at_another_cluster_is_refused(
    resources: tuple[dg.Definitions, dict[str, Any]],
    topics: dict[str, Topic],
    connections: Callable[..., Connections],
    view: NewView,
) -> None:
    def of(cluster: str) -> Connections:
        kafka: KafkaResource = resources[1][f"kafka_{cluster}"]
        return replace(connections(), cluster=kafka.cluster(), kafka_options=kafka.spark_options())

    for cluster, topic in topics.items():
        topic.send({"id": 1, "place": cluster})
    spec = spec_of(topics, "eu")
    ingest(spec, of("eu"), "run-1")
    topics["us"].send({"id": 2, "place": "us"})
    before = view(spec).fingerprint()
    ids = [of(cluster).cluster.watermarks_of(spec.topic).identity.cluster_id for cluster in CLUSTERS]
    with pytest.raises(TopicReplacedError) as refused:
        ingest(replace(spec, cluster="us"), of("us"), "run-2")
    assert "its cluster id differs" in refused.value.message
    assert all(identifier in refused.value.message for identifier in ids)
    assert "correct cluster: in the topic's YAML" in refused.value.remedy
    assert view(spec).fingerprint() == before
    assert [row["place"] for row in view(spec).rows()] == ["eu"]
