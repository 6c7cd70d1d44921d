"""The current project: its topics, and the systems that its definitions configure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_lake.cli import documents
from kafka_lake.cli.find_project import Target, defs_folder, targets
from kafka_lake.devstack.running import Ports
from kafka_lake.errors import ConfigurationError, NoProjectError

if TYPE_CHECKING:
    from kafka_lake.config.derived_table import DerivedTable
    from kafka_lake.config.systems import Catalog, Kafka, Registry
    from kafka_lake.orchestration import KafkaTopic, KafkaTopics
    from kafka_lake.runtime.context import Connections
    from kafka_lake.spec.topic_table import TopicTable

_Resource = TypeVar("_Resource")


def target() -> Target:
    """Return the project's code location; of several, the one that has a Kafka cluster."""
    locations = targets()
    if len(locations) > 1:
        locations = [location for location in locations if _kafkas(_resources(location))] or locations
    if len(locations) > 1:
        raise ConfigurationError(
            f"This project has several code locations: {', '.join(map(str, locations))}.", "Name one with -m or -f."
        )
    return locations[0]


def defs_of_project() -> Path:
    """Return the folder of the project's YAML documents."""
    from kafka_lake.cli.load_definitions import file_of

    return defs_folder(file_of(target()))


def topic_tables(topic: str | None = None) -> list[TopicTable]:
    """Return the settings of all topics' tables, or of one topic's, in the order of topics."""
    return _select(_tables()[0], topic)


def _select(topics: Sequence[TopicTable], topic: str | None) -> list[TopicTable]:
    specs = sorted(topics, key=lambda spec: spec.full_topic)
    if topic is None:
        return specs
    chosen = [spec for spec in specs if topic in (spec.topic, spec.full_topic)]
    if len(names := sorted({spec.full_topic for spec in chosen})) > 1:
        raise ConfigurationError(
            f"Topic {topic} is in several Kafka clusters of this project.", f"Name one of them: {' or '.join(names)}."
        )
    if not chosen:
        known = ", ".join(spec.full_topic for spec in specs) or "none"
        raise ConfigurationError(
            f"Topic {topic} has no table in this project; the topics are: {known}.",
            "Add a YAML document of type kafka_lake.KafkaTopic to defs/.",
        )
    return chosen


def maintained_tables(name: str | None = None) -> list[TopicTable | DerivedTable]:
    """Return the settings of all tables, or of those with a name: tables of topics, then derived tables."""
    from kafka_lake.spec.topic_table import once_each

    topics, every = _tables()
    derived = [spec for spec in every if name in (None, spec.table, spec.name)]
    try:
        return [*once_each(_select(topics, name)), *derived]
    except ConfigurationError:
        if not derived or name is None:
            raise
        return [*derived]


def derived_table(name: str) -> DerivedTable:
    """Return the settings of a derived table."""
    specs = _tables()[1]
    chosen = [spec for spec in specs if name in (spec.table, spec.name)]
    if len(chosen) != 1:
        known = ", ".join(sorted(spec.name for spec in specs)) or "none"
        raise ConfigurationError(
            f"{'Several derived tables have' if chosen else 'No derived table has'} the name {name}; this project "
            f"has: {known}.",
            "Name one of them, with its namespace.",
        )
    return chosen[0]


def configured_clusters() -> dict[str | None, tuple[Kafka, Registry]]:
    """Return the Kafka clusters and registries of the definitions, by the cluster's name."""
    from kafka_lake.config.systems import Kafka, Registry, of_cluster

    resources = _project_resources()
    return {
        name: (kafka, _resource(resources, of_cluster("registry", name), Registry))
        for name, kafka in (_kafkas(resources) or {None: Kafka()}).items()
    }


def configured_catalog() -> Catalog:
    """Return the catalog of the definitions; outside of a project, that of the environment."""
    from kafka_lake.config.systems import Catalog

    return _resource(_project_resources(), "catalog", Catalog)


def documents_with_patterns() -> list[KafkaTopics | KafkaTopic]:
    """Return the documents of type KafkaTopics, and those of type KafkaTopic with a pattern of topics."""
    from kafka_lake.orchestration import KafkaTopic, KafkaTopics

    with _component_tree() as tree:
        if tree is None:
            return []
        patterns = [document for document in tree.get_all_components(KafkaTopic) if document.pattern is not None]
        return [*tree.get_all_components(KafkaTopics), *patterns]


def documents_with_tables_by_value() -> list[KafkaTopic]:
    """Return the documents of topics whose values have tables."""
    from kafka_lake.orchestration import documents_of_topics

    with _component_tree() as tree:
        return [] if tree is None else [found for found in documents_of_topics(tree) if found.tables_by is not None]


@contextmanager
def _component_tree() -> Iterator[Any]:
    """Give the project's documents as components; None where no document has a pattern or tables by value."""
    from kafka_lake.cli.load_definitions import definitions, explained_errors

    location = target()
    if documents.read(location) is not None:
        yield None
        return
    with explained_errors(location):
        yield definitions(location).component_tree


def split_topic(topic: str) -> tuple[str | None, str]:
    """Return the cluster, if there is one, and the topic of an argument.

    >>> split_topic("eu/orders"), split_topic("orders")
    (('eu', 'orders'), (None, 'orders'))
    """
    cluster, _, name = topic.rpartition("/")
    return cluster or None, name


@contextmanager
def open_connections(
    with_broker: bool = True,
    with_catalog: bool = True,
    with_spark: bool = False,
    of_project: bool = True,
    cluster: str | None = None,
    only_metadata: bool = False,
) -> Iterator[Connections]:
    """Run the block with connections to the configured systems, and stop Spark after it.

    Each system that is needed is called once before the block, so that a command fails within seconds if one of them
    is down. In the block, requests are retried as in any run.
    """
    from kafka_lake.config.systems import Catalog, Registry, Spark, build_connections, of_cluster
    from kafka_lake.devstack.running import check_embedded_broker

    resources = _project_resources() if of_project else {}
    catalog = _resource(resources, "catalog", Catalog)
    kafka = _kafka(resources, cluster, is_needed=with_broker)
    registry = _resource(resources, of_cluster("registry", kafka.cluster_name), Registry)
    spark = resources.get("spark")
    if not isinstance(spark, Spark):
        spark = Spark(spark_config={}, catalog=catalog)
    if with_broker:
        check_embedded_broker(Ports.from_env(), kafka.cluster().bootstrap_servers if kafka.names_brokers else None)
    with ExitStack() as stack:
        stack.callback(spark.stop)
        connections = build_connections(kafka, catalog if with_catalog else None, spark, registry)
        if with_broker:
            connections.cluster.check()
        if only_metadata:
            from kafka_lake.catalog.lake_catalog import metadata_by_fsspec

            stack.enter_context(metadata_by_fsspec())
        if with_catalog:
            connections.catalog.check()
        if with_spark:
            spark.check()
        yield connections


def topics_if_any() -> list[TopicTable]:
    """Return what `topic_tables` does; outside of a project, nothing."""
    try:
        return topic_tables()
    except NoProjectError:
        return []


def _tables() -> tuple[list[TopicTable], list[DerivedTable]]:
    """Return the settings of the tables of topics, and of the derived tables."""
    location = target()
    if known := documents.read(location):
        return known.topics, known.derived
    from kafka_lake.cli.load_definitions import definitions, explained_errors
    from kafka_lake.orchestration.derived_assets import derived_in
    from kafka_lake.orchestration.metadata import topics_in

    with explained_errors(location):
        metadata = [dict(asset.metadata) for asset in definitions(location).resolve_all_asset_specs()]
    return topics_in(metadata), derived_in(metadata)


def _project_resources() -> Mapping[str, Any]:
    """Return the project's resources by name; outside of a project none, since the environment has the settings."""
    try:
        return _resources(target())
    except NoProjectError:
        return {}


def _resources(location: Target) -> Mapping[str, Any]:
    if known := documents.read(location):
        return known.systems
    from kafka_lake.cli.load_definitions import definitions, explained_errors

    with explained_errors(location):
        return definitions(location).resources or {}


def _kafkas(resources: Mapping[str, Any]) -> dict[str | None, Kafka]:
    from kafka_lake.config.systems import Kafka

    return {kafka.cluster_name: kafka for kafka in resources.values() if isinstance(kafka, Kafka)}


def _kafka(resources: Mapping[str, Any], cluster: str | None, is_needed: bool) -> Kafka:
    from kafka_lake.config.systems import Kafka

    kafkas = _kafkas(resources) or {None: Kafka()}
    if cluster in kafkas:
        return kafkas[cluster]
    known = ", ".join(sorted(name for name in kafkas if name))
    if cluster is not None:
        raise ConfigurationError(
            f"No Kafka cluster of this project has the name {cluster}.",
            f"Name one of {known}." if known else "The project's only cluster has no name: remove the name.",
        )
    if len(kafkas) > 1 and is_needed:
        raise ConfigurationError(
            f"This project has several Kafka clusters: {known}.",
            f"Name the topic with its cluster, as in {known.partition(',')[0]}/orders.",
        )
    return next(iter(kafkas.values()))


def _resource(resources: Mapping[str, Any], name: str, kind: type[_Resource]) -> _Resource:
    resource = resources.get(name)
    return resource if isinstance(resource, kind) else kind()
