"""Starts Dagster's runs quickly: it forks them from a process that has imported what they need.

Dagster itself starts a new Python for each run, whose imports take some three CPU-seconds. Its daemon starts one run
after the other, each once the one before has imported all. With many topics, records wait mostly for this.
The code of a location is still loaded for each run, so that a run uses the files as they are when it begins.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from dagster import DagsterRun, DefaultRunLauncher, serialize_value
from dagster._cli.api import execute_run_command
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.origin import JobPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._grpc.types import ExecuteRunArgs

from kafka_lake.common.process_names import is_gone, name_of, number_of

PROCESS_TAG = ".dagster/kafka_lake_process"
"""Tag of a run: its process's name."""

_PRELOADED = ["kafka_lake.dagster_runtime.preload"]
_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


class ForkingRunLauncher(DefaultRunLauncher):
    """Launches runs as forks of a process that Dagster's daemon keeps, and finds them again when the daemon is another.

    Runs of code locations in another Python environment, in another container or behind a server of their own, and runs
    on systems other than Linux, where a fork of threads' memory isn't safe, are launched as `DefaultRunLauncher` does.

    In ``dagster.yaml``::

        run_launcher:
          module: kafka_lake.launcher
          class: ForkingRunLauncher

    Private: the run's arguments and the command that takes them (``dagster._cli.api``, ``dagster._grpc.types``), where
    its code comes from (``dagster._core.origin``, ``dagster._core.remote_origin``), the interface of launchers
    (``dagster._core.launcher.base``), and `DefaultRunLauncher`'s ``_instance`` and ``_run_ids``. Dagster's public
    executors and launchers start a Python for each run. Without them `kafka_lake.launcher` names Dagster's own.
    """

    def __init__(self, inst_data: Any = None) -> None:
        super().__init__(inst_data)
        self._starting = threading.Lock()

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start a run; returns as soon as its process is there.

        Args:
            context: The run, and the workspace with its code location.

        Where nothing can be forked, Dagster's own way is gone instead.
        """
        run, code = context.dagster_run, context.job_code_origin
        if code is None or not _forkable(run, code):
            super().launch_run(context)
            return
        arguments = ExecuteRunArgs(code, run.run_id, self._instance.get_ref())
        forking = multiprocessing.get_context("forkserver")
        told, tell = forking.Pipe(duplex=False)
        with tell:
            try:
                with told, self._starting:
                    forking.set_forkserver_preload(_PRELOADED)
                    process = forking.Process(
                        target=_execute, args=[serialize_value(arguments), told], name=f"run {run.run_id}"
                    )
                    process.start()
            except (OSError, EOFError) as error:
                # What is preloaded may fail on its own: its output says why.
                log.warning("Run %s can't be forked, so Dagster starts it itself: %r", run.run_id, error)
                super().launch_run(context)
                return
            if name := name_of(process.pid):
                self._instance.add_run_tags(run.run_id, {PROCESS_TAG: name})
                with suppress(BrokenPipeError):
                    tell.send(None)
        self._run_ids.add(run.run_id)
        threading.Thread(target=self._await_end, args=[process, run.run_id, name], daemon=True).start()

    def terminate(self, run_id: str) -> bool:
        """Ask a run's process to end, as Ctrl-C does.

        Returns:
            Whether it was still there.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None or PROCESS_TAG not in run.tags:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        process = _process_of(run)
        if run.is_finished or process is None:
            return False
        self._instance.report_run_canceling(run)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Dagster's monitoring may ask whether a run's process lives."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Return whether a run's process lives; those of other hosts and of other launchers are taken to."""
        name = run.tags.get(PROCESS_TAG)
        if name is None or not is_gone(name):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"Process {name} is gone.")

    def _await_end(self, process: BaseProcess, run_id: str, name: str | None) -> None:
        wait([process.sentinel])
        # That is closed too when the process that all are forked from is killed; they live on.
        while name is not None and not is_gone(name):
            time.sleep(_POLL_SECONDS)
        with self._starting:
            # Starting a process polls all others, and only one may read how this one ended.
            process.join()
        run = self._instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_failed(run, f"The run's process {process.pid} ended with {process.exitcode}.")


def _forkable(run: DagsterRun, code: JobPythonOrigin) -> bool:
    remote = run.remote_job_origin
    location = remote and remote.repository_origin.code_location_origin
    # `dagster dev` starts the servers of its code locations itself, each behind a socket of this machine.
    ours = isinstance(location, ManagedGrpcPythonEnvCodeLocationOrigin) or (
        isinstance(location, GrpcServerCodeLocationOrigin) and location.socket is not None
    )
    same_python = code.executable_path == sys.executable and code.repository_origin.container_image is None
    return ours and same_python and sys.platform == "linux"


def _process_of(run: DagsterRun) -> int | None:
    """Return the number of a run's process on this host, None if it is gone or another host's."""
    name = run.tags[PROCESS_TAG]
    return number_of(name) if is_gone(name) is False else None


def _execute(arguments: str, told: Connection) -> None:
    """Execute a run once it is tagged with this process, so that its death would be noticed; otherwise not at all."""
    try:
        told.recv()
    except EOFError:
        return
    # A shell that starts its programs in the background makes them deaf to SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    execute_run_command.main([arguments], standalone_mode=False)
