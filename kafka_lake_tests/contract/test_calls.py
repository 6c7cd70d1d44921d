"""What a commit asks of a REST catalog, counted by a proxy before it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_lake.common.errors import CatalogRefusedError
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.run import ingest
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.counting import Requests, counted

pytestmark = [pytest.mark.integration, pytest.mark.every_pair, pytest.mark.pairs("rest_s3")]


@pytest.fixture
def asked(catalog_resource: Any) -> Iterator[Requests]:
    with counted(catalog_resource.properties["uri"]) as found:
        yield found


@pytest.fixture
def systems(
    asked: Requests, catalog_resource: Any, kafka_resource: KafkaResource, spark_resource: SparkResource
) -> Callable[[], Connections]:
    """Return a function that gives what a run of its own process has: nothing is known of the catalog yet."""
    properties = {**catalog_resource.properties, "uri": asked.uri}
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


@pytest.mark.parametrize(("arrow", "loads"), [(True, 4), (False, 13)])
def test_a_run_of_one_commit(
    new_topic: Callable[..., Topic], systems: Callable[[], Connections], asked: Requests, arrow: bool, loads: int
) -> None:
    topic = new_topic()
    spec = topic.spec(arrow=arrow)
    topic.send_ids([1, 2, 3])
    ingest(spec, systems(), "run-1")
    topic.send_ids([4])
    connections = systems()
    asked.clear()
    ingest(spec, connections, "run-2")
    kinds = asked.kinds()
    View(connections.catalog, spec).assert_exactly_once(topic.ledger)
    # A branch, the rows, the publication.
    assert kinds["commit"] == 3
    assert 0 < kinds["load"] <= loads, asked.seen


def test_a_catalog_that_does_not_look_at_assertions_gets_no_table(
    new_topic: Callable[..., Topic], systems: Callable[[], Connections], asked: Requests
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([1])
    asked.careless = True
    connections = systems()
    with pytest.raises(CatalogRefusedError, match="assert-ref-snapshot-id"):
        ingest(spec, connections, "run-1")
    assert connections.catalog.table(spec.identifier) is None
    asked.careless = False
    ingest(spec, systems(), "run-2")
    View(connections.catalog, spec).assert_exactly_once(topic.ledger)
