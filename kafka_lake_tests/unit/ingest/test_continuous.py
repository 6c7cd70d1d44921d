"""When a continuous run looks, commits, reports and ends: by a clock that the tests move."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from sqlalchemy.exc import OperationalError

from kafka_lake.catalog.positions import POSITION
from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.errors import KafkaError, KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.continuous import ContinuousRun, Feed, Stop, has_news
from kafka_lake.runtime.context import Context, Observer, RetryPolicy, StoppedError
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding

ME = TopicIdentity("c", "t", "pizzas")
SETTINGS = Continuous(trigger=2, time_limit=3600, idle=300, compact_every=None, report_every=30)

NOW = Watermarks(ME, {0: 0, 1: 3}, {0: 5, 1: 3})


@pytest.mark.parametrize(
    ("position", "partitions", "news"),
    [
        (None, (0, 1), True),
        (None, (1,), False),
        (Position(ME, {0: 5, 1: 3}), (0, 1), False),
        (Position(ME, {0: 4, 1: 3}), (0, 1), True),
        (Position(ME, {0: 4, 1: 3}), (1,), False),
        # An empty partition that the position doesn't know yet.
        (Position(ME, {0: 5}), (0, 1), False),
        (Position(ME, {0: 6, 1: 3}), (0, 1), True),
        (Position(ME, {0: 5, 1: 3, 2: 1}), (0, 1), True),
        (Position(replace(ME, topic_id="other"), {0: 5, 1: 3}), (0, 1), True),
    ],
)
def test_the_watermarks_alone_tell_whether_there_is_news(position, partitions, news):
    assert has_news(position, NOW, partitions) is news


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Script:
    """A topic that grows by what the test says, on the test's clock; it counts what is done when."""

    clock: Clock
    arrivals: Callable[[float], int]
    cost: float = 1.0
    partitions: int = 1
    fails_at: float = float("inf")
    name: str = "pizzas"
    position: Position | None = None
    commits: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    anew: list[float] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    has_running: bool = True
    now: Any = None
    connections: Any = field(
        default_factory=lambda: SimpleNamespace(
            catalog=SimpleNamespace(table=lambda _: None), spark=lambda: None, retry=RetryPolicy()
        )
    )

    @property
    def context(self) -> Context:
        observer = Observer(step_done=self.said.append, warn=self.said.append)
        return Context(
            TopicTable(self.name, "lake", self.name), self.connections, "run", observer, decoding=SparkDecoding()
        )

    @property
    def topic(self) -> "Script":
        return self

    def look(self) -> Watermarks:
        self.looks.append(self.clock.now)
        return self.poll()

    def poll(self) -> Watermarks:
        ends = {p: self.arrivals(self.clock.now) if p == 0 else 1 for p in range(self.partitions)}
        self.now = Watermarks(ME, dict.fromkeys(ends, 0), ends)
        return self.now

    def next_commit(self) -> Any:
        self.asked.append(self.clock.now)
        if self.clock.now >= self.fails_at:
            raise KafkaLakeError("A gate said no.")
        if self.position and self.position.offsets[0] == self.now.end[0]:
            return None
        if not self.now.end[0]:
            return None
        self.begun.append(self.clock.now)
        self.clock.now += self.cost
        self.position = Position(ME, self.now.end)
        self.commits.append(self.clock.now)
        return object()

    def forget_failed(self) -> None:
        self.anew.append(self.clock.now)

    def raise_errors(self, _: object) -> None:
        """Raise nothing: no table is left where it is."""

    def report(self) -> Any:
        reported, self.commits = tuple(self.commits), []
        return SimpleNamespace(has_commits=bool(reported), commits=reported)

    finish = report


def run_of(clock: Clock, topics: Sequence[Script], settings: Continuous, **options: Any) -> Any:
    stop, feeds = Stop(), [Feed(topic, {0}) for topic in cast(Any, topics)]
    cluster = SimpleNamespace(watermarks=lambda _: {topic.name: topic.look() for topic in topics})
    for topic in topics:
        topic.connections.cluster = cluster
    made = ContinuousRun(feeds, settings, stop, clock=clock, **options)

    def sleep(seconds: float) -> None:
        if stop.requested:
            raise StoppedError
        clock.now += seconds

    stop.sleep = sleep  # type: ignore[method-assign]
    return made


@pytest.fixture
def steady():
    def make(arrivals: Callable[[float], int], settings: Continuous = SETTINGS, **script: Any) -> tuple[Script, Any]:
        clock = Clock()
        topic = Script(clock, arrivals, **script)
        return topic, run_of(clock, [topic], settings)

    return make


def reports_of(made: Any) -> Iterator[tuple[float, ...]]:
    return (report.commits for _, report in made.reports())


def test_records_that_never_end_are_committed_once_per_trigger_until_the_time_is_over(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    reports = list(reports_of(made))
    assert made.ended == "its time of 3600 s is over"
    gaps = {round(b - a, 6) for a, b in zip(run.begun, run.begun[1:], strict=False)}
    assert gaps == {2}
    reported = [item for report in reports for item in report]
    assert len(reported) == len(set(reported)) == 1800
    assert 110 <= len(reports) <= 121, "every 30 s and at the end"
    assert reports[0] == (1.0,), "the first commit is told of at once"


def test_a_commit_that_takes_longer_than_the_trigger_is_followed_by_the_next(steady):
    run, made = steady(lambda now: int(now * 100) + 1, cost=5)
    list(reports_of(made))
    assert {round(b - a, 6) for a, b in zip(run.begun, run.begun[1:], strict=False)} == {5}


def test_a_resting_topic_is_looked_at_often_and_its_table_seldom_until_the_run_ends(steady):
    run, made = steady(lambda now: 5)
    (first, last) = list(reports_of(made))
    assert made.ended == "no record arrived for 300 s"
    assert (len(first), len(last)) == (1, 0)
    assert 590 <= len(run.looks) <= 610
    assert 28 <= len(run.asked) <= 32


def test_an_empty_topic_is_a_resting_one(steady):
    _, made = steady(lambda now: 0)
    assert list(reports_of(made)) == [()]
    assert made.ended == "no record arrived for 300 s"


@pytest.mark.slow
def test_records_that_another_run_took_are_no_rest(steady):
    run, made = steady(lambda now: int(now / 200) + 1)
    ask = run.next_commit

    def once(*args: Any) -> Any:
        if run.begun:
            run.position = Position(ME, run.now.end)
        return ask(*args)

    run.next_commit = once
    list(reports_of(made))
    assert len(run.begun) == 1
    assert made.ended == "its time of 3600 s is over"


def test_slow_reporting_is_done_less_often(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    reported = []
    for _ in reports_of(made):
        reported.append(run.clock.now)
        run.clock.now += 5
    assert all(later - before >= 5 + 5 / 0.05 for before, later in pairwise(reported[:-1]))


def test_a_burst_after_a_rest_waits_for_the_next_look_only(steady):
    run, made = steady(lambda now: 1 if now < 100.2 else 1000)
    list(reports_of(made))
    assert 100.2 <= run.begun[1] <= 100.7


def test_a_table_that_others_moved_back_is_noticed_while_the_topic_rests(steady):
    run, made = steady(lambda now: 5)
    moved: list[float] = []
    ask = run.next_commit

    def once(*args: Any) -> Any:
        if not moved and run.clock.now > 50:
            moved.append(run.clock.now)
            run.position = Position(ME, {0: 2})
        return ask(*args)

    run.next_commit = once
    list(reports_of(made))
    assert len(run.begun) == 2
    assert run.begun[1] < 62


STAY = Continuous(trigger=2, time_limit=300, idle=0, compact_every=None, report_every=20)
LOCKED = OperationalError("SELECT", {}, Exception("database is locked"))


@pytest.mark.parametrize("error", [LOCKED, ServiceUnavailableError("503"), PublishRefusedError("main moved.")])
def test_what_passes_is_waited_for_and_the_run_goes_on(steady, error):
    run, made = steady(lambda now: int(now * 100) + 1)
    ask = run.next_commit

    def once(*args: Any) -> Any:
        if 100 < run.clock.now < 400:
            raise error
        return ask(*args)

    run.next_commit = once
    list(reports_of(made))
    assert made.ended == "its time of 3600 s is over"
    resumed = [begun for begun in run.begun if begun >= 400]
    assert resumed[0] <= 430, "no later than the longest pause"
    assert any("The run continues in" in line for line in run.said)


def test_what_has_not_passed_when_the_time_is_over_fails_the_run(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    run.next_commit = lambda *_: (_ for _ in ()).throw(LOCKED)
    with pytest.raises(OperationalError):
        list(reports_of(made))
    assert 3600 <= run.clock.now < 3603


def test_what_does_not_pass_ends_the_run_at_once(steady):
    run, made = steady(lambda now: int(now * 100) + 1, fails_at=50)
    with pytest.raises(KafkaLakeError, match="A gate said no"):
        list(reports_of(made))
    assert run.clock.now < 60


def test_a_catalog_that_does_not_answer_when_compaction_asks_is_no_failure(steady):
    run, made = steady(lambda now: int(now * 100) + 1, replace(SETTINGS, time_limit=20, compact_every=1))

    def refuse(_: Any) -> Any:
        raise ServiceUnavailableError("503")

    run.connections.catalog.table = refuse
    list(reports_of(made))
    assert made.ended == "its time of 20 s is over"
    assert any("was not compacted: 503" in line for line in run.said)


def test_a_run_that_catches_up_ends_at_its_first_poll_in_vain():
    clock = Clock()
    made = run_of(clock, [Script(clock, lambda now: 5)], STAY, others_wait=lambda: False)
    assert list(reports_of(made)) == [(1.0,)], "told of once, at the end"
    assert made.ended == "no record has arrived"
    assert clock.now == 2.0


def test_a_catch_up_run_commits_at_its_interval_until_its_time_is_over(steady):
    run, made = steady(lambda now: int(now * 100) + 1, STAY)
    reports = list(reports_of(made))
    assert made.ended == "its time of 300 s is over"
    assert {round(b - a, 6) for a, b in zip(run.begun, run.begun[1:], strict=False)} == {2}
    assert len(run.begun) == 150
    assert 14 <= len(reports) <= 17


def test_a_catch_up_run_ends_once_nothing_more_comes(steady):
    run, made = steady(lambda now: min(int(now * 100) + 1, 701), STAY)
    list(reports_of(made))
    assert made.ended == "no record has arrived"
    assert run.position.offsets[0] == 701
    assert run.clock.now < 11


CATCH_UP = Continuous(trigger=2, time_limit=60, idle=0, compact_every=None, report_every=20)


def growing(clock: Clock, *names: str, rate: float = 1, until: float = 1e9, **script: Any) -> list[Script]:
    return [Script(clock, lambda now: int(min(now, until) * rate), name=name, **script) for name in names]


def catch_up(clock: Clock, *topics: Script, others_wait: Any = lambda: False) -> Any:
    return run_of(clock, topics, CATCH_UP, others_wait=others_wait)


def test_each_topic_commits_in_turn_and_all_records_are_reported():
    clock = Clock(10.0)
    topics = growing(clock, "a", "b", "c", until=30)
    made = catch_up(clock, *topics)
    reported = [number for number, _ in made.reports()]
    assert made.ended == "no record has arrived"
    assert [topic.position.offsets[0] for topic in topics] == [30, 30, 30]
    assert set(reported) == {0, 1, 2}
    assert topics[0].begun[:2] == [10, 13], "the others have had their turns"
    assert not any(topic.commits for topic in topics)
    assert all(len(topic.anew) >= len(topic.begun) for topic in topics), "each commit counts its own dead letters"


def test_round_begins_no_sooner_than_its_trigger_allows():
    clock = Clock(10.0)
    fast, quiet = *growing(clock, "fast", cost=0.1, until=20), *growing(clock, "quiet", rate=0)
    list(catch_up(clock, fast, quiet).reports())
    assert all(later - before >= 2 for before, later in pairwise(fast.begun))
    assert quiet.asked == [], "which has nothing new"


def test_run_reports_each_of_its_topics_in_intervals():
    clock = Clock(10.0)
    reported = [(number, clock.now) for number, _ in catch_up(clock, *growing(clock, "a", "b")).reports()]
    of_a = [moment for number, moment in reported if number == 0]
    assert len(of_a) == 2 + 1, "the last one at the end"
    assert all(later - before >= 20 for before, later in pairwise([10, *of_a[:2]]))


def test_run_that_catches_up_ends_after_its_time_or_for_others():
    clock = Clock(10.0)
    made = catch_up(clock, *growing(clock, "a"))
    list(made.reports())
    assert made.ended == "its time of 60 s is over"
    assert clock.now <= 10 + 60 + 3
    made = catch_up(clock, *growing(clock, "a"), others_wait=lambda: clock.now > 80)
    list(made.reports())
    assert made.ended == "another run is queued"
    assert 80 <= clock.now <= 83


def test_topic_that_fails_ends_the_run_after_reporting_commits():
    clock = Clock(10.0)
    (good,), (bad,) = growing(clock, "good"), growing(clock, "bad", fails_at=0)
    made = catch_up(clock, good, bad)
    assert [(number, report.commits) for number, report in made.reports()] == [(0, (11.0,))]
    assert made.ended == "topic bad can't go on"
    assert bad.said == ["Topic bad: A gate said no. Its next run reports more."]


def test_topic_with_a_stopped_table_ends_the_run():
    clock = Clock(10.0)
    (topic,) = growing(clock, "a")
    topic.errors["lake.b"] = KafkaLakeError("A gate said no.")
    made = catch_up(clock, topic)
    assert list(reports_of(made)) == [(11.0,)]
    assert made.ended == "tables of topic a can't go on"


def test_brokers_that_dont_answer_end_a_run_that_catches_up():
    clock = Clock(10.0)
    (topic,) = growing(clock, "a")
    made = catch_up(clock, topic)

    def gone(_: Any) -> Any:
        raise KafkaError("The brokers don't answer.")

    topic.connections.cluster.watermarks = gone
    assert list(made.reports()) == []
    assert topic.said == ["Topic a: The brokers don't answer. Its next run reports more."]


def test_stop_ends_the_run_with_a_report_of_each_topic():
    clock = Clock(10.0)
    made = catch_up(clock, *growing(clock, "a", "b"))
    reported = []
    for number, _ in made.reports():
        reported.append(number)
        made.stop.requested = True
    assert made.ended == "it was stopped"
    assert set(reported) == {0, 1}


def test_partitions_of_others_end_the_run_once_it_has_caught_up(steady):
    run, made = steady(lambda now: int(now) + 1)
    reports = reports_of(made)
    assert len(next(reports)) == 1
    run.partitions = 3
    (last,) = reports
    assert len(last) == 1
    assert made.ended == "the topic has partitions that are not this run's: 1, 2"
    assert run.position.offsets[0] == run.now.end[0]


def test_a_failure_leaves_what_no_report_has_told_of_to_the_run(steady):
    run, made = steady(lambda now: int(now * 100) + 1, fails_at=8)
    reports = reports_of(made)
    assert next(reports) == (1.0,)
    with pytest.raises(KafkaLakeError, match="no"):
        next(reports)
    assert run.report().commits == (3.0, 5.0, 7.0)


def test_a_wish_to_stop_is_followed_after_the_commit(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    reports = reports_of(made)
    next(reports)
    made.stop.requested = True
    assert list(reports) == [()]
    assert made.ended == "it was stopped"
    assert run.begun == [0.0]


def table_of(*history: tuple[Operation, dict[str, str]]) -> Any:
    """Return a table with a snapshot for each commit, the oldest first: what it did, and its summary."""
    summaries = [SimpleNamespace(operation=did, additional_properties=summary) for did, summary in history]
    snapshots = [
        SimpleNamespace(snapshot_id=n, parent_snapshot_id=n - 1 or None, summary=summary, sequence_number=0)
        for n, summary in enumerate(summaries, 1)
    ]
    metadata = SimpleNamespace(refs={"main": SimpleNamespace(snapshot_id=len(history))}, snapshots=snapshots)
    return SimpleNamespace(
        metadata=metadata,
        properties={},
        sort_order=lambda: SimpleNamespace(fields=()),
        current_snapshot=lambda: snapshots[-1],
    )


def test_compaction_comes_after_so_many_commits_and_its_failure_is_no_ones(steady):
    run, made = steady(lambda now: int(now * 100) + 1, replace(SETTINGS, time_limit=60, compact_every=10))
    ours = (Operation.APPEND, {POSITION: "{}"})
    held = table_of(ours, (Operation.REPLACE, {"deleted-data-files": "2"}), *[ours] * 4)
    held.sort_order, held.schema = lambda: SimpleNamespace(fields=()), Schema
    at: list[int] = []

    def compact(_: str) -> Any:
        at.append(len(run.begun))
        if len(at) == 2:
            raise RuntimeError("main moved")
        counts = {"rewritten_data_files_count": 10, "added_data_files_count": 1, "failed_data_files_count": 0}
        return SimpleNamespace(collect=lambda: [{**counts, "rewritten_bytes_count": 1000}])

    run.connections.catalog = SimpleNamespace(table=lambda _: held, call=lambda *_, **__: "CALL")
    run.connections.spark = lambda: SimpleNamespace(sql=compact)
    list(reports_of(made))
    assert at == [7, 17, 27], "the table's history had three before this run's first"
    assert run.said == [
        "10 files compacted to 1",
        "Table lake.pizzas was not compacted: main moved",
        "10 files compacted to 1",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_wish_and_the_second_an_interrupt(number):
    before = signal.getsignal(number)
    stop = Stop()
    with stop.by_signals():
        signal.raise_signal(number)
        with pytest.raises(StoppedError):
            stop.sleep(10)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_pauses_end_when_another_thread_wishes_so():
    stop = Stop()
    wish = threading.Timer(0.1, lambda: setattr(stop, "requested", True))
    wish.start()
    began = time.monotonic()
    with pytest.raises(StoppedError), stop.by_signals():
        stop.sleep(30)
    assert time.monotonic() - began < 5


def test_threads_take_no_signals():
    before = signal.getsignal(signal.SIGINT)
    seen: list[Any] = []

    def inside() -> None:
        with Stop().by_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


def test_failed_finish_costs_no_topic_its_report():
    clock = Clock(10.0)
    first, second = growing(clock, "a", "b", until=16)

    def finish() -> Any:
        raise KafkaError("The brokers don't answer.")

    first.finish = finish  # type: ignore[method-assign]
    made = catch_up(clock, first, second)
    assert sorted({number for number, _ in made.reports()}) == [0, 1]
    assert not first.commits
    assert not second.commits
    assert any("The brokers don't answer." in line for line in first.said)


def test_topic_that_was_never_due_is_asked_nothing_at_the_end():
    clock = Clock(10.0)
    (busy,), (quiet,) = growing(clock, "busy", until=16), growing(clock, "quiet", rate=0)
    quiet.finish = quiet.report = None  # type: ignore[method-assign,assignment]
    assert {number for number, _ in catch_up(clock, busy, quiet).reports()} == {0}


@pytest.mark.parametrize("catches_up", [True, False])
def test_commits_before_all_tables_stop_are_reported(catches_up):
    clock = Clock(10.0)
    (topic,) = growing(clock, "a")
    commit = topic.next_commit

    def stop() -> Any:
        if clock.now < 16:
            return commit()
        topic.errors, topic.has_running = {"lake.a": KafkaLakeError("No.")}, False
        return None

    topic.next_commit = stop  # type: ignore[method-assign]
    made = catch_up(clock, topic) if catches_up else run_of(clock, [topic], SETTINGS)
    reported = [report.commits for _, report in made.reports()]
    assert [at for commits in reported for at in commits] == [at + topic.cost for at in topic.begun]
    assert made.ended == "tables of topic a can't go on"


def test_run_lasts_to_its_end_though_no_other_commit_fits(steady):
    settings = replace(SETTINGS, trigger=2000, report_every=3600, idle=3600)
    run, made = steady(lambda now: int(now * 100) + 1, settings)
    list(reports_of(made))
    assert (run.begun, made.ended) == ([0.0, 2000.0], "its time of 3600 s is over")
    assert run.clock.now >= 3600


def test_stop_request_ends_the_reading_before_a_new_partition():
    clock = Clock()
    topic = Script(clock, lambda now: 100, partitions=3)
    made = run_of(clock, [topic], SETTINGS)

    def commit() -> Any:
        topic.begun.append(clock.now)
        made.stop.requested = len(topic.begun) >= 3
        return object() if len(topic.begun) < 50 else None

    topic.next_commit = commit  # type: ignore[method-assign]
    list(made.reports())
    assert (len(topic.begun), made.ended) == (3, "it was stopped")
