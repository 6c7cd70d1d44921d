"""The command line, ``kafka-lake …``."""

import gc
import logging
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Annotated, Any

import typer
from dotenv import load_dotenv
from rich.markup import escape
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from kafka_lake.cli import commands, find_project, output
from kafka_lake.common import environment
from kafka_lake.common.logs import error_without_secrets, log_as_the_environment_says, without_secret_values
from kafka_lake.devstack.running import running
from kafka_lake.errors import KafkaLakeError

COMMANDS = {name.replace("_", "-"): f"{commands.__name__}.{name}" for _, name, _ in iter_modules(commands.__path__)}
"""The module of each command: it has a function of the command's name, or the group ``app``."""

_FAILURE = {"verify": 2}
"""Exit codes of commands whose exit code 1 is a result."""

_OWN_PROCESS = object()


class _Group(TyperGroup):
    """Imports only the command that is called, and shows errors that a user can fix as one message."""

    more: Mapping[str, str] = MappingProxyType({})

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._modules = {**COMMANDS, **self.more}
        self.commands: dict[str, Any] = dict.fromkeys(self._modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, from its module."""
        if cmd_name not in self._modules:
            return None
        module = import_module(self._modules[cmd_name])
        group = getattr(module, "app", None)
        if group is None:
            group = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            group.command()(getattr(module, cmd_name.replace("-", "_")))
        command = get_command(group)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaLakeError as error:
            message, level = without_secret_values(str(error)), logging.INFO
            cause = error_without_secrets(error)
        except (typer.Exit, typer.Abort, TyperException):
            raise
        except Exception as error:
            from kafka_lake.error_classification import user_message

            message, level = user_message(error) or "", logging.WARNING
            cause = error_without_secrets(error)
            if not message and ctx.invoked_subcommand in _FAILURE:
                message = without_secret_values(f"{type(error).__name__}: {error}")
            if not message:
                raise cause from (error.__cause__ if cause is error else None)
        logging.getLogger(__name__).log(level, "The command failed", exc_info=cause)
        output.err.print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True, highlight=False)
        raise typer.Exit(_FAILURE.get(ctx.invoked_subcommand, 1))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kafka-lake {version('kafka-lake')}")
        raise typer.Exit


def _prepare(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    module: Annotated[
        str | None,
        typer.Option(
            "--module-name", "-m", envvar="DAGSTER_MODULE_NAME", help="Python module with the Dagster definitions."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--python-file", "-f", envvar="DAGSTER_PYTHON_FILE", help="Python file with the Dagster definitions."
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", "-w", envvar=environment.WORKSPACE.name, help="Dagster's workspace.yaml."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", envvar=environment.VERBOSE.name, help="Show the logs of libraries and servers.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option("--log", help="Log each step of a run as `text` or `json`, instead of a progress bar."),
    ] = None,
) -> None:
    find_project.choose(module, file, workspace)
    # A new project takes its settings from the options and the environment alone.
    if ctx.invoked_subcommand != "init":
        _use_project(find_project.project_folder())
    if ctx.invoked_subcommand not in {"up", *getattr(ctx.command, "more", ())} and (stack := running()):
        stack.use()
    if verbose:
        output.log_to_terminal()
    elif ctx.obj is _OWN_PROCESS:
        output.log_to_file()
    if log:
        os.environ[environment.LOG.name] = log
    log_as_the_environment_says()


def _use_project(folder: Path) -> None:
    """Load the project's ``.env``, and use its local state, in whichever of its folders the command is run."""
    home_is_set = environment.HOME.name in os.environ
    load_dotenv(folder / ".env")
    if not home_is_set and folder != Path.cwd():
        os.environ[environment.HOME.name] = str(folder / environment.HOME.value())


def command_line(more: Mapping[str, str] = MappingProxyType({})) -> typer.Typer:
    """Return the command line; ``more`` has the modules of further commands, which start servers, by name."""
    made = typer.Typer(
        cls=type("_Group", (_Group,), {"more": more}),
        no_args_is_help=True,
        rich_markup_mode="markdown",
        # Its traces show the values of variables, passwords among them.
        pretty_exceptions_enable=False,
        help="Kafka topics become Apache Iceberg tables, exactly once, in Dagster.",
    )
    made.callback()(_prepare)
    return made


app = command_line()


def main(commands: typer.Typer = app) -> None:
    """Run the command line."""
    # Imports make hundreds of thousands of objects that stay: looking for garbage takes a fifth of a quick command.
    gc.set_threshold(100_000)
    try:
        commands(obj=_OWN_PROCESS)
    finally:
        # Nor at exit.
        gc.freeze()
