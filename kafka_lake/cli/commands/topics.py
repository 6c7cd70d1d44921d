"""``kafka-lake topics …``: what documents of type KafkaTopics are about."""

import json
from dataclasses import asdict

import typer

from kafka_lake.cli import console
from kafka_lake.cli.console import AsJson

app = typer.Typer(no_args_is_help=True, help="Show and refresh the topics that documents of type KafkaTopics match.")


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """Show which topics match, which tables they have, and which ones are new or gone. Nothing is changed."""
    from kafka_lake.cli.topics import known_topics, topics_table

    found = known_topics(console.err.print)
    if as_json:
        console.out.print_json(json.dumps([asdict(each) for each in found]))
    else:
        console.out.print(topics_table(found))


@app.command()
def refresh() -> None:
    """Ask the clusters for their topics, so that new ones that match get tables when the definitions load again.

    Topics that are gone from Kafka lose their assets. Their tables stay.
    """
    from kafka_lake.cli.topics import known_topics, topics_table

    changed = [each for each in known_topics(console.err.print, refresh=True) if each.state != "known"]
    if not changed:
        console.out.print("Nothing has changed.")
        return
    console.out.print(topics_table(changed))
    console.out.print(
        "Known now. Where Dagster runs, reload the code location: `kafka-lake reload`, or the page Deployment.",
        highlight=False,
    )
