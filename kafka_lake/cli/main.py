"""The command line, ``kafka-lake …``. Decides nothing: each command calls one function and shows what it returns."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from dotenv import load_dotenv
from rich.markup import escape
from typer.core import TyperGroup

from kafka_lake.cli import console, find_project, topic
from kafka_lake.cli.commands import local, maintenance, repair, surroundings, tables
from kafka_lake.cli.console import log_to_file, log_to_terminal
from kafka_lake.common import environment
from kafka_lake.common.log_format import log_as_the_environment_says
from kafka_lake.common.redaction import error_without_secrets, without_secret_values
from kafka_lake.devstack.running import running
from kafka_lake.errors import KafkaLakeError

_STARTING = ("demo", "up")
_OWN_PROCESS = object()


class _Group(TyperGroup):
    """Shows an error that a user can fix as its message, and ends with exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaLakeError as error:
            told = without_secret_values(str(error))
            logging.getLogger(__name__).info("The command failed", exc_info=error_without_secrets(error))
        except Exception as error:
            from kafka_lake.error_classification import sentence

            told = sentence(error) or ""
            cause = error_without_secrets(error)
            if not told:
                raise cause from (error.__cause__ if cause is error else None)
            logging.getLogger(__name__).warning("The command failed", exc_info=cause)
        console.err.print(f"[bold red]Error:[/] {escape(told)}", soft_wrap=True, highlight=False)
        raise typer.Exit(1)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # Its traces show the values of variables, passwords among them.
    pretty_exceptions_enable=False,
    help="Kafka topics become Apache Iceberg tables, exactly once, under Dagster.",
)

app.add_typer(topic.app, name="topic")
app.add_typer(local.metrics_app, name="metrics")
app.add_typer(surroundings.topics_app, name="topics")


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"kafka-lake {version('kafka-lake')}")
        raise typer.Exit


@app.callback()
def _prepare(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_tell_version, is_eager=True)
    ] = False,
    module: Annotated[
        str | None, typer.Option("--module-name", "-m", envvar=find_project.MODULE, help="Module of the definitions.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--python-file", "-f", envvar=find_project.FILE, help="File of the definitions.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option("--workspace", "-w", envvar=find_project.WORKSPACE, help="A workspace.yaml.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", envvar=environment.VERBOSE.name, help="Show what libraries and servers log.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option("--log", help="Show a line for each step of a run, as `text` or as `json`, instead of a bar."),
    ] = None,
) -> None:
    find_project.choose(module, file, workspace)
    # What a new project needs to know is told in the command, or in the environment.
    if ctx.invoked_subcommand != "init":
        _use_project(find_project.project_folder())
    if ctx.invoked_subcommand not in _STARTING and (stack := running()):
        stack.use()
    if verbose:
        log_to_terminal()
    elif ctx.obj is _OWN_PROCESS:
        log_to_file()
    if log:
        os.environ[environment.LOG.name] = log
    log_as_the_environment_says()


def _use_project(folder: Path) -> None:
    """Take the project's ``.env`` and local state, from whatever folder of it the command was given."""
    given = os.environ.get(environment.HOME.name)
    load_dotenv(folder / ".env")
    if not given and folder != Path.cwd():
        os.environ[environment.HOME.name] = str(folder / environment.HOME.value())


# Help lists them in this order.
for _command in (
    *local.DEMO,
    surroundings.init,
    local.up,
    tables.ingest,
    tables.status,
    repair.dead_letters,
    repair.replay,
    repair.reset,
    repair.rebuild,
    repair.adopt,
    tables.clean,
    maintenance.maintain,
    tables.history,
    tables.schema,
    local.reload,
    tables.query,
    surroundings.env,
    surroundings.discover,
    surroundings.doctor,
):
    app.command()(_command)


def main() -> None:
    """Run the command line."""
    app(obj=_OWN_PROCESS)
