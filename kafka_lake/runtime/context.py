"""What a run works with: its topic, what it is connected to, its callbacks, its patience. One frozen context."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import tenacity

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.records import Probe
from kafka_lake.engine.frames import Frames
from kafka_lake.error_classification import LINE_LENGTH, clipped, headline, is_transient
from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import record_sizes
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from kafka_lake.runtime.commit import Commit
    from kafka_lake.runtime.decode_options import Decoding
    from kafka_lake.runtime.plan import Plan

T = TypeVar("T")

LONGEST_SHORT_PAUSE = 2.0
"""Seconds that a run waits at most before it tries to be faster than others again."""


class StoppedError(Exception):
    """A pause ended because the run was asked to stop."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and how patiently.

    Pauses are random between zero and a bound that doubles with each attempt ("full jitter"), so that runs which were
    thrown back together don't come back together.

    Args:
        attempts: How many in all, the first one included; 1 for no retry.
        initial_seconds: The bound of the first pause.
        max_seconds: What the bound never exceeds.

    Raises:
        ConfigurationError: If there would be no attempt, or a pause is negative, endless, or begins above its maximum.
    """

    attempts: int = 6
    initial_seconds: float = 1.0
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"retry: attempts is {self.attempts}.", "Set it to 1 or more; 1 is no retry.")
        if not 0 <= self.initial_seconds <= self.max_seconds < math.inf:
            raise ConfigurationError(
                f"retry: initial_seconds is {self.initial_seconds:g} and max_seconds is {self.max_seconds:g}.",
                "Both must be 0 or more, and max_seconds not less than initial_seconds.",
            )


def call(
    policy: RetryPolicy,
    warn: Callable[[str], None],
    what: str,
    function: Callable[[], T],
    *,
    sleep: Callable[[float], None] = time.sleep,
    passes: Callable[[BaseException], bool] = is_transient,
) -> T:
    """Call a function, and again after errors that may be gone by then.

    Raises:
        Exception: Whatever the function raised at the last attempt, or at any attempt if it isn't transient.
    """

    def announce(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        count = f"attempt {state.attempt_number} of {policy.attempts}"
        head, tail = f"{what}: {count} failed: ", f" Trying again in {state.upcoming_sleep:.1f} s."
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
    """Return random pauses between attempts, so that two writers do not keep the same pace."""
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
    """Do nothing: what those give who don't listen."""


@dataclass(frozen=True)
class Observer:
    """Progress callbacks. An exception in a callback fails the run.

    Args:
        step_done: Called with the name of each step that has been done.
        on_commit: Called after each published commit with it and its plan.
        warn: Gets a line for whatever a person reading the run's log should know: retries, refusals, rebuilt positions.
    """

    step_done: Callable[[str], None] = ignore
    on_commit: "Callable[[Commit, Plan], None]" = ignore
    warn: Callable[[str], None] = log.warning


@dataclass(frozen=True)
class Connections:
    """The three systems of one run.

    Args:
        cluster: Tells what the topic holds.
        kafka_options: Connection and security as options of Spark's Kafka source.
        spark: Gives the session; the first call may start it, so it isn't called before there is work.
        retry: How often and how patiently transient errors of the three are met with another attempt.
        registry: Tells what a schema id means; None where no registry is configured.
        frames: Computes what names the records of Spark's frames.
        record_sizes: Tells how large records are in equal parts of ranges of a topic, how many of which is its last
            argument.
    """

    cluster: KafkaCluster
    kafka_options: Mapping[str, str]
    catalog: LakeCatalog
    spark: Callable[[], Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    registry: SchemaRegistry | None = None
    frames: Frames = field(default_factory=Frames)
    record_sizes: Callable[[KafkaCluster, str, Sequence[OffsetRange], int], list[Probe]] = record_sizes


@dataclass(frozen=True)
class Context:
    """What a run works with.

    Args:
        spec: The topic and its table.
        connections: Cluster, catalog and Spark; Spark isn't touched if there is nothing to do.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        sleep: Pauses between attempts, for that many seconds; what it raises ends the run.
        decoding: Makes columns, rows and dead letters of the records.
        timings: Seconds of the next commit's steps so far.
        begins: Where the table begins if it has no position, by partition; what it lacks is where the settings say.
    """

    spec: TopicTable
    connections: Connections
    run_id: str
    observer: Observer = field(default_factory=Observer)
    sleep: Callable[[float], None] = time.sleep
    decoding: "Decoding" = field(kw_only=True)
    timings: Timings = field(default_factory=Timings)
    begins: Mapping[int, int] = field(default_factory=dict)

    def with_retries(self, function: Callable[[], T], passes: Callable[[BaseException], bool] = is_transient) -> T:
        """Call a function, and again after errors that may be gone by then; `retry.call` says more."""
        connections, what = self.connections, f"Topic {self.spec.topic}"
        return call(connections.retry, self.observer.warn, what, function, sleep=self.sleep, passes=passes)

    @property
    def table_name(self) -> str:
        """Return the table's name as messages have it."""
        return ".".join(self.spec.identifier)
