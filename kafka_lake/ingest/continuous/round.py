"""A continuous run over several topics: in each round, each topic commits its new records."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kafka_lake.common.offsets import Watermarks
from kafka_lake.error_classification import headline
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.continuous.run import Stop
from kafka_lake.ingest.continuous.schedule import REPORTING_SHARE, Continuous, has_news
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.topic_runner import TopicRunner
from kafka_lake.runtime.context import StoppedError

K = TypeVar("K")

# Interval of `others_wait`, which queries Dagster's database.
_QUEUE_POLL_SECONDS = 1.0


@dataclass
class Round(Generic[K]):
    """Commits the topics of a run in rounds until no more records arrive.

    An error of a topic ends the whole run. The sensor requests another run of the topic, whose step then fails.

    Args:
        runners: The runner of each topic; their pauses end with a stop request.
        settings: The intervals of rounds and reports.
        watermarks: Returns the watermarks of all topics.
        others_wait: Whether another run waits for this run's place; this run ends then.
        clock: A monotonic clock.
        ended: The reason of the end, once the run has ended.
    """

    runners: Mapping[K, Runner | TopicRunner]
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
        with ExitStack() as lineages:
            for runner in self.runners.values():
                lineages.enter_context(runner.lineage)
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
            self.ended = "another run waits for its place"
            return
        with self.stop.by_signals():
            try:
                self.stop.sleep(0)
                runner.topic.poll()
                runner.forget_failed()
                runner.next_commit()
                if isinstance(runner, TopicRunner) and runner.errors:
                    # The reason was logged, and the other tables are up to date.
                    self.ended = f"tables of topic {runner.context.spec.topic} can't go on"
            except StoppedError:
                self.ended = "it was asked to stop"
            except Exception as error:
                topic = runner.context.spec.topic
                runner.context.observer.warn(f"Topic {topic}: {headline(error)} Its next run says more.")
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
        return None if news else "nothing more has come"

    def _pause(self, until: float) -> None:
        """Wait for the next round, or until another run waits for this run's place."""
        with self.stop.by_signals():
            try:
                while (left := until - self.clock()) > 0:
                    if self._others_wait():
                        self.ended = "another run waits for its place"
                        return
                    self.stop.sleep(min(left, _QUEUE_POLL_SECONDS))
            except StoppedError:
                self.ended = "it was asked to stop"

    def _others_wait(self) -> bool:
        if self.clock() - self._looked < _QUEUE_POLL_SECONDS:
            return False
        self._looked = self.clock()
        return self.others_wait()
