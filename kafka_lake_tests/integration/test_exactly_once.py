"""Whatever interrupts, repeats, overlaps or changes the ground below a run: every record is there exactly once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import NewPartitions
from pyiceberg.types import StringType

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import LOSSES, summary_of
from kafka_lake.common.offsets import Loss, losses_from_json
from kafka_lake.errors import DataLossError, TableError, TopicReplacedError
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


class Killed(BaseException):
    """Stands for the end of a process: nothing is cleaned up after it."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch, connections: NewConnections) -> Callable[..., None]:
    def run(
        spec: TopicTable, step: str, partitions: set[int] | None = None, doing: Callable[..., Any] = ingest
    ) -> None:
        chosen = {"partitions": partitions} if partitions is not None else {}

        def die(done: str) -> None:
            if done == step:
                # A dead process discards and drops nothing.
                monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
                monkeypatch.setattr(StagingBranch, "drop", lambda self: None)
                raise Killed(step)

        with pytest.raises(Killed, match=step):
            doing(spec, connections(), f"killed-{step.replace(' ', '-')}", observer=Observer(step_done=die), **chosen)
        monkeypatch.undo()

    return run


def at(step: str, action: Callable[[], Any], times: int = 1) -> Callable[[str], None]:
    """Return an ``step_done`` that does something at the first passages through a step."""
    passed: list[str] = []

    def step_done(done: str) -> None:
        if done == step and len(passed) < times:
            passed.append(done)
            action()

    return step_done


def mixed(topic: Topic, count: int, partitions: int = 1) -> None:
    """Produce good and bad records in turn."""
    for number in range(count):
        topic.send({"id": number} if number % 2 == 0 else b"junk %d" % number, partition=number % partitions)


def test_loser_of_a_race_reads_the_remaining_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec()
    topic.send_ids(range(4), 2)
    loser = ingest(
        spec,
        connections(),
        "all-partitions",
        observer=Observer(
            step_done=at("audited", lambda: ingest(spec, connections(), "one-partition", partitions={0}))
        ),
    )
    assert [(r.partition, r.start, r.end) for r in loser.commits[0].ranges] == [(1, 0, 2)]
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.in_contract
@pytest.mark.parametrize("step", ["planned", exhaustive("table created"), exhaustive("audited")])
def test_race_for_the_first_commit_leaves_each_record_once(
    step: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    mixed(topic, 4)
    spec = topic.spec()
    ingest(
        spec,
        connections(),
        "overtaken",
        observer=Observer(step_done=at(step, lambda: ingest(spec, connections(), "overtaker"))),
    )
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


@pytest.mark.in_contract
@pytest.mark.exhaustive
def test_two_concurrent_runs_leave_each_record_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    mixed(topic, 10, 2)
    spec = topic.spec(max_records_per_commit=4)
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            ingest(spec, connections(), name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert failures == []
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_dead_letters_of_killed_run_stay_single_after_other_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Any
) -> None:
    """The dead-letter table's own position must never go back, whatever part of the topic the next commit is of."""
    topic = new_topic(2)
    spec = topic.spec()
    for number in range(3):
        topic.send(b"junk %d" % number, partition=0)
    killed_at(spec, "dead letters published")
    topic.send(b"junk of partition 1", partition=1)
    ingest(spec, connections(), "only-1", partitions={1})
    ingest(spec, connections(), "rest")
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_dead_letters_of_killed_run_stay_single_in_small_commits(
    new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Any
) -> None:
    topic = new_topic(2)
    for number in range(4):
        topic.send(b"junk %d" % number, partition=0)
    spec = topic.spec(max_records_per_commit=4)
    killed_at(spec, "dead letters published")
    for number in range(4):
        topic.send(b"more junk %d" % number, partition=1)
    report = ingest(spec, connections(), "next")
    assert len(report.commits) == 2
    view(spec).assert_exactly_once(topic.ledger)


_VICTIM = """
import json, os, signal, sys
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.context import Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.orchestration.resources import SparkResource

topic, table, spark_dir = sys.argv[1:]
kafka, catalog = KafkaResource(), CatalogResource()
spark = SparkResource(spark_config={
    "spark.master": "local[2]", "spark.driver.memory": "768m", "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": spark_dir,
}, catalog=catalog)
connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)

def die(step):
    if step == "dead letters published":
        os.kill(os.getpid(), signal.SIGKILL)

ingest(TopicTable(topic, "it", table, schema="id bigint"), connections, "sigkill", observer=Observer(step_done=die))
"""


@pytest.mark.exhaustive
def test_process_killed_by_sigkill_is_completed_by_the_next(
    new_topic: NewTopic, connections: NewConnections, view: NewView, broker: Any, lake_home: Path
) -> None:
    topic = new_topic(2)
    mixed(topic, 9, 2)
    spec = topic.spec()
    ours = ("KAFKA_LAKE_HOME", "KAFKA_LAKE_BOOTSTRAP", "KAFKA_LAKE_KAFKA", "SPARK_REMOTE", "PYSPARK_GATEWAY")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment |= {
        "KAFKA_LAKE_HOME": str(lake_home),
        "KAFKA_LAKE_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
    }
    done = subprocess.run(
        [sys.executable, "-c", _VICTIM, topic.name, topic.table, str(lake_home / "victim")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert view(spec).rows() == []
    assert len(view(spec).dead_letters()) == 4

    report = ingest(spec, connections(), "next")
    assert (report.total("records"), report.total("rows"), report.total("dead_letters")) == (9, 5, 4)
    view(spec).assert_exactly_once(topic.ledger)


def test_partitions_added_during_a_run_are_read_by_the_next(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    topic.send_ids(range(6), 3)
    spec = topic.spec()

    def grow() -> None:
        topic.admin.create_partitions([NewPartitions(topic.name, 8)])[topic.name].result(20)
        topic.wait_for(lambda: topic.partitions() == 8)
        topic.send_ids(range(8, 16), 8)

    report = ingest(spec, connections(), "run-1", observer=Observer(step_done=at("planned", grow)))
    assert {partition.partition for partition in report.partitions()} == {0, 1, 2}
    report = ingest(spec, connections(), "run-2")
    assert {partition.partition for partition in report.partitions()} == set(range(8))
    view(spec).assert_exactly_once(topic.ledger)


def compact_files(spark_resource: Any, see: View) -> None:
    statement = see.call("rewrite_data_files", options="map('rewrite-all', 'true')")
    spark_resource.spark_session.sql(statement).collect()


@pytest.mark.in_contract
def test_run_after_a_compaction_continues_at_its_position(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    for number in range(2):
        topic.send_ids([number])
        ingest(spec, connections(), f"run-{number}")
    assert len(list(view(spec).table.scan().plan_files())) == 2
    compact_files(spark_resource, view(spec))
    assert len(list(view(spec).table.scan().plan_files())) == 1
    assert view(spec).position() == {0: 2}
    topic.send_ids([2])
    assert ingest(spec, connections(), "after").total("records") == 1
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.in_contract
@pytest.mark.exhaustive
def test_run_publishes_after_a_compaction_during_staging(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    for number in range(2):
        topic.send_ids([number])
        ingest(spec, connections(), f"run-{number}")
    topic.send_ids([2])

    def compact() -> None:
        compact_files(spark_resource, view(spec))

    report = ingest(spec, connections(), "overtaken", observer=Observer(step_done=at("audited", compact)))
    assert report.total("records") == 1
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


def group_offset(topic: Topic, group: str) -> int | None:
    request = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic.name, 0)])]
    answer = topic.admin.list_consumer_group_offsets(request)[group].result(20)
    offset = answer.topic_partitions[0].offset
    return None if offset < 0 else offset


def test_consumer_group_is_updated_and_never_read(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0, 1])
    ingest(spec, connections(), "run-1")
    assert group_offset(topic, spec.group) == 2
    topic.admin.delete_consumer_groups([spec.group])[spec.group].result(20)
    groups = topic.admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(20).valid
    assert spec.group not in {g.group_id for g in groups}
    topic.send_ids([2])
    assert ingest(spec, connections(), "run-2").total("records") == 1
    view(spec).assert_exactly_once(topic.ledger)
    assert group_offset(topic, spec.group) == 3


def test_recreated_topic_is_refused_and_changes_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0, 1])
    ingest(spec, connections(), "run-1")
    before = view(spec).fingerprint()
    topic.delete()
    topic.create()
    topic.send_ids(range(5))
    with pytest.raises(TopicReplacedError, match=rf"Topic {topic.name} is not the topic.*its topic id differs"):
        ingest(spec, connections(), "run-2")
    assert view(spec).fingerprint() == before


@pytest.mark.exhaustive
def test_dead_letters_of_recreated_topic_are_added(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    """The table was dropped, to start again with the recreated topic; its dead letters were kept."""
    topic = new_topic()
    spec = topic.spec()
    topic.send(b"old junk")
    ingest(spec, connections(), "run-1")
    topic.delete()
    topic.create()
    connections().catalog.pyiceberg.drop_table(spec.identifier)
    topic.send(b"new junk")
    ingest(spec, connections(), "run-2")
    assert sorted(letter["value"] for letter in view(spec).dead_letters()) == [b"new junk", b"old junk"]


def test_records_lost_to_retention_stop_the_run_by_name(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec()
    topic.send_ids(range(4), 2)
    ingest(spec, connections(), "run-1")
    topic.send_ids(range(4, 12), 2)
    before = view(spec).fingerprint()
    topic.admin.delete_records([TopicPartition(topic.name, 1, 5)])[TopicPartition(topic.name, 1)].result(20)
    with pytest.raises(DataLossError, match=r"partition 1 lost offsets 2 to 4 to retention"):
        ingest(spec, connections(), "run-2")
    assert view(spec).fingerprint() == before


def test_retention_between_plan_and_read_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids(range(6))
    ingest(spec, connections(), "run-1")
    topic.send_ids(range(6, 12))
    before = view(spec).fingerprint()

    def strike() -> None:
        place = TopicPartition(topic.name, 0, 9)
        topic.admin.delete_records([place])[TopicPartition(topic.name, 0)].result(20)

    with pytest.raises(DataLossError, match="partition 0 lost offsets 6 to 8 to retention"):
        ingest(spec, connections(), "run-2", observer=Observer(step_done=at("planned", strike)))
    assert view(spec).fingerprint() == before


def test_run_with_on_data_loss_continue_records_the_loss(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(on_data_loss="continue")
    topic.send_ids(range(4), 2)
    ingest(spec, connections(), "run-1")
    topic.send_ids(range(4, 12), 2)
    topic.admin.delete_records([TopicPartition(topic.name, 1, 5)])[TopicPartition(topic.name, 1)].result(20)
    report = ingest(spec, connections(), "run-2")
    finding = next(f for f in report.findings() if f.check == "data_loss")
    assert not finding.passed
    assert finding.problems == (f"topic {topic.name} partition 1 lost offsets 2 to 4 to retention",)
    lost = {(1, 2), (1, 3), (1, 4)}
    view(spec).assert_exactly_once([sent for sent in topic.ledger if sent.place not in lost])
    summary = summary_of(view(spec).table.current_snapshot())
    assert losses_from_json(summary[LOSSES]) == [Loss(1, 2, 5, "retention", topic.name)]
    assert [f for f in ingest(spec, connections(), "run-3").findings() if not f.passed] == []


@pytest.mark.exhaustive
def test_on_data_loss_continue_holds_between_plan_and_read(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(on_data_loss="continue")
    topic.send_ids(range(6))
    ingest(spec, connections(), "run-1")
    topic.send_ids(range(6, 12))

    def strike() -> None:
        place = TopicPartition(topic.name, 0, 9)
        topic.admin.delete_records([place])[TopicPartition(topic.name, 0)].result(20)

    report = ingest(spec, connections(), "run-2", observer=Observer(step_done=at("planned", strike)))
    view(spec).assert_exactly_once([sent for sent in topic.ledger if sent.offset not in (6, 7, 8)])
    assert [str(loss) for loss in losses_from_json(summary_of(view(spec).table.current_snapshot())[LOSSES])] == [
        f"topic {topic.name} partition 0 lost offsets 6 to 8 to retention"
    ]
    assert report.total("rows") == 3


def test_recreated_topic_continues_with_on_data_loss_continue(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(on_data_loss="continue")
    topic.send_ids([0, 1, 2])
    topic.send(b"old junk")
    ingest(spec, connections(), "run-1")
    topic.delete()
    topic.create()
    topic.send_ids([10])
    topic.send(b"new junk")
    report = ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [0, 1, 2, 10]
    assert sorted(letter["value"] for letter in view(spec).dead_letters()) == [b"new junk", b"old junk"]
    assert view(spec).position() == {0: 2}
    finding = next(f for f in report.findings() if f.check == "data_loss")
    where = f"topic {topic.name} partition 0"
    assert finding.problems[0] == f"{where} lost all records from offset 4 on when the topic was deleted"
    published = {f.check: f for f in examine(spec, connections().catalog, connections().cluster)}
    assert published["offset_continuity"].passed, "the same offsets of another topic are no duplicates"
    assert not published["data_loss"].passed


OTHERS = pa.table({"id": pa.array([100, 101], pa.int64())})


@pytest.mark.parametrize("whose", ["others made it", exhaustive("we made it")])
def test_table_with_foreign_rows_starts_like_a_new_one(
    whose: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec, said = topic.spec(), list[str]()
    topic.send_ids([0, 1])

    def append() -> None:
        catalog = connections().catalog
        catalog.ensure_namespace(spec.namespace)
        if whose == "others made it":
            catalog.pyiceberg.create_table(spec.identifier, OTHERS.schema)
        view(spec).table.append(OTHERS)

    if whose == "others made it":
        append()
        report = ingest(spec, connections(), "run-1", observer=Observer(warn=said.append))
    else:
        report = ingest(
            spec, connections(), "run-1", observer=Observer(step_done=at("table created", append), warn=said.append)
        )
    assert view(spec).ids() == [0, 1, 100, 101]
    assert view(spec).position() == {0: 2}
    assert f"Table {'.'.join(spec.identifier)}: its 2 rows were written by other programs" in said[0]
    assert report.findings()[0].facts["rows_of_others_before"] == 2
    topic.send_ids([2])
    ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [0, 1, 2, 100, 101]


def test_copied_table_with_rows_of_other_topic_is_refused(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic, another = new_topic(), new_topic()
    topic.send_ids([0])
    another.send_ids([1])
    ingest(topic.spec(), connections(), "run-1")
    copy = replace(another.spec(), table=f"{another.table}_copy")
    made = f"CREATE TABLE {view(copy).sql_name()} USING iceberg AS SELECT * FROM {view(topic.spec()).sql_name()}"
    spark_resource.spark_session.sql(made)
    with pytest.raises(TableError, match=f"no row belongs to the current topic {another.name}"):
        ingest(copy, connections(), "run-2")
    assert view(copy).ids() == [0]


def test_run_plans_again_after_another_writer_committed(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    topic.send_ids([1])
    steps: list[str] = []

    def change(step: str) -> None:
        steps.append(step)
        if step == "audited" and steps.count(step) == 1:
            table = view(spec).table
            with table.update_schema() as update:
                update.add_column("noted", StringType())
            table.append(pa.table({"id": pa.array([100], pa.int64())}))

    ingest(spec, connections(), "run-2", observer=Observer(step_done=change))
    assert steps.count("table staged") == 2
    assert view(spec).ids() == [0, 1, 100]
    assert view(spec).position() == {0: 2}
    view(spec).assert_no_branches()
