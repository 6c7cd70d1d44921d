"""Replay, dead-letter replay and reset: rows are replaced or moved, never doubled and never lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from kafka_lake.catalog.branches import StagingBranch
from kafka_lake.catalog.positions import ancestors, head_of, summary_of
from kafka_lake.dead_letters import reconcile as reconciliation
from kafka_lake.errors import AuditFailedError, ConfigurationError, DataLossError, PublishRefusedError
from kafka_lake.ingest.published import examine
from kafka_lake.ingest.run import ingest, plan_reset, replay, replay_dead_letters, reset
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import Killed, at

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]
TENFOLD = "kafka_lake_tests.integration.transforms:with_tenfold"


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs another one which dies at a step, and cleans up nothing."""

    def run(step: str, function: Callable[..., Any], *args: Any) -> None:
        def die(done: str) -> None:
            if done == step:
                monkeypatch.setattr(StagingBranch, "discard", lambda self: None)
                monkeypatch.setattr(StagingBranch, "drop", lambda self: None)
                raise Killed(step)

        with pytest.raises(Killed, match=step):
            function(*args, observer=Observer(step_done=die))
        monkeypatch.undo()

    return run


def all_checks_pass(spec: TopicTable, connections: NewConnections) -> bool:
    made = connections()
    return all(f.passed for f in examine(spec, made.catalog, made.cluster))


def delete_before(topic: Topic, offset: int, partition: int = 0) -> None:
    place = TopicPartition(topic.name, partition, offset)
    topic.admin.delete_records([place])[TopicPartition(topic.name, partition)].result(20)


@pytest.mark.in_contract
@pytest.mark.exhaustive
def test_replay_replaces_rows_by_the_current_transform_s(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec()
    topic.send_ids(range(8), 2)
    ingest(spec, connections(), "run-1")
    position = view(spec).position()
    topic.send_ids([8, 9], 2)
    today = replace(spec, transform=TENFOLD)
    report = replay(today, connections(), "again", ReplayRange("0:1,1:2", "0:3,1:9"))
    assert (report.total("rows"), len(report.commits)) == (4, 1)
    assert view(spec).position() == position, "what lies beyond the position is none of a replay's business"
    rows = {r["id"]: r["tenfold"] for r in view(spec).rows()}
    assert rows == {0: None, 2: 20, 4: 40, 6: None, 1: None, 3: None, 5: 50, 7: 70}
    assert all_checks_pass(spec, connections)
    ingest(today, connections(), "run-2")
    view(spec).assert_exactly_once(topic.ledger)
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_a_long_replay_is_cut_into_commits(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    spec = topic.spec(max_records_per_commit=3)
    topic.send_ids(range(7))
    ingest(spec, connections(), "run-1")
    report = replay(replace(spec, transform=TENFOLD), connections(), "again", ReplayRange())
    assert [c.rows for c in report.commits] == [3, 3, 1]
    assert sorted(r["tenfold"] for r in view(spec).rows()) == [n * 10 for n in range(7)]
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_a_replay_by_time_takes_the_records_of_that_time(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    for number in range(4):
        topic.send({"id": number}, timestamp_ms=1_790_000_000_000 + number * 60_000)
    ingest(spec, connections(), "run-1")
    replay_range = ReplayRange("2026-09-21T14:14:20Z", "2026-09-21T14:16:20Z")
    assert replay(replace(spec, transform=TENFOLD), connections(), "again", replay_range).total("rows") == 2
    assert {r["id"]: r["tenfold"] for r in view(spec).rows()} == {0: None, 1: 10, 2: 20, 3: None}


@pytest.mark.exhaustive
def test_a_replay_moves_records_between_rows_and_dead_letters(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send({"id": 1})
    topic.send({"id": "two"})
    topic.send(b"junk")
    numbers, texts = topic.spec("id bigint"), topic.spec("id bigint not null")
    ingest(numbers, connections(), "run-1")
    assert (len(view(numbers).rows()), len(view(numbers).dead_letters())) == (1, 2)
    topic.send({"other": 1})
    ingest(numbers, connections(), "run-2")
    # The stricter schema takes the row without an id away, into the dead letters.
    replay(texts, connections(), "again", ReplayRange("2"))
    assert view(numbers).ids() == [1]
    letters = {(r["offset"], r["error_class"]) for r in view(numbers).dead_letters()}
    assert letters == {(1, "wrong_type"), (2, "not_json"), (3, "null_in_required_column")}
    view(numbers).assert_exactly_once(topic.ledger)
    # And the first one brings it back.
    replay(numbers, connections(), "and again", ReplayRange())
    view(numbers).assert_exactly_once(topic.ledger)
    assert {r["offset"] for r in view(numbers).dead_letters()} == {1, 2}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "step",
    ["audited", exhaustive("dead letters published"), "table published", exhaustive("dead letters reconciled")],
)
def test_a_replay_killed_at_any_step_leaves_every_record_once(
    step: str, new_topic: NewTopic, connections: NewConnections, view: NewView, dying: Any
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint", max_record_bytes=60)
    topic.send_ids([0])
    topic.send({"other": 1})
    topic.send({"id": 2, "padding": "x" * 60})
    topic.send(b"junk")
    ingest(strict, connections(), "run-1")
    # The record without an id becomes a row, the long one a dead letter; junk stays junk.
    dying(step, replay, lenient, connections(), "dying", ReplayRange())
    topic.send_ids([5])
    ingest(strict, connections(), "next")
    view(strict).assert_exactly_once(topic.ledger)
    view(strict).assert_no_branches()


@pytest.mark.exhaustive
def test_replay_of_lost_records_is_refused_or_keeps_rows(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    for number in range(6):
        topic.send({"id": number}, timestamp_ms=1_790_000_000_000 + number * 60_000)
    ingest(spec, connections(), "run-1")
    delete_before(topic, 3)
    today = replace(spec, transform=TENFOLD)
    before = view(spec).fingerprint()
    with pytest.raises(DataLossError, match="partition 0 offsets 1 to 2"):
        replay(today, connections(), "again", ReplayRange("1"))
    with pytest.raises(DataLossError, match=r"on whose records Kafka no longer has: partition 0 offsets 1 to 2"):
        replay(today, connections(), "again", ReplayRange("2026-09-21T14:14:20Z"))
    assert view(spec).fingerprint() == before
    replay(today, connections(), "again", ReplayRange("1", keep_missing=True))
    assert {r["id"]: r["tenfold"] for r in view(spec).rows()} == {0: None, 1: None, 2: None, 3: 30, 4: 40, 5: 50}
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_replay_keeps_rows_of_compacted_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    compacting = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    topic = new_topic(**compacting)
    spec = topic.spec()
    for number in range(3):
        topic.send({"id": number}, key=b"k")
    ingest(spec, connections(), "run-1")
    before = view(spec).fingerprint()
    records: list[int] = []

    def compacted() -> bool:
        # Closes the segment: the active one is never compacted.
        topic.send({"id": 10 + len(records)}, key=b"another %d" % len(records))
        report = replay(spec, connections(), "looking", ReplayRange("0", "3", keep_missing=True))
        records.append(report.total("records"))
        return records[-1] < 3

    topic.wait_for(compacted, 120)
    gone = 3 - records[-1]
    held = view(spec).fingerprint()
    assert held != before
    with pytest.raises(CheckFailedError, match=rf"partition 0 has {gone} rows that Kafka no longer has"):
        replay(spec, connections(), "again", ReplayRange("0", "3"))
    assert view(spec).fingerprint() == held
    ingest(spec, connections(), "rest")
    view(spec).assert_exactly_once(topic.ledger)


def bad_numbers(topic: Topic) -> TopicTable:
    topic.send_ids([0])
    for value in ({"id": "1"}, b"junk", {"id": "2"}, {"id": "x"}):
        topic.send(value)
    return topic.spec("id bigint")


@pytest.mark.exhaustive
def test_dead_letters_that_fit_now_become_rows_and_the_rest_stay(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = bad_numbers(topic)
    ingest(spec, connections(), "run-1")
    mended = replace(spec, schema="id bigint, note string", transform=None)
    done = replay_dead_letters(mended, connections(), "too early")
    assert (done.moved, done.remaining) == (0, 4)
    assert {r["run_id"] for r in view(spec).dead_letters()} == {"too early"}

    lenient = replace(spec, table=f"{spec.table}", schema="id string")
    # The column's type can't change; a new table takes what the old one couldn't.
    with pytest.raises(Exception, match="type changed"):
        replay_dead_letters(lenient, connections(), "no")
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.every_pair
def test_dead_letters_move_into_the_table_exactly_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint, n int not null"), topic.spec("id bigint, n int")
    for number in range(5):
        topic.send({"id": number} if number % 2 else {"id": number, "n": 1})
    topic.send(b"junk")
    topic.send({"id": 6})
    ingest(strict, connections(), "run-1")
    assert len(view(strict).dead_letters()) == 4
    position = view(strict).position()
    done = replay_dead_letters(lenient, connections(), "again", where="offset < 6")
    assert (done.moved, done.remaining) == (2, 1)
    assert [r["id"] for r in view(strict).rows() if r["n"] is None] == [1, 3]
    assert sorted((r["offset"], r["error_class"], r["run_id"]) for r in view(strict).dead_letters()) == [
        (5, "not_json", "again"),
        (6, "null_in_required_column", "run-1"),
    ]
    assert view(strict).position() == position
    assert all_checks_pass(strict, connections)
    assert replay_dead_letters(lenient, connections(), "and again").moved == 1
    assert replay_dead_letters(lenient, connections(), "once more").moved == 0
    view(strict).assert_exactly_once(topic.ledger)
    view(strict).assert_no_branches()


@pytest.mark.parametrize(
    ("step", "nextrun"),
    [exhaustive("audited", "dead_letter_replay"), ("table published", "ingest"),
     exhaustive("table published", "dead_letter_replay"), exhaustive("dead letters reconciled", "ingest")],
)  # fmt: skip
def test_killed_dead_letter_replay_leaves_every_record_once(
    step: str, nextrun: str, new_topic: NewTopic, connections: NewConnections, view: NewView, dying: Any
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send_ids([0])
    topic.send({"other": 1})
    topic.send(b"junk")
    ingest(strict, connections(), "run-1")
    dying(step, replay_dead_letters, lenient, connections(), "dying", None)
    if nextrun == "ingest":
        topic.send_ids([5])
        ingest(strict, connections(), "next")
    else:
        replay_dead_letters(lenient, connections(), "next")
    view(strict).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_two_dead_letter_replays_at_once_move_every_record_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send({"other": 1})
    topic.send({"other": 2})
    ingest(strict, connections(), "run-1")
    first = replay_dead_letters(
        lenient,
        connections(),
        "overtaken",
        observer=Observer(step_done=at("audited", lambda: replay_dead_letters(lenient, connections(), "overtaker"))),
    )
    assert first.moved == 0
    view(strict).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_a_dead_letter_replay_while_records_come_in(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send({"other": 1})
    ingest(strict, connections(), "run-1")
    topic.send_ids([1])
    topic.send(b"junk")
    replay_dead_letters(
        lenient,
        connections(),
        "again",
        observer=Observer(step_done=at("audited", lambda: ingest(strict, connections(), "between"))),
    )
    view(strict).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_rollback_of_dead_letter_replay_restores_dead_letters(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send_ids([0])
    topic.send({"other": 1})
    ingest(strict, connections(), "run-1")
    good = head_of(view(strict).table)
    assert replay_dead_letters(lenient, connections(), "again").moved == 1
    spark_resource.spark_session.sql(view(strict).call("rollback_to_snapshot", snapshot_id=f"{good}")).collect()
    topic.send_ids([2])
    ingest(strict, connections(), "run-2")
    view(strict).assert_exactly_once(topic.ledger)
    assert len(view(strict).dead_letters()) == 1
    assert replay_dead_letters(lenient, connections(), "and again").moved == 1
    view(strict).assert_exactly_once(topic.ledger)


def test_dead_letters_behind_a_rollback_are_read_again_first(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send_ids([0])
    topic.send({"other": 1})
    ingest(strict, connections(), "run-1")
    good = head_of(view(strict).table)
    topic.send({"other": 2})
    ingest(strict, connections(), "run-2")
    spark_resource.spark_session.sql(view(strict).call("rollback_to_snapshot", snapshot_id=f"{good}")).collect()
    warnings: list[str] = []
    report = replay_dead_letters(lenient, connections(), "again", observer=Observer(warn=warnings.append))
    assert (report.moved, len(view(strict).dead_letters())) == (1, 1)
    assert any("run has read their records again" in warning for warning in warnings)
    ingest(lenient, connections(), "run-3")
    view(strict).assert_exactly_once(topic.ledger)
    assert view(strict).dead_letters() == []


@pytest.mark.exhaustive
def test_reconciliation_that_lost_a_race_is_completed_later(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send({"other": 1})
    ingest(strict, connections(), "run-1")

    def overtaken(*args: Any, **settings: Any) -> int:
        raise PublishRefusedError("somebody else was faster")

    real = reconciliation.reconcile
    calls: list[int] = []

    def once(*args: Any, **settings: Any) -> int:
        calls.append(1)
        return overtaken() if len(calls) == 3 else real(*args, **settings)

    monkeypatch.setattr("kafka_lake.ingest.jobs.dead_letter_replay.reconcile", once)
    monkeypatch.setattr("kafka_lake.ingest.pipeline.reconcile", once)
    replay_dead_letters(lenient, connections(), "again")
    monkeypatch.undo()
    ingest(strict, connections(), "next")
    view(strict).assert_exactly_once(topic.ledger)


def dead_letter_files(see: View) -> set[str]:
    table = see.catalog.table(see.spec.dead_letter_table)
    assert table is not None
    return {task.file.file_path for task in table.scan().plan_files()}


@pytest.mark.exhaustive
def test_reconciliation_rewrites_only_the_affected_files(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    for _ in range(8):
        topic.send({"other": 1})
        topic.send(b"junk")
        ingest(strict, connections(), "run")
    see = view(strict)
    before = dead_letter_files(see)
    assert len(before) == 8
    # In one file, one dead letter becomes a row and one gets another run's reason; of a second file one stays.
    moved = replay_dead_letters(lenient, connections(), "again", "offset in (4, 5, 10)")
    assert (moved.moved, moved.remaining) == (2, 1)
    kept = dead_letter_files(see) & before
    assert len(kept) == 6
    table = see.catalog.table(strict.dead_letter_table)
    assert table is not None
    history = list(ancestors(table, head_of(table)))[:2]
    assert sum(int(summary_of(event).get("deleted-data-files", 0)) for event in history) == 2
    assert {(r["offset"], r["error_class"]) for r in see.dead_letters()} == {
        *((n, "null_in_required_column") for n in (0, 2, 6, 8, 12, 14)), *((n, "not_json") for n in range(1, 16, 2)),
    }  # fmt: skip
    see.assert_exactly_once(topic.ledger)
    # Rolled back, the rows are gone, and both dead letters come back: from the files that were written since.
    assert see.table.current_snapshot() is not None
    earlier = see.table.current_snapshot().parent_snapshot_id  # type: ignore[union-attr]
    see.table.manage_snapshots().set_current_snapshot(earlier).commit()
    ingest(strict, connections(), "after")
    assert kept <= dead_letter_files(see)
    assert len(see.dead_letters()) == 16
    see.assert_exactly_once(topic.ledger)


class RemovesAll:
    """A session that removes all dead letters where some were meant."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def sql(self, text: str) -> Any:
        start, some, _ = text.partition(" AS l WHERE ")
        return self._session.sql(f"{start} WHERE offset >= 0" if some else text)


@pytest.mark.exhaustive
def test_a_reconciliation_that_removes_too_much_is_not_published(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    strict, lenient = topic.spec("id bigint not null"), topic.spec("id bigint")
    topic.send({"other": 1})
    topic.send(b"junk")
    ingest(strict, connections(), "run-1")
    before = view(strict).dead_letters()
    sound = connections()
    greedy = replace(sound, spark=lambda: RemovesAll(sound.spark()))
    wrong = "it has 2 rows, 1 are removed and 0 added, but 0 were staged"
    with pytest.raises(AuditFailedError, match=wrong):
        replay_dead_letters(lenient, greedy, "again", "offset = 0")
    assert view(strict).dead_letters() == before
    view(strict).assert_no_branches()
    ingest(strict, connections(), "next")
    view(strict).assert_exactly_once(topic.ledger)


def test_a_condition_that_is_none_is_refused(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    spec = bad_numbers(topic)
    ingest(spec, connections(), "run-1")
    with pytest.raises(ConfigurationError, match=r"where: 'klass = 1' isn't a condition"):
        replay_dead_letters(spec, connections(), "again", where="klass = 1")


def test_a_reset_to_an_earlier_offset_doubles_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(2)
    spec = topic.spec()
    topic.send_ids(range(6), 2)
    topic.send(b"junk")
    ingest(spec, connections(), "run-1")
    planned = plan_reset(spec, connections(), "0:1")
    assert planned is not None
    assert [(r.partition, r.start, r.end) for r in planned.deletes] == [(0, 1, 4)]
    reset(spec, connections(), "back", "0:1")
    assert view(spec).position() == {0: 1, 1: 3}
    assert view(spec).ids() == [0, 1, 3, 5]
    assert ingest(spec, connections(), "run-2").total("records") == 3
    view(spec).assert_exactly_once(topic.ledger)
    assert all_checks_pass(spec, connections)
    assert plan_reset(spec, connections(), "latest") is None


def test_reset_forward_skips_records_and_reports_it(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    topic.send_ids([1, 2, 3])
    report = reset(spec, connections(), "forward", "3")
    said = [p for f in report.findings() for p in f.problems]
    assert said == [f"topic {topic.name} partition 0 skipped offsets 1 to 2 by a reset"]
    ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [0, 3]


@pytest.mark.exhaustive
def test_a_recreated_topic_continues_after_a_reset(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0, 1])
    ingest(spec, connections(), "run-1")
    topic.delete()
    topic.create()
    topic.send_ids([10])
    with pytest.raises(DataLossError, match="kafka-lake reset"):
        ingest(spec, connections(), "run-2")
    reset(spec, connections(), "anew", "earliest")
    ingest(spec, connections(), "run-3")
    assert view(spec).ids() == [0, 1, 10]


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({"dead_letters": "fail"}, False),
        exhaustive({"dead_letters": "skip"}, True),
        exhaustive({"max_dead_letters": 1}, False),
        exhaustive({"max_dead_letters": 2}, True),
        exhaustive({"max_dead_letters": "39%"}, False),
        exhaustive({"max_dead_letters": "40%"}, True),
        exhaustive({"dead_letters": "skip", "max_dead_letters": 1}, False),
    ],
)
def test_a_run_fails_beyond_its_limit_of_dead_letters(
    settings: dict[str, Any], passes: bool, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    spec = topic.spec(max_records_per_commit=4, **settings)
    ingest(spec, connections(), "run-1")
    topic.send_ids([1, 2])
    topic.send(b"junk")
    topic.send_ids([4])
    topic.send(b"more junk")
    if passes:
        report = ingest(spec, connections(), "run-2")
        assert report.total("dead_letters") == 2
        assert [(c.name, c.count) for c in report.classes()] == [("not_json", 2)]
        assert report.classes()[0].value == "junk"
        assert len(view(spec).dead_letters()) == (0 if "dead_letters" in settings else 2)
        assert view(spec).ids() == [0, 1, 2, 4]
        return
    with pytest.raises(CheckFailedError, match=r"not_json, the first in topic \S+ partition 0 at offset \d") as caught:
        ingest(spec, connections(), "run-2")
    assert [f.check for f in caught.value.findings if not f.passed] == ["dead_letters"]
    # The limit is the run's, not the commit's: the commit before the one that broke it stays.
    first_commit = "max_dead_letters" in settings
    assert view(spec).ids() == ([0, 1, 2, 4] if first_commit else [0])
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
def test_a_record_beyond_the_limit_is_a_dead_letter(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    topic.send({"id": 1, "padding": "x" * 200})
    spec = topic.spec(max_record_bytes=100)
    ingest(spec, connections(), "run-1")
    assert [r["error_class"] for r in view(spec).dead_letters()] == ["too_large"]
    assert replay_dead_letters(replace(spec, max_record_bytes=None), connections(), "again").moved == 1
    view(spec).assert_exactly_once(topic.ledger)
