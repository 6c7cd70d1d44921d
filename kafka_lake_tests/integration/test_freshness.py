"""How fresh a table is, on a real broker: told when it freshness_changes, and by the check itself."""

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from kafka_lake.ingest.run import ingest
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.check_results import freshness, freshness_changes
from kafka_lake.orchestration.checks import FRESHNESS
from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors.topics import build_sensor
from kafka_lake.runtime.context import Connections
from kafka_lake_tests.conftest import Topic

pytestmark = pytest.mark.integration


def ago(seconds: float) -> int:
    return int((time.time() - seconds) * 1000)


def test_waiting_record_fails_freshness_and_idle_topic_passes(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    kafka_resource: KafkaResource,
    catalog_resource: CatalogResource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, other = new_topic(2), new_topic(1)
    spec, untimed = topic.spec(max_age="5m"), other.spec()
    other.send({"id": 1}, timestamp_ms=ago(9000))
    asked = {"kafka": kafka_resource, "catalog": catalog_resource}
    spark = SparkResource(spark_config={}, catalog=catalog_resource)
    resources = {**asked, "registry": RegistryResource(), "spark": spark}
    assets = [asset for one in (spec, untimed) for asset in build_topic_assets(one, Presentation("g"))]
    definitions = dg.Definitions(assets=assets, sensors=[build_sensor(10, True)], resources=resources)
    repository, cursor = definitions.get_repository_def(), None
    instance = dg.DagsterInstance.ephemeral()

    def tick() -> list[Any]:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=asked, cursor=cursor)
        found = repository.get_sensor_def("kafka_offsets").evaluate_tick(context)
        cursor = found.cursor
        return [event for event in found.asset_events if isinstance(event, dg.AssetCheckEvaluation)]

    (first,) = tick()
    assert (first.asset_key, first.check_name, first.passed) == (table_key(spec), FRESHNESS, True)
    topic.send({"id": 1}, 0, timestamp_ms=ago(10))
    assert tick() == [], "nothing has changed: the record is young"
    topic.send({"id": 2}, 1, timestamp_ms=ago(1000))
    topic.send({"id": 3}, 1, timestamp_ms=ago(2000))
    (stale,) = tick()
    assert not stale.passed
    assert stale.severity is dg.AssetCheckSeverity.WARN
    assert stale.metadata["lag"].value == 3
    # The oldest is the next one of its partition, whatever times those behind it have.
    assert 1000 <= stale.metadata["age_of_oldest_unread_seconds"].value < 1060
    assert stale.description.startswith("3 unread offsets; the oldest unread record is 10")
    assert tick() == [], "it is told once"
    ingest(spec, connections(), "run")
    alone = dg.AssetSelection.checks(dg.AssetCheckKey(table_key(spec), FRESHNESS))
    checked = dg.materialize(assets, instance=instance, resources=resources, selection=alone)
    assert [(evaluation.check_name, evaluation.passed) for evaluation in checked.get_asset_check_evaluations()] == [
        (FRESHNESS, True)
    ]
    (fresh,) = tick()
    assert (fresh.passed, fresh.metadata["lag"].value) == (True, 0)
    # The runs come first: that nothing can be told keeps none waiting.
    topic.send({"id": 4}, 0)

    def fails(*_: object) -> Any:
        raise OSError("no record comes")

    monkeypatch.setattr("kafka_lake.orchestration.check_results.arrival_times", fails)
    context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=asked, cursor=cursor)
    found = repository.get_sensor_def("kafka_offsets").evaluate_tick(context)
    assert table_key(spec) in {key for request in found.run_requests for key in request.asset_selection}
    assert found.cursor == cursor
    instance.dispose()


def test_unreachable_source_keeps_its_last_state(
    new_topic: Callable[..., Topic], connections: Callable[[], Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = new_topic(1).spec(max_age="5m")
    cluster, catalog = connections().cluster, connections().catalog
    events, reported = freshness_changes([spec], cluster, catalog, "of another version")
    assert [event.passed for event in events] == [True]
    monkeypatch.setattr(KafkaCluster, "watermarks", lambda _, topics: {topic: OSError("gone") for topic in topics})
    assert freshness_changes([spec], cluster, catalog, reported) == ([], reported)
    assert freshness([spec], cluster, catalog) == []
