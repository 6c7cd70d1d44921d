"""Rows expire by their age: those and no others go, the position stays known, and what is read again stays away."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.history import snapshot_log
from kafka_lake.catalog.positions import head_of
from kafka_lake.catalog.tables import totals_of
from kafka_lake.derived.upstream import changes_since, read_of
from kafka_lake.errors import AuditFailedError, PublishRefusedError, TableError
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.maintenance.maintain import due, maintain
from kafka_lake.maintenance.row_retention import last_expiry
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Sent, Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import at

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


def keeping(older_than: str = "90d") -> Maintenance:
    return Maintenance(row_retention=older_than, compact_every=None, expire_after=None)


KEEP = keeping()
DAY = 86_400_000


def days_ago(days: float) -> int:
    return int(time.time() * 1000 - days * DAY)


def young(ledger: list[Sent], days: float = 90) -> list[Sent]:
    return [record for record in ledger if record.timestamp_ms >= days_ago(days)]


@pytest.mark.exhaustive
def test_expiry_deletes_only_old_rows_and_dead_letters(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(3)
    spec = topic.spec("id bigint", maintenance=KEEP)
    # A commit whose rows are all old, one of both kinds, one with a time in the future.
    for number, days in enumerate((200, 100, 91)):
        topic.send({"id": number}, number % 2, timestamp_ms=days_ago(days))
    topic.send({"id": 99}, 2, timestamp_ms=days_ago(95))
    topic.send(b"old junk", timestamp_ms=days_ago(95))
    ingest(spec, connections(), "old")
    for number, days in enumerate((95, 89, 1, 94), 10):
        topic.send({"id": number}, number % 2, timestamp_ms=days_ago(days))
    ingest(spec, connections(), "both")
    topic.send({"id": 20}, timestamp_ms=days_ago(-0.03))
    topic.send(b"new junk")
    ingest(spec, connections(), "new")
    see, ends = view(spec), {0: 7, 1: 3, 2: 1}
    assert see.position() == ends
    assert [table.needs.rows for table in due(spec, connections())] == ["rows older than 90d"] * 2

    done = {table.identifier: table for table in maintain(spec, connections())}
    assert done[spec.identifier].rows == 6
    assert done[spec.dead_letter_table].rows == 1
    assert see.ids() == [11, 12, 20]
    see.assert_exactly_once(young(topic.ledger), ends)
    see.assert_no_branches()
    assert [table.needs.reasons for table in due(spec, connections())] == [(), ()]
    totals = totals_of(see.table)
    assert totals is not None
    assert totals.expired == 6
    assert all(result.passed for result in examine(spec, connections().catalog, connections().cluster))
    log = snapshot_log(see.table)
    assert [commit.what for commit in log[:2]] == ["row expiry", "part of the row expiry"]
    assert sum(commit.rows_deleted - commit.rows_added for commit in log[:2]) == 6

    # Commits go on. A replay brings old rows back, and the next expiry deletes them again.
    said: list[str] = []
    topic.send({"id": 30}, 1)
    ingest(spec, connections(), "after", observer=Observer(warn=said.append))
    assert said == []
    read = read_of(see.table)
    replay(spec, connections(), "again", ReplayRange(), observer=Observer(warn=said.append))
    assert said == []
    maintain(spec, connections(), everything=True)
    ends[1] += 1
    see.assert_exactly_once(young(topic.ledger), ends)
    assert all(result.passed for result in examine(spec, connections().catalog, connections().cluster))
    found = changes_since(read, read_of(see.table), see.table)
    assert (found.unknown, bool(found.ranges)) == ("", True), "derived tables know what it did"

    # Others expire all positions. Of partition 2 no row is left that would prove it.
    see.table.maintenance.expire_snapshots()
    connections().spark().sql(see.call("rewrite_data_files", options="map('rewrite-all', 'true')")).collect()
    forget = see.call("expire_snapshots", retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'")
    connections().spark().sql(forget).collect()
    assert see.position() == {}
    topic.send({"id": 31}, 2)
    ingest(spec, connections(), "rebuilt", observer=Observer(warn=said.append))
    assert "recovered from the rows" in said[0]
    ends[2] += 1
    see.assert_exactly_once(young(topic.ledger), ends)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "settings",
    [
        exhaustive({"table_properties": {"format-version": "3"}}),
        exhaustive({"partition_by": ("day(_kafka.timestamp)",)}),
        exhaustive({"table_properties": {"write.delete.mode": "merge-on-read"}}),
        exhaustive({"table_properties": {"write.metadata.metrics.default": "none"}}),
    ],
)
def test_rows_expire_in_tables_of_every_layout(
    settings: dict[str, Any], new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint", maintenance=KEEP, **settings)
    limit = datetime.now(UTC) - timedelta(days=90)
    for number, minutes in enumerate((-3000, -1441, -60, 60, 1441, 3000)):
        moment = limit + timedelta(minutes=minutes)
        topic.send({"id": number}, timestamp_ms=int(moment.timestamp() * 1000))
        if number in (1, 5):
            ingest(spec, connections(), f"run-{number}")
    (done,) = maintain(spec, connections())
    see = view(spec)
    rows = connections().spark().sql(f"SELECT id FROM {see.sql_name()} ORDER BY id").collect()
    assert ([row["id"] for row in rows], done.rows) == ([3, 4, 5], 3)
    assert see.position() == {0: 6}
    see.assert_no_branches()


def test_all_rows_have_gone_and_the_position_too(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(maintenance=KEEP)
    topic.send({"id": 1}, timestamp_ms=days_ago(100))
    ingest(spec, connections(), "run-1")
    maintain(spec, connections())
    see = view(spec)
    assert see.ids() == []
    see.table.append(see.table.schema().as_arrow().empty_table())
    forget = see.call("expire_snapshots", retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'")
    connections().spark().sql(forget).collect()
    assert see.position() == {}
    topic.send({"id": 2})
    ingest(spec, connections(), "run-2")
    assert see.ids() == [2]


@pytest.mark.exhaustive
def test_an_expiry_meets_a_commit_and_a_commit_meets_an_expiry(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    spec = topic.spec(maintenance=KEEP)
    for number, days in enumerate((100, 1)):
        topic.send({"id": number}, timestamp_ms=days_ago(days))
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2})
    steps = at("audited", lambda: maintain(spec, connections()))
    ingest(spec, connections(), "meets-it", observer=Observer(step_done=steps))
    see = view(spec)
    assert see.ids() == [1, 2]
    assert see.position() == {0: 3}

    # If a commit comes first, the rows are deleted at the new head.
    topic.send({"id": 3}, timestamp_ms=days_ago(100))
    topic.send({"id": 33})
    ingest(spec, connections(), "run-3")
    topic.send({"id": 4})
    publish, met = StagingBranch.publish, list[int]()

    def overtaken(self: StagingBranch, *args: Any) -> None:
        if not met and "expire" in self.name:
            met.append(1)
            ingest(spec, connections(), "faster")
        publish(self, *args)

    monkeypatch.setattr(StagingBranch, "publish", overtaken)
    maintain(replace(spec, maintenance=keeping("89d")), connections())
    assert see.ids() == [1, 2, 4, 33]
    assert see.position() == {0: 6}
    see.assert_no_branches()
    assert [commit.what for commit in snapshot_log(see.table)[:3]] == [
        "row expiry",
        "part of the row expiry",
        "append",
    ]

    # Where others are always faster, nothing goes.
    topic.send({"id": 5}, timestamp_ms=days_ago(100))
    ingest(spec, connections(), "run-4")

    def refused(self: StagingBranch, *args: Any) -> None:
        raise PublishRefusedError("main moved")

    monkeypatch.setattr(StagingBranch, "publish", refused)
    with pytest.raises(PublishRefusedError):
        maintain(replace(spec, maintenance=keeping("88d")), connections())
    assert see.ids() == [1, 2, 4, 5, 33]
    see.assert_no_branches()


def test_expiry_that_would_delete_other_rows_is_not_published(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    spec = topic.spec(maintenance=KEEP)
    for number, days in enumerate((100, 1)):
        topic.send({"id": number}, timestamp_ms=days_ago(days))
    ingest(spec, connections(), "run-1")
    delete = StagingBranch.delete
    monkeypatch.setattr(StagingBranch, "delete", lambda self, _condition: delete(self, "true"))
    with pytest.raises(AuditFailedError, match=r"1 of its 2 rows expire, but 0 would be left"):
        maintain(spec, connections())
    see = view(spec)
    assert see.ids() == [0, 1]
    assert last_expiry(see.table) is None
    see.assert_no_branches()


def test_killed_row_expiry_deletes_nothing_until_the_next(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    spec = topic.spec(maintenance=KEEP)
    for number, days in enumerate((100, 1)):
        topic.send({"id": number}, timestamp_ms=days_ago(days))
    ingest(spec, connections(), "run-1")

    def killed(self: StagingBranch, *args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(StagingBranch, "publish", killed)
        dying.setattr(StagingBranch, "discard", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            maintain(spec, connections())
    see = view(spec)
    assert see.ids() == [0, 1]
    assert len(see.table.metadata.refs) == 2
    topic.send({"id": 2})
    ingest(spec, connections(), "run-2")
    maintain(spec, connections())
    assert see.ids() == [1, 2]
    assert see.position() == {0: 3}
    # What it has left goes when no expiry can need it any more.
    monkeypatch.setattr("kafka_lake.maintenance.clean.FOLLOWS_SECONDS", 0.0)
    topic.send({"id": 3})
    ingest(spec, connections(), "run-3")
    see.assert_no_branches()
    assert see.ids() == [1, 2, 3]


@pytest.mark.exhaustive
def test_row_expiry_refuses_a_table_without_a_position(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint", maintenance=KEEP)
    for number in range(2):
        topic.send({"id": number}, timestamp_ms=days_ago(100))
        ingest(spec, connections(), f"run-{number}")
    see = view(spec)
    # Rows have to prove the position: none may go.
    see.table.append(see.table.schema().as_arrow().empty_table())
    forget = see.call("expire_snapshots", retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'")
    connections().spark().sql(forget).collect()
    head = head_of(see.table)
    with pytest.raises(TableError, match="no snapshot has its position"):
        maintain(spec, connections())
    assert head_of(see.table) == head
    assert last_expiry(see.table) is None
    assert see.ids() == [0, 1]
