"""Threads that ask servers which may not answer: nobody waits for one beyond a time, nor for any at the end."""

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from queue import SimpleQueue
from threading import Condition, Thread

log = logging.getLogger(__name__)

Job = Callable[[], object]


class Workers:
    """A few threads that do jobs; they end with the process, whatever they wait for.

    Args:
        count: How many. Jobs that hang keep one each.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Hashable, Job]] = SimpleQueue()
        self._unfinished: set[Hashable] = set()
        self._changed = Condition()
        for number in range(count):
            Thread(target=self._work, name=f"metrics-{number}", daemon=True).start()

    def do(self, jobs: Mapping[Hashable, Job], seconds: float) -> set[Hashable]:
        """Have jobs done.

        Args:
            jobs: By their names. One of that name which hasn't been finished since an earlier call isn't begun again.
                Its own errors are for a job to deal with; here they are only logged.
            seconds: How long to wait while none of them is finished. They go on after that.

        Returns:
            The names of those that haven't been finished.
        """
        with self._changed:
            for name, job in jobs.items():
                if name not in self._unfinished:
                    self._unfinished.add(name)
                    self._jobs.put((name, job))
            left, deadline = self._unfinished & jobs.keys(), time.monotonic() + seconds
            while left and (rest := deadline - time.monotonic()) > 0:
                self._changed.wait(rest)
                before, left = left, self._unfinished & jobs.keys()
                if len(left) < len(before):
                    deadline = time.monotonic() + seconds
        return left

    def _work(self) -> None:
        while True:
            name, job = self._jobs.get()
            try:
                job()
            except Exception:
                # One thread less for all others would be worse.
                log.exception("A job of the metrics failed: %s", name)
            finally:
                with self._changed:
                    self._unfinished.discard(name)
                    self._changed.notify_all()
