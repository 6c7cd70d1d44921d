"""``kafka-lake schema``: a table's columns, what the next run would do to them; and another type for one of them."""

import json
from dataclasses import asdict
from typing import Annotated, Any
from uuid import uuid4

import typer
from typer.core import TyperGroup

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson, Topic

Table = Annotated[str, typer.Argument(help="The table with its namespace: lake.orders.")]


class _Group(TyperGroup):
    """Takes ``schema TOPIC`` for ``schema show TOPIC``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Show a table's columns and what the next run would do to them, or give a column another type.",
)


@app.command()
def show(
    topic: Topic,
    sample: Annotated[
        int, typer.Option(min=0, help="Newest records to read, to tell what the next run would change; 0 for none.")
    ] = 1000,
    history: Annotated[
        bool, typer.Option("--history", help="Show how the table's columns have changed instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a table's columns, and what the next run would do to them. Nothing is changed.

    Without a name of these two, the command is this one: `kafka-lake schema TOPIC`.

    Exit code 1 if the next run would fail.
    """
    from kafka_lake.cli import schema as cli_schema
    from kafka_lake.cli.project import connections_at_hand, topic_tables

    specs = topic_tables(topic)
    refused = False
    told: list[Any] = []
    looks = not history and sample > 0
    with connections_at_hand(
        console.err.print, with_broker=looks, with_spark=looks, cluster=specs[0].cluster
    ) as connections:
        for spec, its_topic in ((table, each) for each in specs for table in each.tables):
            if history:
                versions = cli_schema.history_of(spec, connections)
                told.append(cli_schema.history_as_json(versions))
                shown = [cli_schema.history_table(spec, versions)]
            else:
                with console.err.status(f"Looking at the newest records of {topic}"):
                    found = cli_schema.topic_schema(spec, connections, sample, its_topic)
                refused |= bool(found.preview and found.preview.refused)
                told.append(asdict(found))
                shown = cli_schema.schema_tables(found)
            if not as_json:
                console.out.print(*shown, sep="\n", highlight=False)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    if refused:
        raise typer.Exit(1)


@app.command()
def change(
    table: Table,
    column: Annotated[str, typer.Argument(help="The column; within a struct with the names before it: who.age.")],
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="Its new type, in Spark's SQL: double, decimal(12,2).")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and show how many rows and files it would be.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give a column another type: write its rows again by one commit, then decode its dead letters of wrong_type again.

    Every value must stay what it is; a value that wouldn't is named, and nothing is changed. Runs of the topic may go
    on meanwhile. Readers see the old type with the old rows, or the new type with the new ones. If the topic's settings
    declare the column, change its type there first.
    """
    from kafka_lake.cli import schema as cli_schema
    from kafka_lake.cli.output import followed
    from kafka_lake.cli.project import connections_at_hand, topic_tables
    from kafka_lake.ingest.run import replay_dead_letters

    specs = cli_schema.specs_of(table, topic_tables())
    first, replayed = specs[0], []
    with connections_at_hand(
        console.err.print, with_broker=not dry_run, with_spark=True, cluster=first.cluster, starts_broker=not dry_run
    ) as connections:
        with console.err.status(f"Changing column {column} of {table}") as status:
            done = cli_schema.change_column(
                specs, connections, column, type_, run_id=str(uuid4()), tell=status.update, dry_run=dry_run
            )
        if not as_json:
            console.out.print(cli_schema.changed_line(done), highlight=False, markup=False, soft_wrap=True)
        for spec in () if dry_run else specs:
            with followed(spec.topic, console.err) as observer:
                moved = replay_dead_letters(
                    spec, connections, run_id=str(uuid4()), where=cli_schema.WRONG_TYPES, observer=observer
                )
            replayed.append({"topic": spec.full_topic, "moved": moved.moved, "remaining": moved.remaining})
            if not as_json:
                console.out.print(cli_schema.replayed_line(spec, moved), highlight=False, markup=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps({**asdict(done), "dead_letters": replayed}, indent=2))
