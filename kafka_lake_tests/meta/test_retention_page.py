"""The job of docs/production.md that deletes old runs, as it stands on the page."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "production.md"


def code_of_the_page() -> dict[str, Any]:
    """Return what the page's code defines, by name."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "retention_page"}
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), names)
    return names


@pytest.fixture
def page() -> dict[str, Any]:
    return code_of_the_page()


@dg.op
def nothing() -> None:
    pass


@dg.job(executor_def=dg.in_process_executor)
def some() -> None:
    nothing()


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "left"), [(timedelta(days=30), 3), (timedelta(seconds=-60), 1)])
def test_old_runs_go_with_their_events_and_what_runs_stays(page: dict[str, Any], keep: timedelta, left: int) -> None:
    page["KEEP"] = keep
    with dg.DagsterInstance.ephemeral() as instance:
        ended = [some.execute_in_process(instance=instance).run_id for _ in range(2)]
        living = instance.create_run_for_job(some, status=dg.DagsterRunStatus.STARTED).run_id
        assert all(instance.all_logs(run_id) for run_id in ended)
        done = page["retention"].execute_in_process(instance=instance)
        kept = {run.run_id for run in instance.get_runs()} - {done.run_id}
        assert kept == {living, *(ended if left == 3 else ())}
        assert [bool(instance.all_logs(run_id)) for run_id in ended] == [left == 3] * 2


def test_it_runs_each_night(page: dict[str, Any]) -> None:
    schedule = page["nightly"]
    assert schedule.job_name == "retention"
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
