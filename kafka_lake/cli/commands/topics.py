"""``kafka-lake topics …``: what documents of type KafkaTopics are about, and the tables that values have got."""

import json
from dataclasses import asdict

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson

app = typer.Typer(no_args_is_help=True, help="Show and refresh the topics that KafkaTopics match, and tables by value.")


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """Show which topics match, which tables they have, and which ones are new or gone. Nothing is changed.

    Below them are the tables that values of topics with tables_by have.
    """
    from kafka_lake.cli.topics import known_topics, tables_by_value, topics_table, values_table

    found, values = known_topics(console.err.print), tables_by_value(console.err.print)
    if as_json:
        console.out.print_json(json.dumps([*map(asdict, found), *map(asdict, values)]))
        return
    if found:
        console.out.print(topics_table(found))
    if values:
        console.out.print(values_table(values))


@app.command()
def refresh() -> None:
    """Ask the clusters for their topics, so that new ones that match get tables when the definitions load again.

    Topics that are gone from Kafka lose their assets. Their tables stay. Tables that values of topics with tables_by
    have got are asked of the catalog.
    """
    from kafka_lake.cli.topics import known_topics, tables_by_value, topics_table, values_table

    changed = [each for each in known_topics(console.err.print, refresh=True) if each.state != "known"]
    values = [each for each in tables_by_value(console.err.print, refresh=True) if each.state != "known"]
    if not changed and not values:
        console.out.print("Nothing has changed.")
        return
    if changed:
        console.out.print(topics_table(changed))
    if values:
        console.out.print(values_table(values))
    console.out.print(
        "Known now. Where Dagster runs, reload the code location: `kafka-lake reload`, or the page Deployment.",
        highlight=False,
    )
