"""A continuous run over one topic: it polls and commits until its time is over or no more records arrive.

`schedule` decides when to poll, commit and report; the runner makes the commits.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from kafka_lake.common.offsets import Watermarks
from kafka_lake.error_classification import headline, is_transient
from kafka_lake.errors import KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.continuous.schedule import (
    REPORTING_SHARE,
    Times,
    ending,
    has_news,
    next_poll,
    reached,
    report_due,
)
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_runner import AnyRunner, runner_of
from kafka_lake.maintenance.policy import commits_since_compaction
from kafka_lake.maintenance.procedures import compact
from kafka_lake.runtime.context import Context, StoppedError
from kafka_lake.spec.continuous import Continuous

_NAP_SECONDS = 0.1


@dataclass
class Stop:
    """A request that a run ends after its current commit."""

    requested: bool = False

    def sleep(self, seconds: float) -> None:
        """Pause; raises `StoppedError` once a stop is requested."""
        until = time.monotonic() + seconds
        while not self.requested:
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _NAP_SECONDS))
        raise StoppedError

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Treat SIGINT and SIGTERM as a stop request during a block; the second one is a KeyboardInterrupt.

        An interrupted write would go on in Spark, and might recreate its branch after that was dropped.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def request_stop(*_: Any) -> None:
            if self.requested:
                raise KeyboardInterrupt
            self.requested = True

        before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# Another program may roll a table back: then there is work, though the topic has no new records.
TABLE_POLL_SECONDS = 10.0
# Interval of `others_wait`, which queries Dagster's database.
_QUEUE_POLL_SECONDS = 1.0
_DOUBLINGS = 10


@dataclass
class ContinuousRun:
    """A continuous run; `continuous_run` makes one.

    Args:
        partitions: The Kafka partitions to read. If the topic has more, the run catches up and ends, so that a run over
            all partitions can follow.
        target: Watermarks that the table must reach before the run ends for any reason but a stop request. After that,
            the limit of dead letters holds for each commit. None for no target.
        others_wait: Whether another run waits for this run's place; this run ends then.
    """

    runner: AnyRunner
    settings: Continuous
    partitions: Collection[int]
    stop: Stop = field(default_factory=Stop)
    target: Watermarks | None = None
    others_wait: Callable[[], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    ended: str | None = field(init=False, default=None)
    _at: Times = field(init=False)
    _since_compaction: int | None = field(init=False, default=None)
    _exhausted: bool = field(init=False, default=False)
    _failures: int = field(init=False, default=0)
    _failure: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        now = self.clock()
        self._at = Times(now, now)

    def reports(self) -> Iterator[RunReport]:
        """Run, and yield a report of the new commits in intervals and at the end.

        Temporary errors are retried until the run's time is over.
        """
        while self.ended is None:
            with self.stop.by_signals():
                try:
                    try:
                        self._poll_and_commit()
                    except Exception as error:
                        self._wait_out(error)
                    else:
                        if self.ended and self._failure and self._has_news():
                            # The time is over before another attempt.
                            raise self._failure
                        self._failures, self._failure = 0, None
                except StoppedError:
                    self.ended = "it was stopped"
            now = self.clock()
            if self.ended is None and report_due(self.settings, self._at, now, len(self.runner.commits)):
                yield self.runner.report()
                done = self.clock()
                self._at = replace(self._at, reported=done, reporting=done - now)
        with self.stop.by_signals():
            report = self.runner.finish()
        yield report
        self.runner.raise_errors(report)

    def _wait_out(self, error: Exception) -> None:
        """Pause after a temporary error; raise any other one."""
        is_temporary = is_transient(error) or isinstance(error, PublishRefusedError)
        left = self._at.began + self.settings.time_limit - self.clock()
        if not is_temporary or self._has_target_left() or left <= 0:
            raise error
        if self.others_wait is not None and self.others_wait():
            self.ended = "another run is queued"
            return
        context = self.runner.context
        policy = context.connections.retry
        bound = min(policy.max_seconds, policy.initial_seconds * 2 ** min(self._failures, _DOUBLINGS), left)
        self._failures, self._failure = self._failures + 1, error
        pause = random.uniform(bound / 2, bound)
        context.observer.warn(f"Topic {context.spec.topic}: {headline(error)} The run continues in {pause:.1f} s.")
        self.stop.sleep(pause)

    def _poll_and_commit(self) -> None:
        others_wait = self._pause()
        now = self.clock()
        watermarks = self.runner.topic.poll()
        self._at = replace(self._at, polled=now)
        news = self._has_news()
        if not self._has_target_left():
            self.ended = "another run is queued" if others_wait else ending(self.settings, self._at, now, news)
        if self.ended:
            return
        if others := sorted(set(watermarks.partitions) - set(self.partitions)):
            while self._commit():
                pass
            self.ended = f"the topic has partitions that are not this run's: {', '.join(map(str, others))}"
            return
        if not news and now - self._at.planned < TABLE_POLL_SECONDS:
            return
        self._at = replace(self._at, planned=now)
        if self._commit():
            self._at = replace(self._at, committed=now)
            news = True
            self._compact()
        if news:
            # Even if another run committed the records first.
            self._at = replace(self._at, fed=self.clock())
        if not self.settings.idle and not self._has_target_left():
            self.runner.topic.poll()
            self.ended = None if self._has_news() else ending(self.settings, self._at, self.clock(), news=False)

    def _pause(self) -> bool:
        """Wait for the next poll; return whether another run waits for this run's place."""
        self.stop.sleep(0)
        due = next_poll(self.settings, self._at)
        while not (waited_for := self.others_wait is not None and not self._has_target_left() and self.others_wait()):
            left = due - self.clock()
            if left <= 0:
                break
            self.stop.sleep(left if self.others_wait is None else min(left, _QUEUE_POLL_SECONDS))
        return waited_for

    def _has_news(self) -> bool:
        return has_news(self.runner.position, self.runner.topic.now, self.partitions)

    def _has_target_left(self) -> bool:
        # After a commit that found nothing to do, the target is reached, even if the log was cut off.
        if self.target is None or self._exhausted:
            return False
        # Plan at least once: it creates the table, and reconciles dead letters of a killed run.
        is_unplanned = self._at.planned == float("-inf")
        return is_unplanned or not reached(self.runner.position, self.target, self.partitions)

    def _commit(self) -> bool:
        if self.target is not None and not self._has_target_left():
            self.runner.forget_failed()
        done = self.runner.next_commit() is not None
        self._exhausted = not done
        return done

    def _compact(self) -> None:
        if self.settings.compact_every is None:
            return
        context = self.runner.context
        spec, connections = context.spec, context.connections
        try:
            if self._since_compaction is None:
                self._since_compaction = commits_since_compaction(connections.catalog.table(spec.identifier))
            else:
                self._since_compaction += 1
            if self._since_compaction < self.settings.compact_every:
                return
            self._since_compaction = 0
            done = compact(connections.spark(), connections.catalog, spec.identifier)
            context.observer.step_done(f"{done.before} files compacted to {done.after}")
        except Exception as error:
            # Small files stay; another writer may have changed the table meanwhile.
            reason = (str(error) or repr(error)).splitlines()[0]
            context.observer.warn(f"Table {context.table_name} was not compacted: {reason}")


def continuous_run(
    context: Context,
    settings: Continuous,
    partitions: Collection[int] | None = None,
    catch_up: bool = False,
    others_wait: Callable[[], bool] | None = None,
) -> ContinuousRun:
    """Return a continuous run over a topic."""
    stop = Stop()
    context = replace(context, sleep=stop.sleep)
    topic = TopicEnds(context)
    now = topic.now
    chosen = frozenset(now.partitions) if partitions is None else partitions
    return ContinuousRun(
        runner=runner_of(context, lambda table: Append(table, chosen), topic),
        settings=settings,
        partitions=chosen,
        stop=stop,
        target=now if catch_up else None,
        others_wait=others_wait,
    )


K = TypeVar("K")


@dataclass
class Round(Generic[K]):
    """Commits the topics of a run in rounds until no more records arrive.

    An error of a topic ends the whole run. The sensor requests another run of the topic, whose step then fails.

    Args:
        others_wait: Whether another run waits for this run's place; this run ends then.
    """

    runners: Mapping[K, AnyRunner]
    settings: Continuous
    watermarks: Callable[[list[str]], Mapping[str, Watermarks | KafkaLakeError]]
    stop: Stop
    others_wait: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    ended: str | None = field(init=False, default=None)
    _began: float = field(init=False)
    _reported: dict[K, float] = field(init=False)
    _next_report: float = field(init=False, default=float("-inf"))
    _looked: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        now = self._began = self.clock()
        self._reported = dict.fromkeys(self.runners, now)

    def reports(self) -> Iterator[tuple[K, RunReport]]:
        """Run, and yield a report of each topic with commits, in intervals and at the end."""
        while self.ended is None:
            began = self.clock()
            any_news = False
            for key in self._due():
                any_news = True
                self._commit(key)
                if self.ended:
                    break
                yield from self._report()
            if self.ended is None:
                self.ended = self._ending(any_news)
            if self.ended is None:
                self._pause(began + self.settings.trigger)
        for key, runner in self.runners.items():
            with self.stop.by_signals():
                report = runner.finish()
            if report.commits:
                yield key, report

    def _due(self) -> list[K]:
        """Return the topics with new records."""
        try:
            answers = self.watermarks([runner.context.spec.topic for runner in self.runners.values()])
        except KafkaLakeError as error:
            self.ended = headline(error)
            return []
        found = []
        for key, runner in self.runners.items():
            now = answers[runner.context.spec.topic]
            if isinstance(now, KafkaLakeError) or has_news(runner.position, now, now.partitions):
                found.append(key)
        return found

    def _commit(self, key: K) -> None:
        runner = self.runners[key]
        if self._others_wait():
            self.ended = "another run is queued"
            return
        with self.stop.by_signals():
            try:
                self.stop.sleep(0)
                runner.topic.poll()
                runner.forget_failed()
                runner.next_commit()
                if runner.errors:
                    # The reason was logged, and the other tables are up to date.
                    self.ended = f"tables of topic {runner.context.spec.topic} can't go on"
            except StoppedError:
                self.ended = "it was stopped"
            except Exception as error:
                topic = runner.context.spec.topic
                runner.context.observer.warn(f"Topic {topic}: {headline(error)} Its next run reports more.")
                self.ended = f"topic {topic} can't go on"

    def _report(self) -> Iterator[tuple[K, RunReport]]:
        """Yield the report of the topic that has waited longest, if one is due."""
        now = self.clock()
        waiting = {key: self._reported[key] for key, runner in self.runners.items() if runner.commits}
        if not waiting or now < self._next_report:
            return
        key = min(waiting, key=waiting.__getitem__)
        if now - waiting[key] < self.settings.report_every:
            return
        yield key, self.runners[key].report()
        done = self._reported[key] = self.clock()
        self._next_report = done + (done - now) / REPORTING_SHARE

    def _ending(self, news: bool) -> str | None:
        if self.clock() - self._began >= self.settings.time_limit:
            return f"its time of {self.settings.time_limit:g} s is over"
        return None if news else "no record has arrived"

    def _pause(self, until: float) -> None:
        """Wait for the next round, or until another run waits for this run's place."""
        with self.stop.by_signals():
            try:
                while (left := until - self.clock()) > 0:
                    if self._others_wait():
                        self.ended = "another run is queued"
                        return
                    self.stop.sleep(min(left, _QUEUE_POLL_SECONDS))
            except StoppedError:
                self.ended = "it was stopped"

    def _others_wait(self) -> bool:
        if self.clock() - self._looked < _QUEUE_POLL_SECONDS:
            return False
        self._looked = self.clock()
        return self.others_wait()
