"""Continuous: one run that looks and commits again and again, until its time is over or nothing comes any more.

When to do what is decided by pure functions of the settings and of what happened when; `Steadily` acts on them. Each
commit is one of `pipeline.Run`'s, with all its gates: nothing here knows how a commit is made.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kafka_lake.common.errors import ConfigurationError, PublishRefusedError
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.ingest.pipeline import Run, catching_up, reading
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.retry import headline, is_transient
from kafka_lake.lake.maintenance.compact import commits_since_compaction, compact
from kafka_lake.lake.positions import TableState

_LOOK_SECONDS = 0.5
# Others may move a table back while its topic rests: then there is work, and the topic doesn't tell.
_GLANCE_SECONDS = 10.0
# For whether others wait, which is a question to Dagster's database.
_GLIMPSE_SECONDS = 1.0
_REPORTING_SHARE = 0.05
_NAP_SECONDS = 0.1
_DOUBLINGS = 10


@dataclass(frozen=True)
class Continuous:
    """How a continuous run goes about it. All times are in seconds.

    Args:
        trigger: At most one commit is begun in this time.
        time_limit: No commit is begun after this time; the sensor starts another run as soon as there is work.
        idle: The run ends when nothing has come for so long; with 0 as soon as a commit leaves nothing to do.
        compact_every: After so many commits small files are compacted; None for never.
        report_every: Materializations and check results are reported at most once in this time.

    Raises:
        ConfigurationError: If a time is too short, or longer than the run.
    """

    trigger: float = 2.0
    time_limit: float = 3600.0
    idle: float = 300.0
    compact_every: int | None = 100
    report_every: float = 30.0

    def __post_init__(self) -> None:
        if self.trigger <= 0:
            raise ConfigurationError("trigger: must be more than nothing.", "Write for example 2s.")
        if self.time_limit < self.trigger:
            raise ConfigurationError(
                f"for: {self.time_limit:g} s is shorter than the trigger, {self.trigger:g} s.", "Write for example 1h."
            )
        if self.report_every < self.trigger:
            raise ConfigurationError(
                f"report_every: {self.report_every:g} s is shorter than the trigger, {self.trigger:g} s.",
                "Write for example 30s.",
            )


@dataclass(frozen=True)
class Times:
    """When a run did what last, in seconds of one clock; minus infinity for never.

    Args:
        began: When the run began.
        fed: When it last was done with something new, or began.
        looked: When it last looked at the topic.
        asked: When it last looked at the table.
        committed: When it last began a commit.
        reported: When it last reported, or began.
        reporting: How long reporting took then.
    """

    began: float
    fed: float
    looked: float = float("-inf")
    asked: float = float("-inf")
    committed: float = float("-inf")
    reported: float = float("-inf")
    reporting: float = 0.0


def next_look(settings: Continuous, at: Times) -> float:
    """Return when to look at the topic next: not before another commit may begin, and not all the time."""
    return max(at.committed + settings.trigger, at.looked + min(settings.trigger, _LOOK_SECONDS))


def ending(settings: Continuous, at: Times, now: float, news: bool) -> str | None:
    """Return why the run ends now, None if it goes on: what has come by then is taken, unless the time is over."""
    if now - at.began >= settings.time_limit:
        return f"its time of {settings.time_limit:g} s is over"
    if not news and now - at.fed >= settings.idle:
        return f"nothing came for {settings.idle:g} s" if settings.idle else "nothing more has come"
    return None


def reached(position: Position | None, target: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether a table holds all that a topic held at some time, or the topic is another one since.

    Args:
        position: The table's; None if it has none.
        target: The topic's watermarks at that time.
        partitions: Only these Kafka partitions.
    """
    if position is None:
        return False
    ends = {p: target.end[p] for p in partitions if p in target.end}
    return not position.identity.same_as(target.identity) or all(
        position.offsets.get(p, -1) >= end for p, end in ends.items()
    )


def report_due(settings: Continuous, at: Times, now: float, commits: int) -> bool:
    """Return whether to report now: at the first commit, then in intervals, longer ones where reporting is slow."""
    pause = max(settings.report_every, at.reporting / _REPORTING_SHARE)
    return commits > 0 and now - at.reported >= pause


def has_news(position: Position | None, now: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether the topic has anything that a table at this position lacks, or isn't what it was.

    Args:
        position: The table's; None if it has none.
        now: The topic's watermarks.
        partitions: Only these Kafka partitions.
    """
    offsets = position.offsets if position else {}
    if (position and not position.identity.same_as(now.identity)) or not offsets.keys() <= now.end.keys():
        return True
    return any(now.end[p] != offsets.get(p, now.low[p]) for p in partitions if p in now.end)


class StoppedError(Exception):
    """A pause ended because the run was asked to stop."""


@dataclass
class Stop:
    """The wish that a run ends as soon as its commit is done: set by anyone, looked at by the run."""

    requested: bool = False

    def sleep(self, seconds: float) -> None:
        """Pause.

        Raises:
            StoppedError: As soon as the wish is there.
        """
        until = time.monotonic() + seconds
        while not self.requested:
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _NAP_SECONDS))
        raise StoppedError

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM for the wish meanwhile; a second one is a KeyboardInterrupt, and waits for nothing.

        Half a commit is worth nothing: a write that is interrupted goes on in Spark, and may recreate its branch
        after that was dropped.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def wish(*_: Any) -> None:
            if self.requested:
                raise KeyboardInterrupt
            self.requested = True

        before = {each: signal.signal(each, wish) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


@dataclass
class Steadily:
    """A continuous run.

    Args:
        run: Does the commits; its pauses end with the wish to stop.
        settings: When it does them.
        partitions: The Kafka partitions that it reads. A topic that has others too is brought up to its present end
            and left at that, so that a run over all partitions can follow.
        stop: The wish to stop.
        at_least: What the topic held at some time: before the table has it the run ends for no other reason than the
            wish to stop; after that, each commit stands for a run of its own. None for a run that owes nothing.
        waited_for: Tells whether others wait for the run's place; it ends then.
        clock: Seconds that only go up.
        ended: Why the run ended, once it has.
    """

    run: Run
    settings: Continuous
    partitions: Collection[int]
    stop: Stop = field(default_factory=Stop)
    at_least: Watermarks | None = None
    waited_for: Callable[[], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    ended: str | None = field(init=False, default=None)
    _at: Times = field(init=False)
    _agenda: Callable[[TableState | None], Plan | None] = field(init=False)
    _since_compaction: int | None = field(init=False, default=None)
    _exhausted: bool = field(init=False, default=False)
    _failures: int = field(init=False, default=0)
    _failure: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        now = self.clock()
        self._at = Times(now, now)
        self._agenda = catching_up(self.run, self.partitions)
        self.run.sleep = self.stop.sleep

    def reports(self) -> Iterator[RunReport]:
        """Run, and give a report of what was done since the one before, in intervals and at the end.

        What passes is waited for, until the run's time is over.

        Raises:
            GateFailedError: If a gate refused a commit; commits before it stay, and those that no report has told of
                yet are the run's to report.
            KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
        """
        while self.ended is None:
            with self.stop.by_signals():
                try:
                    try:
                        self._turn()
                    except Exception as error:
                        self._bear(error)
                    else:
                        if self.ended and self._failure and self._has_news():
                            # The time was over before another attempt.
                            raise self._failure
                        self._failures, self._failure = 0, None
                except StoppedError:
                    self.ended = "it was asked to stop"
            now = self.clock()
            if self.ended is None and report_due(self.settings, self._at, now, len(self.run.commits)):
                yield self.run.report()
                done = self.clock()
                self._at = replace(self._at, reported=done, reporting=done - now)
        with self.stop.by_signals():
            report = self.run.finish()
        yield report

    def _bear(self, error: Exception) -> None:
        """Wait for what passes, and go on then: a run that goes on has time, and its commits are done.

        Raises:
            Exception: The error, if it doesn't pass, or hasn't when the run's time is over, or if the run still owes
                what it was asked for: it has been tried as often as any run tries it.
            StoppedError: As soon as the wish is there.
        """
        passes = is_transient(error) or isinstance(error, PublishRefusedError)
        left = self._at.began + self.settings.time_limit - self.clock()
        if not passes or self._owes() or left <= 0:
            raise error
        if self.waited_for is not None and self.waited_for():
            self.ended = "another run waits for its place"
            return
        policy = self.run.systems.retry
        bound = min(policy.max_seconds, policy.initial_seconds * 2 ** min(self._failures, _DOUBLINGS), left)
        self._failures, self._failure = self._failures + 1, error
        pause = random.uniform(bound / 2, bound)
        self.run.say(f"Topic {self.run.spec.topic}: {headline(error)} The run goes on in {pause:.1f} s.")
        self.stop.sleep(pause)

    def _turn(self) -> None:
        others_wait = self._pause()
        now = self.clock()
        self.run.look()
        self._at = replace(self._at, looked=now)
        news = self._has_news()
        if not self._owes():
            self.ended = (
                "another run waits for its place" if others_wait else ending(self.settings, self._at, now, news)
            )
        if self.ended:
            return
        agenda, records = self._agenda, reading(self.run)
        if others := sorted(set(self.run.now.partitions) - set(self.partitions)):
            while self._commit(agenda, records):
                pass
            self.ended = f"the topic has partitions that are not this run's: {', '.join(map(str, others))}"
            return
        if not news and now - self._at.asked < _GLANCE_SECONDS:
            return
        self._at = replace(self._at, asked=now)
        if self._commit(agenda, records):
            self._at = replace(self._at, committed=now)
            news = True
            self._compact()
        if news:
            # Also if another run was faster: what counts is that something came.
            self._at = replace(self._at, fed=self.clock())
        if not self.settings.idle and not self._owes():
            self.run.look()
            self.ended = None if self._has_news() else ending(self.settings, self._at, self.clock(), news=False)

    def _pause(self) -> bool:
        """Wait until it is time for a look, and no longer than others wait for the run's place; tell whether they do.

        Raises:
            StoppedError: As soon as the wish is there.
        """
        self.stop.sleep(0)
        due = next_look(self.settings, self._at)
        while not (others_wait := self.waited_for is not None and not self._owes() and self.waited_for()):
            left = due - self.clock()
            if left <= 0:
                break
            self.stop.sleep(left if self.waited_for is None else min(left, _GLIMPSE_SECONDS))
        return others_wait

    def _has_news(self) -> bool:
        return has_news(self.run.position, self.run.now, self.partitions)

    def _owes(self) -> bool:
        # What the plan doesn't ask for, as Kafka's end has moved back maybe, isn't owed.
        if self.at_least is None or self._exhausted:
            return False
        # The table is looked at once in any case: what a dead run left is settled, and a table comes into being.
        untouched = self._at.asked == float("-inf")
        return untouched or not reached(self.run.position, self.at_least, self.partitions)

    def _commit(self, agenda: Callable[[TableState | None], Plan | None], records: Callable[[Plan], Any]) -> bool:
        if self.at_least is not None and not self._owes():
            self.run.count_anew()
        with self.run.turn(look=True):
            done = self.run.once(agenda, records) is not None
        self._exhausted = not done
        return done

    def _compact(self) -> None:
        if self.settings.compact_every is None:
            return
        spec, systems = self.run.spec, self.run.systems
        try:
            if self._since_compaction is None:
                self._since_compaction = commits_since_compaction(systems.catalog.table(spec.identifier))
            else:
                self._since_compaction += 1
            if self._since_compaction < self.settings.compact_every:
                return
            self._since_compaction = 0
            before, after = compact(systems.spark(), systems.catalog, spec.identifier)
            self.run.on_step(f"{before} files compacted to {after}")
        except Exception as error:
            # The files are as they were, only more of them; others may have changed the table meanwhile.
            reason = (str(error) or repr(error)).splitlines()[0]
            self.run.say(f"Table {'.'.join(spec.identifier)} was not compacted: {reason}")
