"""What a commit asks of a REST catalog, counted by a proxy before it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.run import ingest
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.counting import Requests, counted

pytestmark = [pytest.mark.integration, pytest.mark.pairs("rest_s3")]


@pytest.fixture
def requests(catalog_resource: Any) -> Iterator[Requests]:
    with counted(catalog_resource.properties["uri"]) as found:
        yield found


@pytest.fixture
def systems(
    requests: Requests, catalog_resource: Any, kafka_resource: KafkaResource, spark_resource: SparkResource
) -> Callable[[], Connections]:
    """Return a function that gives what a run of its own process has: nothing is known of the catalog yet."""
    properties = {**catalog_resource.properties, "uri": requests.uri}
    session = spark_resource.spark_session.newSession()
    for key, value in LakeCatalog("counted", properties).spark_conf().items():
        if key.startswith("spark.sql.catalog."):
            session.conf.set(key, value)

    def fresh() -> Connections:
        return Connections(
            kafka_resource.cluster(),
            kafka_resource.spark_options(),
            LakeCatalog("counted", properties),
            lambda: session,
        )

    return fresh


@pytest.mark.parametrize("arrow", [True, False])
def test_a_run_of_one_commit(
    new_topic: Callable[..., Topic], systems: Callable[[], Connections], requests: Requests, arrow: bool
) -> None:
    topic = new_topic()
    spec = topic.spec(arrow=arrow)
    topic.send_ids([1, 2, 3])
    ingest(spec, systems(), "run-1")
    topic.send_ids([4])
    connections = systems()
    requests.clear()
    ingest(spec, connections, "run-2")
    print(requests.kinds(), *requests.seen, sep="\n")
    View(connections.catalog, spec).assert_exactly_once(topic.ledger)
    assert requests.kinds()["load"] <= 4
    assert requests.kinds()["commit"] <= 3
