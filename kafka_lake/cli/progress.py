"""The progress of a run on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafka_lake.cli import output
from kafka_lake.common.environment import LOG
from kafka_lake.common.text import counted
from kafka_lake.runtime.plan import Plan

if TYPE_CHECKING:
    from kafka_lake.ingest.report import RunReport
    from kafka_lake.runtime.commit import Commit
    from kafka_lake.runtime.context import Observer


@contextmanager
def run_progress(topic: str, console: Console | None = None, backlog: int | None = None) -> Iterator[Observer]:
    """Show a progress bar during the block, and the run's warnings above it; neither if runs are logged."""
    from kafka_lake.ingest.report import Progress as RunProgress
    from kafka_lake.runtime.context import Observer

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    time_left, is_logged = TextColumn("{task.fields[time_left]}"), bool(LOG.value())
    with Progress(*columns, time_left, console=console or output.err, transient=True, disable=is_logged) as progress:
        task = progress.add_task(escape(topic), total=backlog, time_left="")
        run = RunProgress(time.monotonic())

        def on_commit(_commit: Commit, plan: Plan) -> None:
            nonlocal run
            run = run.plus(plan, time.monotonic())
            done = int(progress.tasks[0].completed) + plan.records_at_most
            progress.update(task, completed=done, total=done + plan.remaining, time_left=run.time_left())

        def step_done(step: str) -> None:
            progress.update(task, description=escape(f"{topic}: {step}"))

        def warn(line: str) -> None:
            if not is_logged:
                progress.console.print(escape(line), highlight=False, soft_wrap=True)

        yield Observer(step_done, on_commit, warn)


def run_summary(report: RunReport) -> str:
    """Return a run's rows, commits, dead letters and seconds in one line."""
    rows, failed = counted(report.total("rows"), "row"), counted(report.total("dead_letters"), "dead letter")
    return f"{report.table}: {rows} in {counted(len(report.commits), 'commit')}, {failed}, {report.seconds:.1f} s"
