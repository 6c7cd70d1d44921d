"""Progress bars on the terminal; none in a pipe and with --json."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kafka_lake.cli import output
from kafka_lake.common.environment import LOG
from kafka_lake.common.text import counted
from kafka_lake.runtime.plan import Plan

if TYPE_CHECKING:
    from kafka_lake.ingest.report import RunReport
    from kafka_lake.runtime.commit import Commit
    from kafka_lake.runtime.context import Observer


class Bar:
    """A bar with the rate and the time left, on standard error while a block of `shown` runs."""

    def __init__(self, as_json: bool = False, console: Console | None = None) -> None:
        self._progress = _progress(_Rate(), TimeRemainingColumn(), console=console, is_hidden=as_json)
        self._task = self._progress.add_task("", total=None)

    @contextmanager
    def shown(self, description: str | None = None) -> Iterator[None]:
        """Show the bar during the block, after which results may be printed."""
        if description is not None:
            self.update(description)
        with self._progress:
            yield

    def update(self, description: str, completed: int | None = None, total: int | None = None) -> None:
        """Set the text, and how much is done of how much; None leaves a number as it is."""
        self._progress.update(self._task, description=escape(description), completed=completed, total=total)


class _Rate(ProgressColumn):
    """How much is done in a second, or in a minute where that is little."""

    def render(self, task: Task) -> Text:
        """Return the rate; nothing before it is known."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.0f}/s" if speed >= 10 else f"{speed * 60:,.0f}/min", "cyan", no_wrap=True)


def _progress(*columns: ProgressColumn, console: Console | None, is_hidden: bool) -> Progress:
    console = console or output.err
    first = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    # Results go to another stream, which may be a file.
    return Progress(
        *first,
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=is_hidden or not console.is_terminal,
    )


@contextmanager
def run_progress(topic: str, console: Console | None = None, backlog: int | None = None) -> Iterator[Observer]:
    """Show a progress bar during the block, and the run's warnings above it; neither if runs are logged."""
    from kafka_lake.ingest.report import Progress as RunProgress
    from kafka_lake.runtime.context import Observer

    time_left, is_logged = TextColumn("{task.fields[time_left]}"), bool(LOG.value())
    columns = (_Rate(), TimeElapsedColumn(), time_left)
    with _progress(*columns, console=console, is_hidden=is_logged) as progress:
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
