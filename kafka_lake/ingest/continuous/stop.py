"""The wish that a run ends as soon as its commit is done."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka_lake.ingest.retry import StoppedError

_NAP_SECONDS = 0.1


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
