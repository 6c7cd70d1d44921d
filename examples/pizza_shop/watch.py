"""Waits for Dagster's runs, and raises the error of a run that fails."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka_lake.devstack.dagster_runs import DagsterRuns, Run
from kafka_lake.errors import KafkaLakeError

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Watch:
    """The runs of one stack.

    Args:
        began: Earlier runs are ignored; seconds since the epoch.
        check: Raises if a server has ended.
        tell_user: Called with the current state.
        timeout: Of one wait, in seconds.
    """

    runs: DagsterRuns
    began: float
    check: Callable[[], None]
    tell_user: Callable[[str], None]
    timeout: float = TIMEOUT_S

    def until(self, done: Callable[[list[Run]], bool], what: str) -> list[Run]:
        """Wait for a condition on the runs, and return them, newest first."""
        deadline = time.monotonic() + self.timeout
        while True:
            self.check()
            recent = self.runs.since(self.began)
            for run in recent:
                if run.status in ("FAILURE", "CANCELED"):
                    raise KafkaLakeError(f"Run {run.run_id} of {_what(run)}: {self._cause(run)}")
            if done(recent):
                return recent
            active = [f"run {run.run_id[:8]} of {_what(run)}: {run.status}" for run in recent if not run.ended]
            waiting = "; ".join(active) or f"Waiting for {what}"
            if time.monotonic() > deadline:
                raise KafkaLakeError(f"The demo wasn't done after {self.timeout:.0f} s. It was at this: {waiting}.")
            self.tell_user(waiting)
            time.sleep(1)

    def _cause(self, run: Run) -> str:
        return self.runs.report(run.run_id).failure or f"it ended as {run.status}, and its events name no cause"


def _what(run: Run) -> str:
    """Return a run's assets, or its job if it has none, as maintenance."""
    return ", ".join(run.assets) or run.job


def made(runs: list[Run], asset: tuple[str, str], after: float, by_sensor: bool = False) -> list[Run]:
    """Return the successful runs of an asset that ended after a moment, in order of their end."""
    successful = [
        run for run in runs if run.status == "SUCCESS" and "/".join(asset) in run.assets and run.ended > after
    ]
    return sorted((run for run in successful if run.sensor or not by_sensor), key=lambda run: run.ended)
