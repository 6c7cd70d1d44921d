"""What a commit asks of a REST catalog, counted by a proxy before it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.errors import CatalogRefusedError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections, RetryPolicy
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.counting import Requests, connections_of, counted
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.written_by import by

pytestmark = [pytest.mark.integration, pytest.mark.every_pair, pytest.mark.pairs("rest_s3")]


@pytest.fixture
def asked(catalog_resource: Any) -> Iterator[Requests]:
    with counted(catalog_resource.properties["uri"]) as found:
        yield found


@pytest.fixture
def systems(
    asked: Requests, catalog_resource: Any, kafka_resource: KafkaResource, spark_resource: SparkResource
) -> Callable[[], Connections]:
    return connections_of({**catalog_resource.properties, "uri": asked.uri}, kafka_resource, spark_resource)


@pytest.mark.parametrize(("arrow", "loads"), [(True, 4), exhaustive(False, 13)])
def test_a_run_of_one_commit(
    new_topic: Callable[..., Topic], systems: Callable[[], Connections], asked: Requests, arrow: bool, loads: int
) -> None:
    topic = new_topic()
    spec = topic.spec(**by(arrow))
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


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize(
    "commit", [exhaustive(1, id="branch"), exhaustive(2, id="rows"), pytest.param(3, id="publication")]
)
def test_an_answer_that_is_lost_on_the_way(
    new_topic: Callable[..., Topic], systems: Callable[[], Connections], asked: Requests, arrow: bool, commit: int
) -> None:
    topic = new_topic()
    spec = topic.spec(**by(arrow))
    topic.send_ids([1, 2, 3])
    ingest(spec, systems(), "run-1")
    topic.send_ids([4])
    connections = replace(systems(), retry=RetryPolicy(initial_seconds=0.01))
    asked.clear()
    asked.unanswered = commit
    ingest(spec, connections, "run-2")
    assert asked.unanswered == 0
    view = View(connections.catalog, spec)
    view.assert_exactly_once(topic.ledger)
    view.assert_no_branches()


def test_catalog_that_ignores_requirements_is_refused(
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
