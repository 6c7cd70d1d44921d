"""``kafka-lake maintain``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import filesize

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output
from kafka_lake.cli.progress import Bar
from kafka_lake.common.text import counted
from kafka_lake.errors import ConfigurationError

if TYPE_CHECKING:
    from kafka_lake.maintenance.maintain import Due, HasTables, Maintained
    from kafka_lake.runtime.context import Connections


def maintain(
    topic: Annotated[str | None, typer.Argument(help="Kafka topic or derived table. Default: all.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Run the tasks that are due. Without this option, tables are only examined.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="With --yes: compact and expire everything, due or not, including tables that aren't maintained "
            "automatically.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the health of the tables; with --yes, compact them and expire old rows and snapshots.

    The sensor kafka_maintenance does the same automatically. Settings: `maintenance:` in the table's YAML.
    """
    if everything and not yes:
        raise ConfigurationError("--all does nothing without --yes.", "Add --yes, or remove --all.")
    output, documents, bar = Output(as_json), list[dict[str, Any]](), Bar(as_json)
    failed: list[Exception] = []
    specs = project.maintained_tables(topic)
    with project.open_connections(with_broker=False) as connections:
        for number, spec in enumerate(specs):
            name = ".".join(spec.identifier)
            bar.update(name, completed=number, total=len(specs))
            try:
                if yes:
                    _maintain(spec, connections, everything, output, documents=documents, bar=bar)
                else:
                    documents += _examine(spec, connections, output, bar=bar)
            except Exception as error:
                # The other tables are maintained all the same.
                failed.append(error)
                output.lines(f"{name}: failed, see below.")
    output.json(documents)
    if failed:
        raise failed[0]


def _examine(spec: HasTables, connections: Connections, output: Output, *, bar: Bar) -> list[dict[str, Any]]:
    from kafka_lake.maintenance import maintain as maintenance

    with bar.shown():
        tables = maintenance.due(spec, connections)
    output.lines(*map(health_line, tables))
    return [{**asdict(table), "reasons": table.needs.reasons} for table in tables]


def _maintain(
    spec: HasTables,
    connections: Connections,
    everything: bool,
    output: Output,
    *,
    documents: list[dict[str, Any]],
    bar: Bar,
) -> None:
    from kafka_lake.maintenance import maintain as maintenance
    from kafka_lake.maintenance.maintain import summary_line

    name = ".".join(spec.identifier)
    done: list[Maintained] = []
    due = maintenance.due(spec, connections)
    try:
        with bar.shown():
            maintenance.maintain(spec, connections, everything, done.append)
    finally:
        output.lines(*map(summary_line, done))
        documents += map(asdict, done)
    if not done:
        foreign = any(table.left_alone and table.needs.reasons for table in due)
        output.lines(f"{name}: {'skipped, another program created it; see --all' if foreign else 'nothing is due'}.")


def health_line(due: Due) -> str:
    """Return the health of a table, and what it needs."""
    health, needs = due.needs.health, "; ".join(due.needs.reasons) or "nothing"
    return (
        f"{due.name}: {counted(health.rows, 'row')}, {health.deleted_rows:,} of them deleted; "
        f"{counted(health.data_files, 'data file')} of {filesize.decimal(health.average_size)}, "
        f"{counted(health.delete_files, 'delete file')}, {counted(health.snapshots, 'snapshot')}; "
        f"{'skipped' if due.left_alone else 'needs'}: {needs}"
    )
