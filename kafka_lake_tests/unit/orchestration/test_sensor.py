"""What one tick asks for. The mock broker answers no DescribeTopics, so `watermarks` is stubbed; all else is real."""

import time
from dataclasses import replace
from types import MappingProxyType

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import RunOpConcurrency
from dagster._utils.error import serializable_error_info_from_exc_info

from kafka_lake.catalog.positions import POSITION
from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.common.processes import free_port
from kafka_lake.errors import KafkaLakeError, UnknownTopicError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration import runs as topic_runs
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.heartbeat import HEARTBEAT_TAG
from kafka_lake.orchestration.keys import (
    CATCH_UP_TAG,
    CONTINUOUS_TAG,
    SHARED_TAG,
    TOPIC_TAG,
    YIELD_TAG,
    member_tag,
    pool_name,
    table_key,
)
from kafka_lake.orchestration.metadata import last_reports
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.runs import WORK_TAG
from kafka_lake.orchestration.sensors import topics as sensor
from kafka_lake.orchestration.sensors.requests import FAR_BEHIND, Pace, Sharing
from kafka_lake.orchestration.sensors.topics import build_sensor, evaluate, poll_topics
from kafka_lake.orchestration.steps import SensorFailedError
from kafka_lake.spec.topic_table import Route, TopicTable, When

SPEC = TopicTable("pizzas", "pizza", "orders")
OTHER = TopicTable("pasta", "pizza", "pasta")
ME = TopicIdentity("c", "t", "pizzas")
TWELVE = dict.fromkeys(range(12), 5)
KEYS = [str(p) for p in range(12)]
PACE = Pace(5.0)
SHARING = Sharing(places=3)


@pytest.fixture
def answers(monkeypatch):
    found = {
        "pizzas": Watermarks(ME, dict.fromkeys(range(12), 0), TWELVE),
        "pasta": UnknownTopicError("Topic pasta: no such topic."),
    }
    monkeypatch.setattr(KafkaCluster, "watermarks", lambda self, topics: {t: found[t] for t in topics})
    return found


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def tick(instance, catalog, specs=(SPEC,), pace=PACE, sharing=SHARING):
    answers = KafkaResource().cluster().watermarks(spec.topic for spec in specs)
    result = evaluate(dg.build_sensor_context(instance=instance), specs, answers, catalog, pace, sharing)
    for request in getattr(result, "dynamic_partitions_requests", None) or ():
        instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
    return result


def run_of(instance, request, status):
    run = dg.DagsterRun("job", tags=dict(request.tags), status=status)
    instance.add_run(run)
    return run


def consumed(catalog, offsets):
    rows = pa.table({"id": [1]})
    catalog.ensure_namespace("pizza")
    table = catalog.pyiceberg.create_table_if_not_exists(SPEC.identifier, rows.schema)
    table.append(rows, snapshot_properties={POSITION: Position(ME, offsets).to_json()})


def test_the_first_tick_asks_for_one_run_over_all_partitions(instance, catalog, answers):
    result = tick(instance, catalog)
    (request,) = result.run_requests
    assert list(request.asset_selection) == [dg.AssetKey(["pizza", "orders"])]
    assert request.tags["dagster/asset_partition_range_start"] == "0"
    assert request.tags["dagster/asset_partition_range_end"] == "11"
    assert request.tags[TOPIC_TAG] == "pizzas"
    assert instance.get_dynamic_partitions("kafka/pizzas") == KEYS, "in numeric order"
    (seen,) = result.asset_events
    assert seen.asset_key == dg.AssetKey(["kafka", "pizzas"])
    assert seen.metadata["lag"].value == 60


def test_a_run_goes_on_looking_as_the_sensor_would(instance, catalog, answers):
    (request,) = tick(instance, catalog, pace=Pace(2.0, 300.0)).run_requests
    assert request.run_config == {"ops": {"pizza__orders": {"config": {"catch_up_for": 300.0, "poll_every": 2.0}}}}


def test_its_description_tells_what_stopping_it_leaves_running():
    text = sensor.build_sensor(10, True, 300.0).description or ""
    assert "running ones continue" in text
    assert f"up to 5 min; its tag {CATCH_UP_TAG} shows until when" in text
    assert CONTINUOUS_TAG in text
    assert CATCH_UP_TAG not in (sensor.build_sensor(10, True).description or "")


def test_a_run_in_flight_keeps_its_topic_waiting(instance, catalog, answers):
    (request,) = tick(instance, catalog).run_requests
    assert dg.DagsterRunStatus.QUEUED in topic_runs.IN_FLIGHT
    # Dagster makes no queued run without a remote job: the others stand for it.
    for status in set(topic_runs.IN_FLIGHT) - {dg.DagsterRunStatus.QUEUED}:
        run = run_of(instance, request, status)
        assert isinstance(tick(instance, catalog), dg.SkipReason), status
        instance.delete_run(run.run_id)
    assert tick(instance, catalog).run_requests


def test_a_failed_run_is_asked_for_again_under_a_new_key(instance, catalog, answers):
    (first,) = tick(instance, catalog).run_requests
    run_of(instance, first, dg.DagsterRunStatus.FAILURE)
    (second,) = tick(instance, catalog).run_requests
    assert second.tags[WORK_TAG] == first.tags[WORK_TAG]
    assert second.run_key != first.run_key


def test_a_new_daemon_asks_the_same(instance, catalog, answers):
    (first,) = tick(instance, catalog).run_requests
    (second,) = tick(instance, catalog).run_requests
    assert second.run_key == first.run_key


@pytest.mark.slow
def test_a_hundred_ticks_without_news_ask_for_nothing(instance, catalog, answers):
    consumed(catalog, TWELVE)
    tick(instance, catalog)
    assert all(isinstance(tick(instance, catalog), dg.SkipReason) for _ in range(100))


def test_news_after_that_is_another_work(instance, catalog, answers):
    (first,) = tick(instance, catalog).run_requests
    consumed(catalog, TWELVE)
    answers["pizzas"] = Watermarks(ME, answers["pizzas"].low, {**TWELVE, 3: 6})
    (second,) = tick(instance, catalog).run_requests
    assert second.run_key != first.run_key


def test_a_topic_that_is_not_there_stops_no_other(instance, catalog, answers):
    result = tick(instance, catalog, (OTHER, SPEC))
    assert [r.tags[TOPIC_TAG] for r in result.run_requests] == ["pizzas"]


def test_no_topic_at_all_is_an_error(instance, catalog, answers):
    with pytest.raises(KafkaLakeError, match="pasta: Topic pasta: no such topic"):
        tick(instance, catalog, (OTHER,))


def test_a_table_that_begins_at_the_latest_offset_is_opened_before_the_first_record_comes(instance, catalog, answers):
    """Else "latest" would be told after it, and the first records would be in no table."""
    answers["pizzas"] = Watermarks(ME, dict.fromkeys(range(12), 0), dict.fromkeys(range(12), 0))
    assert isinstance(tick(instance, catalog, (SPEC,)), dg.SensorResult), "Dagster learns of the partitions"
    assert isinstance(tick(instance, catalog, (SPEC,)), dg.SkipReason)
    latest = replace(SPEC, start="latest")
    (request,) = tick(instance, catalog, (latest,)).run_requests
    assert request.tags[TOPIC_TAG] == "pizzas"
    consumed(catalog, dict.fromkeys(range(12), 0))
    assert isinstance(tick(instance, catalog, (latest,)), dg.SkipReason)


@pytest.mark.parametrize(
    "now",
    [
        Watermarks(TopicIdentity("c", "another", "pizzas"), dict.fromkeys(range(12), 0), dict.fromkeys(range(12), 2)),
        Watermarks(ME, dict.fromkeys(range(12), 7), dict.fromkeys(range(12), 7)),
        Watermarks(ME, dict.fromkeys(range(12), 0), dict.fromkeys(range(12), 4)),
    ],
    ids=["recreated and shorter", "all that came was lost to retention", "truncated"],
)
def test_a_topic_that_lost_records_does_not_stall_in_silence(instance, catalog, answers, now):
    consumed(catalog, TWELVE)
    answers["pizzas"] = now
    (request,) = tick(instance, catalog).run_requests
    assert request.tags[TOPIC_TAG] == "pizzas"


@pytest.mark.slow
def test_a_topic_whose_runs_fail_is_left_alone_for_longer_and_longer(instance, catalog, answers, monkeypatch):
    tick(instance, catalog)
    asked = []
    clock = {"now": time.time()}
    monkeypatch.setattr(topic_runs.time, "time", lambda: clock["now"])
    for _ in range(4):
        waited = 0
        while isinstance(result := tick(instance, catalog), dg.SkipReason):
            assert "its last runs failed" in str(result.skip_message)
            clock["now"] += 1
            waited += 1
        asked.append(waited)
        run = run_of(instance, result.run_requests[0], dg.DagsterRunStatus.STARTED)
        instance.report_run_failed(run)
        clock["now"] = instance.get_run_record_by_id(run.run_id).end_time
    assert asked[0] == 0
    assert [round(pause / 5) for pause in asked[1:]] == [1, 2, 4]
    (record,) = instance.get_run_records(limit=1)
    instance.delete_run(record.dagster_run.run_id)


class Waiting:
    """A clock that only sleeping moves; something may happen in a sleep."""

    def __init__(self, happens=lambda now: None):
        self.now, self.happens = 100.0, happens

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.happens(self.now)


def wait(instance, catalog, clock, interval, specs=(SPEC,)):
    context = dg.build_sensor_context(instance=instance)
    return poll_topics(context, specs, KafkaResource().cluster(), catalog, Pace(interval), SHARING, clock, clock.sleep)


def test_records_that_come_during_a_tick_need_not_wait_for_the_next(instance, catalog, answers):
    consumed(catalog, TWELVE)
    tick(instance, catalog)

    def arrive(now):
        if now == 103:
            answers["pizzas"] = Watermarks(ME, answers["pizzas"].low, {**TWELVE, 3: 6})

    clock = Waiting(arrive)
    (request,) = wait(instance, catalog, clock, 1).run_requests
    assert request.tags[TOPIC_TAG] == "pizzas"
    assert clock.now == 103


def test_a_tick_ends_in_time_for_the_next_and_asks_the_brokers_only(instance, catalog, answers, monkeypatch):
    consumed(catalog, TWELVE)
    tick(instance, catalog)
    asked = []
    monkeypatch.setattr(sensor, "evaluate", lambda *_, **__: asked.append(1) or dg.SkipReason("nothing"))
    clock = Waiting()
    assert isinstance(wait(instance, catalog, clock, 1, (SPEC, OTHER)), dg.SkipReason)
    assert (clock.now, len(asked)) == (104, 1)


def test_long_intervals_are_the_daemons_to_keep(instance, catalog, answers):
    consumed(catalog, TWELVE)
    tick(instance, catalog)
    clock = Waiting()
    assert isinstance(wait(instance, catalog, clock, 10), dg.SkipReason)
    assert clock.now == 100


def test_work_is_asked_for_at_once(instance, catalog, answers):
    clock = Waiting()
    assert wait(instance, catalog, clock, 1).run_requests
    assert clock.now == 100


def test_a_tick_that_fails_says_why_first(answers, tmp_path, monkeypatch):
    """In the UI a tick's error is shown as serialized here: its message, and below it its causes."""
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    answers["pasta"] = answers["pizzas"]
    uri = f"127.0.0.1:{free_port()}"
    catalog = CatalogResource(properties={"type": "rest", "uri": f"http://bob:hush@{uri}"})
    assets = [asset for spec in (SPEC, OTHER) for asset in build_topic_assets(spec, Presentation("g"))]
    asked = {"kafka": KafkaResource(), "catalog": catalog}
    spark = SparkResource(spark_config={}, catalog=catalog)
    resources = {**asked, "registry": RegistryResource(), "spark": spark}
    sensor_ = build_sensor(10, True)
    definitions = dg.Definitions(assets=assets, sensors=[sensor_], resources=resources)
    with dg.DagsterInstance.ephemeral() as instance:
        repository = definitions.get_repository_def()
        context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=asked)
        with pytest.raises(SensorFailedError) as failed:
            sensor_.evaluate_tick(context)
    reported = serializable_error_info_from_exc_info(
        (type(failed.value), failed.value, failed.value.__traceback__)
    ).message
    assert f"catalog lake (rest at http://{uri}) didn't answer: Connection refused." in reported.splitlines()[0]
    assert reported.count(uri) == 1
    assert "hush" not in reported


def test_a_dead_run_does_not_block_its_topic(instance, catalog, answers, monkeypatch):
    tags = {TOPIC_TAG: "pizzas", HEARTBEAT_TAG: "elsewhere:boot:1:17:123 2026-01-02T03:04:05+00:00"}
    job = dg.GraphDefinition("any").to_job()
    dead = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
    monkeypatch.setattr(topic_runs, "FIRST_PAUSE", 0.0)
    assert len(tick(instance, catalog).run_requests) == 1
    assert instance.get_run_by_id(dead.run_id).status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("state", ["in flight", "up to date", "failing"])
def test_a_topic_that_must_wait_keeps_no_other_waiting(state, instance, catalog, answers):
    answers["pasta"] = answers["pizzas"]
    (request,) = tick(instance, catalog).run_requests
    if state == "up to date":
        consumed(catalog, TWELVE)
    else:
        run = run_of(instance, request, dg.DagsterRunStatus.STARTED)
        if state == "failing":
            instance.report_run_failed(run)
    result = tick(instance, catalog, (SPEC, OTHER))
    assert [r.tags[TOPIC_TAG] for r in result.run_requests] == ["pasta"], "which has not failed itself"
    assert result.run_requests[0].run_key.endswith("#0"), "it is the first for this work"
    reported = str(tick(instance, catalog, (SPEC,)).skip_message)
    flight = "60 behind, a run is in flight"
    why = {"in flight": flight, "up to date": "up to date", "failing": "its last runs failed"}[state]
    assert reported.startswith(f"pizzas: {why}")


def run_of_location(instance, request, location, status):
    origin = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name=location), "repo")
    run = dg.DagsterRun(
        "job",
        tags=dict(request.tags),
        status=dg.DagsterRunStatus.STARTED,
        asset_selection=frozenset(request.asset_selection),
        remote_job_origin=origin.get_job_origin("job"),
    )
    instance.add_run(run)
    if status == "failed":
        instance.report_run_failed(run)
    return origin


@pytest.mark.slow
@pytest.mark.parametrize("status", ["in flight", "failed"])
@pytest.mark.parametrize(("location", "waits"), [("eu", False), ("us", True)])
def test_runs_of_another_code_location_keep_no_topic_of_that_name_waiting(
    status, location, waits, instance, catalog, answers
):
    (request,) = tick(instance, catalog).run_requests
    run_of_location(instance, request, location, status)
    here = GrpcServerCodeLocationOrigin("127.0.0.1", 4001, location_name="us")
    context = dg.SensorEvaluationContext(instance_ref=None, instance=instance, code_location_origin=here)
    watermarks = KafkaResource().cluster().watermarks([SPEC.topic])
    result = evaluate(context, [SPEC], watermarks, catalog, PACE, SHARING)
    assert isinstance(result, dg.SkipReason) == waits


def test_only_partitions_of_the_topic_itself_are_asked_for(instance, catalog, answers):
    # Another code location's topic of the same name has more of them.
    instance.add_dynamic_partitions("kafka/pizzas", [str(p) for p in (20, 1, 0, 30)])
    (request,) = tick(instance, catalog).run_requests
    assert request.tags["dagster/asset_partition_range_start"] == "1"
    assert request.tags["dagster/asset_partition_range_end"] == "11"


def test_of_many_failures_a_few_tell_how_long_to_wait(instance, catalog, answers, monkeypatch):
    (request,) = tick(instance, catalog).run_requests
    for _ in range(15):
        instance.report_run_failed(run_of(instance, request, dg.DagsterRunStatus.STARTED))
    end = instance.get_run_records(limit=1)[0].end_time
    monkeypatch.setattr(topic_runs.time, "time", lambda: end + 1)
    asked = []
    records = dg.DagsterInstance.get_run_records

    def get(*args, **options):
        asked.append(options.get("limit"))
        return records(*args, **options)

    monkeypatch.setattr(dg.DagsterInstance, "get_run_records", get)
    reported = str(tick(instance, catalog).skip_message)
    assert reported == "pizzas: its last runs failed, the next one starts in 1799 s"
    assert asked == [12], "however many there are"


def test_tables_wait_a_minute_at_most_for_one_that_refuses(instance, catalog, answers, monkeypatch):
    other = Route(When(field="type", values=("b",)), replace(SPEC, table="other"))
    spec, watermarks = replace(SPEC, routes=(other,)), KafkaResource().cluster().watermarks([SPEC.topic])

    def asked():
        return evaluate(dg.build_sensor_context(instance=instance), [spec], watermarks, catalog, PACE, SHARING)

    (request,) = asked().run_requests
    for _ in range(15):
        instance.report_run_failed(run_of(instance, request, dg.DagsterRunStatus.STARTED))
    end = instance.get_run_records(limit=1)[0].end_time
    monkeypatch.setattr(topic_runs.time, "time", lambda: end + 1)
    assert not asked().run_requests
    monkeypatch.setattr(topic_runs.time, "time", lambda: end + 61)
    assert len(asked().run_requests) == 1


def test_a_topic_whose_settings_were_mended_waits_no_more(instance, catalog, answers):
    (request,) = tick(instance, catalog).run_requests
    instance.report_run_failed(run_of(instance, request, dg.DagsterRunStatus.STARTED))
    assert "its last runs failed" in str(tick(instance, catalog).skip_message)
    mended = replace(SPEC, max_columns=2000)
    watermarks = KafkaResource().cluster().watermarks([SPEC.topic])
    result = evaluate(dg.build_sensor_context(instance=instance), [mended], watermarks, catalog, PACE, SHARING)
    (again,) = result.run_requests
    assert again.run_key != request.run_key


def test_dagster_s_runs_are_asked_for_once_for_all_topics(instance, catalog, answers, monkeypatch):
    answers["pasta"] = answers["pizzas"]
    asked = []
    for name in ("get_runs", "get_run_records"):
        real = getattr(dg.DagsterInstance, name)
        monkeypatch.setattr(
            dg.DagsterInstance, name, lambda *args, real=real, **options: asked.append(real) or real(*args, **options)
        )
    counts = []
    for specs in ((SPEC,), (SPEC, OTHER)):
        asked.clear()
        assert len(tick(instance, catalog, specs).run_requests[0].asset_selection) == len(specs)
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


def test_why_nothing_is_asked_for_is_told_of_each_topic(instance, catalog, answers):
    consumed(catalog, TWELVE)
    tick(instance, catalog)
    reported = str(tick(instance, catalog, (SPEC, OTHER)).skip_message)
    assert reported == "pizzas: up to date; pasta: Topic pasta: no such topic."
    answers["pizzas"] = answers["pasta"]
    with pytest.raises(KafkaLakeError) as refused:
        tick(instance, catalog, (SPEC, OTHER))
    assert refused.value.message.startswith("No topic could be polled: pizzas: Topic pasta: no such topic.; pasta:")


def test_the_page_of_a_topic_tells_how_fast_records_come_and_that_a_partition_has_caught_up(
    instance, catalog, answers, monkeypatch
):
    (first,) = tick(instance, catalog).asset_events
    assert "records_per_second" not in first.metadata, "nobody knows since when it has had them"
    instance.report_runless_asset_event(first)
    then = last_reports(instance, [SPEC])[first.asset_key]
    monkeypatch.setattr(sensor.time, "time", lambda: then.at + 10.0)
    consumed(catalog, {0: 5, **dict.fromkeys(range(1, 12), 4)})
    (second,) = tick(instance, catalog).asset_events
    assert second.metadata["records_per_second"].value == 0.0
    lines = [line.data for line in second.metadata["by_partition"].records]
    assert lines[:2] == [{"partition": p, "end_offset": 5, "lag": lag} for p, lag in ((0, 0), (1, 1))]
    assert second.metadata["table"].value == dg.AssetKey(["pizza", "orders"])


def test_tick_asks_dagster_only_for_topics_with_work(instance, catalog, answers, monkeypatch):
    asked, ask, known = [], dg.DagsterInstance.get_dynamic_partitions, {}

    def counted(self, name):
        asked.append(name)
        return ask(self, name)

    def calls(offsets):
        consumed(catalog, offsets)
        context, before = dg.build_sensor_context(instance=instance), len(asked)
        watermarks = KafkaResource().cluster().watermarks(["pizzas"])
        result = evaluate(context, [SPEC], watermarks, catalog, pace=PACE, sharing=SHARING, known=known)
        for request in getattr(result, "dynamic_partitions_requests", None) or ():
            instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        return len(asked) - before, bool(getattr(result, "run_requests", None))

    monkeypatch.setattr(dg.DagsterInstance, "get_dynamic_partitions", counted)
    assert calls(TWELVE) == (1, False), "the partitions are new"
    assert calls(TWELVE) == (1, False), "they have been added since"
    assert calls(TWELVE) == (0, False)
    assert calls({**TWELVE, 3: 4}) == (1, True), "a run's range is of what Dagster has now"


def test_a_tick_that_requests_runs_tells_why_in_its_log(instance, catalog, answers, capfd):
    tick(instance, catalog, (SPEC, OTHER))
    notes = "pizzas: 60 behind, a run is requested; pasta: Topic pasta: no such topic."
    assert notes in capfd.readouterr().err


MANY = tuple(TopicTable(name, "pizza", name) for name in ("a", "b", "c"))


@pytest.fixture
def due(answers):
    for spec in MANY:
        answers[spec.topic] = Watermarks(replace(ME, topic=spec.topic), {0: 0, 1: 0}, {0: 5, 1: 5})


def finish(instance, request, failed=()):
    """Have a requested run end: the steps of some topics fail."""

    def op(spec):
        @dg.op(name=f"pizza__{spec.table}")
        def ingest():
            if spec.topic in failed:
                raise dg.Failure("refused")

        return ingest

    @dg.job(executor_def=dg.in_process_executor)
    def steps():
        for spec in MANY:
            if table_key(spec) in request.asset_selection:
                op(spec)()

    steps.execute_in_process(instance=instance, tags=dict(request.tags), raise_on_error=False)


def test_due_topics_share_a_run_that_tells_topics_and_partitions(instance, catalog, due):
    (request,) = tick(instance, catalog, MANY).run_requests
    assert list(request.asset_selection) == [table_key(spec) for spec in MANY]
    assert request.tags[TOPIC_TAG] == "a [0…1], b [0…1], c [0…1]"
    assert "dagster/asset_partition_range_start" not in request.tags
    assert {op: its["config"]["topics"] for op, its in request.run_config["ops"].items()} == {
        "pizza__a": 3,
        "pizza__b": 3,
        "pizza__c": 3,
    }
    run = run_of(instance, request, dg.DagsterRunStatus.STARTED)
    flight = f"10 behind, a run is in flight: {run.run_id[:8]}"
    assert tick(instance, catalog, MANY).skip_message == f"a: {flight}; b: {flight}; c: {flight}"


def test_failed_topic_of_a_shared_run_is_retried_alone(instance, catalog, due, monkeypatch):
    (first,) = tick(instance, catalog, MANY).run_requests
    finish(instance, first, failed=("b",))
    (others,) = tick(instance, catalog, MANY).run_requests
    assert list(others.asset_selection) == [table_key(MANY[0]), table_key(MANY[2])], "b pauses"
    monkeypatch.setattr(topic_runs, "FIRST_PAUSE", 0.0)
    again = {request.tags[TOPIC_TAG]: request for request in tick(instance, catalog, MANY).run_requests}
    assert set(again) == {"a [0…1], c [0…1]", "b"}
    assert again["b"].run_config["ops"]["pizza__b"]["config"]["catch_up_for"] == 0.0
    finish(instance, again["b"])
    (together,) = tick(instance, catalog, MANY).run_requests
    assert len(together.asset_selection) == 3, "a run of its own has succeeded"


def test_shared_run_that_fails_before_any_step_pauses_all(instance, catalog, due):
    (request,) = tick(instance, catalog, MANY).run_requests
    instance.report_run_failed(run_of(instance, request, dg.DagsterRunStatus.STARTED))
    assert str(tick(instance, catalog, MANY).skip_message).count("its last runs failed") == 3


def test_due_topics_without_a_place_make_one_run_yield(instance, catalog, due):
    (request,) = tick(instance, catalog, MANY[:1], sharing=Sharing(places=1)).run_requests
    run = run_of(instance, request, dg.DagsterRunStatus.STARTED)
    assert not tick(instance, catalog, MANY, sharing=Sharing(places=1)).run_requests
    assert instance.get_run_by_id(run.run_id).tags[YIELD_TAG] == "true"
    reported = str(tick(instance, catalog, MANY, sharing=Sharing(places=1)).skip_message)
    assert "b: 10 behind, waits for a shared run" in reported


def test_run_by_other_settings_is_asked_to_end(instance, catalog, due):
    (request,) = tick(instance, catalog, MANY[:1]).run_requests
    run = run_of(instance, request, dg.DagsterRunStatus.STARTED)
    tick(instance, catalog, MANY[:1])
    assert YIELD_TAG not in instance.get_run_by_id(run.run_id).tags
    tick(instance, catalog, [replace(MANY[0], max_records_per_commit=7)])
    assert instance.get_run_by_id(run.run_id).tags[YIELD_TAG] == "true"


def test_topics_that_become_due_during_a_start_share_the_next_run(instance, catalog, due):
    (request,) = tick(instance, catalog, MANY[:1]).run_requests
    run = run_of(instance, request, dg.DagsterRunStatus.STARTING)
    assert not tick(instance, catalog, MANY).run_requests
    assert YIELD_TAG not in instance.get_run_by_id(run.run_id).tags
    instance.delete_run(run.run_id)
    run = run_of(instance, request, dg.DagsterRunStatus.STARTED)
    (shared,) = tick(instance, catalog, MANY).run_requests
    assert shared.tags[TOPIC_TAG] == "b [0…1], c [0…1]"
    assert YIELD_TAG not in instance.get_run_by_id(run.run_id).tags, "no topic waits for its place"


def test_shared_run_that_would_wait_for_one_topic_is_requested_without_it(instance, catalog, due):
    (request,) = tick(instance, catalog, MANY).run_requests
    run_with_pools(instance, "b", dg.DagsterRunStatus.STARTED)
    queued = run_with_pools(instance, "abc", dg.DagsterRunStatus.QUEUED, request.tags)
    (again,) = tick(instance, catalog, MANY).run_requests
    assert again.tags[TOPIC_TAG] == "a [0…1], c [0…1]"
    assert instance.get_run_by_id(queued.run_id).status is dg.DagsterRunStatus.CANCELED


@pytest.mark.parametrize(
    ("status", "shared", "names", "canceled"),
    [
        (dg.DagsterRunStatus.QUEUED, True, "ab", True),
        (dg.DagsterRunStatus.QUEUED, True, "ac", False),
        (dg.DagsterRunStatus.QUEUED, True, "b", False),
        (dg.DagsterRunStatus.QUEUED, False, "ab", False),
        (dg.DagsterRunStatus.STARTED, True, "ab", False),
    ],
)
def test_shared_run_is_canceled_only_if_it_would_wait(instance, status, shared, names, canceled):
    running = run_with_pools(instance, "b", dg.DagsterRunStatus.STARTED)
    other = run_with_pools(instance, names, status, {SHARED_TAG: ""} if shared else {})
    found = topic_runs.in_flight(dg.build_sensor_context(instance=instance), MANY)
    assert (instance.get_run_by_id(other.run_id).status is dg.DagsterRunStatus.CANCELED) is canceled
    assert found.topics["b"] in (running.run_id, other.run_id)
    assert canceled is (other.run_id not in found.topics.values() and names != "b")


def run_with_pools(instance, names, status, tags=MappingProxyType({})):
    specs = [spec for spec in MANY if spec.topic in names]
    origin = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name="us"), "repo")
    pools = RunOpConcurrency(
        root_key_counts={}, has_unconstrained_root_nodes=False, all_pools={pool_name(spec) for spec in specs}
    )
    run = dg.DagsterRun(
        "job",
        tags=dict(tags),
        status=status,
        asset_selection=frozenset(table_key(spec) for spec in specs),
        remote_job_origin=origin.get_job_origin("job"),
        run_op_concurrency=pools,
    )
    instance.add_run(run)
    return run


def test_topic_far_behind_gets_a_run_of_its_own(instance, catalog, due, answers):
    answers["b"] = replace(answers["b"], end={0: FAR_BEHIND, 1: 1})
    requests = tick(instance, catalog, MANY, Pace(5.0, 300.0)).run_requests
    assert [request.tags[TOPIC_TAG] for request in requests] == ["a [0…1], c [0…1]", "b"]
    assert [SHARED_TAG in request.tags for request in requests] == [True, False]
    assert requests[0].run_config["ops"]["pizza__a"]["config"]["catch_up_for"] == 300.0
    assert requests[1].run_config["ops"]["pizza__b"]["config"]["catch_up_for"] == 0.0


def test_run_of_its_own_continues_up_to_the_limit(instance, catalog, due, answers):
    answers["b"] = replace(answers["b"], end={0: FAR_BEHIND, 1: 0})
    (request,) = tick(instance, catalog, [replace(MANY[1], transform="shop:loud")], Pace(5.0, 300.0)).run_requests
    assert SHARED_TAG not in request.tags
    assert request.run_config["ops"]["pizza__b"]["config"]["catch_up_for"] == 300.0


@pytest.mark.parametrize(("age", "found"), [(5390, {"pizzas"}), (5410, set())])
def test_failures_of_the_last_hour_and_a_half_count(instance, monkeypatch, age, found):
    run = dg.DagsterRun("job", tags={member_tag("pizzas"): "pizzas"}, status=dg.DagsterRunStatus.STARTED)
    instance.add_run(run)
    instance.report_run_failed(run)
    updated = instance.get_run_record_by_id(run.run_id).update_timestamp.timestamp()
    monkeypatch.setattr(topic_runs.time, "time", lambda: updated + age)
    assert topic_runs.failed_lately(dg.build_sensor_context(instance=instance), [SPEC, OTHER]) == found
