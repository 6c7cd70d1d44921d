"""Who is told what happens in a run: a person's log, a progress bar, Dagster, a test. It decides nothing."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.plan.model import Plan

log = logging.getLogger(__name__)


def ignore(*_: Any) -> None:
    """Do nothing: what those give who don't listen."""


@dataclass(frozen=True)
class Observer:
    """Three questions of those who look on. What one of them raises ends the run as a failure of it would.

    Args:
        step_done: Called with the name of each step that has been done.
        on_commit: Called after each published commit with it and its plan.
        warn: Gets a line for whatever a person reading the run's log should know: retries, refusals, rebuilt positions.
    """

    step_done: Callable[[str], None] = ignore
    on_commit: Callable[[Commit, Plan], None] = ignore
    warn: Callable[[str], None] = log.warning
