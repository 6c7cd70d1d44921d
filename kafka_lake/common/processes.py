"""Server processes that log to a file and end with their parent; names of processes."""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Self

import psutil

from kafka_lake.errors import ServerStartError

# The watcher reads from a pipe whose other end only the parent has. When the parent ends, the pipe is closed, and the
# watcher kills its process group, with the server. (PR_SET_PDEATHSIG kills at the end of the parent's *thread*, and
# exists on Linux only.)
_WATCHED = 'exec 3<&0; { read -r _ <&3; kill -KILL -$$; } & exec "$@" </dev/null 3<&-'
_PREDECESSOR_SECONDS = 5
_SERVERS_PORTS, _PORTS_TRIED = range(20_000, 32_000), 100

HOST = "127.0.0.1"
"""The address of all embedded servers."""


class ServerProcess:
    """A child process in its own process group, which is killed when the parent ends.

    Args:
        log: File for standard output and error. The server locks it, so that there is one server at a time.
        env: Added to the parent's environment; None removes a variable.
        locks_log: False for a server whose children may survive it.
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
        """The server's process id; None if it isn't started or was stopped."""
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def how_it_ended(self) -> str:
        """Return the signal or the exit code of an unexpected end; else an empty text."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def start(self, ready: Callable[[], bool], timeout: float) -> None:
        """Start the process and wait until it is ready."""
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
        """Lock the log by the descriptor that the server inherits, after a dying predecessor."""
        deadline = time.monotonic() + _PREDECESSOR_SECONDS
        while True:
            try:
                return fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerStartError(
                        f"another server already runs in {self.log.parent}: stop it, or use another folder."
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
        """End the process by SIGTERM; kill it after ``timeout`` seconds."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill_alone(self) -> None:
        """Kill the process, and leave its children until `kill`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Kill the process and its children."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def log_tail(self, lines: int = 15) -> list[str]:
        """Return the last lines since the start, without frames of stack traces."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as output:
            output.seek(self._log_start)
            logged = output.read().decode(errors="replace").splitlines()
        return [line for line in logged if not line.startswith("\tat ")][-lines:]

    def _failure(self, what: str) -> str:
        tail = "\n".join(f"  {line}" for line in self.log_tail())
        return f"{Path(self.command[0]).name} {what}. Its last lines:\n{tail}\nAll of it: {self.log}"


class Server:
    """A server on this machine, whose data survive `stop` and `kill`; a context manager.

    Args:
        folder: Of its data and log. One server at a time can use it.
        port: Port of 127.0.0.1; 0 picks a free one, which stays over restarts.
    """

    name: ClassVar[str] = ""
    """Its name for users, at the beginning of a sentence."""
    log_name: ClassVar[str] = "server"
    start_timeout: ClassVar[float] = 60
    """Seconds until it must be ready, without downloads."""
    port_variable: ClassVar[str] = ""
    """The environment variable of its port."""

    _server: ServerProcess | None = None

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.resolve()
        self.port = port or free_port()

    @property
    def log(self) -> Path:
        """The file that it logs to; each start appends."""
        return self.folder / f"{self.log_name}.log"

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it isn't started."""
        return None if self._server is None else self._server.pid

    def start(self) -> Self:
        """Start the server, unless it runs, and wait until it is ready."""
        if self.alive():
            return self
        for port in self._ports():
            if port_open(port):
                another = f", or set {self.port_variable} to another port" if self.port_variable else ""
                raise ServerStartError(
                    f"Port {port} of {HOST} is in use by another program.", f"End that program{another}."
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._server = self._process()
            self._server.start(self._ready, self.start_timeout)
        except ServerStartError as error:
            raise ServerStartError(f"{self.name} didn't start on port {self.port}: {error}") from None
        return self

    def _ports(self) -> list[int]:
        """Return all ports of the server."""
        return [self.port]

    def _process(self) -> ServerProcess:
        """Return its process, without starting it."""
        raise NotImplementedError

    def _ready(self) -> bool:
        """Return whether it can be used; called several times a second."""
        return port_open(self.port)

    def alive(self) -> bool:
        """Return whether the server's process runs."""
        return self._server is not None and self._server.alive()

    def how_it_ended(self) -> str:
        """Return the signal or the exit code of an unexpected end; else an empty text."""
        return "" if self._server is None else self._server.how_it_ended()

    def restart(self) -> None:
        """Start the server again after its end, and kill remaining children before."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Shut the server down by SIGTERM; kill it after half a minute."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """Kill the server, as a power cut would."""
        if self._server is not None:
            self._server.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, below those of outgoing connections, which could take it first."""
    for _ in range(_PORTS_TRIED):
        port = secrets.choice(_SERVERS_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise OSError(f"No port of {HOST} among {_SERVERS_PORTS} is free.")


def port_open(port: int) -> bool:
    """Return whether a server accepts connections on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def name_of(process: int | None) -> str | None:
    """Return a unique name of a running process: host, boot id, PID namespace, number and start; None if it has ended.

    Namespaces distinguish containers with the same host name, boot ids distinguish hosts with the same name.
    """
    start = _start_of(process) if process is not None else None
    return None if start is None else f"{_here()}:{process}:{start}"


def is_gone(name: str) -> bool | None:
    """Return whether the process of a name has ended; None if it is on another host or in another namespace.

    >>> is_gone("another host:0ab52b1c:4026531836:17:123456")
    """
    here, process, _ = name.rsplit(":", 2)
    return name_of(int(process)) != name if here == _here() else None


def _here() -> str:
    if sys.platform != "linux":
        return f"{socket.gethostname()}:{psutil.boot_time():.0f}:"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}:{boot}:{Path('/proc/self/ns/pid').readlink().name.strip('pid:[]')}"


def _start_of(process: int) -> str | None:
    if sys.platform != "linux":
        try:
            return f"{psutil.Process(process).create_time():.0f}"
        except psutil.NoSuchProcess:
            return None
    try:
        after_command = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Ticks since the machine's start, which don't depend on the clock.
    state, start = after_command[0], after_command[19]
    return None if state == "Z" else start
