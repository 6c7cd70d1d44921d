"""``kafka-lake history``: who committed what to a table, and when."""

import json
from typing import Annotated

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson

Table = Annotated[
    str, typer.Argument(help="A topic, for its table; or a table: orders, shop.orders, shop.orders__dead_letters.")
]


def history(
    table: Table,
    limit: Annotated[int, typer.Option(min=1, help="Commits to show at most, the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show who committed what to a table and when, newest first, from its snapshots alone.

    Neither Spark nor Kafka is needed. Maintenance tells only its engine, and expiry leaves no snapshot.
    """
    from kafka_lake.cli.history import commit_table, history_json, history_of, identifier_of, last_lines
    from kafka_lake.cli.project import connections_at_hand, topics_if_any

    identifier = identifier_of(table, topics_if_any())
    with connections_at_hand(console.err.print, with_broker=False) as connections:
        found = history_of(connections.catalog, identifier, limit)
    if as_json:
        typer.echo(json.dumps(history_json(found), indent=2))
        return
    console.out.print(commit_table(found))
    for line in last_lines(found):
        console.out.print(line, markup=False, highlight=False, soft_wrap=True)
