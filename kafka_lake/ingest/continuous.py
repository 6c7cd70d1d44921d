"""A run that goes on: it polls its topics and commits until its time is over or no more records arrive."""

import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.error_classification import headline, is_transient
from kafka_lake.errors import KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_runner import TopicRunner
from kafka_lake.maintenance.policy import commits_since_compaction
from kafka_lake.maintenance.procedures import compact
from kafka_lake.runtime.context import Context, StoppedError
from kafka_lake.spec.continuous import Continuous

# Another program may roll a table back: then there is work, though the topic has no new records.
TABLE_POLL_SECONDS = 10.0
_TOPIC_POLL_SECONDS = 0.5
# Interval of `others_wait`, which queries Dagster's database.
_QUEUE_POLL_SECONDS = 1.0
_NAP_SECONDS = 0.1
_DOUBLINGS = 10
# The largest share of a run's time that reporting takes.
_REPORTING_SHARE = 0.05
_NEVER = float("-inf")


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


@dataclass
class Feed:
    """A topic of a run that goes on.

    Args:
        partitions: The Kafka partitions to read. If the topic has more, the run reads these to their ends and ends, so
            that a run over all partitions can follow.
    """

    runner: TopicRunner
    partitions: Collection[int]
    reported: float = field(init=False, default=_NEVER)
    has_begun: bool = field(init=False, default=False)
    _since_compaction: int | None = field(init=False, default=None)

    def has_news(self, ends: Watermarks | KafkaLakeError) -> bool:
        """Return whether the topic is to be committed, which raises the error if there is one."""
        if isinstance(ends, KafkaLakeError) or self.foreign(ends):
            return True
        return has_news(self.runner.position, ends, self.partitions)

    def foreign(self, ends: Watermarks) -> list[int]:
        """Return the topic's partitions that aren't this run's."""
        return sorted(set(ends.partitions) - set(self.partitions))

    def compact(self, every: int) -> None:
        """Compact the table after a number of commits."""
        context = self.runner.context
        spec, connections = context.spec, context.connections
        try:
            if self._since_compaction is None:
                self._since_compaction = commits_since_compaction(connections.catalog.table(spec.identifier))
            else:
                self._since_compaction += 1
            if self._since_compaction < every:
                return
            self._since_compaction = 0
            done = compact(connections.spark(), connections.catalog, spec.identifier)
            context.observer.step_done(f"{done.before} files compacted to {done.after}")
        except Exception as error:
            # Small files stay; another writer may have changed the table meanwhile.
            reason = (str(error) or repr(error)).splitlines()[0]
            context.observer.warn(f"Table {context.table_name} was not compacted: {reason}")


def feed_of(
    context: Context, stop: Stop, partitions: Collection[int] | None = None, position: Position | None = None
) -> Feed:
    """Return a topic of a run that goes on.

    Args:
        position: Where an earlier run of this process ended.
    """
    context = replace(context, sleep=stop.sleep)
    topic = TopicEnds(context)
    chosen = frozenset(topic.now.partitions) if partitions is None else partitions
    return Feed(TopicRunner(context, lambda table: Append(table, chosen), topic, position=position), chosen)


@dataclass
class ContinuousRun:
    """Commits its topics in turn, again and again.

    Temporary errors are retried until the run's time is over; others are raised.

    Args:
        others_wait: For a run that catches up: whether another run waits for this run's place; this run ends then. Each
            commit counts its own dead letters. An error of a topic ends the run without being raised: the sensor
            requests the next run of the topic, whose step then fails.
    """

    feeds: Sequence[Feed]
    settings: Continuous
    stop: Stop = field(default_factory=Stop)
    others_wait: Callable[[], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    ended: str | None = field(init=False, default=None)
    _polled: float = field(init=False, default=_NEVER)
    _planned: float = field(init=False, default=_NEVER)
    _committed: float = field(init=False, default=_NEVER)
    _asked: float = field(init=False, default=_NEVER)
    _next_report: float = field(init=False, default=_NEVER)
    _failures: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._began = self._fed = self.clock()
        if self.others_wait is not None:
            for feed in self.feeds:
                # Its step has just reported it.
                feed.reported = self._began

    def reports(self) -> Iterator[tuple[int, RunReport]]:
        """Run, and yield reports of the new commits of topics, by their index, in intervals and at the end."""
        while self.ended is None:
            with self.stop.by_signals():
                try:
                    self._pause()
                    if self.ended is None:
                        self._round()
                except StoppedError:
                    self.ended = "it was stopped"
            yield from self._due_reports()
        for number, feed in enumerate(self.feeds):
            if self.others_wait is None:
                with self.stop.by_signals():
                    report = feed.runner.finish()
                feed.runner.raise_errors(report)
                yield number, report
            elif feed.has_begun and (report := self._finish(feed)).has_commits:
                yield number, report

    def _finish(self, feed: Feed) -> RunReport:
        """Return the last report of a topic of a run that catches up; an error costs no other topic its report."""
        with self.stop.by_signals():
            try:
                return feed.runner.finish()
            except Exception as error:
                self._warn_of_next(feed, error)
                return feed.runner.report()

    def _pause(self) -> None:
        """Wait until the next commit may start; end if the run's time is over, or another run waits for its place."""
        over = self._began + self.settings.time_limit
        while not self._makes_way() and (left := min(self._due, over) - self.clock()) > 0:
            self.stop.sleep(min(left, _QUEUE_POLL_SECONDS))
        if self.ended is None and self._polled != _NEVER and not self._failures:
            # After a failure, the last attempt raises it.
            self.ended = self._time_over(self.clock())

    @property
    def _due(self) -> float:
        trigger = self.settings.trigger
        return max(self._committed + trigger, self._polled + min(trigger, _TOPIC_POLL_SECONDS))

    def _makes_way(self) -> bool:
        """End if another run waits for this run's place."""
        if self.others_wait is not None and self.clock() - self._asked >= _QUEUE_POLL_SECONDS:
            self._asked = self.clock()
            if self.others_wait():
                self.ended = "another run is queued"
        return self.ended is not None

    def _round(self) -> None:
        """Poll all topics, commit those with new records, and decide whether the run ends."""
        feed = self.feeds[0]
        began = self._polled = self.clock()
        try:
            names = [feed.runner.context.spec.topic for feed in self.feeds]
            ends = feed.runner.context.connections.cluster.watermarks(names)
            due = [feed for feed, name in zip(self.feeds, names, strict=True) if feed.has_news(ends[name])]
            # Even if another run commits the records first.
            is_fed = bool(due)
            if self.others_wait is None and began - self._planned >= TABLE_POLL_SECONDS:
                due = list(self.feeds)
            for feed in due:
                if self._makes_way():
                    return
                is_fed |= self._commit(feed)
        except StoppedError:
            raise
        except Exception as error:
            self._failed(feed, error)
            return
        now, self._failures = self.clock(), 0
        if is_fed:
            self._fed = now
        if self.ended is None:
            self.ended = self._ending(now, is_fed)

    def _commit(self, feed: Feed) -> bool:
        """Make the next commit of a topic; return whether there was something to commit."""
        self.stop.sleep(0)
        runner, self._planned = feed.runner, self._polled
        foreign = feed.foreign(runner.topic.poll())
        feed.has_begun = True
        if self.others_wait is not None:
            runner.forget_failed()
        is_done = runner.next_commit() is None
        if not is_done:
            self._committed = self._polled
            if self.settings.compact_every is not None:
                feed.compact(self.settings.compact_every)
        if foreign:
            while runner.next_commit() is not None:
                self.stop.sleep(0)
                if self._makes_way():
                    return True
            self.ended = f"the topic has partitions that are not this run's: {', '.join(map(str, foreign))}"
        elif not runner.has_running or (runner.errors and self.others_wait is not None):
            # The reason was logged, and the other tables are up to date.
            self.ended = f"tables of topic {runner.context.spec.topic} can't go on"
        return not is_done

    def _time_over(self, now: float) -> str | None:
        limit = self.settings.time_limit
        return f"its time of {limit:g} s is over" if now - self._began >= limit else None

    def _ending(self, now: float, is_fed: bool) -> str | None:
        if over := self._time_over(now):
            return over
        if not is_fed and now - self._fed >= self.settings.idle:
            idle = self.settings.idle
            return f"no record arrived for {idle:g} s" if idle else "no record has arrived"
        return None

    def _failed(self, feed: Feed, error: Exception) -> None:
        """Pause after a temporary error, or raise it; end a run that catches up."""
        context = feed.runner.context
        topic, warn = context.spec.topic, context.observer.warn
        if self.others_wait is not None:
            self._warn_of_next(feed, error)
            self.ended = f"topic {topic} can't go on"
            return
        left = self._began + self.settings.time_limit - self.clock()
        if left <= 0 or not (is_transient(error) or isinstance(error, PublishRefusedError)):
            raise error
        policy = context.connections.retry
        bound = min(policy.max_seconds, policy.initial_seconds * 2 ** min(self._failures, _DOUBLINGS), left)
        self._failures += 1
        pause = random.uniform(bound / 2, bound)
        warn(f"Topic {topic}: {headline(error)} The run continues in {pause:.1f} s.")
        self.stop.sleep(pause)

    @staticmethod
    def _warn_of_next(feed: Feed, error: Exception) -> None:
        context = feed.runner.context
        context.observer.warn(f"Topic {context.spec.topic}: {headline(error)} Its next run reports more.")

    def _due_reports(self) -> Iterator[tuple[int, RunReport]]:
        """Yield the reports that are due, longest waiting first; fewer if reporting is slow."""
        for number, feed in sorted(enumerate(self.feeds), key=lambda numbered: numbered[1].reported):
            now = self.clock()
            if self.ended or now < self._next_report or now - feed.reported < self.settings.report_every:
                return
            if feed.runner.commits:
                yield number, feed.runner.report()
                done = feed.reported = self.clock()
                self._next_report = done + (done - now) / _REPORTING_SHARE


def has_news(position: Position | None, now: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether the topic has new records for a position, or has been recreated or cut off."""
    offsets = position.offsets if position else {}
    if (position and not position.identity.same_as(now.identity)) or not offsets.keys() <= now.end.keys():
        return True
    return any(now.end[p] != offsets.get(p, now.low[p]) for p in partitions if p in now.end)
