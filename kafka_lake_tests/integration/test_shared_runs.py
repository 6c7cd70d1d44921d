"""Topics that are due together share a run: each has its own commit, materializations and checks in it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import dagster as dg
import pytest

from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration import runs as topic_runs
from kafka_lake.orchestration.assets import build_topic_assets
from kafka_lake.orchestration.keys import TOPIC_TAG, op_name, table_key
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors.requests import Pace, Sharing
from kafka_lake.orchestration.sensors.topics import evaluate
from kafka_lake.spec.rule import Range, RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_dagster import SHOWN, SharedSpark, _sessions

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewView = Callable[[TopicTable], View]


class Deployment:
    """A Dagster instance whose sensor's requests are executed in this process, one after the other."""

    def __init__(self, instance: dg.DagsterInstance, resources: dict[str, Any], specs: Sequence[TopicTable]) -> None:
        self.instance, self.resources, self.specs = instance, resources, specs

    def tick(self, pace: Pace) -> list[dg.RunRequest]:
        specs = [spec for topic in self.specs for spec in topic.each_topic]
        answers = self.resources["kafka"].cluster().watermarks(spec.topic for spec in specs)
        context = dg.build_sensor_context(instance=self.instance)
        found = evaluate(context, specs, answers, self.resources["catalog"].open(), pace, Sharing(places=3))
        if isinstance(found, dg.SkipReason):
            return []
        for added in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(added.partitions_def_name, added.partition_keys)
        return list(found.run_requests or ())

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        assets = [asset for spec in self.specs for asset in build_topic_assets(spec, SHOWN)]
        every = dg.Definitions(assets, resources=self.resources, executor=dg.in_process_executor)
        # The job that Dagster makes of all assets, whatever their partitions are.
        job = every.resolve_implicit_global_asset_job_def()
        chosen = job.get_subset(
            asset_selection=set(request.asset_selection or ()),
            asset_check_selection=set(request.asset_check_keys or ()),
        )
        return chosen.execute_in_process(
            run_config=request.run_config, instance=self.instance, tags=dict(request.tags), raise_on_error=False
        )


@pytest.fixture
def deployment(
    kafka_resource: KafkaResource, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Iterator[Callable[..., Deployment]]:
    _sessions[:] = [spark_resource.spark_session]
    spark = SharedSpark(catalog=catalog_resource, spark_config={})
    resources = {"kafka": kafka_resource, "catalog": catalog_resource, "registry": RegistryResource(), "spark": spark}
    with dg.DagsterInstance.ephemeral() as instance:
        yield lambda *specs: Deployment(instance, resources, specs)


def materialized(result: dg.ExecuteInProcessResult, spec: TopicTable) -> set[str | None]:
    events = [event for event in result.get_asset_materialization_events() if event.asset_key == table_key(spec)]
    return {event.partition for event in events}


def failed_checks(result: dg.ExecuteInProcessResult, spec: TopicTable) -> set[str]:
    every = [
        evaluation for evaluation in result.get_asset_check_evaluations() if evaluation.asset_key == table_key(spec)
    ]
    assert every
    return {item.check_name for item in every if not item.passed}


def test_refused_topic_fails_alone_and_is_retried_alone(
    new_topic: NewTopic, deployment: Callable[..., Deployment], view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [new_topic(2, called=f"{name}-{new_topic(1).name}") for name in ("a", "b", "c")]
    rule = RuleEntry(range=Range(column="id", min=0, max=100), name="small", on_failure="fail")
    good, bad, last = (item.spec(rules=(rule,)) for item in topics)
    for item in topics:
        item.send_ids(range(4), 2)
    topics[1].send({"id": 101})
    lake = deployment(good, bad, last)

    (request,) = lake.tick(Pace(0.2, 60.0))
    assert request.tags[TOPIC_TAG] == ", ".join(f"{item.name} [0…1]" for item in topics)
    result = lake.run(request)

    assert not result.success
    failed = {event.step_key for event in result.all_events if event.is_step_failure}
    assert failed == {op_name(bad)}
    for spec, topic in ((good, topics[0]), (last, topics[2])):
        assert materialized(result, spec) == {"0", "1", None}
        assert failed_checks(result, spec) == set()
        view(spec).assert_exactly_once(topic.ledger)
    assert materialized(result, bad) == set()
    assert failed_checks(result, bad) == {"rule_small"}
    assert lake.tick(Pace(0.2, 60.0)) == [], "the failed topic pauses"

    monkeypatch.setattr(topic_runs, "FIRST_PAUSE", 0.0)
    topics[0].send_ids([9], 2)
    topics[2].send_ids([9], 2)
    requests = {len(item.asset_selection or ()): item for item in lake.tick(Pace(0.2, 60.0))}
    assert list(requests[1].asset_selection or ()) == [table_key(bad)]
    assert set(requests[2].asset_selection or ()) == {table_key(good), table_key(last)}


@pytest.mark.exhaustive
def test_topics_of_a_run_go_on_together_until_nothing_comes(
    new_topic: NewTopic, deployment: Callable[..., Deployment], view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [new_topic(2, called=f"{name}-{new_topic(1).name}") for name in ("a", "b")]
    specs = [item.spec() for item in topics]
    lake = deployment(*specs)
    for item in topics:
        item.send_ids(range(4), 2)
    (request,) = lake.tick(Pace(0.2, 60.0))
    ask, later = KafkaCluster.watermarks, iter(topics)

    def watermarks(cluster: KafkaCluster, names: Iterable[str]) -> Any:
        names = list(names)
        if len(names) == 2 and (topic := next(later, None)):
            # The run asks for both of its topics at the beginning of each round.
            topic.send_ids(range(10, 13), 2)
        return ask(cluster, names)

    monkeypatch.setattr(KafkaCluster, "watermarks", watermarks)
    result = lake.run(request)

    assert result.success
    reported = Counter((event.asset_key, event.partition) for event in result.get_asset_materialization_events())
    for spec, topic in zip(specs, topics, strict=True):
        view(spec).assert_exactly_once(topic.ledger)
        assert failed_checks(result, spec) == set()
        assert reported[table_key(spec), "0"] == reported[table_key(spec), "1"] == 2
        checks = [check for check in result.get_asset_check_evaluations() if check.asset_key == table_key(spec)]
        rows = next(check for check in reversed(checks) if check.check_name == "row_count")
        assert rows.metadata["commits"].value == 2, "a result is about the whole run"
    assert lake.tick(Pace(0.2, 60.0)) == []
