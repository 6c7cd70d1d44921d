"""What a run says of a long backlog: how far it is, and about how long the rest takes."""

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from kafka_lake.cli.progress import run_progress
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.ingest.report import Progress
from kafka_lake.orchestration.materialize import observer_of
from kafka_lake.orchestration.reporting import Reporter
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable

ME = TopicIdentity("c", "t", "pizzas")


def plan(offsets: int, remaining: int) -> Plan:
    return Plan((OffsetRange(0, 7, 7 + offsets),), Position(ME, {0: 7 + offsets}), remaining)


def commit(todo: Plan) -> Commit:
    records = todo.records_at_most
    return Commit(4711, todo.ranges, todo.after, records, records, 0, 0, 1, 1, {}, ())


def after(*commits: tuple[int, int, float]) -> Progress:
    progress = Progress(1000.0)
    for offsets, remaining, seconds in commits:
        progress = progress.plus(plan(offsets, remaining), 1000.0 + seconds)
    return progress


def test_one_commit_that_does_it_all_says_nothing() -> None:
    assert after((500, 0, 10)).line() == after().line() == after().time_left() == ""


def test_a_line_tells_commits_records_and_time() -> None:
    reported = after((200_000, 9_800_000, 50), (200_000, 9_600_000, 60)).line()
    assert reported == "2 of about 50 commits, 400 k of 10.0 M records, about 8 min left"


def test_the_first_commit_alone_counts_from_the_beginning_of_the_run() -> None:
    assert after((100, 300, 10)).time_left() == "about 30 s left"


def test_the_start_of_a_run_is_not_taken_for_what_each_commit_takes() -> None:
    assert after((100, 900, 300), (100, 800, 310), (100, 700, 320)).time_left() == "about 70 s left"


def test_a_small_first_commit_does_not_make_it_many_commits() -> None:
    assert after((10, 1990, 5), (1000, 990, 20)).line().startswith("2 of about 3 commits, 1,010 of 2,000 records")


def test_commits_that_came_with_new_records_make_the_whole_longer() -> None:
    assert after((100, 900, 5), (100, 1900, 10)).line().startswith("2 of about 21 commits, 200 of 2,100 records")


def test_the_progress_of_another_backlog_starts_from_zero() -> None:
    caught_up = ((100, 100, 5.0), (100, 0, 10.0))
    first = after(*caught_up, (50, 100, 5000))
    assert first.line() == "1 of about 3 commits, 50 of 150 records"
    assert after(*caught_up, (50, 100, 5000), (50, 50, 5001)).line().endswith("about 1 s left")
    assert after(*caught_up, (50, 0, 5000)).line() == ""


def test_a_run_that_continues_logs_a_line_for_each_commit_of_a_long_backlog_and_no_other() -> None:
    said: list[str] = []
    log = SimpleNamespace(info=said.append, warning=said.append)
    run: Any = SimpleNamespace(has_partition_key=False, has_partition_key_range=False, log=log, run_id="run")
    nobody: Any = None
    observer = observer_of(Reporter(run, TopicTable("pizzas"), nobody))
    for todo in (plan(100, 100), plan(100, 0), plan(3, 0), plan(2, 0)):
        observer.on_commit(commit(todo), todo)
    assert len(said) == 1
    assert said[0].startswith("1 of about 2 commits, 100 of 200 records, about 1 s left.")


def test_the_bar_of_a_command_says_about_how_long_the_rest_takes() -> None:
    shown = io.StringIO()
    with run_progress("pizzas", Console(file=shown, force_terminal=True, width=150)) as observer:
        for todo in (plan(100, 200), plan(100, 100)):
            observer.on_commit(commit(todo), todo)
    assert "200/300" in shown.getvalue()
    assert "about 1 s left" in shown.getvalue()
