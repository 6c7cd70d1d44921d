"""Our own maintenance: tables get few files and few snapshots, and neither rows nor the position change by it."""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import TopicPartition

from kafka_lake.catalog.history import recorded_losses
from kafka_lake.catalog.positions import read_state
from kafka_lake.errors import TableError
from kafka_lake.ingest.run import ingest
from kafka_lake.maintenance.maintain import due, maintain
from kafka_lake.maintenance.policy import table_health
from kafka_lake.maintenance.procedures import compact
from kafka_lake.orchestration.jobs import health_check_key
from kafka_lake.orchestration.keys import MAINTENANCE_TAG, table_key
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.orchestration.sensors.maintenance import evaluate
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_dagster import Runner, events_of, runner  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

SHARP = Maintenance(compact_every=4, expire_after="0s", keep_snapshots=1)


def filled(topic: Topic, spec: TopicTable, connections: NewConnections, commits: int) -> None:
    for number in range(commits):
        topic.send_ids([2 * number, 2 * number + 1], 2)
        ingest(spec, connections(), f"run-{number}")


def test_compaction_and_expiry_keep_the_position(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(
        sort_by=("_kafka.partition desc", "id desc"),
        maintenance=SHARP.model_copy(update={"compact_every": 5}),
    )
    filled(topic, spec, connections, 4)
    topic.send(b"junk")
    (table, *beside) = due(spec, connections())
    assert (table.needs.compaction, table.needs.health.commits) == ("", 4)
    assert beside == []
    ingest(spec, connections(), "junk")
    (table, letters) = due(spec, connections())
    assert table.needs.compaction == "5 commits since the last compaction"
    assert not letters.needs.compaction

    done = {item.identifier: item for item in maintain(spec, connections())}
    assert done[spec.identifier].after.data_files == 1
    assert done[spec.identifier].before.data_files == 4
    see = view(spec)
    assert sorted(see.ids()) == list(range(8))
    # Partition 1 has the odd ones.
    assert see.table.scan().to_arrow()["id"].to_pylist() == [7, 5, 3, 1, 6, 4, 2, 0]
    # The newest snapshots are the compaction's; what remains of ours is the one that tells the position.
    for _ in range(3):
        compact(connections().spark(), connections().catalog, spec.identifier)
        maintain(spec, connections(), everything=True)
    state = read_state(see.table)
    assert state.position is not None
    assert see.position() == {0: 5, 1: 4}
    assert len(see.table.metadata.snapshots) <= 3

    said: list[str] = []
    topic.send_ids([100, 101], 2)
    ingest(spec, connections(), "after", observer=Observer(warn=said.append))
    assert said == []
    see.assert_exactly_once(topic.ledger)
    assert not any(item.needs.compaction for item in due(spec, connections()))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("version", "write"), [("2", "upsert"), ("3", "history")])
def test_compaction_of_upsert_table_removes_only_delete_files(
    version: str, write: Any, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    chance, topic = random.Random(3), new_topic()
    spec = topic.spec(
        "id bigint, v bigint",
        write=write,
        key=("id",),
        maintenance=SHARP,
        delete_when="v < 0",
        table_properties={"format-version": version},
    )
    model: dict[int, int] = {}
    for number in range(13):
        for _ in range(20):
            key, value = chance.randrange(15), chance.randrange(-10, 100)
            topic.send({"id": key, "v": value})
            if value < 0:
                model.pop(key, None)
            else:
                model[key] = value
        ingest(spec, connections(), f"run-{number}")
        if number % 4 == 3:
            done = {item.identifier: item for item in maintain(spec, connections())}
            assert done[spec.identifier].before.delete_files > 0
            assert done[spec.identifier].after.delete_files == 0
            assert done[spec.identifier].after.data_files == 1
        rows = view(spec).rows()
        current = [row for row in rows if write == "upsert" or row["valid_to"] is None]
        assert sorted((row["id"], row["v"]) for row in current) == sorted(model.items())
    assert write == "upsert" or len(rows) == 13 * 20


@pytest.mark.exhaustive
def test_merges_and_compactions_at_the_same_time_both_get_on(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """They take turns under Dagster. Where somebody has them meet, refused ones are harmless, and others succeed."""
    topic = new_topic()
    spec = topic.spec("id bigint, v bigint", write="upsert", key=("id",))
    topic.send({"id": 0, "v": -1})
    ingest(spec, connections(), "first")
    stop, compacted, refused = threading.Event(), [], []

    def beside() -> None:
        while not stop.is_set():
            try:
                compacted.append(compact(connections().spark(), connections().catalog, spec.identifier))
            except Exception as error:
                refused.append(error)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        for number in range(8):
            for key in range(10):
                topic.send({"id": key, "v": number})
            ingest(spec, connections(), f"run-{number}")
    finally:
        stop.set()
        thread.join()
    assert sorted((row["id"], row["v"]) for row in view(spec).rows()) == [(key, 7) for key in range(10)]
    assert any(done.before for done in compacted)
    assert all(isinstance(item, TableError) or "conflict" in str(item).lower() for item in refused), refused


def test_sensor_requests_due_maintenance_and_run_reports_it(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    runner: Runner,  # noqa: F811
    catalog_resource: CatalogResource,
) -> None:
    topic, idle = new_topic(2), new_topic()
    policy = Maintenance(compact_every=5, expire_after=None)
    spec, quiet = topic.spec(maintenance=policy), idle.spec(maintenance=policy)
    catalog, now = catalog_resource.open(), time.time()

    def tick(seconds: float = 0.0, cursor: str | None = None, *specs: TopicTable) -> Any:
        context = dg.build_sensor_context(instance=runner.instance, cursor=cursor)
        return evaluate(context, specs or (quiet, spec), catalog, lambda: now + seconds)

    filled(topic, spec, connections, 4)
    assert not tick().run_requests
    filled(topic, spec, connections, 1)
    asked = tick()
    (request,) = asked.run_requests
    assert request.asset_check_keys == [health_check_key(spec)]
    assert request.tags[MAINTENANCE_TAG] == ".".join(spec.identifier)
    assert not tick(60, asked.cursor).run_requests, "it has just asked"
    assert len(tick(901, asked.cursor).run_requests) == 1
    off = replace(spec, maintenance=spec.maintenance.model_copy(update={"enabled": False}))
    assert not tick(0, None, off).run_requests
    assert len(tick(0, "of another version").run_requests) == 1

    chosen = dg.AssetSelection.checks(health_check_key(spec))
    # The check alone looks at the table, and leaves it as it is.
    assert runner.run(spec, None, chosen, with_spark=False).success
    assert len(list(view(spec).table.scan().plan_files())) > 1
    result = runner.run(spec, None, chosen, tags={MAINTENANCE_TAG: "x"})
    assert result.success
    (event,) = events_of(runner.instance, dg.DagsterEventType.ASSET_OBSERVATION, table_key(spec))
    reported = {name: entry.value for name, entry in event.asset_observation.metadata.items()}
    assert reported["data_files"] == len(list(view(spec).table.scan().plan_files())) == 1
    assert reported["snapshots"] == table_health(view(spec).table).snapshots
    assert ".".join(spec.identifier) in str(reported["done"])
    (check,) = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.asset_key) == ("table_health", True, table_key(spec))
    assert {name: entry.value for name, entry in check.metadata.items()}.items() >= reported.items()
    assert events_of(runner.instance, dg.DagsterEventType.ASSET_MATERIALIZATION, table_key(spec)) == []
    assert not tick(901).run_requests
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_foreign_table_is_maintained_only_when_enabled(
    new_topic: NewTopic, connections: NewConnections, view: NewView, command_line: Any
) -> None:
    topic = new_topic(2)
    spec = topic.spec(maintenance=SHARP)
    filled(topic, spec, connections, 4)
    with view(spec).table.transaction() as transaction:
        transaction.remove_properties("kafka-lake.created")
    before = view(spec).fingerprint()
    (found,) = due(spec, connections())
    assert (found.left_alone, bool(found.needs.reasons)) == (True, True)
    assert "skipped" in command_line([spec], "maintain").output
    assert "skipped, another program created it" in command_line([spec], "maintain", "--yes").output
    assert view(spec).fingerprint() == before
    reported = replace(spec, maintenance=SHARP.model_copy(update={"enabled": True}))
    (done,) = json.loads(command_line([reported], "maintain", "--yes", "--json").stdout)
    assert done["after"]["data_files"] == 1
    assert done["expired"] >= 3
    assert sorted(view(spec).ids()) == list(range(8))
    assert command_line([reported], "maintain", "--all").exit_code == 1


@pytest.mark.exhaustive
def test_useless_compaction_is_not_requested_again(new_topic: NewTopic, connections: NewConnections) -> None:
    """A file in each partition: there is nothing to put together."""
    topic = new_topic()
    policy = Maintenance(compact_every=3, expire_after="0s", keep_snapshots=1)
    spec = topic.spec(maintenance=policy, partition_by=("id",))
    for number in range(3):
        topic.send({"id": number})
        ingest(spec, connections(), f"run-{number}")
    (done,) = maintain(spec, connections())
    assert done.compacted is not None
    assert (done.compacted.before, done.after.data_files, done.after.snapshots) == (0, 3, 1)
    assert maintain(spec, connections()) == []
    for number in range(3):
        topic.send({"id": 0})
        ingest(spec, connections(), f"again-{number}")
        maintain(replace(spec, maintenance=policy.model_copy(update={"compact_every": None})), connections())
    # The commits are counted, though each one's snapshot has expired by the next.
    (done,) = maintain(spec, connections())
    assert (done.before.commits, done.after.data_files, done.after.commits) == (3, 3, 0)


@pytest.mark.exhaustive
def test_by_default_a_fifth_of_deleted_rows_is_enough(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, v bigint", write="upsert", key=("id",), delete_when="v < 0")
    for key in range(100):
        topic.send({"id": key, "v": 1})
    ingest(spec, connections(), "base")
    for number in range(10):
        for key in (2 * number, 2 * number + 1) if number < 9 else range(18, 24):
            topic.send({"id": key, "v": -1})
        ingest(spec, connections(), f"run-{number}")
    (done,) = maintain(spec, connections())
    assert (done.before.deleted_rows, done.after.deleted_rows, done.after.rows) == (24, 0, 76)
    assert sorted(view(spec).ids()) == list(range(24, 100))
    assert maintain(spec, connections()) == []


@pytest.mark.exhaustive
def test_maintenance_continues_after_a_table_fails(
    new_topic: NewTopic, connections: NewConnections, view: NewView, command_line: Any
) -> None:
    topics = [new_topic(), new_topic()]
    small = {"write.target-file-size-bytes": str(16 << 20)}
    broken, healthy = (item.spec(maintenance=SHARP, table_properties=small) for item in topics)
    for topic, spec in zip(topics, (broken, healthy), strict=True):
        for number in range(4):
            topic.send({"id": number})
            ingest(spec, connections(), f"run-{number}")
    lost = next(iter(view(broken).table.scan().plan_files())).file.file_path
    Path(lost.removeprefix("file:").replace("//", "/")).unlink()
    reported = command_line([broken, healthy], "maintain", "--yes", "--json")
    assert reported.exit_code == 1
    of_broken, of_healthy = json.loads(reported.stdout)
    assert of_broken["compacted"] is None
    assert of_broken["expired"] > 0
    assert "could not be compacted" in of_broken["failures"][0]
    assert of_healthy["compacted"]
    assert table_health(view(healthy).table).data_files == 1
    # Files that can't be read are no reason to keep snapshots.
    assert table_health(view(broken).table).snapshots == 1


def test_expiry_keeps_recorded_losses_and_dead_letters(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(maintenance=SHARP, on_data_loss="continue")
    topic.send({"id": 0})
    topic.send(b"junk")
    ingest(spec, connections(), "first")
    for number in range(1, 4):
        topic.send({"id": number})
    place = TopicPartition(topic.name, 0, 4)
    topic.admin.delete_records([place])[place].result(20)
    ingest(spec, connections(), "with-a-loss")
    topic.send({"id": 4})
    ingest(spec, connections(), "later")
    losses = recorded_losses(view(spec).table)
    assert [(loss.partition, loss.start, loss.end) for loss in losses] == [(0, 2, 4)]
    maintain(spec, connections(), everything=True)
    assert len(view(spec).table.metadata.snapshots) <= 2
    assert recorded_losses(view(spec).table) == losses
    steps: list[str] = []
    for number in range(5, 7):
        topic.send({"id": number})
        ingest(spec, connections(), f"run-{number}", observer=Observer(step_done=steps.append))
    assert not [step for step in steps if "reconciled" in step]
    assert sorted(view(spec).ids()) == [0, 3, 4, 5, 6]
    assert len(view(spec).dead_letters()) == 1
    assert recorded_losses(view(spec).table) == losses
