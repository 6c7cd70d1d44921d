"""When a run over several topics commits, reports and ends: by a clock that the test moves."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.errors import KafkaError, PublishRefusedError
from kafka_lake.ingest.continuous.run import Round, Stop
from kafka_lake.spec.continuous import Continuous

SETTINGS = Continuous(trigger=2, time_limit=60, idle=0, compact_every=None, report_every=20)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Topic:
    """A topic that grows by a rate for some time, and what commits it: both on the test's clock."""

    name: str
    clock: Clock
    rate: float = 1.0
    until: float = 1e9
    cost: float = 1.0
    error: Exception | None = None
    offset: int = 0
    commits: list[Any] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)

    @property
    def context(self) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(topic=self.name), observer=SimpleNamespace(warn=self.said.append))

    @property
    def topic(self) -> "Topic":
        return self

    @property
    def position(self) -> Position:
        return Position(TopicIdentity("c", "t", self.name), {0: self.offset})

    @property
    def ends(self) -> Watermarks:
        end = int(min(self.clock.now, self.until) * self.rate)
        return Watermarks(TopicIdentity("c", "t", self.name), {0: 0}, {0: end})

    def poll(self) -> Watermarks:
        return self.ends

    def forget_failed(self) -> None:
        pass

    def next_commit(self) -> None:
        self.begun.append(self.clock.now)
        if self.error is not None:
            raise self.error
        self.offset = self.ends.end[0]
        self.clock.now += self.cost
        self.commits.append(self.offset)

    def report(self) -> Any:
        commits, self.commits = self.commits, []
        return SimpleNamespace(commits=commits)

    finish = report


class Naps(Stop):
    """Pauses that only move the clock."""

    clock: Clock

    def sleep(self, seconds: float) -> None:
        super().sleep(0)
        self.clock.now += seconds


def round_of(clock: Clock, *topics: Topic, others_wait: Any = lambda: False, settings: Continuous = SETTINGS) -> Any:
    stop = Naps()
    stop.clock = clock
    by_name = {item.name: item for item in topics}
    runners: Any = by_name
    return Round(
        runners,
        settings,
        watermarks=lambda names: {name: by_name[name].ends for name in names},
        stop=stop,
        others_wait=others_wait,
        clock=clock,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock(10.0)


def test_each_topic_commits_in_turn_and_all_records_are_reported(clock: Clock) -> None:
    topics = [Topic(name, clock, until=30) for name in ("a", "b", "c")]
    made = round_of(clock, *topics)
    reported = [(key, report.commits) for key, report in made.reports()]
    assert made.ended == "no record has arrived"
    for topic in topics:
        assert topic.offset == 30
        assert [commits for key, commits in reported if key == topic.name][-1][-1] == 30
    assert topics[0].begun[:2] == [10, 13], "the others have had their turns"


def test_round_begins_no_sooner_than_its_trigger_allows(clock: Clock) -> None:
    fast, quiet = Topic("fast", clock, cost=0.1, until=20), Topic("quiet", clock, rate=0)
    list(round_of(clock, fast, quiet).reports())
    assert all(later - before >= 2 for before, later in pairwise(fast.begun))
    assert quiet.begun == [], "which has nothing new"


def test_round_reports_topics_in_intervals(clock: Clock) -> None:
    topics = [Topic(name, clock) for name in ("a", "b")]
    reported = [(key, clock.now) for key, _ in round_of(clock, *topics).reports()]
    of_a = [moment for key, moment in reported if key == "a"]
    assert len(of_a) == 2 + 1, "the last one at the end"
    assert all(later - before >= 20 for before, later in pairwise([10, *of_a[:2]]))


def test_round_ends_when_its_time_is_over_or_others_wait(clock: Clock) -> None:
    made = round_of(clock, Topic("a", clock))
    list(made.reports())
    assert made.ended == "its time of 60 s is over"
    assert clock.now <= 10 + 60 + 3
    made = round_of(clock, Topic("a", clock), others_wait=lambda: clock.now > 80)
    list(made.reports())
    assert made.ended == "another run is queued"
    assert clock.now <= 84


def test_topic_that_fails_ends_the_round_after_reporting_commits(clock: Clock) -> None:
    good, bad = Topic("good", clock), Topic("bad", clock, error=PublishRefusedError("Refused."))
    made = round_of(clock, good, bad)
    reported = [(key, report.commits) for key, report in made.reports()]
    assert reported == [("good", [10])]
    assert made.ended == "topic bad can't go on"
    assert bad.said == ["Topic bad: Refused. Its next run reports more."]


def test_brokers_that_dont_answer_end_the_round(clock: Clock) -> None:
    def gone(_: Any) -> Any:
        raise KafkaError("The brokers don't answer.")

    made = replace(round_of(clock, Topic("a", clock)), watermarks=gone)
    assert list(made.reports()) == []
    assert made.ended == "The brokers don't answer."


def test_stop_ends_the_round_with_its_report(clock: Clock) -> None:
    made = round_of(clock, Topic("a", clock), Topic("b", clock))
    reported = []
    for key, report in made.reports():
        reported.append((key, report.commits))
        made.stop.requested = True
    assert made.ended == "it was stopped"
    assert {key for key, _ in reported} == {"a", "b"}
