"""What documents about many topics know of their cluster, and how they get to know it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from kafka_lake.cli.project import (
    connections_at_hand,
    documents_about_many_topics,
    documents_with_tables_by_value,
)
from kafka_lake.common.text import counted
from kafka_lake.errors import ConfigurationError, KafkaLakeError
from kafka_lake.orchestration.components.base import cache_routes
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics
from kafka_lake.routing.by_value import knowing


@dataclass(frozen=True)
class KnownTopic:
    """A topic that a document about many topics is about.

    Args:
        document: Where that is, as users name it.
        topic: The topic, with its cluster's name before it if that has one.
        table: Its table, or the one that it is to fill; empty if it has none yet.
        state: ``known``; ``new`` if it has no table yet, or doesn't fill it yet; ``gone`` if it has one and the cluster
            has no such topic.
    """

    document: str
    topic: str
    table: str
    state: str


def known_topics(tell_user: Callable[[str], None], refresh: bool = False) -> list[KnownTopic]:
    """Return the topics of each document about many topics, compared with its cluster."""
    documents = documents_about_many_topics()
    if not documents and not documents_with_tables_by_value():
        raise ConfigurationError(
            "No document here is about many topics, or about tables by value.",
            "Add a YAML document of type kafka_lake.KafkaTopics to defs/; docs/many-topics.md has one. Or set "
            "topics: to a pattern, or tables_by:, as in docs/many-tables.md.",
        )
    return [topic for each in documents for topic in _compared(each, tell_user, refresh)]


@dataclass(frozen=True)
class ValueTable:
    """A table that a value of a topic has.

    Args:
        topic: The topic, with its cluster's name before it if that has one.
        table: Namespace and name of the table.
        state: ``known``, or ``new`` if it is no asset yet.
    """

    topic: str
    value: str
    table: str
    state: str


def tables_by_value(tell_user: Callable[[str], None], refresh: bool = False) -> list[ValueTable]:
    """Return the tables by value of topics with ``tables_by``, and whether the project knows them."""
    documents = documents_with_tables_by_value()
    if not documents:
        return []
    found = []
    with connections_at_hand(tell_user, with_broker=False) as connections:
        for each in documents:
            spec = each.topic_table(each.place.path.parent)
            own = connections.catalog.table(spec.identifier)
            properties = {} if own is None else own.properties
            now, before = knowing(spec, properties).route_by, spec.route_by
            assert now is not None, "they are chosen by it"
            assert before is not None, "likewise"
            known = {*before.known}
            found += [
                ValueTable(
                    spec.full_topic, value, f"{space}.{table}", "known" if (value, space, table) in known else "new"
                )
                for value, space, table in now.known
            ]
            if refresh:
                cache_routes(each.state_path, properties)
    return found


def refresh_unknown(tell_user: Callable[[str], None]) -> None:
    """Let the documents about many topics that know none yet keep the names of their cluster's topics."""
    try:
        for each in documents_about_many_topics():
            if not each.is_known:
                new = [topic.topic for topic in _compared(each, tell_user, refresh=True)]
                goal = f"for {each.full_table}" if isinstance(each, KafkaTopic) else "with a table each"
                found = counted(len(new), "matching topic")
                said = f"{found}, {goal}." if new else "no topic matches. The sensor tells new ones."
                tell_user(f"{each.shown}: {said}")
    except KafkaLakeError as error:
        tell_user(str(error))


def _compared(document: KafkaTopics | KafkaTopic, tell_user: Callable[[str], None], refresh: bool) -> list[KnownTopic]:
    with connections_at_hand(tell_user, with_catalog=False, cluster=document.cluster) as connections:
        names = connections.cluster.topics()
        known, new, gone = document.known(), document.new(names), set(document.gone(names))
        if refresh:
            document.keep(names)
    before = f"{document.cluster}/" if document.cluster else ""
    found = [
        KnownTopic(
            document=document.shown,
            topic=f"{before}{topic}",
            table=table,
            state="gone" if topic in gone else "known",
        )
        for topic, table in known
    ]
    table = document.full_table if isinstance(document, KafkaTopic) else ""
    return [*found, *(KnownTopic(document.shown, f"{before}{name}", table, "new") for name in new)]


def values_table(found: Sequence[ValueTable]) -> Table:
    """Return tables by value as a table for the terminal."""
    shown = Table("topic", "value", "table", "", box=None, pad_edge=False, header_style="bold")
    for each in found:
        shown.add_row(each.topic, escape(each.value), each.table, "new: no asset yet" if each.state == "new" else "")
    return shown


def topics_table(found: Sequence[KnownTopic]) -> Table:
    """Return topics as a table for the terminal."""
    shown = Table("topic", "table", "", box=None, pad_edge=False, header_style="bold")
    said = {"known": "", "new": "new: no table yet", "gone": "gone from Kafka; the table stays"}
    for each in found:
        joins = each.state == "new" and each.table
        shown.add_row(each.topic, each.table, "new: not in the table yet" if joins else said[each.state])
    return shown
