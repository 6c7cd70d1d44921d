"""Retry: another attempt, with growing and random pauses, after errors that may be gone a moment later.

An attempt is a whole one, from plan to publication, so that it begins at the position the table has by then. This
module knows nothing of what is attempted, and never mends anything itself; `causes` tells which errors may be gone.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.causes import LINE_LENGTH, clipped, headline, is_transient

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

    Args:
        policy: How often and how patiently; every call begins to count anew.
        warn: Gets one line before each pause: what failed, why, which attempt it was, how long the pause is.
        what: What is attempted, as the line shall begin.
        function: Must be safe to call again after any error it raises that `is_transient`.
        sleep: Pauses for that many seconds.
        passes: Tells of an error whether it may be gone by then.

    Returns:
        What the function returns.

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
