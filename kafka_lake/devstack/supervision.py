"""Restarts the servers of a local stack when they end. A server that ends too often ends the stack."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from kafka_lake.common.processes import Server
from kafka_lake.errors import KafkaLakeError

MAX_DEATHS = 3
"""A server that ends so often within a minute ends the stack."""

_WITHIN_SECONDS = 60.0
_MOST_SERVERS = 32


@dataclass
class _Part:
    name: str
    server: Server
    max_deaths: int
    deaths: deque[float] = field(default_factory=deque)
    restart: Future[object] | None = None


class Supervision:
    """The servers of a stack in the order in which they were started.

    Args:
        tell_user: Called with a line when a server has ended, and when it runs again.
    """

    def __init__(self, tell_user: Callable[[str], None]) -> None:
        self._tell_user = tell_user
        self._parts: list[_Part] = []
        self._pool = ThreadPoolExecutor(_MOST_SERVERS, thread_name_prefix="restart")

    def add(self, name: str, server: Server, max_deaths: int = MAX_DEATHS) -> None:
        """Supervise a running server."""
        self._parts.append(_Part(name, server, max_deaths))

    def check(self) -> None:
        """Restart servers that have ended. Call it every second."""
        for part in self._parts:
            if part.restart is None:
                if not part.server.alive():
                    self._ended(part, f"ended unexpectedly {part.server.how_it_ended()}".strip())
            elif part.restart.done():
                failure, part.restart = part.restart.exception(), None
                if failure is None:
                    self._tell_user(f"{part.name} runs again.")
                elif isinstance(failure, KafkaLakeError):
                    self._ended(part, f"can't be started again: {failure}")
                else:
                    raise failure

    def _ended(self, part: _Part, how: str) -> None:
        now = time.monotonic()
        part.deaths.append(now)
        while part.deaths[0] < now - _WITHIN_SECONDS:
            part.deaths.popleft()
        if len(part.deaths) >= part.max_deaths:
            often = f" It has ended {len(part.deaths)} times within a minute." if part.max_deaths > 1 else ""
            raise KafkaLakeError(f"{part.name} {how}.{often}", f"See its log: {part.server.log}")
        self._tell_user(f"{part.name} {how}; restarting it. Its log: {part.server.log}")
        part.restart = self._pool.submit(part.server.restart)

    def stop(self) -> None:
        """Stop all servers, the last one first."""
        for part in self._parts:
            if part.restart is not None:
                # Its start fails then.
                part.server.kill()
        self._pool.shutdown(cancel_futures=True)
        while self._parts:
            with suppress(OSError):
                self._parts.pop().server.stop()
