"""Supervises a Spark Connect server: restarts it when it dies, stops it while it is idle, starts it at the next use.

While the server is stopped, the supervisor listens on its port: a client that connects starts it. That connection is
refused then, and the client retries, as every gRPC client does. Process managers start a server on demand only if it
takes over a listening socket, which a JVM's gRPC server can't.
"""

import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.environment import (
    CONNECT_DIRECT,
    CONNECT_HEAP,
    CONNECT_IDLE,
    CONNECT_METASPACE,
    Variable,
)
from kafka_lake.common.server_process import HOST, Server
from kafka_lake.errors import ConfigurationError, KafkaLakeError
from kafka_lake.spark.connect import ConnectServer

_POLL_SECONDS = 0.5
_POLLS_PER_IDLE_TIME = 30
_LONGEST_PAUSE_SECONDS = 60.0
_HEALTHY_SECONDS = 600.0
_MAX_THREADS = 2000

MAX_UNEXPECTED_ENDS = 6
"""How many times in a row the server may end unexpectedly, each less than ten minutes after its start."""


@dataclass(frozen=True)
class ConnectSettings:
    """How much memory the server of the local stack may take, and how long it stays up unused.

    Args:
        heap: Of its JVM, by Java's notation, as ``1g``.
        direct: Memory outside the heap for buffers: network, Arrow, files.
        idle_seconds: It is stopped after that time without any client; None for never.
    """

    heap: str = CONNECT_HEAP.default
    direct: str = CONNECT_DIRECT.default
    metaspace: str = CONNECT_METASPACE.default
    idle_seconds: float | None = 900.0

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the settings that ``KAFKA_LAKE_CONNECT_HEAP``, ``_DIRECT``, ``_METASPACE`` and ``_IDLE`` make.

        Raises:
            ConfigurationError: If one is no size as ``512m``, or no time as ``90s``, ``15m``, ``1h`` or ``never``.
        """

        def size(variable: Variable) -> str:
            value = variable.value(environment).lower()
            if not re.fullmatch(r"[1-9]\d*[kmg]", value):
                raise ConfigurationError(f"{variable.name}={value} is not a size of memory.", "Write it as 512m or 2g.")
            return value

        return cls(
            size(CONNECT_HEAP),
            size(CONNECT_DIRECT),
            size(CONNECT_METASPACE),
            idle_seconds(CONNECT_IDLE.value(environment)),
        )

    def server(self, work_dir: Path, port: int, conf: Mapping[str, str]) -> ConnectServer:
        """Return a server of that size, not started; `ConnectServer` says what the arguments are."""
        return ConnectServer(
            work_dir=work_dir,
            port=port,
            conf=conf,
            driver_memory=self.heap,
            direct_memory=self.direct,
            metaspace=self.metaspace,
        )


def idle_seconds(text: str) -> float | None:
    """Return an idle time in seconds; None for never.

    Args:
        text: ``90s``, ``15m``, ``1h``, or ``never``.

    Raises:
        ConfigurationError: If it is none of these.

    >>> idle_seconds("15m"), idle_seconds("never")
    (900.0, None)
    """
    if text == "never":
        return None
    try:
        seconds = seconds_of(text)
    except ConfigurationError:
        seconds = 0.0
    if seconds == 0:
        raise ConfigurationError(
            f"The idle time of Spark Connect, KAFKA_LAKE_CONNECT_IDLE, is {text}.", "Write 90s, 15m, 1h, or never."
        )
    return seconds


def pause_seconds(deaths: int) -> float:
    """Return how long to wait before the server is started again.

    Args:
        deaths: How many times in a row it ended unexpectedly, the last one included.

    >>> [pause_seconds(deaths) for deaths in (1, 2, 3, 10)]
    [1.0, 2.0, 4.0, 60.0]
    """
    return min(2.0 ** (deaths - 1), _LONGEST_PAUSE_SECONDS)


class ConnectSupervisor(Server):
    """A Spark Connect server under supervision; a context manager.

    Args:
        server: Not started yet. From ``start`` on it belongs to this object.
        idle_seconds: It is stopped after that time without any client connected; None for never.
        tell_user: Called from another thread with a line for the user when the server dies, stops because it is idle,
            or is started again.
    """

    def __init__(self, server: ConnectServer, idle_seconds: float | None, tell_user: Callable[[str], None]) -> None:
        self._connect = server
        self._idle_seconds = idle_seconds
        self._tell_user = tell_user
        self._ending = threading.Event()
        self._keeper: threading.Thread | None = None

    @property
    def remote(self) -> str:
        """The address for ``SPARK_REMOTE``, with the token; it stays the same whatever happens to the server."""
        return self._connect.remote

    @property
    def address(self) -> str:
        """Where it listens, without the token."""
        return self._connect.address

    @property
    def token_file(self) -> Path:
        """The file that keeps the token, if that isn't among the server's properties."""
        return self._connect.token_file

    @property
    def log(self) -> Path:
        """The file that the server logs to; each start appends."""
        return self._connect.log

    @property
    def pid(self) -> int | None:
        """The process id of the server that runs now; ``None`` while it is stopped or about to be restarted."""
        return self._connect.pid

    def start(self) -> Self:
        """Start the server, wait until it is ready, and keep it at hand from then on.

        Raises:
            ServerStartError: If it can't be started the first time. Nothing is left behind.
            JarsError: If the jars can't be retrieved.
            JavaNotFoundError: If there is no Java.
        """
        if not self.alive():
            self._connect.start()
            self._ending.clear()
            self._keeper = threading.Thread(target=self._keep, name="spark-connect", daemon=True)
            self._keeper.start()
        return self

    def alive(self) -> bool:
        """Tell whether the server runs, or will when it is needed; not any more once it died too often."""
        return self._keeper is not None and self._keeper.is_alive()

    def stop(self) -> None:
        """Stop the server, or what waits for its next use, and wait until it is gone."""
        self._ending.set()
        if self._keeper is not None:
            self._keeper.join()

    def kill(self) -> None:
        """End the server for good, as `stop` does."""
        self.stop()

    def _keep(self) -> None:
        """Everything that happens to the server's process after its first start happens in this one thread."""
        deaths, began = 0, time.monotonic()
        try:
            while True:
                if self._connect.alive() and not self._watch():
                    self._stop_until_used()
                elif not self._ending.is_set():
                    deaths = deaths + 1 if time.monotonic() - began < _HEALTHY_SECONDS else 1
                    if not self._is_restarted(deaths):
                        return
                if self._ending.is_set():
                    return
                began = time.monotonic()
                self._start_again()
        finally:
            self._connect.stop()

    def _start_again(self) -> None:
        try:
            self._connect.start(self._ending.is_set)
        except KafkaLakeError as error:
            # One that can't be started counts as one that died.
            if not self._ending.is_set():
                self._tell_user(str(error))

    def _watch(self) -> bool:
        """Return true once the server has died or shall end, false once it is idle or has leaked threads."""
        used = polled = time.monotonic()
        pause = (self._idle_seconds or _LONGEST_PAUSE_SECONDS) / _POLLS_PER_IDLE_TIME
        while self._connect.alive() and not self._ending.wait(_POLL_SECONDS):
            now = time.monotonic()
            if now - polled < pause:
                continue
            polled = now
            if self._has_clients():
                used = now
            elif self._has_leaked_threads() or (self._idle_seconds is not None and now - used >= self._idle_seconds):
                return False
        return True

    def _has_leaked_threads(self) -> bool:
        # Spark never ends the thread that looks after the Python workers of a session, though the session be over.
        try:
            return bool(psutil.Process(self._connect.pid).num_threads() > _MAX_THREADS)
        except psutil.Error:
            return False

    def _has_clients(self) -> bool:
        try:
            connections = psutil.Process(self._connect.pid).net_connections("tcp")
        except psutil.Error:
            return False
        port = self._connect.port
        return any(c.laddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in connections if c.laddr)

    def _is_restarted(self, deaths: int) -> bool:
        if deaths > MAX_UNEXPECTED_ENDS:
            self._tell_user(f"Spark Connect ended unexpectedly {deaths} times in a row: it is not restarted.")
            return False
        pause = pause_seconds(deaths)
        self._tell_user(
            f"Spark Connect ended unexpectedly; it is restarted in {pause:.0f} s. Runs that used it retry. "
            f"Its log: {self.log}"
        )
        return not self._ending.wait(pause)

    def _stop_until_used(self) -> None:
        """Stop the server, and return when a client connects."""
        self._connect.stop()
        self._tell_user("Spark Connect was idle and is stopped; the next use starts it.")
        with suppress(OSError), socket.create_server((HOST, self._connect.port)) as listener:
            # Where another program has taken the port meanwhile, the server's own start says so.
            while not self._ending.is_set() and not select.select([listener], [], [], _POLL_SECONDS)[0]:
                pass
        if not self._ending.is_set():
            self._tell_user("Spark Connect is needed again and is started.")
