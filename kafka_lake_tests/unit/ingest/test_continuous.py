"""When a continuous run looks, commits, reports and ends: by a clock that the tests move."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from sqlalchemy.exc import OperationalError

from kafka_lake.catalog.positions import POSITION
from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.errors import KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.continuous.run import ContinuousRun, Stop
from kafka_lake.ingest.continuous.schedule import Times, ending, has_news, next_poll, reached, report_due
from kafka_lake.runtime.context import Context, Observer, RetryPolicy, StoppedError
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding

ME = TopicIdentity("c", "t", "pizzas")
SETTINGS = Continuous(trigger=2, time_limit=3600, idle=300, compact_every=None, report_every=30)
moments = st.floats(0, 1e5)


@given(moments, moments)
def test_no_commit_begins_before_its_time_and_no_topic_is_looked_at_all_the_time(looked, committed):
    at = next_poll(SETTINGS, Times(0, 0, polled=looked, committed=committed))
    assert at >= committed + SETTINGS.trigger
    assert at > looked
    assert at <= max(committed + SETTINGS.trigger, looked + SETTINGS.trigger)


def test_a_run_ends_by_its_time_or_by_idleness():
    assert ending(SETTINGS, Times(0, 3599), 3599.9, news=True) is None
    assert ending(SETTINGS, Times(0, 3599), 3600, news=True) == "its time of 3600 s is over"
    assert ending(SETTINGS, Times(0, 700), 999.9, news=False) is None
    assert ending(SETTINGS, Times(0, 700), 1000, news=False) == "no record arrived for 300 s"
    assert ending(SETTINGS, Times(0, 700), 1000, news=True) is None, "it came just now"


def test_reports_come_at_once_and_then_in_intervals():
    assert report_due(SETTINGS, Times(0, 0), 1, commits=1)
    assert not report_due(SETTINGS, Times(0, 0), 1000, commits=0)
    assert not report_due(SETTINGS, Times(0, 0, reported=10), 39.9, commits=9)
    assert report_due(SETTINGS, Times(0, 0, reported=10), 40, commits=9)


def test_slow_reporting_is_done_less_often():
    slow = Times(0, 0, reported=0, reporting=5)
    assert not report_due(SETTINGS, slow, 99, commits=9)
    assert report_due(SETTINGS, slow, 100, commits=9)


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
    """A run over a topic that grows by what the test says, on the test's clock; it counts what is done when."""

    clock: Clock
    arrivals: Callable[[float], int]
    cost: float = 1.0
    partitions: int = 1
    fails_at: float = float("inf")
    position: Position | None = None
    commits: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    anew: list[float] = field(default_factory=list)
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
            TopicTable("pizzas", "lake", "pizzas"), self.connections, "run", observer, decoding=SparkDecoding()
        )

    @property
    def topic(self) -> "Script":
        return self

    def poll(self) -> Watermarks:
        self.looks.append(self.clock.now)
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

    def report(self) -> tuple[float, ...]:
        answered, self.commits = tuple(self.commits), []
        return answered

    finish = report


@pytest.fixture
def steady():
    def make(arrivals: Callable[[float], int], settings: Continuous = SETTINGS, **script: Any) -> tuple[Script, Any]:
        clock = Clock()
        run: Any = Script(clock, arrivals, **script)
        stop = Stop()
        made = ContinuousRun(run, settings, {0}, stop, clock=clock)

        def sleep(seconds: float) -> None:
            if stop.requested:
                raise StoppedError
            clock.now += seconds

        stop.sleep = sleep  # type: ignore[method-assign]
        return run, made

    return make


def test_records_that_never_end_are_committed_once_per_trigger_until_the_time_is_over(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    reports = list(made.reports())
    assert made.ended == "its time of 3600 s is over"
    gaps = {round(b - a, 6) for a, b in zip(run.begun, run.begun[1:], strict=False)}
    assert gaps == {2}
    answered = [item for report in reports for item in report]
    assert len(answered) == len(set(answered)) == 1800
    assert 110 <= len(reports) <= 121, "every 30 s and at the end"
    assert reports[0] == (1.0,), "the first commit is told of at once"


def test_a_commit_that_takes_longer_than_the_trigger_is_followed_by_the_next(steady):
    run, made = steady(lambda now: int(now * 100) + 1, cost=5)
    list(made.reports())
    assert {round(b - a, 6) for a, b in zip(run.begun, run.begun[1:], strict=False)} == {5}


def test_a_resting_topic_is_looked_at_often_and_its_table_seldom_until_the_run_ends(steady):
    run, made = steady(lambda now: 5)
    (first, last) = list(made.reports())
    assert made.ended == "no record arrived for 300 s"
    assert (len(first), len(last)) == (1, 0)
    assert 590 <= len(run.looks) <= 610
    assert 28 <= len(run.asked) <= 32


def test_an_empty_topic_is_a_resting_one(steady):
    _, made = steady(lambda now: 0)
    assert list(made.reports()) == [()]
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
    list(made.reports())
    assert len(run.begun) == 1
    assert made.ended == "its time of 3600 s is over"


def test_a_burst_after_a_rest_waits_for_the_next_look_only(steady):
    run, made = steady(lambda now: 1 if now < 100.2 else 1000)
    list(made.reports())
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
    list(made.reports())
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
    list(made.reports())
    assert made.ended == "its time of 3600 s is over"
    resumed = [begun for begun in run.begun if begun >= 400]
    assert resumed[0] <= 430, "no later than the longest pause"
    assert any("The run continues in" in line for line in run.said)


def test_what_has_not_passed_when_the_time_is_over_fails_the_run(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    run.next_commit = lambda *_: (_ for _ in ()).throw(LOCKED)
    with pytest.raises(OperationalError):
        list(made.reports())
    assert 3600 <= run.clock.now < 3603


def test_what_does_not_pass_ends_the_run_at_once(steady):
    run, made = steady(lambda now: int(now * 100) + 1, fails_at=50)
    with pytest.raises(KafkaLakeError, match="A gate said no"):
        list(made.reports())
    assert run.clock.now < 60


def test_a_run_that_owes_what_it_was_asked_for_gives_up_as_any_run(steady):
    run, made = steady(lambda now: 5, STAY)
    made.target = Watermarks(ME, {0: 0}, {0: 5})
    run.next_commit = lambda *_: (_ for _ in ()).throw(LOCKED)
    with pytest.raises(OperationalError):
        list(made.reports())
    assert run.clock.now < 1


def test_a_catalog_that_does_not_answer_when_compaction_asks_is_no_failure(steady):
    run, made = steady(lambda now: int(now * 100) + 1, replace(SETTINGS, time_limit=20, compact_every=1))

    def refuse(_: Any) -> Any:
        raise ServiceUnavailableError("503")

    run.connections.catalog.table = refuse
    list(made.reports())
    assert made.ended == "its time of 20 s is over"
    assert any("was not compacted: 503" in line for line in run.said)


def test_a_run_that_leaves_nothing_to_do_does_not_stay(steady):
    run, made = steady(lambda now: 5, STAY)
    assert list(made.reports()) == [(1.0,)], "told of once, at the end"
    assert made.ended == "no record has arrived"
    assert run.clock.now == 1.0


def test_a_catch_up_run_commits_at_its_interval_until_its_time_is_over(steady):
    run, made = steady(lambda now: int(now * 100) + 1, STAY)
    reports = list(made.reports())
    assert made.ended == "its time of 300 s is over"
    assert {round(b - a, 6) for a, b in zip(run.begun, run.begun[1:], strict=False)} == {2}
    assert len(run.begun) == 150
    assert 14 <= len(reports) <= 17


def test_a_catch_up_run_ends_once_nothing_more_comes(steady):
    run, made = steady(lambda now: min(int(now * 100) + 1, 701), STAY)
    list(made.reports())
    assert made.ended == "no record has arrived"
    assert run.position.offsets[0] == 701
    assert run.clock.now < 11


def test_a_run_makes_way_for_another_within_a_second_but_not_before_it_has_done_what_it_was_asked_for(steady):
    run, made = steady(lambda now: int(now * 100) + 1, replace(STAY, trigger=10))
    made.others_wait = lambda: run.clock.now >= 33.5
    made.target = Watermarks(ME, {0: 0}, {0: 1})
    list(made.reports())
    assert made.ended == "another run is queued"
    assert 33.5 <= run.clock.now <= 34.5
    run, made = steady(lambda now: int(now * 100) + 1, STAY)
    made.others_wait = lambda: True
    made.target = Watermarks(ME, {0: 0}, {0: 1001})
    list(made.reports())
    assert made.ended == "another run is queued"
    assert run.position.offsets[0] >= 1001
    assert len(run.begun) == 6
    assert run.anew == [], "it is one run until then"


def test_what_a_run_was_asked_for_is_done_whatever_time_it_takes(steady):
    run, made = steady(lambda now: int(now * 100) + 1, replace(STAY, time_limit=4))
    made.target = Watermarks(ME, {0: 0}, {0: 1001})
    list(made.reports())
    assert made.ended == "its time of 4 s is over"
    assert run.anew == []
    assert 1001 <= run.position.offsets[0] <= 1201


def test_a_table_is_looked_at_once_even_if_its_topic_has_no_news(steady):
    run, made = steady(lambda now: 5, STAY)
    run.position = Position(ME, {0: 5})
    made.target = Watermarks(ME, {0: 0}, {0: 5})
    made.others_wait = lambda: True
    assert list(made.reports()) == [()]
    assert run.asked == [0.0]


def test_nothing_is_owed_any_more_once_the_plan_has_no_more_to_do(steady):
    # Kafka's end has moved back, or a partition is new, empty, and not in the position.
    run, made = steady(lambda now: 5, STAY, fails_at=100)
    made.target = Watermarks(ME, {0: 0}, {0: 50})
    list(made.reports())
    assert made.ended == "no record has arrived"
    assert len(run.begun) == 1


def test_what_was_asked_for_is_reached_by_offsets_of_the_same_topic_only():
    target = Watermarks(ME, {0: 0, 1: 0}, {0: 5, 1: 7})
    assert not reached(None, target, {0, 1})
    assert not reached(Position(ME, {0: 5, 1: 6}), target, {0, 1})
    assert not reached(Position(ME, {0: 5}), target, {0, 1})
    assert reached(Position(ME, {0: 5, 1: 6}), target, {0}), "the other partition is another run's"
    assert reached(Position(ME, {0: 9, 1: 7}), target, {0, 1})
    assert reached(Position(TopicIdentity("c", "other", "pizzas"), {0: 1}), target, {0, 1}), "it was recreated since"


def test_partitions_of_others_end_the_run_once_it_has_caught_up(steady):
    run, made = steady(lambda now: int(now) + 1)
    reports = made.reports()
    assert len(next(reports)) == 1
    run.partitions = 3
    (last,) = reports
    assert len(last) == 1
    assert made.ended == "the topic has partitions that are not this run's: 1, 2"
    assert run.position.offsets[0] == run.now.end[0]


def test_a_failure_leaves_what_no_report_has_told_of_to_the_run(steady):
    run, made = steady(lambda now: int(now * 100) + 1, fails_at=8)
    reports = made.reports()
    assert next(reports) == (1.0,)
    with pytest.raises(KafkaLakeError, match="no"):
        next(reports)
    assert run.report() == (3.0, 5.0, 7.0)


def test_a_wish_to_stop_is_followed_after_the_commit(steady):
    run, made = steady(lambda now: int(now * 100) + 1)
    reports = made.reports()
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
    list(made.reports())
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
