"""A continuous run: it looks and commits again and again, until its time is over or nothing comes any more.

When to do what is decided by `schedule`. Each commit is one of the runner's, with all its gates: nothing here knows how
a commit is made.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kafka_lake.common.offsets import Watermarks
from kafka_lake.error_classification import headline, is_transient
from kafka_lake.errors import PublishRefusedError
from kafka_lake.ingest.continuous.schedule import Continuous, Times, ending, has_news, next_poll, reached, report_due
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_runner import TopicRunner, runner_of
from kafka_lake.maintenance.policy import commits_since_compaction
from kafka_lake.maintenance.procedures import compact
from kafka_lake.runtime.context import Context, StoppedError

_NAP_SECONDS = 0.1


@dataclass
class Stop:
    """The wish that a run ends as soon as its commit is done: set by anyone, looked at by the run."""

    requested: bool = False

    def sleep(self, seconds: float) -> None:
        """Pause."""
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


# Others may move a table back while its topic rests: then there is work, and the topic doesn't tell.
TABLE_POLL_SECONDS = 10.0
# For whether others wait, which is a question to Dagster's database.
_QUEUE_POLL_SECONDS = 1.0
_DOUBLINGS = 10


@dataclass
class ContinuousRun:
    """A continuous run; `continuous_run` makes one.

    Args:
        runner: Makes the commits; its pauses end with the wish to stop.
        partitions: The Kafka partitions that it reads. A topic that has others too is brought up to its present end
            and left at that, so that a run over all partitions can follow.
        target: What the topic held at some time: before the table has it the run ends for no other reason than the
            wish to stop; after that, each commit stands for a run of its own. None for a run without a target.
        others_wait: Tells whether others wait for the run's place; it ends then.
        clock: Seconds that only go up.
        ended: Why the run ended, once it has.
    """

    runner: Runner | TopicRunner
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
        """Run, and give a report of what was done since the one before, in intervals and at the end.

        What passes is waited for, until the run's time is over.
        """
        with self.runner.lineage:
            yield from self._reports()

    def _reports(self) -> Iterator[RunReport]:
        while self.ended is None:
            with self.stop.by_signals():
                try:
                    try:
                        self._poll_and_commit()
                    except Exception as error:
                        self._wait_out(error)
                    else:
                        if self.ended and self._failure and self._has_news():
                            # The time was over before another attempt.
                            raise self._failure
                        self._failures, self._failure = 0, None
                except StoppedError:
                    self.ended = "it was asked to stop"
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
        """Wait for what passes, and go on then: a run that goes on has time, and its commits are done."""
        passes = is_transient(error) or isinstance(error, PublishRefusedError)
        left = self._at.began + self.settings.time_limit - self.clock()
        if not passes or self._has_target_left() or left <= 0:
            raise error
        if self.others_wait is not None and self.others_wait():
            self.ended = "another run waits for its place"
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
            self.ended = (
                "another run waits for its place" if others_wait else ending(self.settings, self._at, now, news)
            )
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
            # Also if another run was faster: what counts is that something came.
            self._at = replace(self._at, fed=self.clock())
        if not self.settings.idle and not self._has_target_left():
            self.runner.topic.poll()
            self.ended = None if self._has_news() else ending(self.settings, self._at, self.clock(), news=False)

    def _pause(self) -> bool:
        """Wait for the next poll, or until another run wants this place; return whether one does."""
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
        # What the plan doesn't ask for, as Kafka's end has moved back maybe, is no part of the target.
        if self.target is None or self._exhausted:
            return False
        # The table is looked at once in any case: what a dead run left is reconciled, and a table comes into being.
        untouched = self._at.planned == float("-inf")
        return untouched or not reached(self.runner.position, self.target, self.partitions)

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
            # The files are as they were, only more of them; others may have changed the table meanwhile.
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
        runner=runner_of(context, lambda each: Append(each, chosen), topic),
        settings=settings,
        partitions=chosen,
        stop=stop,
        target=now if catch_up else None,
        others_wait=others_wait,
    )
