"""What the documents of a project can't be together. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from kafka_lake.config.derived_table import DerivedTable, Identifier
from kafka_lake.errors import ConfigurationError
from kafka_lake.routing.by_value import may_meet, may_name
from kafka_lake.spec.topic_table import TopicTable

_APART = "Give tables_by: name: its own namespace, or a prefix that no other table has."


@dataclass(frozen=True, eq=False)
class Place:
    """A document, and the cluster that it is of or about.

    Args:
        cluster: The cluster's name; None if it says none.
        topic: The topic that it is about; empty for a cluster's document.
        table: The topic's tables; None for a cluster's document, and as long as no topic is known that a pattern
            matches.
    """

    cluster: str | None
    path: Path
    topic: str = ""
    table: TopicTable | None = None


def check_documents(clusters: Sequence[Place], topics: Sequence[Place]) -> None:
    """Make sure that a project's documents of clusters and topics go together.

    Raises:
        ConfigurationError: If names of clusters aren't unique, a topic names a cluster that isn't there, or two
            documents have a topic or a table in common.
    """
    _check_names(clusters)
    _check_clusters(topics, clusters)
    tables = [(place, place.table) for place in topics if place.table is not None]
    _check_values(tables, _owners(tables))


def _check_names(clusters: Sequence[Place]) -> None:
    if len(clusters) < 2:
        return
    by_name: dict[str, Place] = {}
    for cluster in clusters:
        if cluster.cluster is None:
            others = ", ".join(str(other.path) for other in clusters if other is not cluster)
            raise ConfigurationError(
                f"The Kafka cluster in {cluster.path} has no name, and there is another one in {others}.",
                "Give each a name:, and each topic the name of its cluster, as in cluster: eu.",
            )
        if (other := by_name.setdefault(cluster.cluster, cluster)) is not cluster:
            raise ConfigurationError(
                f"Two Kafka clusters have the name {cluster.cluster}: in {other.path} and in {cluster.path}.",
                "Give one of them another name:.",
            )


def _check_clusters(topics: Sequence[Place], clusters: Sequence[Place]) -> None:
    names = [cluster.cluster for cluster in clusters]
    known = ", ".join(sorted(name for name in names if name))
    for topic in topics:
        if topic.cluster in names:
            continue
        where = f"Topic {topic.topic} ({topic.path})"
        if topic.cluster is None:
            raise ConfigurationError(
                f"{where} names no Kafka cluster, but the project's clusters have names: {known}.",
                f"Add the cluster's name to its attributes, as in cluster: {known.partition(',')[0]}.",
            )
        there = (
            f"The project has the clusters {known}." if known else f"The only one, in {clusters[0].path}, has no name."
        )
        raise ConfigurationError(
            f"{where} names Kafka cluster {topic.cluster}, and no document of type kafka_lake.KafkaCluster has "
            f"that name. {there}",
            "Correct its cluster:, or the cluster's name:.",
        )


def _owners(documents: Sequence[tuple[Place, TopicTable]]) -> dict[Identifier, Place]:
    """Return the document of each table; a topic and a table are in one document only."""
    owners: dict[Identifier, Place] = {}
    topics: dict[str, Place] = {}
    for place, spec in documents:
        for topic in spec.each_topic:
            if (same := topics.setdefault(topic.full_topic, place)) is not place:
                raise ConfigurationError(
                    f"Topic {topic.topic} is in two documents: {same.path} and {place.path}.",
                    "Keep one document; a document with a pattern can exclude: the topic.",
                )
        for table in _own_tables(spec):
            if (other := owners.setdefault(table, place)) is not place:
                raise ConfigurationError(
                    f"Table {'.'.join(table)} would belong to two topics: {other.topic} ({other.path}) and "
                    f"{place.topic} ({place.path}).",
                    "Give one of them another name. To fill the same table from both, write one document with "
                    f"topics: [{other.topic}, {place.topic}].",
                )
    return owners


def _own_tables(spec: TopicTable) -> Iterator[Identifier]:
    """Yield the names of the tables that are one topic's alone."""
    for table in spec.tables:
        unused = None if table.keeps_dead_letters else table.dead_letter_table
        yield from (name for name in table.identifiers if name != unused)


def _check_values(documents: Sequence[tuple[Place, TopicTable]], owners: Mapping[Identifier, Place]) -> None:
    """Make sure that no value can make the table of another document."""
    by = [(place, spec.route_by) for place, spec in documents if spec.route_by is not None]
    for number, (place, one) in enumerate(by):
        for table, other in owners.items():
            if other is not place and may_name(one, table):
                raise ConfigurationError(
                    f"Topic {place.topic} ({place.path}): tables_by: a value could create table {'.'.join(table)}, "
                    f"which belongs to topic {other.topic} ({other.path}).",
                    _APART,
                )
        for other, another in by[:number]:
            if may_meet(one, another):
                raise ConfigurationError(
                    f"Topics {other.topic} ({other.path}) and {place.topic} ({place.path}): tables_by: values could "
                    "create tables with the same name.",
                    _APART,
                )


def shared(setting: str, given: Sequence[tuple[Path, Mapping[str, str]]]) -> dict[str, str]:
    """Return a setting that all clusters of a project have in common."""
    given_values = [(path, dict(value)) for path, value in given if value]
    for path, value in given_values[1:]:
        if value != given_values[0][1]:
            raise ConfigurationError(
                f"{setting}: differs between {given_values[0][0]} and {path}, and all clusters of a project share one "
                "catalog and one Spark.",
                "Write it in only one document. For another catalog, create another project with its own code "
                "location.",
            )
    return given_values[0][1] if given_values else {}


def why_not_incremental(topics: Sequence[TopicTable], derived: Sequence[DerivedTable]) -> dict[Identifier, str]:
    """Return why each table of a project can't be read incrementally; empty if it can."""
    found: dict[Identifier, str] = {}
    for topic in (table for spec in topics for table in spec.tables):
        beside = f"a table beside {'.'.join(topic.identifier)}, and isn't a log of records"
        found |= dict.fromkeys(topic.identifiers, beside)
        found[topic.identifier] = ""
        if topic.is_keyed:
            found[topic.identifier] = f"a table with write: {topic.write}, whose rows change"
        elif topic.topics:
            found[topic.identifier] = "a table of several topics, which has no single order of records"
    for table in derived:
        changes = f"a derived table with write: {table.write}, whose rows change"
        found[table.identifier] = "" if table.is_append_only else changes
    return found


def check_derived(spec: DerivedTable, topics: Sequence[TopicTable], derived: Sequence[DerivedTable]) -> None:
    """Make sure that a derived table goes together with a project's tables, of which it is one.

    Raises:
        ConfigurationError: If its name belongs to another table, it reads a table that isn't there or can't be read
            incrementally, or tables are made from each other.
    """
    of_topics = [topic for topic in topics if any(spec.identifier in table.identifiers for table in topic.tables)]
    if of_topics or [other.identifier for other in derived].count(spec.identifier) > 1:
        other = f"topic {of_topics[0].full_topic}" if of_topics else "another derived table"
        raise ConfigurationError(
            f"Table {spec.name} already belongs to {other}.", "Give it another table: or namespace:."
        )
    for topic in topics:
        if topic.route_by is not None and may_name(topic.route_by, spec.identifier):
            raise ConfigurationError(
                f"Table {spec.name}: a value of topic {topic.full_topic} could create that table by tables_by:.",
                "Give it another table: or namespace:.",
            )
    _check_upstream(spec, why_not_incremental(topics, derived))
    try:
        TopologicalSorter(
            {table.identifier: [*table.upstream.values(), *table.joined.values()] for table in derived}
        ).prepare()
    except CycleError as error:
        cycle = " → ".join(".".join(identifier) for identifier in error.args[1])
        raise ConfigurationError(
            f"These tables depend on themselves: {cycle}.", "Remove one of them from from: or join:."
        ) from error


def _check_upstream(spec: DerivedTable, tables: Mapping[Identifier, str]) -> None:
    for identifier in spec.upstream.values():
        why, name = tables.get(identifier), ".".join(identifier)
        if why is None:
            names = sorted(map(".".join, tables))
            near = get_close_matches(name, names, 1)
            meant = f" Is it {near[0]}?" if near else f" Those here are: {', '.join(names) or 'none'}."
            raise ConfigurationError(
                f"Table {spec.name}: from: {name} isn't a table of this project.{meant}",
                "Other tables can only be read under join:.",
            )
        if why and spec.is_incremental:
            raise ConfigurationError(
                f"Table {spec.name}: write: {spec.write} reads new rows of upstream tables, and {name} is {why}.",
                "Use write: replace, or put it under join: if its rows are only looked up. To read all changes, add a "
                "table with write: append to the topic.",
            )
