"""What each writer keeps, whatever becomes of its run: every record is there exactly once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.maintenance.policy import commits_since_compaction
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import at, killed_at, mixed  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

WRITERS: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"write": "upsert", "key": ("id",)},
    "history": {"write": "history", "key": ("id",)},
}
KILLS = ("table staged", "dead letters staged", "audited", "dead letters published", "table published")
SHOWN = {("append", "dead letters published"), ("upsert", "table staged"), ("history", "table published")}


@pytest.mark.in_contract
@pytest.mark.parametrize(
    ("writer", "step"),
    [
        pytest.param(writer, step) if (writer, step) in SHOWN else exhaustive(writer, step)
        for writer in WRITERS
        for step in KILLS
    ],
)
def test_run_killed_at_any_step_is_completed_by_the_next(
    writer: str,
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Callable[..., None],  # noqa: F811
) -> None:
    topic, visible = new_topic(), step == "table published"
    spec = topic.spec(**WRITERS[writer])
    topic.send_ids([100])
    ingest(spec, connections(), "first")
    mixed(topic, 5)
    killed_at(spec, step)
    assert (len(view(spec).rows()) > 1) == visible
    topic.send(b"later junk")
    report = ingest(spec, connections(), "next")
    assert report.total("records") == (1 if visible else 6)
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.every_pair
@pytest.mark.parametrize(
    ("writer", "step"),
    [
        ("append", "audited"),
        exhaustive("append", "table staged"),
        exhaustive("append", "dead letters published"),
        exhaustive("upsert", "audited"),
        exhaustive("history", "audited"),
    ],
)
def test_only_one_of_two_racing_runs_publishes(
    writer: str, step: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(**WRITERS[writer])
    topic.send_ids([100])
    ingest(spec, connections(), "first")
    mixed(topic, 6)
    second: list[RunReport] = []

    def overtake() -> None:
        other = threading.Thread(target=lambda: second.append(ingest(spec, connections(), "overtaker")))
        other.start()
        other.join(120)
        assert second, "the overtaking run didn't end"

    loser = ingest(spec, connections(), "overtaken", observer=Observer(step_done=at(step, overtake)))
    assert second[0].total("records") == 6
    assert loser.total("records") == 0
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


@pytest.mark.parametrize("writer", [exhaustive("append"), "upsert", exhaustive("history")])
def test_commit_is_planned_again_after_a_compaction(
    writer: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    sharp = Maintenance(compact_every=4, expire_after="0s", keep_snapshots=1)
    spec = topic.spec(maintenance=sharp, **WRITERS[writer])
    for number in range(2):
        topic.send_ids([2 * number, 2 * number + 1], 2)
        ingest(spec, connections(), f"run-{number}")
    topic.send_ids([4, 5], 2)
    compact = at("audited", lambda: maintain(spec, connections(), everything=True))
    ingest(spec, connections(), "meets-it", observer=Observer(step_done=compact))
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()
    assert commits_since_compaction(see.table) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("writer", WRITERS)
def test_replay_leaves_every_record_once(
    writer: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec(**WRITERS[writer])
    mixed(topic, 8, 2)
    ingest(spec, connections(), "first")
    replay(spec, connections(), "again", ReplayRange())
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()
