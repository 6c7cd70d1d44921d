"""``kafka-lake topics``: the topics and tables that documents with patterns and ``tables_by`` have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output
from kafka_lake.common.text import counted
from kafka_lake.errors import ConfigurationError, KafkaLakeError

if TYPE_CHECKING:
    from kafka_lake.orchestration import KafkaTopic, KafkaTopics

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show and refresh the topics that `KafkaTopics` documents match.",
)


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """Show which topics match, their tables, and which are new or deleted. Nothing changes.

    Also shows the tables of topics with tables_by.
    """
    topics, values = matching_topics(), tables_by_value()
    output = Output(as_json)
    output.json([*map(asdict, topics), *map(asdict, values)])
    output.show(*_tables(topics, values))


@app.command()
def refresh(as_json: AsJson = False) -> None:
    """Update the cached topic names. New matching topics get tables when the definitions reload.

    Deleted topics lose their assets; their tables stay. Tables of tables_by are read from the catalog.
    """
    topics = [topic for topic in matching_topics(refresh=True) if topic.state != "known"]
    values = [value for value in tables_by_value(refresh=True) if value.state != "known"]
    output = Output(as_json)
    output.json([*map(asdict, topics), *map(asdict, values)])
    if not topics and not values:
        output.lines("Nothing has changed.")
        return
    output.show(*_tables(topics, values))
    output.lines("Topics updated. Reload the code location: `kafka-lake reload`, or the page Deployment.")


@dataclass(frozen=True)
class MatchingTopic:
    """A topic that a document with a pattern matches.

    Args:
        document: The document's file, as users name it.
        topic: The topic, after its cluster's name if that has one.
        table: Its table, or the table that all matching topics fill; empty if it has none yet.
        state: ``known``; ``new`` if the definitions don't have it yet; ``gone`` if the cluster no longer has it.
    """

    document: str
    topic: str
    table: str
    state: str


@dataclass(frozen=True)
class ValueTable:
    """The table of a value, in a topic with ``tables_by``; ``new`` if it isn't an asset yet, else ``known``."""

    topic: str
    value: str
    table: str
    state: str


def matching_topics(refresh: bool = False) -> list[MatchingTopic]:
    """Return the topics of each document with a pattern, compared with its cluster."""
    documents = project.documents_with_patterns()
    if not documents and not project.documents_with_tables_by_value():
        raise ConfigurationError(
            "No document in this project has a topic pattern or tables_by.",
            "Add a YAML document of type kafka_lake.KafkaTopics to defs/; docs/many-topics.md has one. Or set "
            "topics: to a pattern, or tables_by:, as in docs/many-tables.md.",
        )
    return [topic for document in documents for topic in _compared(document, refresh)]


def tables_by_value(refresh: bool = False) -> list[ValueTable]:
    """Return the tables of values, and whether the definitions have them."""
    from kafka_lake.orchestration.components.base import cache_routes
    from kafka_lake.routing.by_value import knowing

    documents = project.documents_with_tables_by_value()
    if not documents:
        return []
    tables: list[ValueTable] = []
    with project.open_connections(with_broker=False) as connections:
        for document in documents:
            spec = document.topic_table()
            table = connections.catalog.table(spec.identifier)
            properties = {} if table is None else table.properties
            current, before = knowing(spec, properties).route_by, spec.route_by
            assert current is not None, "documents with tables_by have it"
            assert before is not None, "likewise"
            tables += [
                ValueTable(
                    spec.full_topic,
                    value,
                    f"{namespace}.{name}",
                    "known" if (value, namespace, name) in before.known else "new",
                )
                for value, namespace, name in current.known
            ]
            if refresh:
                cache_routes(document.state_path, properties)
    return tables


def refresh_unknown(tell_user: Callable[[str], None]) -> None:
    """Cache the topics of each document with a pattern that has none cached yet."""
    from kafka_lake.orchestration import KafkaTopic

    try:
        for document in project.documents_with_patterns():
            if document.is_known:
                continue
            new = _compared(document, refresh=True)
            tables = f"for {document.full_table}" if isinstance(document, KafkaTopic) else "with a table each"
            found = f"{counted(len(new), 'matching topic')}, {tables}."
            tell_user(f"{document.shown}: {found if new else 'no topic matches. The sensor reports new ones.'}")
    except KafkaLakeError as error:
        tell_user(str(error))


def _compared(document: KafkaTopics | KafkaTopic, refresh: bool) -> list[MatchingTopic]:
    from kafka_lake.orchestration import KafkaTopic

    with project.open_connections(with_catalog=False, cluster=document.cluster) as connections:
        names = connections.cluster.topics()
        known, new, gone = document.known(), document.new(names), set(document.gone(names))
        if refresh:
            document.keep(names)
    prefix = f"{document.cluster}/" if document.cluster else ""
    table = document.full_table if isinstance(document, KafkaTopic) else ""
    return [
        *(
            MatchingTopic(document.shown, f"{prefix}{topic}", its_table, "gone" if topic in gone else "known")
            for topic, its_table in known
        ),
        *(MatchingTopic(document.shown, f"{prefix}{topic}", table, "new") for topic in new),
    ]


def _tables(topics: Sequence[MatchingTopic], values: Sequence[ValueTable]) -> list[Table]:
    tables = []
    if topics:
        table = Table("topic", "table", "", box=None, pad_edge=False, header_style="bold")
        for topic in topics:
            new = "new: not in the table yet" if topic.table else "new: no table yet"
            states = {"known": "", "new": new, "gone": "deleted from Kafka; the table stays"}
            table.add_row(escape(topic.topic), escape(topic.table), states[topic.state])
        tables.append(table)
    if values:
        table = Table("topic", "value", "table", "", box=None, pad_edge=False, header_style="bold")
        for value in values:
            state = "new: no asset yet" if value.state == "new" else ""
            table.add_row(escape(value.topic), escape(value.value), escape(value.table), state)
        tables.append(table)
    return tables
