"""What a commit took until it could be published: time by step, and publications that were refused."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A step that was taken.

    Args:
        began: When, in nanoseconds since the epoch.
    """

    name: str
    began: int
    ended: int


class Effort:
    """Adds up what is done for the next commit; refused attempts are part of it.

    Attributes:
        refused: How many publications others have been faster than.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic_ns()
        self._steps: list[Step] = []

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return how long each step took."""
        return dict(self._seconds)

    def begin(self) -> None:
        """Begin an attempt: what lies before it is of no step."""
        self._since = time.monotonic_ns()

    def done(self, step: str) -> None:
        """Add the time since the step before to this one."""
        now, ended = time.monotonic_ns(), time.time_ns()
        self._seconds[step] = self._seconds.get(step, 0.0) + (now - self._since) / 1e9
        self._steps.append(Step(step, ended - (now - self._since), ended))
        self._since = now

    def clear(self) -> None:
        """Forget all of it: the commit is published."""
        self.refused = 0
        self._seconds.clear()

    def take_steps(self) -> Sequence[Step]:
        """Return the steps since they were taken last, in their order, published or not."""
        steps, self._steps = self._steps, []
        return steps
