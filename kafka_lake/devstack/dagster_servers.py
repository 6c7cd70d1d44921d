"""Dagster's processes: code servers, daemon and web server.

`dagster dev` starts the same ones, but ends all of them when one has ended.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from kafka_lake.common.files import dagster_home
from kafka_lake.common.processes import Server, ServerProcess

_CODE_SECONDS = 120.0
_IN_FLIGHT = ("STARTING", "STARTED", "CANCELING")
_UI_SECONDS = 120.0


@dataclass(frozen=True)
class CodeLocation:
    """A code location with its own code server.

    Args:
        name: Dagster's name of it, part of the names of its sensors and runs.
        options: Of `dagster code-server start`; they name the definitions.
    """

    name: str
    options: tuple[str, ...]


class Program(Server):
    """A server that is a command; a context manager.

    Args:
        log: The file that it logs to; each start appends.
        ready: Returns whether it can be used.
        timeout: Seconds until it must be ready.
        cwd: Folder to run in; this process's by default.
        keeps_children: Whether its children survive a restart.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        ready: Callable[[], bool],
        timeout: float,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        keeps_children: bool = False,
    ) -> None:
        self._log = log
        self._start = (ready, timeout)
        self._keeps_children = keeps_children
        self._former: list[ServerProcess] = []
        self._make = partial(ServerProcess, [*command], log, env, cwd=cwd, locks_log=not keeps_children)

    @property
    def log(self) -> Path:
        """The file that it logs to."""
        return self._log

    def start(self) -> Self:
        """Start it and wait until it is ready; raises `ServerStartError`."""
        if not self.alive():
            self._server = self._make()
            self._server.start(*self._start)
        return self

    def restart(self) -> None:
        """Start it again after it has ended; raises `ServerStartError`."""
        if not self._keeps_children:
            super().restart()
        elif self._server is not None:
            self._server.kill_alone()
            # Its children are killed with its process group at the end.
            self._former.append(self._server)
            self._server = None
            self.start()

    def stop(self) -> None:
        """Stop it, and end its children."""
        super().stop()
        self.kill()

    def kill(self) -> None:
        """End it and its children at once."""
        super().kill()
        while self._former:
            self._former.pop().kill()


class CodeServer(Program):
    """A code server. Its child loads the definitions, and Dagster doesn't restart the child."""

    _loader: psutil.Process | None = None

    def alive(self) -> bool:
        """Return whether both processes run."""
        if not super().alive():
            return False
        if self._loader is None or not _loads(self._loader, self.pid):
            # A reload starts a new child.
            self._loader = next((child for child in _children(self.pid) if _loads(child, self.pid)), None)
        return self._loader is not None


def code_server(location: CodeLocation, socket_file: Path, log: Path, env: Mapping[str, str], cwd: Path) -> CodeServer:
    """Return the code server of a code location. Its runs survive its restart."""
    command = [sys.executable, "-m", "dagster", "code-server", "start", *location.options]
    command += ["--socket", str(socket_file), "--location-name", location.name, "--inject-env-vars-from-instance"]
    command += ["--log-level", "warning"]
    return CodeServer(command, log, lambda: _listens(socket_file), _CODE_SECONDS, env=env, cwd=cwd, keeps_children=True)


def daemon(workspace: Path, log: Path, env: Mapping[str, str], cwd: Path) -> Program:
    """Return Dagster's daemon. Runs survive its restart."""
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(workspace)]
    return Program(command, log, lambda: True, 0.0, env=env, cwd=cwd, keeps_children=True)


def web_server(
    workspace: Path, log: Path, env: Mapping[str, str], cwd: Path, address: str, ready: Callable[[], bool]
) -> Program:
    """Return Dagster's web server."""
    host, _, port = address.partition(":")
    command = [sys.executable, "-m", "dagster_webserver", "-w", str(workspace), "-h", host, "-p", port]
    return Program([*command, "--live-data-poll-rate", "2000"], log, ready, _UI_SECONDS, env=env, cwd=cwd)


def workspace_document(servers: Mapping[str, Path], others: Sequence[Mapping[str, Any]]) -> str:
    """Return the workspace file of daemon and web server."""
    local = [{"grpc_server": {"socket": str(file), "location_name": name}} for name, file in servers.items()]
    return yaml.safe_dump({"load_from": [*local, *others]})


def _listens(socket_file: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(socket_file))
        except OSError:
            return False
    return True


def _children(pid: int | None) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children())
    except psutil.Error:
        return []


def _loads(process: psutil.Process, parent: int | None) -> bool:
    try:
        return process.is_running() and process.ppid() == parent and "grpc" in process.cmdline()
    except psutil.Error:
        # Also raised for a zombie.
        return False


def prepare_dagster_home() -> Path:
    """Create the folder for ``DAGSTER_HOME``, and cancel unfinished runs of an earlier stack."""
    folder = dagster_home()
    if (folder / "storage").exists() or (folder / "history").exists():
        _end_orphaned_runs(folder)
    return folder


def _end_orphaned_runs(folder: Path) -> None:
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    statuses = [DagsterRunStatus[name] for name in _IN_FLIGHT]
    with DagsterInstance.from_config(str(folder)) as instance:
        for run in instance.get_runs(RunsFilter(statuses=statuses)):
            instance.report_run_canceled(run, "Its process ended together with an earlier local stack.")
