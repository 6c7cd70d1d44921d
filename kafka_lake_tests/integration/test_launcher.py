"""Runs that are forked: they do what runs do, end when they are told to, and are missed when they are killed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from runpy import run_path
from typing import Any

import psutil
import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus
from dagster._core.launcher.base import WorkerStatus
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget

from kafka_lake.common.process_names import number_of
from kafka_lake.dagster_runtime import launcher as launching
from kafka_lake.dagster_runtime.launcher import PROCESS_TAG, ForkingRunLauncher, _forkable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

INSTANCE = """
telemetry: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
run_launcher:
  module: kafka_lake.launcher
  class: ForkingRunLauncher
"""

LOCATION = """
import os
import time
from pathlib import Path

import dagster as dg

HERE = Path(__file__).parent


@dg.op
def tell():
    (HERE / "told").write_text(f"WORD {os.getppid()}")


@dg.op
def wait():
    (HERE / "waits").touch()
    while True:
        time.sleep(0.05)


@dg.job(executor_def=dg.in_process_executor)
def tells():
    tell()


@dg.job(executor_def=dg.in_process_executor)
def waits():
    wait()


@dg.asset
def made():
    (HERE / "made").write_text(str(os.getpid()))


@dg.definitions
def defs() -> dg.Definitions:
    with (HERE / "loads").open("a") as loads:
        print(os.getpid(), file=loads)
    makes = dg.define_asset_job("makes", [made], executor_def=dg.in_process_executor)
    return dg.Definitions([made], jobs=[tells, waits, makes])
"""

Launch = Callable[[str], str]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launched")
    (folder / "dagster.yaml").write_text(INSTANCE)
    (folder / "location.py").write_text(LOCATION.replace("WORD", "first"))
    return folder


@pytest.fixture(scope="module")
def instance(project: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(project)) as opened:
        yield opened


@pytest.fixture(scope="module")
def launch(project: Path, instance: DagsterInstance) -> Iterator[Launch]:
    """Return a function that launches a job as the daemon does, and returns the run's id."""
    target = PythonFileTarget(str(project / "location.py"), None, str(project), None)
    with WorkspaceProcessContext(instance, target) as process:

        def go(name: str) -> str:
            workspace = process.create_request_context()
            (location,) = workspace.code_locations
            job = location.get_repository("__repository__").get_full_job(name)
            run = instance.create_run_for_job(
                run_path(str(project / "location.py"))["defs"]().resolve_job_def(name),
                remote_job_origin=job.get_remote_origin(),
                job_code_origin=job.get_python_origin(),
                asset_selection=frozenset([AssetKey("made")]) if name == "makes" else None,
            )
            instance.launch_run(run.run_id, workspace)
            return run.run_id

        yield go


def until(reached: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)
    return found


def end_of(instance: DagsterInstance, run_id: str) -> DagsterRunStatus:
    def ended() -> DagsterRunStatus | None:
        run = instance.get_run_by_id(run_id)
        return run.status if run and run.is_finished else None

    return until(ended, f"run {run_id} to end")


def process_of(instance: DagsterInstance, run_id: str) -> psutil.Process:
    return psutil.Process(number_of(instance.get_run_by_id(run_id).tags[PROCESS_TAG]))


@pytest.fixture
def waiting(project: Path, instance: DagsterInstance, launch: Launch) -> Iterator[str]:
    """A run that goes on until it is told to end."""
    (project / "waits").unlink(missing_ok=True)
    run_id = launch("waits")
    process = process_of(instance, run_id)
    until((project / "waits").exists, "the run to begin")
    yield run_id
    if process.is_running():
        process.kill()
        end_of(instance, run_id)


def test_a_run_is_forked_and_has_the_code_as_it_is_when_it_begins(
    project: Path, instance: DagsterInstance, launch: Launch
) -> None:
    assert end_of(instance, launch("tells")) is DagsterRunStatus.SUCCESS
    word, parent = (project / "told").read_text().split()
    assert word == "first"
    assert "forkserver" in " ".join(psutil.Process(int(parent)).cmdline())
    (project / "location.py").write_text(LOCATION.replace("WORD", "second"))
    assert end_of(instance, launch("tells")) is DagsterRunStatus.SUCCESS
    assert (project / "told").read_text() == f"second {parent}"


def test_a_run_loads_its_definitions_once(project: Path, instance: DagsterInstance, launch: Launch) -> None:
    assert end_of(instance, launch("makes")) is DagsterRunStatus.SUCCESS
    loads = (project / "loads").read_text().split()
    assert loads.count((project / "made").read_text()) == 1


def test_a_run_whose_process_is_killed_is_reported_as_failed(instance: DagsterInstance, waiting: str) -> None:
    process = process_of(instance, waiting)
    process.kill()
    assert end_of(instance, waiting) is DagsterRunStatus.FAILURE
    said = [entry.message for entry in instance.all_logs(waiting)]
    assert any(f"process {process.pid} ended with -9" in line for line in said), said


def test_a_run_that_cannot_be_missed_is_not_begun(
    project: Path, instance: DagsterInstance, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        with pytest.raises(AssertionError, match="the run to begin"):
            until((project / "told").exists, "the run to begin", 4)
        raise OSError("The database is gone.")

    (project / "told").unlink(missing_ok=True)
    monkeypatch.setattr(DagsterInstance, "add_run_tags", fail)
    with pytest.raises(OSError, match="database is gone"):
        launch("tells")
    until(lambda: not psutil.Process(forkserver._forkserver._forkserver_pid).children(), "its process to end")
    [run] = instance.get_runs(limit=1)
    assert run.status is DagsterRunStatus.FAILURE
    assert not (project / "told").exists()


def test_a_run_ends_when_it_is_told_to(instance: DagsterInstance, waiting: str) -> None:
    process = process_of(instance, waiting)
    assert instance.run_launcher.terminate(waiting)
    assert end_of(instance, waiting) is DagsterRunStatus.CANCELED
    until(lambda: not process.is_running(), "its process to end")
    assert not instance.run_launcher.terminate(waiting)


def test_another_daemon_tells_whether_a_run_lives(instance: DagsterInstance, waiting: str) -> None:
    launcher = ForkingRunLauncher()
    run = instance.get_run_by_id(waiting)
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    name, _, began = run.tags[PROCESS_TAG].rpartition(":")
    pid = number_of(run.tags[PROCESS_TAG])
    other_process = run.with_tags({PROCESS_TAG: f"{name}:{int(began) - 100}"})
    assert launcher.check_run_worker_health(other_process).status is WorkerStatus.NOT_FOUND
    elsewhere = run.with_tags({PROCESS_TAG: f"not-{name}:1"})
    assert launcher.check_run_worker_health(elsewhere).status is WorkerStatus.RUNNING
    assert launcher.check_run_worker_health(run.with_tags({})).status is WorkerStatus.RUNNING
    os.kill(pid, signal.SIGSTOP)
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    os.kill(pid, signal.SIGKILL)
    until(lambda: launcher.check_run_worker_health(run).status is WorkerStatus.NOT_FOUND, "the death to be noticed")


def test_runs_outlive_the_process_that_they_are_forked_from(
    project: Path, instance: DagsterInstance, waiting: str, launch: Launch
) -> None:
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    (project / "told").unlink(missing_ok=True)
    # Another one is there for the next run, by whose end the death has been noticed.
    assert end_of(instance, launch("tells")) is DagsterRunStatus.SUCCESS
    assert instance.get_run_by_id(waiting).status is DagsterRunStatus.STARTED
    process_of(instance, waiting).kill()
    assert end_of(instance, waiting) is DagsterRunStatus.FAILURE


def test_what_fails_to_be_preloaded_keeps_no_run_from_starting(
    project: Path, instance: DagsterInstance, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "broken_preload.py").write_text("raise RuntimeError('no such thing')")
    monkeypatch.setattr(launching, "_PRELOADED", ["broken_preload"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")]))
    forkserver._forkserver._stop()
    (project / "told").unlink(missing_ok=True)
    run_id = launch("tells")
    assert end_of(instance, run_id) is DagsterRunStatus.SUCCESS
    assert (project / "told").exists()
    assert PROCESS_TAG not in instance.get_run_by_id(run_id).tags
    forkserver._forkserver._stop()


def test_runs_of_other_environments_are_not_forked(instance: DagsterInstance, waiting: str) -> None:
    run = instance.get_run_by_id(waiting)
    code = run.job_code_origin
    assert _forkable(run, code)
    repository = code.repository_origin
    other_python = repository._replace(executable_path="/elsewhere/python")
    in_container = repository._replace(container_image="image")
    for origin in (other_python, in_container):
        assert isinstance(origin, RepositoryPythonOrigin)
        assert not _forkable(run, JobPythonOrigin(code.job_name, origin))
    remote = run.remote_job_origin
    behind = GrpcServerCodeLocationOrigin(host="somewhere", port=4000)
    far = remote._replace(repository_origin=remote.repository_origin._replace(code_location_origin=behind))
    assert not _forkable(run._replace(remote_job_origin=far), code)
