"""Dagster's storage, as a stack that starts finds it."""

from pathlib import Path

from kafka_lake.common.home import dagster_home

_IN_FLIGHT = ("STARTING", "STARTED", "CANCELING")


def prepare_dagster_home() -> Path:
    """Make the folder of Dagster's storage as `dagster_home` does, and end runs that no one runs.

    Runs that were cut off together with an earlier stack would count as in flight forever.

    Returns:
        The folder, for ``DAGSTER_HOME``.
    """
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
