"""What a commit took until it could be published: time by step, and publications that were refused."""

import time
from collections.abc import Mapping


class Effort:
    """Adds up what is done for the next commit; refused attempts are part of it.

    Attributes:
        refused: How many publications others have been faster than.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return how long each step took."""
        return dict(self._seconds)

    def begin(self) -> None:
        """Begin an attempt: what lies before it is of no step."""
        self._since = time.monotonic()

    def done(self, step: str) -> None:
        """Add the time since the step before to this one."""
        now = time.monotonic()
        self._seconds[step] = self._seconds.get(step, 0.0) + now - self._since
        self._since = now

    def clear(self) -> None:
        """Forget all of it: the commit is published."""
        self.refused = 0
        self._seconds.clear()
