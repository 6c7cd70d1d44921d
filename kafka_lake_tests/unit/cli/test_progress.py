"""Progress bars: on terminals alone, and gone before results are printed."""

import io

import pytest
from rich.console import Console

from kafka_lake.cli.progress import Bar, run_progress


def shown(bar: Bar, console: Console) -> str:
    with bar.shown("Topic orders"):
        bar.update("Topic orders", 2_000, 3_000)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bar_on_a_terminal_shows_count_in_one_line(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    lines = [line for line in shown(Bar(console=console), console).splitlines() if "orders" in line]
    assert "2000/3000" in lines[-1]
    assert lines[-1].count("Topic orders") == 1


@pytest.mark.parametrize(("is_terminal", "as_json"), [(False, False), (True, True)])
def test_bar_in_a_pipe_or_beside_json_writes_nothing(is_terminal: bool, as_json: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    assert shown(Bar(as_json, console), console) == ""


def test_run_progress_in_a_pipe_writes_warnings_alone() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with run_progress("orders", console, backlog=7) as observer:
        observer.step_done("planned")
        observer.warn("attempt [1] of 6 failed")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "attempt [1] of 6 failed\n"
