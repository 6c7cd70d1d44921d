"""The tables of a topic's routes as assets of one run: rows, partitions and checks of each."""

from collections.abc import Iterator
from dataclasses import replace

import dagster as dg
import pytest

from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.runtime.commit import CHECKS
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic
from kafka_lake_tests.integration.test_dagster import (
    ROWS,
    NewTopic,
    NewView,
    Runner,
    as_the_sensor,
    know_partitions,
    told_of,
    whole,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def runner(
    kafka_resource: KafkaResource, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Iterator[Runner]:
    with dg.DagsterInstance.ephemeral() as instance:
        resources = {"kafka": kafka_resource, "catalog": catalog_resource, "registry": RegistryResource()}
        yield Runner(instance, resources, spark_resource)


def spec_of(topic: Topic) -> TopicTable:
    rule = RuleEntry(expression="id < 100", name="small", on_failure="fail")
    orders = TopicTable(topic.name, NAMESPACE, f"{topic.table}_orders", schema="id bigint", rules=(rule,))
    clicks = TopicTable(topic.name, NAMESPACE, f"{topic.table}_clicks", schema="id bigint")
    routes = (
        Route(When(field="type", values=("order",)), orders),
        Route(When(field="type", values=("click",)), clicks),
    )
    return topic.spec("id bigint", routes=routes)


@pytest.mark.exhaustive
def test_each_table_is_an_asset_with_its_own_rows_and_checks(
    new_topic: NewTopic, runner: Runner, view: NewView
) -> None:
    topic = new_topic(2)
    spec = spec_of(topic)
    know_partitions(runner, topic)
    for number, kind in enumerate(("order", "order", "refund")):
        topic.send({"type": kind, "id": number}, number % 2)
    keys = [table_key(table_spec) for table_spec in spec.tables]
    result = runner.run(spec, (0, 1), selection=as_the_sensor(spec, *spec.tables))
    assert result.success
    rows: dict[tuple[dg.AssetKey, str | None], object] = {}
    for item in (reported for table in spec.tables for reported in told_of(runner, table)):
        name = "dagster/row_count" if item.partition is None else ROWS
        rows[item.asset_key, item.partition] = item.metadata[name].value
    own, orders, clicks = keys
    assert rows == {
        (own, "0"): 1, (own, "1"): 0, (own, None): 1,
        (orders, "0"): 1, (orders, "1"): 1, (orders, None): 2,
        # It has had no record; its columns are declared, so there is an empty table.
        (clicks, "0"): 0, (clicks, "1"): 0, (clicks, None): 0,
    }  # fmt: skip
    checks = {(evaluation.asset_key, evaluation.check_name) for evaluation in result.get_asset_check_evaluations()}
    assert checks >= {(key, name) for key in keys for name in CHECKS} | {(orders, "rule_small")}
    assert all(evaluation.passed for evaluation in result.get_asset_check_evaluations())

    # Asked for one table, a run makes all: what it was not asked for is told of all the same.
    topic.send({"type": "click", "id": 7}, 0)
    result = runner.run(spec, (0, 1), selection=as_the_sensor(spec, spec))
    assert result.success
    assert view(spec.tables[2]).ids() == [7]
    assert {event.asset_key for event in result.get_asset_materialization_events()} == {*keys}

    # A rule of one table leaves that table where it is, and its check says so. The others go on.
    topic.send({"type": "order", "id": 1000}, 0)
    topic.send({"type": "click", "id": 8}, 0)
    result = runner.run(spec, (0, 1), selection=as_the_sensor(spec, *spec.tables))
    assert not result.success
    failed = [
        (evaluation.asset_key, evaluation.check_name)
        for evaluation in result.get_asset_check_evaluations()
        if not evaluation.passed
    ]
    assert failed == [(orders, "rule_small")]
    assert [view(table_spec).ids() for table_spec in spec.tables[1:]] == [[0, 1], [7, 8]]
    made = {event.asset_key for event in result.get_asset_materialization_events()}
    assert clicks in made

    # Mended, it catches up. Values get tables that are no assets yet.
    lenient = Route(spec.routes[0].when, replace(spec.routes[0].to, rules=()))
    to = TopicTable(topic.name, schema="id bigint")
    by = RouteBy("field", "type", to, f"{topic.table}_{{value}}", namespace=NAMESPACE, max_tables=1)
    for kind in ("refund", "refund", "return"):
        topic.send({"type": kind, "id": 9}, 0)
    spec = replace(spec, routes=(lenient, spec.routes[1]), route_by=by)
    result = runner.run(spec, (0, 1), selection=as_the_sensor(spec, *spec.tables))
    assert result.success
    assert all(evaluation.passed for evaluation in result.get_asset_check_evaluations())
    assert view(spec.tables[1]).ids() == [0, 1, 1000]
    reported = whole(runner, result, spec)
    assert reported["records_without_a_table"] == 1
    assert f"No asset yet: `{NAMESPACE}.{topic.table}_refund`. Run `kafka-lake topics refresh`." in str(
        reported["routes"]
    )
