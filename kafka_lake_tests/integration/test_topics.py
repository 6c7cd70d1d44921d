"""Several topics in one table: each record of each topic is there once, whatever happens to the runs."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import TopicPartition

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import POSITION, state_of
from kafka_lake.errors import ConfigurationError, TopicReplacedError
from kafka_lake.ingest.jobs.adopt import FromOffsets, plan_adoption
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters, reset
from kafka_lake.maintenance.policy import Limits
from kafka_lake.maintenance.procedures import compact, expire
from kafka_lake.orchestration.keys import partition_key, table_key, work_name
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.runtime.commit import CHECKS
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.integration.test_dagster import ROWS, Runner, by_partition, places, whole

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

PARTITIONS = (2, 3)
STEPS = ("audited", "dead letters staged", "dead letters published", "table published")


class Killed(BaseException):
    """Stands for the end of a process: nothing is cleaned up after it."""


def table_of(topics: Sequence[Topic], **settings: Any) -> TopicTable:
    names = tuple(topic.name for topic in topics)
    return TopicTable(names[0], NAMESPACE, topics[0].table, topics=names, **settings)


def of(spec: TopicTable, topic: Topic) -> TopicTable:
    return next(topic_spec for topic_spec in spec.each_topic if topic_spec.topic == topic.name)


def send(topic: Topic, number: int, count: int, chance: random.Random) -> None:
    """Produce records with a field that the other topic hasn't; the first and some more are broken."""
    for item in range(count):
        value: object = {"id": len(topic.ledger), f"only_{number}": chance.choice(["x", "y"])}
        if (drawn := chance.random()) < 0.15 or not item:
            value = b'{"broken %d' % len(topic.ledger)
        elif drawn < 0.2:
            value = None
        topic.send(value, chance.randrange(PARTITIONS[number]))


def assert_once(spec: TopicTable, topics: Sequence[Topic], view: NewView) -> None:
    """Assert that each record with a value is once a row of what was sent, or once a dead letter, and the positions."""
    seen, every, held = view(spec), Counter[tuple[str, int, int]](), Counter[tuple[str, int, int]]()
    rows = {(r["_kafka"]["topic"], r["_kafka"]["partition"], r["_kafka"]["offset"]): r for r in seen.rows()}
    assert len(rows) == len(seen.rows())
    held.update(rows.keys())
    held.update((r["topic"], r["partition"], r["offset"]) for r in seen.dead_letters())
    for topic in topics:
        with_values = {(topic.name, *sent.place): sent for sent in topic.ledger if sent.value is not None}
        every.update(with_values.keys())
        for place in with_values.keys() & rows.keys():
            sent = json.loads(with_values[place].value or b"")
            row = {name: value for name, value in rows[place].items() if name != "_kafka" and value is not None}
            assert row == sent, place
        ends: dict[int, int] = {}
        for sent in topic.ledger:
            ends[sent.partition] = max(ends.get(sent.partition, 0), sent.offset + 1)
        position = state_of(of(spec, topic), seen.table).position
        assert position is not None
        assert {p: o for p, o in position.offsets.items() if o} == ends, topic.name
    assert held == every
    seen.assert_no_branches()


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch, connections: NewConnections) -> Callable[..., bool]:
    def run(spec: TopicTable, step: str, doing: Callable[..., Any] = ingest, *arguments: Any) -> bool:
        """Return whether the run came as far as that step, and so was killed."""

        def die(done: str) -> None:
            if done == step:
                # A dead process discards and drops nothing.
                monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
                monkeypatch.setattr(StagingBranch, "drop", lambda self: None)
                raise Killed(step)

        try:
            doing(spec, connections(), "killed", *arguments, observer=Observer(step_done=die))
        except Killed:
            return True
        finally:
            monkeypatch.undo()
        return False

    return run


@pytest.mark.exhaustive
def test_records_of_two_topics_come_once_after_kills_and_races(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., bool],
) -> None:
    topics, chance = [new_topic(count) for count in PARTITIONS], random.Random(18)
    spec = table_of(topics)
    killed = 0
    for round_, step in enumerate(chance.sample(STEPS, len(STEPS))):
        for number, topic in enumerate(topics):
            send(topic, number, chance.randrange(8, 14), chance)
        first, second = chance.sample(topics, 2)
        killed += killed_at(of(spec, first), step)
        # The other topic's run is overtaken by one of the first topic just before it publishes.
        overtaken = []

        def overtake(done: str, at: str = step, by: TopicTable = of(spec, first), seen: list[str] = overtaken) -> None:  # noqa: B008
            if done == at and not seen:
                seen.append(done)
                ingest(by, connections(), "faster")

        ingest(of(spec, second), connections(), f"slower {round_}", observer=Observer(step_done=overtake))
        assert_once(spec, topics, view)
        if round_ == 0:
            used = connections()
            compact(used.spark(), used.catalog, spec.identifier)
            expire(used.spark(), used.catalog, spec.identifier, Limits(int(time.time() * 1000) + 1000, 1, None))
    assert killed == len(STEPS)
    for number, topic in enumerate(topics):
        send(topic, number, 5, chance)
        ingest(of(spec, topic), connections(), "compacted")
    assert_once(spec, topics, view)
    for topic in topics:
        findings = examine(of(spec, topic), connections().catalog, connections().cluster)
        assert [finding.problems for finding in findings] == [()] * len(findings)


@pytest.mark.exhaustive
def test_a_replay_a_reset_and_dead_letters_are_of_one_topic(
    new_topic: NewTopic, connections: NewConnections, view: NewView, killed_at: Callable[..., bool]
) -> None:
    topics = [new_topic(count) for count in PARTITIONS]
    # Both have the same offsets, and long records that are dead letters at first.
    spec = table_of(topics, max_record_bytes=30, schema="id bigint, of string")
    for number, topic in enumerate(topics):
        for item in range(8):
            topic.send({"id": item, "of": f"{'long ' * 5 if item in (2, 5) else ''}{number}"}, item % 2)
    for topic_spec in spec.each_topic:
        ingest(topic_spec, connections(), "first")
    assert len(view(spec).dead_letters()) == 4
    assert_once(spec, topics, view)

    wider = replace(spec, max_record_bytes=None)
    a, b = topics
    moved = replay_dead_letters(of(wider, a), connections(), "moved")
    assert (moved.moved, moved.remaining) == (2, 0)
    assert {r["topic"] for r in view(spec).dead_letters()} == {b.name}
    assert_once(spec, topics, view)

    before = {r["_kafka"]["offset"]: r for r in view(spec).rows() if r["_kafka"]["topic"] == a.name}
    replay(of(wider, b), connections(), "again", ReplayRange("0:1,1:1", "0:3,1:4"))
    assert view(spec).dead_letters() == []
    assert before == {r["_kafka"]["offset"]: r for r in view(spec).rows() if r["_kafka"]["topic"] == a.name}
    assert_once(spec, topics, view)

    reset(of(wider, a), connections(), "back", "0:2,1:1")
    table = view(spec).table
    position = state_of(of(spec, a), table).position
    assert position is not None
    assert position.offsets == {0: 2, 1: 1}
    assert Counter(r["_kafka"]["topic"] for r in view(spec).rows()) == {a.name: 3, b.name: 8}
    assert killed_at(of(wider, a), "audited")
    ingest(of(wider, b), connections(), "beside")
    ingest(of(wider, a), connections(), "forth")
    assert_once(spec, topics, view)


def test_topics_join_and_leave_a_table_that_one_alone_has_filled(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topics, chance = [new_topic(count) for count in PARTITIONS], random.Random(5)
    a, b = topics
    both = table_of(topics)
    alone = TopicTable(a.name, NAMESPACE, a.table)
    send(a, 0, 10, chance)
    ingest(alone, connections(), "alone")

    # A topic without records has a position nevertheless: rows are looked at once.
    ingest(of(both, b), connections(), "none yet")
    send(b, 1, 6, chance)
    ingest(of(both, b), connections(), "joins")
    assert_once(both, topics, view)

    # Another topic that is not meant to share the table is refused, and so is one that has left it.
    stranger = new_topic()
    stranger.send({"id": 1})
    for spec in (TopicTable(stranger.name, NAMESPACE, a.table),):
        with pytest.raises(TopicReplacedError, match="rows of two topics would be mixed"):
            ingest(spec, connections(), "stranger")

    # Alone again, it carries on the position of the one that comes back later.
    send(a, 0, 5, chance)
    ingest(alone, connections(), "alone again")
    send(b, 1, 5, chance)
    ingest(of(both, b), connections(), "is back")
    assert_once(both, topics, view)

    # Where a snapshot has the position of one topic alone, rows tell how far the other one is.
    a.send({"id": 100, "only_0": "x"})
    table = view(both).table
    position = state_of(of(both, b), table).position
    assert position is not None
    table.append(table.scan(limit=0).to_arrow(), snapshot_properties={POSITION: position.to_json()})
    reported: list[str] = []
    ingest(of(both, a), connections(), "rebuilt", observer=Observer(warn=reported.append))
    assert any("recovered from the rows" in message for message in reported)
    rows = [r for r in view(both).rows() if r["_kafka"]["topic"] == a.name]
    assert len({(r["_kafka"]["partition"], r["_kafka"]["offset"]) for r in rows}) == len(rows)
    assert max(r["id"] for r in rows) == 100

    # A topic that is recreated is told of, and the other goes on.
    b.delete()
    b.create(3)
    b.send({"id": 0, "only_1": "new"})
    with pytest.raises(TopicReplacedError, match="It was deleted and recreated"):
        ingest(of(both, b), connections(), "recreated")
    a.send({"id": 101, "only_0": "y"})
    ingest(of(both, a), connections(), "goes on")
    ingest(of(replace(both, on_data_loss="continue"), b), connections(), "continues")
    assert max(r["id"] for r in view(both).rows()) == 101
    assert "new" in {r["only_1"] for r in view(both).rows()}

    with pytest.raises(ConfigurationError, match="has several topics"):
        plan_adoption(both, connections(), FromOffsets("0:0"))


@pytest.fixture
def runner(
    kafka_resource: KafkaResource, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Iterator[Runner]:
    with dg.DagsterInstance.ephemeral() as instance:
        resources = {"kafka": kafka_resource, "catalog": catalog_resource, "registry": RegistryResource()}
        yield Runner(instance, resources, spark_resource)


def test_one_dagster_run_reads_and_reports_all_topics(new_topic: NewTopic, runner: Runner, view: NewView) -> None:
    topics = [new_topic(count) for count in PARTITIONS]
    a, b = topics
    spec = table_of(topics, schema="id bigint")
    keys = [
        partition_key(value, p) for value, count in zip(spec.each_topic, PARTITIONS, strict=True) for p in range(count)
    ]
    runner.instance.add_dynamic_partitions(partitions_of(work_name(spec)).name or "", keys)
    for number, topic in enumerate(topics):
        topic.send_ids(range(number, 4), 2)
    result = runner.run(spec, (keys[0], keys[-1]))  # type: ignore[arg-type]  # Keys are texts here.
    assert result.success
    rows = {partition: value[ROWS] for partition, value in by_partition(result).items()}
    assert rows == dict(zip(keys, (2, 2, 1, 2, 0), strict=True))
    reported = whole(runner, result, spec)
    assert reported["lag"] == reported[f"lag_of_{a.name}"] == 0
    assert reported["records_read"] == reported["dagster/row_count"] == 7
    checks = {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}
    assert {*checks} == {*CHECKS, "no_dead_letters"}
    assert all(check.passed for check in checks.values())
    assert {f"{a.name}/1", f"{b.name}/1"} <= {*places(checks)}
    for topic in topics:
        assert runner.instance.get_latest_materialization_event(dg.AssetKey(["kafka", topic.name])) is not None

    # Chosen partitions are of one topic: the other waits. Offsets mean those of one topic.
    for topic in topics:
        topic.send_ids([10], 1)
    assert runner.run(spec, (keys[2], keys[4])).success  # type: ignore[arg-type]
    assert Counter(r["_kafka"]["topic"] for r in view(spec).rows()) == {a.name: 4, b.name: 4}
    refused = runner.run(spec, (keys[0], keys[-1]), mode="replace", start="1")  # type: ignore[arg-type]
    assert "1 is an offset, and partitions of 2 topics are chosen" in str(refused.all_events)

    checked = runner.run(spec, None, selection=dg.AssetSelection.checks_for_assets(table_key(spec)))
    told_again = {evaluation.check_name: evaluation for evaluation in checked.get_asset_check_evaluations()}
    assert all(item.passed for item in told_again.values())
    assert places(told_again)[f"{a.name}/0"] == "at 2, lag 1"
    assert f"{b.name}/0" in places(told_again)

    # Records that Kafka has lost fail the run by the topic's name, and don't keep the topics after it from being read.
    a.send_ids([11], 1)
    a.admin.delete_records([TopicPartition(a.name, 0, 3)])[TopicPartition(a.name, 0)].result(20)
    b.send_ids([11])
    failed = runner.run(spec, (keys[0], keys[-1]))  # type: ignore[arg-type]
    assert not failed.success
    assert f"some topics were not read: {a.name}: Topic {a.name}: Kafka no longer has" in str(failed.all_events)
    assert Counter(r["_kafka"]["topic"] for r in view(spec).rows()) == {a.name: 4, b.name: 5}
    assert by_partition(failed)[keys[2]][ROWS] == 1
    # A topic that isn't there has nothing to read, unless the run is for it alone.
    a.delete()
    b.send_ids([12])
    assert runner.run(spec, (keys[0], keys[-1])).success  # type: ignore[arg-type]
    assert Counter(r["_kafka"]["topic"] for r in view(spec).rows()) == {a.name: 4, b.name: 6}
    assert not runner.run(spec, (keys[0], keys[1])).success  # type: ignore[arg-type]
