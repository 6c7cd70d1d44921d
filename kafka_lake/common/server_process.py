"""Runs a server process that logs to a file and can't outlive the process that started it, even if killed."""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kafka_lake.errors import KafkaLakeError, ServerStartError

# The watcher holds the reading end of a pipe whose writing end only the starting process has. When that
# process is gone, whatever the reason, the pipe ends and the watcher kills the process group of both.
# (PR_SET_PDEATHSIG would kill the server once the starting *thread* ends, and is there on Linux only.)
_WATCHED = 'exec 3<&0; { read -r _ <&3; kill -KILL -$$; } & exec "$@" </dev/null 3<&-'

_PREDECESSOR_SECONDS = 5

HOST = "127.0.0.1"
"""The only address that anything of ours listens on."""

_SERVERS_PORTS, _PORTS_TRIED = range(20_000, 32_000), 100


class ServerProcess:
    """A child process in a process group of its own, killed by the system's means when its parent is gone.

    Args:
        log: File that standard output and error are appended to; its folder is made. The server holds a lock
            on it as long as it lives, so there is one server at a time to a log, whoever started it.
        env: Environment variables to add to this process's own; None takes one away.
        locks_log: False for a server whose children may outlive it and hold the log.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        locks_log: bool = True,
    ) -> None:
        self.command = list(command)
        self.log = log
        self._env = dict(env or {})
        self._cwd = cwd
        self._locks_log = locks_log
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The server's process id; ``None`` when it isn't started or has been stopped."""
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def how_it_ended(self) -> str:
        """Return the signal or the exit code that the process ended with; empty while it runs or if it was stopped."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def start(self, ready: Callable[[], bool], timeout: float) -> None:
        """Start the process and wait until it is ready.

        Args:
            ready: Asked several times a second.

        Raises:
            ServerStartError: If another server has the log, or the process ends or isn't ready in time; it is
                killed then.
        """
        if self.alive():
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            if self._locks_log:
                self._lock(output)
            self._log_start = output.tell()
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "sh", *self.command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={k: v for k, v in {**os.environ, **self._env}.items() if v is not None},
                cwd=self._cwd,
                start_new_session=True,
            )
        try:
            self._await(ready, timeout)
        except BaseException:
            self.kill()
            raise

    def _lock(self, output: BinaryIO) -> None:
        """Lock the log by the descriptor that the server inherits; wait for a predecessor that is dying."""
        deadline = time.monotonic() + _PREDECESSOR_SECONDS
        while True:
            try:
                return fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerStartError(
                        f"another one runs in {self.log.parent} already: stop it, or use another folder."
                    ) from None
                time.sleep(0.1)

    def _await(self, ready: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.alive():
                raise ServerStartError(self._failure("ended before it was ready"))
            if time.monotonic() > deadline:
                raise ServerStartError(self._failure(f"wasn't ready after {timeout:.0f} s"))
            time.sleep(0.1)

    def stop(self, timeout: float = 30) -> None:
        """Ask the process to end (SIGTERM) and wait; kill it if it doesn't within ``timeout`` seconds."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill_alone(self) -> None:
        """Kill the process (SIGKILL) and wait until it is gone; its children go on until `kill`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Kill the process and its children at once (SIGKILL) and wait until it is gone."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def log_tail(self, lines: int = 15) -> list[str]:
        """Return the last lines logged since the last start, without the frames of stack traces."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as output:
            output.seek(self._log_start)
            logged = output.read().decode(errors="replace").splitlines()
        return [line for line in logged if not line.startswith("\tat ")][-lines:]

    def _failure(self, what: str) -> str:
        tail = "\n".join(f"  {line}" for line in self.log_tail())
        return f"{Path(self.command[0]).name} {what}. Its last lines:\n{tail}\nAll of it: {self.log}"


class Server(ABC):
    """What has a `ServerProcess` as its process; a context manager.

    A subclass puts that into ``_server`` when it starts.
    """

    _server: ServerProcess | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start the server, wait until it is ready, and return it; one that runs is left alone."""

    @property
    def pid(self) -> int | None:
        """The server's process id; ``None`` when it isn't started."""
        return None if self._server is None else self._server.pid

    def alive(self) -> bool:
        """Tell whether the server's process runs."""
        return self._server is not None and self._server.alive()

    def how_it_ended(self) -> str:
        """Return the signal or the exit code that the server ended with; empty while it runs or if it was stopped."""
        return "" if self._server is None else self._server.how_it_ended()

    def restart(self) -> None:
        """Start the server again after its process has ended; what that one has left running ends first."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Shut the server down cleanly (SIGTERM), or kill it if it isn't done within half a minute."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL)."""
        if self._server is not None:
            self._server.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def run_in_foreground(server: Server, started: str, ended: str, prepare: Callable[[], object] | None = None) -> None:
    """Run a server until SIGTERM or SIGINT, or until it ends unexpectedly.

    Args:
        server: Started here, and stopped in the end.
        started: Printed once it is ready.
        ended: The message if it ends unexpectedly.
        prepare: Called before it is started.

    Raises:
        SystemExit: With 0 after a signal, else with what is to be said.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        if prepare is not None:
            prepare()
        with server:
            print(started, flush=True)
            while server.alive():
                time.sleep(0.5)
            raise SystemExit(ended)
    except KafkaLakeError as error:
        raise SystemExit(str(error)) from None


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on right now.

    It is below those that systems give to outgoing connections, which could take it before a server does.

    Raises:
        OSError: If none is found.
    """
    for _ in range(_PORTS_TRIED):
        port = secrets.choice(_SERVERS_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(f"No port of {HOST} among {_SERVERS_PORTS} is free.")


def port_open(port: int) -> bool:
    """Tell whether something accepts connections on that port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
