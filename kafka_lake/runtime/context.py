"""The context of a run: settings, connections, callbacks and retries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    import tenacity

    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.common.offsets import OffsetRange
    from kafka_lake.common.records import Probe
    from kafka_lake.engine.frames import Frames
    from kafka_lake.kafka.cluster import KafkaCluster
    from kafka_lake.kafka.registry import SchemaSource
    from kafka_lake.runtime.commit import Commit
    from kafka_lake.runtime.decoding import Decoding
    from kafka_lake.runtime.plan import Plan

T = TypeVar("T")

LONGEST_SHORT_PAUSE = 2.0
"""Most seconds before a refused publication is tried again."""


class StoppedError(Exception):
    """A pause ended because the run was asked to stop."""


@dataclass(frozen=True)
class RetryPolicy:
    """Retries with exponential backoff and full jitter.

    Args:
        attempts: The number of attempts, the first one included; 1 for no retry.
        initial_seconds: The upper bound of the first pause, which doubles with each attempt.
    """

    attempts: int = 6
    initial_seconds: float = 1.0
    max_seconds: float = 30.0


def is_transient(error: BaseException) -> bool:
    """Return whether an error may pass by itself."""
    from kafka_lake import error_classification

    return error_classification.is_transient(error)


def call(
    policy: RetryPolicy,
    warn: Callable[[str], None],
    what: str,
    function: Callable[[], T],
    *,
    sleep: Callable[[float], None] = time.sleep,
    passes: Callable[[BaseException], bool] = is_transient,
) -> T:
    """Call a function, and retry after temporary errors.

    Raises:
        Exception: The function's error at the last attempt, or a lasting error at any attempt.
    """
    import tenacity

    from kafka_lake.error_classification import LINE_LENGTH, clipped, headline

    def announce(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        count = f"attempt {state.attempt_number} of {policy.attempts}"
        head, tail = f"{what}: {count} failed: ", f" Retrying in {state.upcoming_sleep:.1f} s."
        room = max(LINE_LENGTH - len(head) - len(tail), 0)
        warn(head + clipped(headline(error), room) + tail)

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=tenacity.wait_random_exponential(multiplier=policy.initial_seconds, max=policy.max_seconds),
        retry=tenacity.retry_if_exception(passes),
        before_sleep=announce,
        sleep=sleep,
        reraise=True,
    )
    return retrying(function)


def short_pauses(policy: RetryPolicy) -> tenacity.wait.wait_base:
    """Return random short pauses between attempts, so that two writers don't collide again and again."""
    import tenacity

    return tenacity.wait_random_exponential(policy.initial_seconds, min(policy.max_seconds, LONGEST_SHORT_PAUSE))


class Timings:
    """The seconds of each step of the next commit, refused attempts included.

    Attributes:
        refused: Publications that were refused because another writer committed first.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each step."""
        return dict(self._seconds)

    def start(self) -> None:
        """Start the clock of the first step of an attempt."""
        self._since = time.monotonic()

    def finish(self, step: str) -> None:
        """Add the time since the previous step to this one."""
        now = time.monotonic()
        self._seconds[step] = self._seconds.get(step, 0.0) + now - self._since
        self._since = now

    def reset(self) -> None:
        """Start anew after a publication."""
        self.refused = 0
        self._seconds.clear()


log = logging.getLogger(__name__)


def ignore(*_: Any) -> None:
    """Do nothing: the default callback."""


@dataclass(frozen=True)
class Observer:
    """Progress callbacks. An exception in a callback fails the run."""

    step_done: Callable[[str], None] = ignore
    on_commit: Callable[[Commit, Plan], None] = ignore
    warn: Callable[[str], None] = log.warning


class _Frames:
    """`Frames`, imported with Spark at the first use."""

    def __getattr__(self, name: str) -> Any:
        from kafka_lake.engine.frames import Frames

        return getattr(Frames(), name)


def _record_sizes(cluster: KafkaCluster, topic: str, ranges: Sequence[OffsetRange], count: int) -> list[Probe]:
    from kafka_lake.kafka.records import record_sizes

    return record_sizes(cluster, topic, ranges, count)


@dataclass(frozen=True)
class Connections:
    """The three systems of one run.

    Args:
        kafka_options: Connection and security as options of Spark's Kafka source.
        spark: Returns the session. The first call may start Spark, so it isn't called before there is work.
        record_sizes: Samples the size of records at a number of places in ranges of a topic.
    """

    cluster: KafkaCluster
    kafka_options: Mapping[str, str]
    catalog: LakeCatalog
    spark: Callable[[], Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    registry: SchemaSource | None = None
    frames: Frames = field(default_factory=_Frames)  # type: ignore[assignment]
    record_sizes: Callable[[KafkaCluster, str, Sequence[OffsetRange], int], list[Probe]] = _record_sizes


@dataclass(frozen=True)
class Context:
    """The context of a run.

    Args:
        sleep: Pauses for a number of seconds between attempts; its exception ends the run.
        begins: Start offsets of a table without a position, by partition; they override `starting_offsets`.
    """

    spec: TopicTable
    connections: Connections
    run_id: str
    observer: Observer = field(default_factory=Observer)
    sleep: Callable[[float], None] = time.sleep
    decoding: Decoding = field(kw_only=True)
    timings: Timings = field(default_factory=Timings)
    begins: Mapping[int, int] = field(default_factory=dict)

    def with_retries(self, function: Callable[[], T], passes: Callable[[BaseException], bool] = is_transient) -> T:
        """Call a function, and retry after temporary errors, by the connections' policy."""
        connections, what = self.connections, f"Topic {self.spec.topic}"
        return call(connections.retry, self.observer.warn, what, function, sleep=self.sleep, passes=passes)

    @property
    def table_name(self) -> str:
        """Return the table's name for messages."""
        return ".".join(self.spec.identifier)
