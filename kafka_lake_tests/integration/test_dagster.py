"""A topic's assets as Dagster runs them: one run for all partitions, their metadata, and checks that gate."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import TopicPartition
from pyiceberg.exceptions import ServiceUnavailableError

from kafka_lake.common.processes import free_port
from kafka_lake.ingest import continuous as continuous_runs
from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.runner import Runner as Runs
from kafka_lake.orchestration import reporting
from kafka_lake.orchestration.assets import Presentation, build_topic_assets
from kafka_lake.orchestration.checks import NO_DEAD_LETTERS
from kafka_lake.orchestration.jobs import build_replay_job, health_check_key
from kafka_lake.orchestration.keys import CATCH_UP_TAG, CONTINUOUS_TAG, TOPIC_TAG, YIELD_TAG, table_key, topic_key
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.reporting import BACKFILL_TAG
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors.requests import run_checks
from kafka_lake.runtime.commit import CHECKS
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.rule import Range, RowCount, RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

SHOWN = Presentation("tests", ["team:tests"])
RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


RUN_CHECKS = {*CHECKS, "no_dead_letters"}
"""What every run of a topic evaluates."""

# Dagster makes its own copy of a resource for each run, so that what is shared can't be an attribute.
_sessions: list[Any] = []


class SharedSpark(SparkResource):
    """The test session's Spark, which outlives the run; an error where a run may not touch it."""

    @property
    def spark_session(self) -> Any:
        assert _sessions, "Spark was touched"
        return _sessions[0]

    def stop(self) -> None:
        pass


def events_of(instance: dg.DagsterInstance, kind: dg.DagsterEventType, key: dg.AssetKey) -> list[dg.EventLogEntry]:
    found = instance.get_event_records(dg.EventRecordsFilter(kind, asset_key=key), limit=10)
    return [record.event_log_entry for record in found]


def as_the_sensor(spec: TopicTable, *tables: TopicTable) -> dg.AssetSelection:
    """Return what a run that the sensor asks for makes: some of a topic's tables, each with its own checks."""
    keys = [table_key(table) for table in tables]
    checks = [check for check in run_checks(spec) if check.asset_key in keys]
    return dg.AssetSelection.assets(*keys).without_checks() | dg.AssetSelection.checks(*checks)


class Runner:
    """Runs a topic's assets in process, as the sensor's run requests and the UI's buttons would."""

    def __init__(self, instance: dg.DagsterInstance, resources: dict[str, Any], spark: SparkResource) -> None:
        self.instance = instance
        self.resources = resources
        self._spark = spark

    def run(
        self,
        spec: TopicTable,
        partitions: tuple[int, int] | int | None,
        selection: dg.AssetSelection | None = None,
        with_spark: bool = True,
        continuous: Continuous | None = None,
        topic_tag: str | None = None,
        tags: Mapping[str, str] = MappingProxyType({}),
        **config: Any,
    ) -> dg.ExecuteInProcessResult:
        spark = SharedSpark(catalog=self.resources["catalog"], spark_config={})
        _sessions[:] = [self._spark.spark_session] if with_spark else []
        chosen = dict(zip(RANGE, map(str, partitions), strict=True)) if isinstance(partitions, tuple) else {}
        return dg.materialize(
            build_topic_assets(spec, SHOWN, continuous),
            instance=self.instance,
            resources={**self.resources, "spark": spark},
            partition_key=str(partitions) if isinstance(partitions, int) else None,
            selection=selection or as_the_sensor(spec, spec),
            run_config={"ops": {f"{spec.namespace}__{spec.table}": {"config": config}}} if config else None,
            tags={**tags, **chosen, **({TOPIC_TAG: topic_tag} if topic_tag else {})},
            raise_on_error=False,
        )


@pytest.fixture
def runner(
    kafka_resource: KafkaResource, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Iterator[Runner]:
    with dg.DagsterInstance.ephemeral() as instance:
        resources = {"kafka": kafka_resource, "catalog": catalog_resource, "registry": RegistryResource()}
        yield Runner(instance, resources, spark_resource)


def know_partitions(runner: Runner, topic: Topic) -> None:
    keys = [str(p) for p in range(topic.partitions())]
    runner.instance.add_dynamic_partitions(partitions_of(topic.name).name or "", keys)


def by_partition(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """Return, per Dagster partition, the metadata of its materialization; at most one for each."""
    found: dict[str, dict[str, Any]] = {}
    for event in result.get_asset_materialization_events():
        assert event.partition not in found
        if event.partition is not None:
            found[event.partition] = figures_of(event.materialization)
    return found


ROWS = "dagster/partition_row_count"


def places(evaluated: Mapping[str, dg.AssetCheckEvaluation]) -> dict[str, str]:
    """Return what the check of the offsets shows of each partition."""
    table = evaluated["offset_continuity"].metadata["partitions"]
    assert isinstance(table, dg.TableMetadataValue)
    return {str(line.data["partition"]): str(line.data["offsets"]) for line in table.records}


def figures_of(materialization: dg.AssetMaterialization) -> dict[str, Any]:
    """Return the figures of a partition as numbers; they have the time of its last commit once it has records."""
    metadata = {k: v.value for k, v in materialization.metadata.items()}
    at = metadata.pop("last_commit", None)
    assert (at is not None) == (metadata.get("end_offset", "0") != "0"), metadata
    return {k: int(str(v)) for k, v in metadata.items() if k in ("start_offset", "end_offset", "lag_after", ROWS)}


def told_of(runner: Runner, spec: TopicTable) -> list[dg.AssetMaterialization]:
    """Return the newest materializations of a table, by runs and of the table as a whole, in their order."""
    newest = events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, table_key(spec))
    return [event.asset_materialization for event in reversed(newest) if event.asset_materialization]


def whole(runner: Runner, result: dg.ExecuteInProcessResult, spec: TopicTable) -> dict[str, Any]:
    """Return the metadata about the table as a whole, which is what the page of the table shows after a run."""
    newest = told_of(runner, spec)[-1]
    assert newest.partition is None
    of_the_run = [e.materialization for e in result.get_asset_materialization_events()]
    assert newest == [event for event in of_the_run if event.asset_key == table_key(spec)][-1]
    return {k: v.value for k, v in newest.metadata.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


def test_one_run_and_one_commit_for_all_partitions(new_topic: NewTopic, runner: Runner, view: NewView) -> None:
    topic = new_topic(3)
    topic.send_ids(range(7), 3)
    topic.send(b"junk", partition=2)
    know_partitions(runner, topic)
    spec = topic.spec()
    result = runner.run(spec, (0, 2))
    assert result.success
    names = ("start_offset", "end_offset", ROWS, "lag_after")
    assert by_partition(result) == {
        "0": dict(zip(names, (0, 3, 3, 0), strict=True)),
        "1": dict(zip(names, (0, 2, 2, 0), strict=True)),
        "2": dict(zip(names, (0, 3, 2, 0), strict=True)),
    }
    metadata = whole(runner, result, spec)
    assert (metadata["commits"], metadata["records_read"], metadata["dead_letters"]) == (1, 8, 1)
    assert metadata["dagster/row_count"] == 7
    assert (metadata["lag"], metadata["rows_added"]) == (0, 7)
    lines = [line.data for line in metadata["by_partition"].records]
    assert [(line["partition"], line["rows"]) for line in lines] == [(0, 3), (1, 2), (2, 2)]
    held = [task.file for task in view(spec).table.scan().plan_files()]
    assert metadata["files_in_table"] == len(held)
    assert metadata["bytes_in_table"] == sum(file.file_size_in_bytes for file in held)
    assert metadata["snapshot_id"] == str(view(spec).table.current_snapshot().snapshot_id)  # type: ignore[union-attr]
    evaluated = checks(result)
    assert set(evaluated) == RUN_CHECKS
    assert {name for name, e in evaluated.items() if not e.passed} == {"no_dead_letters"}
    # Dagster plots these over time, one point for each run.
    plotted = {name: value.value for name, value in evaluated["row_count"].metadata.items()}
    assert (plotted["records_read"], plotted["rows_added"], plotted["dead_letters"], plotted["commits"]) == (8, 7, 1, 1)
    assert plotted["rows_in_table"] == 7
    assert plotted["bytes_added"] == metadata["bytes_added"] > 0  # type: ignore[operator]
    assert plotted["duration_seconds"] == metadata["duration_seconds"] > 0  # type: ignore[operator]
    view(spec).assert_exactly_once(topic.ledger)

    again = runner.run(spec, (0, 2), with_spark=False)
    assert again.success
    assert {k: (m["start_offset"], m["end_offset"]) for k, m in by_partition(again).items()} == {
        "0": (3, 3),
        "1": (2, 2),
        "2": (3, 3),
    }
    idle = {name: value.value for name, value in checks(again)["row_count"].metadata.items()}
    assert (idle["records_read"], idle["commits"], idle["rows_in_table"]) == (0, 0, 7)


def test_backfill_run_reports_only_partitions(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic(2)
    topic.send_ids(range(3), 2)
    know_partitions(runner, topic)
    spec = topic.spec()
    result = runner.run(spec, (0, 1), tags={BACKFILL_TAG: "any"})
    assert result.success
    reported = result.get_asset_materialization_events()
    assert [e.partition for e in reported[2:]] == ["1"], "Dagster fails a backfill for one without a partition"
    assert {e.partition for e in reported} == {"0", "1"}
    # The last one is what the pages show: of the table, and of its partition.
    newest = {name: value.value for name, value in reported[-1].materialization.metadata.items()}
    assert (newest["dagster/row_count"], newest["records_read"]) == (3, 3)
    assert (newest["end_offset"], newest[ROWS], newest["lag_after"]) == ("1", 1, "0")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        exhaustive("to the topic's end", {}),
        exhaustive("catching up", {"catch_up_for": 120.0, "poll_every": 0.3}),
        exhaustive("reading again", {"mode": "replace"}),
        ("continuous", {}),
    ],
)
def test_a_run_without_a_partition_is_for_all_of_them(
    kind: str, settings: dict[str, Any], new_topic: NewTopic, runner: Runner, view: NewView, connections: NewConnections
) -> None:
    topic = new_topic(12)
    spec = topic.spec()
    topic.send_ids(range(30), 12)
    if kind == "reading again":
        ingest(spec, connections(), "before")
    continuous = Continuous(trigger=0.3, time_limit=60, idle=1, compact_every=None, report_every=0.3)
    result = runner.run(spec, None, continuous=continuous if kind == "continuous" else None, **settings)
    assert result.success
    keys = [str(p) for p in range(12)]
    assert runner.instance.get_dynamic_partitions(str(partitions_of(topic.name).name)) == keys, "in numeric order"
    reported = result.get_asset_materialization_events()
    rows = {key: sum(_rows(e) for e in reported if e.partition == key) for key in keys}
    assert rows == {key: 3 if int(key) < 6 else 2 for key in keys}
    assert runner.instance.get_materialized_partitions(table_key(spec)) == set(keys)
    assert "dagster/column_schema" in reported[-1].materialization.metadata
    assert set(checks(result)) == RUN_CHECKS
    view(spec).assert_exactly_once(topic.ledger)


def _rows(event: dg.DagsterEvent) -> int:
    return int(event.materialization.metadata[ROWS].value)  # type: ignore[call-overload,no-any-return]


@pytest.mark.exhaustive
def test_how_long_records_waited_shows(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic(2)
    now = int(time.time() * 1000)
    topic.send({"id": 0}, 0, timestamp_ms=now - 60_000)
    topic.send({"id": 1}, 1, timestamp_ms=now - 5_000)
    know_partitions(runner, topic)
    began = time.time()
    metadata = whole(runner, runner.run(topic.spec(), (0, 1)), topic.spec())
    took = time.time() - began
    assert 60 <= metadata["age_of_oldest_record_seconds"] <= 60 + took + 1
    assert 5 <= metadata["age_of_newest_record_seconds"] <= 5 + took + 1
    # The page of the topic has the lag behind the run, and a check of the table says that there are no dead letters.
    (shown,) = events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, topic_key(topic.spec()))
    about_topic = shown.asset_materialization
    assert about_topic is not None
    table = about_topic.metadata["by_partition"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [record.data for record in table.records] == [{"partition": p, "end_offset": 1, "lag": 0} for p in (0, 1)]
    assert {k: v.value for k, v in about_topic.metadata.items() if k != "by_partition"} == {
        "table": table_key(topic.spec()),
        "end_offset": 2,
        "lag": 0,
        "partitions": "2",
    }
    verdict = no_dead_letters(runner, topic.spec())
    assert (verdict.passed, verdict.description, verdict.metadata["dead_letters"].value) == (True, "0 dead letters", 0)

    again = runner.run(topic.spec(), (0, 1), mode="replace")
    assert "age_of_oldest_record_seconds" not in whole(runner, again, topic.spec()), (
        "these records have been visible before"
    )


def test_continuous_run_reports_progress_and_triggers_downstream(
    new_topic: NewTopic, runner: Runner, view: NewView
) -> None:
    topic = new_topic(2)
    topic.send({"id": 0}, 0)
    know_partitions(runner, topic)
    spec, key = topic.spec(), table_key(topic.spec())

    @dg.asset(deps=[key], automation_condition=dg.AutomationCondition.eager())
    def below() -> None:
        """Follow the table."""

    def shown() -> list[dg.EventLogEntry]:
        every = events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, key)
        return [e for e in every if e.asset_materialization and e.asset_materialization.partition]

    def requested(cursor: Any = None) -> Any:
        spark = SharedSpark(catalog=runner.resources["catalog"], spark_config={})
        assets = [*build_topic_assets(spec, SHOWN), below]
        definitions = dg.Definitions(assets, resources={**runner.resources, "spark": spark})
        return dg.evaluate_automation_conditions(definitions, runner.instance, cursor=cursor)

    began = requested()
    settings = Continuous(trigger=0.3, time_limit=90, idle=12, compact_every=None, report_every=0.3)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(runner.run, spec, (0, 1), continuous=settings)
        topic.wait_for(lambda: going.done() or len(shown()) >= 2, 120)
        assert not going.done()
        first = requested(began.cursor)
        assert first.total_requested == 1
        second = requested(first.cursor)
        assert second.total_requested == 0
        topic.send({"id": 1}, 1)
        topic.wait_for(lambda: going.done() or len(shown()) >= 3, 60)
        assert not going.done()
        assert requested(second.cursor).total_requested == 1
        newest = shown()[0].asset_materialization
        result = going.result(60)
    assert result.success
    assert newest is not None
    assert newest.partition == "1", "the other one had nothing since"
    assert figures_of(newest) == {"start_offset": 0, "end_offset": 1, ROWS: 1, "lag_after": 0}

    reported = told_of(runner, spec)
    # Each report ends with the table as a whole.
    assert [e.partition for e in reported[:5]] == ["0", "1", None, "1", None]
    # Dagster tells of a result's partitions in no order.
    assert {e.partition for e in reported[5:7]} == {"0", "1"}
    assert [e.partition for e in reported[7:]] == [None]
    about = reported[4].metadata
    assert (about["commits"].value, about["records_read"].value, about["dagster/row_count"].value) == (1, 1, 2)
    assert about["age_of_newest_record_seconds"].value >= 0  # type: ignore[operator]
    assert "dagster/column_schema" in about
    assert sum(int(e.metadata[ROWS].value) for e in reported if e.partition == "1") == 1  # type: ignore[call-overload]
    evaluated = result.get_asset_check_evaluations()
    assert len(evaluated) == 3 * len(RUN_CHECKS)
    assert all(e.passed for e in evaluated)
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_failed_continuous_run_reports_its_earlier_commits(new_topic: NewTopic, runner: Runner, view: NewView) -> None:
    topic = new_topic()
    topic.send({"id": 0})
    know_partitions(runner, topic)
    spec, key = topic.spec(dead_letters="fail"), table_key(topic.spec())
    settings = Continuous(trigger=0.3, time_limit=60, idle=20, compact_every=None, report_every=1000)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(runner.run, spec, (0, 0), continuous=settings)
        topic.wait_for(lambda: events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, key) != [], 120)
        topic.send({"id": 1})
        topic.wait_for(lambda: len(view(spec).ids()) == 2, 60)
        topic.send(b"junk")
        result = going.result(60)
    assert not result.success
    reported = result.get_asset_materialization_events()
    assert [e.materialization.metadata[ROWS].value for e in reported if e.partition] == [1, 1]
    # The run's last word tells of all that it did, not only of the commit that was refused.
    last = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert last["row_count"].metadata["records_read"].value == 3
    assert {e.check_name for e in result.get_asset_check_evaluations() if not e.passed} == {"dead_letters"}
    assert view(spec).ids() == [0, 1]


@pytest.mark.exhaustive
def test_reports_of_continuous_run_stay_until_its_end(
    new_topic: NewTopic, runner: Runner, view: NewView, connections: NewConnections
) -> None:
    topic = new_topic(2)
    know_partitions(runner, topic)
    spec, key = topic.spec(None, on_data_loss="continue"), table_key(topic.spec())
    topic.send_ids(range(4), 2)
    ingest(spec, connections(), "before")
    topic.send_ids(range(4, 12), 2)
    topic.send({"id": 12, "later": True})
    topic.admin.delete_records([TopicPartition(topic.name, 1, 5)])[TopicPartition(topic.name, 1)].result(20)

    def reports() -> int:
        every = events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, key)
        return sum(1 for e in every if e.asset_materialization and not e.asset_materialization.partition)

    settings = Continuous(trigger=0.3, time_limit=60, idle=10, compact_every=None, report_every=0.3)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(runner.run, spec, (0, 1), continuous=settings)
        topic.wait_for(lambda: going.done() or reports() == 1, 120)
        came_with = view(spec).table.current_snapshot()
        topic.send({"id": 13})
        topic.wait_for(lambda: going.done() or reports() == 2, 60)
        assert not going.done()
        result = going.result(60)
    assert result.success
    reported = result.get_asset_check_evaluations()
    assert len(reported) == 3 * len(RUN_CHECKS)
    last = {e.check_name: e for e in reported}
    loss = f"topic {topic.name} partition 1 lost offsets 2 to 4 to retention"
    assert (last["data_loss"].passed, last["data_loss"].description) == (False, loss)
    changes: Any = last["schema_evolution"].metadata["changes"]
    (line,) = changes.records
    assert came_with is not None
    assert {name: line.data[name] for name in ("column", "what", "after", "snapshot")} == {
        "column": "later",
        "what": "added",
        "after": "boolean",
        "snapshot": str(came_with.snapshot_id),
    }
    assert abs(datetime.fromisoformat(line.data["when"]).timestamp() - came_with.timestamp_ms / 1000) < 10  # type: ignore[arg-type]
    assert last["row_count"].metadata["records_read"].value == 7
    assert last["row_count"].metadata["commits"].value == 2

    # The next run lost nothing; what was lost before is still to be seen.
    after = checks(runner.run(spec, (0, 1)))["data_loss"]
    assert after.passed
    assert after.metadata["losses"].value == f"- {loss}"


def unavailable_after_each_commit(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let the catalog answer 503 to the first questions of reporting and compaction; return who asked."""
    asked: list[str] = []

    def failing(what: str, ask: Any) -> Any:
        def answer(*args: Any, **named: Any) -> Any:
            asked.append(what)
            if asked.count(what) <= times:
                raise ServiceUnavailableError("503")
            return ask(*args, **named)

        return answer

    for module, name in ((reporting, "dead_letter_evaluation"), (reporting, "register_partitions")):
        monkeypatch.setattr(module, name, failing(name, getattr(module, name)))
    monkeypatch.setattr(continuous_runs, "commits_since_compaction", failing("compaction", lambda _: 0))
    return asked


def test_catalog_outage_after_commit_does_not_fail_run(
    new_topic: NewTopic,
    runner: Runner,
    view: NewView,
    kafka_resource: KafkaResource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    topic.send(b"junk")
    know_partitions(runner, topic)
    asked = unavailable_after_each_commit(monkeypatch, 2)
    runner.resources["kafka"] = KafkaResource(
        properties=kafka_resource.properties, retry_attempts=2, retry_max_seconds=0.01
    )
    result = runner.run(spec, (0, 0))
    assert result.success
    logged = [e.user_message for e in runner.instance.all_logs(result.run_id)]
    assert any("all commits are published, but its dead letters can't be reported now" in line for line in logged)
    assert {e.check_name for e in result.get_asset_check_evaluations() if e.passed} == set(CHECKS)
    asked.clear()
    topic.send_ids([1])
    topic.send(b"more junk")
    settings = Continuous(trigger=0.3, time_limit=20, idle=3, compact_every=1, report_every=0.3)
    assert runner.run(spec, (0, 0), continuous=settings).success
    assert {"dead_letter_evaluation", "register_partitions", "compaction"} == set(asked)
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_continuing_run_has_its_end_in_a_tag(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic()
    topic.send_ids([0])
    know_partitions(runner, topic)
    settings = Continuous(trigger=0.3, time_limit=600, idle=0.3, compact_every=None, report_every=1)
    ran = {None: runner.run(topic.spec(), (0, 0))}
    topic.send_ids([1])
    ran[CATCH_UP_TAG] = runner.run(topic.spec(), (0, 0), catch_up_for=600.0, poll_every=0.3)
    topic.send_ids([2])
    ran[CONTINUOUS_TAG] = runner.run(topic.spec(), (0, 0), continuous=settings)
    for tag, result in ran.items():
        assert result.success
        run = runner.instance.get_run_by_id(result.run_id)
        assert run is not None
        found = {name: text for name, text in run.tags.items() if name in (CATCH_UP_TAG, CONTINUOUS_TAG)}
        assert set(found) == ({tag} if tag else set())
        for text in found.values():
            until, commits = re.fullmatch(r"until (\d\d:\d\d)Z, (\d+) commits", text).groups()  # type: ignore[union-attr]
            # Up to a quarter less, so that runs that began together don't end together; and what the test has taken.
            now = datetime.now(UTC)
            end = datetime.combine(now.date(), datetime.strptime(until, "%H:%M").time(), UTC)
            assert timedelta(seconds=200) <= (end - now) % timedelta(days=1) <= timedelta(seconds=600)
            assert int(commits) == 1


CATCH_UP = {"catch_up_for": 120.0, "poll_every": 0.3}


def test_catch_up_run_without_records_ends_with_one_report(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic(2)
    topic.send_ids(range(5), 2)
    know_partitions(runner, topic)
    result = runner.run(topic.spec(), (0, 1), **CATCH_UP)
    assert result.success
    assert {key: m[ROWS] for key, m in by_partition(result).items()} == {"0": 3, "1": 2}
    assert set(checks(result)) == RUN_CHECKS
    again = runner.run(topic.spec(), (0, 1), with_spark=False, **CATCH_UP)
    assert again.success
    assert {key: m[ROWS] for key, m in by_partition(again).items()} == {"0": 0, "1": 0}


@pytest.mark.exhaustive
def test_catch_up_run_continues_until_another_run_waits(
    new_topic: NewTopic, runner: Runner, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    topic.send_ids(range(4), 2)
    know_partitions(runner, topic)
    # One dead letter each time: a run fails with two.
    topic.send(b"junk")
    spec = topic.spec(max_dead_letters=1)
    ids, commits = count(4), count(1)

    def more_after(commit: Any) -> Any:
        """Send after each commit, before the run looks again: it always finds something."""

        def commit_and_send(run: Runs) -> Any:
            done = commit(run)
            topic.send_ids([next(ids)], 2)
            topic.send(b"junk")
            if next(commits) == 3:
                runner.instance.add_run_tags(run.context.run_id, {YIELD_TAG: "true"})
            return done

        return commit_and_send

    monkeypatch.setattr(Runs, "next_commit", more_after(Runs.next_commit))
    result = runner.run(spec, (0, 1), **CATCH_UP)
    assert result.success
    assert "another run is queued" in log_of(runner.instance, result.run_id)
    reported = result.get_asset_materialization_events()
    assert sum(_rows(e) for e in reported if e.partition) == 6
    # The sensor, which tells of the topic else, leaves it alone meanwhile.
    shown = [
        event.asset_materialization.metadata  # type: ignore[union-attr]
        for event in events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, topic_key(spec))
    ]
    lags = [{k: v.value for k, v in partition.items() if k in {"end_offset", "lag"}} for partition in shown]
    assert (lags[0], lags[-1]) == ({"end_offset": 9, "lag": 0}, {"end_offset": 5, "lag": 0})
    monkeypatch.undo()
    assert runner.run(spec, (0, 1)).success
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


def log_of(instance: dg.DagsterInstance, run_id: str) -> str:
    return "\n".join(entry.user_message for entry in instance.all_logs(run_id))


@pytest.mark.exhaustive
def test_columns_their_fields_and_their_changes_show(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic()
    topic.send({"id": 1, "order.total": 2})
    know_partitions(runner, topic)
    spec = topic.spec(None)
    assert runner.run(spec, (0, 0)).success
    topic.send({"id": 2, "later": True})
    result = runner.run(spec, (0, 0))
    metadata = whole(runner, result, spec)
    columns = {c.name: c.type for c in metadata["dagster/column_schema"].columns}
    assert {k: v for k, v in columns.items() if k != "_kafka"} == {
        "id": "long", "order_total": "long", "later": "boolean",
    }  # fmt: skip
    fields = metadata["dagster/column_lineage"].deps_by_column
    assert {name: [(d.asset_key, d.column_name) for d in deps] for name, deps in fields.items()} == {
        "id": [(topic_key(spec), "id")],
        "order_total": [(topic_key(spec), "order.total")],
        "later": [(topic_key(spec), "later")],
    }
    (changes,) = [e.metadata["changes"].records for e in checks(result).values() if "changes" in e.metadata]
    assert [(r.data["column"], r.data["what"], r.data["after"]) for r in changes] == [("later", "added", "boolean")]

    # Later checks tell of later runs: the page keeps what was changed before.
    topic.send({"id": 4})
    later = runner.run(spec, (0, 0))
    assert later.success
    kept: Any = told_of(runner, spec)[-1].metadata["schema_changes"]
    assert [(r.data["column"], r.data["what"]) for r in kept.records] == [("later", "added")]
    assert checks(later)["schema_evolution"].metadata["schema_changes"] == kept

    topic.send({"id": 3, "not": "wanted"})
    refused = runner.run(topic.spec(None, evolution="freeze"), (0, 0))
    assert not refused.success
    (evaluated,) = checks(refused).values()
    assert (evaluated.check_name, evaluated.passed) == ("schema_evolution", False)
    assert "column not: added" in (evaluated.description or "")


def test_one_partition_alone(new_topic: NewTopic, runner: Runner, view: NewView) -> None:
    topic = new_topic(3)
    topic.send_ids(range(6), 3)
    know_partitions(runner, topic)
    spec = topic.spec()
    result = runner.run(spec, 1)
    assert result.success
    found = by_partition(result)
    assert set(found) == {"1"}
    assert (found["1"]["start_offset"], found["1"]["end_offset"], found["1"]["lag_after"]) == (0, 2, 0)
    assert view(spec).position() == {0: 0, 1: 2, 2: 0}
    assert all(e.passed for e in checks(result).values())


def test_failed_validation_fails_the_run_with_its_reason(
    new_topic: NewTopic, runner: Runner, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    ingest(topic.spec(), connections(), "before")
    topic.send_ids([1, 2])
    know_partitions(runner, topic)
    spec = topic.spec(transform="kafka_lake_tests.integration.transforms:drops")
    before = view(spec).fingerprint()
    result = runner.run(spec, (0, 0))
    assert not result.success
    assert by_partition(result) == {}
    evaluated = checks(result)
    assert set(evaluated) == set(CHECKS)
    assert {name for name, e in evaluated.items() if not e.passed} == {"row_count"}
    assert evaluated["row_count"].severity is dg.AssetCheckSeverity.ERROR
    assert "2 records were read, but 1 rows" in str(evaluated["row_count"].description)
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    assert "row_count: 2 records were read" in str(failure.error)
    assert view(spec).fingerprint() == before


def test_checks_alone_read_published_table_without_spark(
    new_topic: NewTopic, runner: Runner, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    topic.send_ids(range(4), 2)
    spec = topic.spec()
    ingest(spec, connections(), "before")
    topic.send_ids([4])
    know_partitions(runner, topic)
    before = view(spec).fingerprint()
    only_checks = dg.AssetSelection.checks_for_assets(table_key(spec))
    result = runner.run(spec, None, only_checks, with_spark=False)
    assert result.success
    assert by_partition(result) == {}
    evaluated = checks(result)
    assert set(evaluated) == {*RUN_CHECKS, "table_health"}
    assert all(e.passed for e in evaluated.values())
    assert evaluated["row_count"].metadata["rows_in_table"].value == 4
    assert (places(evaluated)[f"{topic.name}/0"], evaluated["offset_continuity"].metadata["lag"].value) == (
        "at 2, lag 1",
        1,
    )
    assert view(spec).fingerprint() == before


@pytest.mark.exhaustive
def test_one_check_alone(new_topic: NewTopic, runner: Runner, connections: NewConnections) -> None:
    topic = new_topic()
    topic.send_ids([0])
    spec = topic.spec()
    ingest(spec, connections(), "before")
    know_partitions(runner, topic)
    one = dg.AssetSelection.checks(dg.AssetCheckKey(table_key(spec), "row_count"))
    result = runner.run(spec, None, one, with_spark=False)
    assert result.success
    assert set(checks(result)) == {"row_count"}


@pytest.mark.exhaustive
def test_rules_are_checks_of_run_and_of_whole_table(new_topic: NewTopic, runner: Runner, view: NewView) -> None:
    topic = new_topic()
    topic.send_ids([-1, 1, 2])
    know_partitions(runner, topic)
    plain = topic.spec()
    assert runner.run(plain, (0, 0)).success
    entries = [
        RuleEntry(range=Range(column="id", min=0)),
        RuleEntry(expression="id < 5", name="small", on_failure="warn"),
        RuleEntry(row_count=RowCount(max=3)),
    ]
    spec = topic.spec(rules=tuple(entries))
    # Nothing is asked of a run that has nothing to do.
    assert {check.passed for check in checks(runner.run(spec, (0, 0))).values()} == {True}
    topic.send_ids([-2, 3, 7])
    result = runner.run(spec, (0, 0))
    assert result.success
    evaluated = checks(result)
    assert set(evaluated) == {*RUN_CHECKS, "rule_range_id", "rule_small", "rule_row_count"}
    reported = {name: entry.value for name, entry in evaluated["rule_range_id"].metadata.items()}
    assert reported == {
        "rule": "id is at least 0",
        "on_failure": "dead_letter",
        "evaluated": 3,
        "passed": 2,
        "failed": 1,
        "null": 0,
        "share_failed": 0.333333,
        "first_broken": "partition 0, offset 3",
    }
    assert evaluated["rule_range_id"].passed
    warned = evaluated["rule_small"]
    assert (warned.passed, warned.severity, warned.blocking) == (False, dg.AssetCheckSeverity.WARN, False)
    before = view(spec).fingerprint()
    topic.send_ids([8, 9, 10, 11])
    refused = runner.run(spec, (0, 0))
    assert not refused.success
    assert checks(refused)["rule_row_count"].severity is dg.AssetCheckSeverity.ERROR
    assert view(spec).fingerprint() == before
    # What was published before there was the rule is found by its check alone.
    alone = [dg.AssetCheckKey(table_key(spec), rule.check) for rule in spec.named_rules]
    found = checks(runner.run(spec, None, dg.AssetSelection.checks(*alone)))
    assert {name: item.passed for name, item in found.items()} == {
        "rule_range_id": False,
        "rule_small": False,
        "rule_row_count": True,
    }
    assert "1 of 5 rows break it (id is at least 0), the first in partition 0 at offset 0" in str(
        found["rule_range_id"].description
    )


def test_checks_find_rows_that_somebody_doubled(
    new_topic: NewTopic, runner: Runner, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids([0, 1])
    spec = topic.spec()
    ingest(spec, connections(), "before")
    table = view(spec).table
    table.append(table.scan().to_arrow())
    know_partitions(runner, topic)
    result = runner.run(spec, None, dg.AssetSelection.checks_for_assets(table_key(spec)), with_spark=False)
    evaluated = checks(result)
    assert {name for name, e in evaluated.items() if not e.passed} == {"offset_continuity"}
    assert "partition 0 has 2 rows too many, the first at offset 0" in str(evaluated["offset_continuity"].description)


def test_an_error_of_the_users_is_the_runs_failure(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic()
    know_partitions(runner, topic)
    topic.delete()
    result = runner.run(topic.spec(), (0, 0), with_spark=False)
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    assert f"Topic {topic.name}: the cluster at" in str(failure.user_failure_data.description)


def test_missing_catalog_fails_run_with_its_message_first(
    new_topic: NewTopic, runner: Runner, kafka_resource: KafkaResource
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    know_partitions(runner, topic)
    uri = f"127.0.0.1:{free_port()}"
    runner.resources["catalog"] = CatalogResource(properties={"type": "rest", "uri": f"http://bob:hush@{uri}"})
    runner.resources["kafka"] = KafkaResource(
        properties=kafka_resource.properties, retry_attempts=3, retry_max_seconds=0.01
    )
    result = runner.run(topic.spec(), (0, 0), with_spark=False)
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure).step_failure_data
    sentence = f"catalog lake (rest at http://{uri}) didn't answer: Connection refused. Check that it runs."
    assert sentence in str(failure.user_failure_data.description)
    assert sentence in failure.error.message.splitlines()[0]
    assert failure.error.cause.cls_name == "CatalogError"
    logged = [e.user_message for e in runner.instance.all_logs(result.run_id) if " of 3 failed: " in e.user_message]
    assert [line.partition(": ")[2].partition(" failed")[0] for line in logged] == ["attempt 1 of 3", "attempt 2 of 3"]
    assert not any("hush" in e.to_json() for e in runner.instance.all_logs(result.run_id))


@pytest.mark.parametrize(("arrow", "policy"), [exhaustive(True, "table"), (False, "fail")])
@pytest.mark.parametrize(
    ("settings", "left"),
    [
        exhaustive({"samples": False}, "", id="no samples"),
        pytest.param({"mask": (r"hush\w*",)}, "***", id="masked"),
        exhaustive({}, "hush2 is no JSON", id="quoted"),
    ],
)
def test_dagster_event_redacts_record_values(
    settings: dict[str, Any], left: str, arrow: bool, policy: str, new_topic: NewTopic, runner: Runner, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": "hush1"})
    topic.send(b"hush2 is no JSON")
    know_partitions(runner, topic)
    spec = topic.spec("id bigint not null", **by(arrow), dead_letters=policy, **settings)
    result = runner.run(spec, (0, 0))
    assert result.success is (policy == "table")
    records = runner.instance.event_log_storage.get_logs_for_run(result.run_id)
    reported = "".join(record.to_json() for record in records)
    assert "wrong_type" in reported
    assert "partition 0 offset 1" in reported
    assert ("hush" in reported) is (not settings)
    assert left in reported
    if policy == "table":
        assert {letter["value"] for letter in view(spec).dead_letters()} == {sent.value for sent in topic.ledger}


def no_dead_letters(runner: Runner, spec: TopicTable) -> dg.AssetCheckEvaluation:
    """Return the newest result of the check that warns of dead letters."""
    key = dg.AssetCheckKey(table_key(spec), NO_DEAD_LETTERS)
    record = runner.instance.get_latest_asset_check_evaluation_record(key)
    assert record is not None
    evaluation = record.event
    assert evaluation is not None
    found = evaluation.asset_check_evaluation
    assert found is not None
    return found


def test_dead_letters_are_a_warning(new_topic: NewTopic, runner: Runner, connections: NewConnections) -> None:
    topic = new_topic()
    topic.send_ids([0])
    topic.send(b"junk")
    know_partitions(runner, topic)
    spec = topic.spec("id bigint not null")
    result = runner.run(spec, (0, 0))
    assert result.success, "dead letters are no failure"
    sample = whole(runner, result, spec)["dead_letter_classes"]
    assert f"| not_json | 1 | topic {topic.name} partition 0 offset 1 |" in sample.replace("\\", "")
    assert no_dead_letters(runner, spec).metadata["not_json"].value == 1

    alone = dg.AssetSelection.checks(dg.AssetCheckKey(table_key(spec), NO_DEAD_LETTERS))
    result = runner.run(spec, None, alone, with_spark=False)
    assert result.success
    (evaluation,) = result.get_asset_check_evaluations()
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert f"1 not_json: see `kafka-lake dead-letters {topic.name}`" in str(evaluation.description)


def test_checks_of_other_runs_stay_in_sight_after_the_next(new_topic: NewTopic, runner: Runner) -> None:
    topic = new_topic()
    topic.send(b"junk")
    know_partitions(runner, topic)
    spec, health = topic.spec(), health_check_key(topic.spec())
    assert runner.run(spec, (0, 0)).success
    outdated = dg.AssetCheckEvaluation(asset_key=health.asset_key, check_name=health.name, passed=False)
    runner.instance.report_runless_asset_event(outdated)
    topic.send_ids([1])
    assert runner.run(spec, (0, 0)).success
    # To Dagster, the results of the newest materialization's run belong to it.
    (newest, *_) = events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, table_key(spec))
    for key, passed in ((health, True), (dg.AssetCheckKey(table_key(spec), NO_DEAD_LETTERS), False)):
        record = runner.instance.get_latest_asset_check_evaluation_record(key)
        assert record is not None
        assert record.run_id == newest.run_id
        assert record.event is not None
        found = record.event.asset_check_evaluation
        assert found is not None
        assert found.passed == passed


@pytest.mark.exhaustive
def test_chosen_partitions_are_replaced_from_the_ui(new_topic: NewTopic, runner: Runner, view: NewView) -> None:
    topic = new_topic(2)
    topic.send_ids(range(6), 2)
    know_partitions(runner, topic)
    spec = topic.spec()
    assert runner.run(spec, (0, 1)).success
    today = topic.spec(transform="kafka_lake_tests.integration.transforms:with_tenfold")
    result = runner.run(today, 1, mode="replace", start="1")
    assert result.success
    assert {k: m[ROWS] for k, m in by_partition(result).items()} == {"1": 2}
    assert {r["id"]: r["tenfold"] for r in view(spec).rows()} == {0: None, 2: None, 4: None, 1: None, 3: 30, 5: 50}
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_the_job_knows_the_topics_of_its_code_location(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dagster", "job", "execute", "-m", "kafka_lake.definitions"]
    config = tmp_path / "config.yaml"
    config.write_text("ops: {decode_again: {config: {topic: another}}}")
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "KAFKA_LAKE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "-j", "replay_dead_letters", "--config", str(config)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "Topic another has no table in this project; the topics are: completed-pizzas" in done.stderr


def test_dead_letter_job_moves_rows_and_triggers_downstream(
    new_topic: NewTopic, runner: Runner, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    topic.send({"other": 1})
    topic.send(b"junk")
    know_partitions(runner, topic)
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    assert runner.run(strict, (0, 0)).success
    # In process a job has no code location to ask.
    monkeypatch.setattr("kafka_lake.orchestration.jobs.topics_of_location", lambda context: [lenient])
    definitions = dg.Definitions(
        assets=build_topic_assets(lenient, SHOWN),
        jobs=[build_replay_job()],
        resources={**runner.resources, "spark": SharedSpark(catalog=runner.resources["catalog"], spark_config={})},
    )
    job = definitions.resolve_job_def("replay_dead_letters")
    config = {"ops": {"decode_again": {"config": {"topic": topic.name}}}}
    result = job.execute_in_process(config, instance=runner.instance, raise_on_error=False)
    assert result.success
    assert len(view(strict).rows()) == 2
    view(strict).assert_exactly_once(topic.ledger)
    entries = events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, table_key(strict))
    assert entries[0].asset_materialization is not None
    assert entries[0].asset_materialization.partition == "0"
    assert entries[0].asset_materialization.metadata[ROWS].value == 1
