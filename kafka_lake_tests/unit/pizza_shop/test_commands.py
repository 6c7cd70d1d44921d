"""The commands of a clone."""

from typer.testing import CliRunner

from examples.pizza_shop.__main__ import app


def test_demo_without_orders_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["demo", "--records", "0"]).exit_code == 2


def test_help_names_demo_and_live() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert " demo " in shown
    assert " live " in shown
