"""The project at hand: its topics and the systems they are in, as its definitions have them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from kafka_lake.cli.find_project import Target, defs_folder, targets
from kafka_lake.cli.load_definitions import definitions, file_of, loading
from kafka_lake.derived.derived_table import DerivedTable
from kafka_lake.devstack.running import Ports
from kafka_lake.devstack.stack import broker_at_hand
from kafka_lake.errors import ConfigurationError, NoProjectError
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics
from kafka_lake.orchestration.derived_assets import SETTINGS as DERIVED_SETTINGS
from kafka_lake.orchestration.derived_assets import settings_of as derived_settings_of
from kafka_lake.orchestration.keys import of_cluster
from kafka_lake.orchestration.metadata import SETTINGS, settings_of
from kafka_lake.orchestration.partitions import register_topics
from kafka_lake.orchestration.resources.catalog import CatalogResource
from kafka_lake.orchestration.resources.connections import build_connections
from kafka_lake.orchestration.resources.kafka import KafkaResource, RegistryResource
from kafka_lake.orchestration.resources.spark import SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable, once_each

_Resource = TypeVar("_Resource", CatalogResource, KafkaResource, RegistryResource)


def target() -> Target:
    """Return the code location that has the topics: the only one of the project, or the only one with a cluster."""
    found = targets()
    if len(found) > 1:
        found = [each for each in found if _kafkas(_resources(each))] or found
    if len(found) > 1:
        raise ConfigurationError(
            f"There are several code locations here: {', '.join(map(str, found))}.", "Name one of them by -m or -f."
        )
    return found[0]


def defs_of_project() -> Path:
    """Return the folder of the project's YAML documents."""
    return defs_folder(file_of(target()))


def topic_tables(topic: str | None = None) -> list[TopicTable]:
    """Return what the definitions say about topics and their tables, by topic."""
    return _topic_tables(_metadata_of_assets(), topic)


def _topic_tables(assets: Sequence[dict[str, Any]], topic: str | None) -> list[TopicTable]:
    of_tables = (settings_of(each) for each in assets if SETTINGS in each)
    found = sorted((each for table in of_tables for each in table.each_topic), key=lambda each: each.full_topic)
    if topic is None:
        return found
    chosen = [each for each in found if topic in (each.topic, each.full_topic)]
    if len(names := sorted({each.full_topic for each in chosen})) > 1:
        raise ConfigurationError(
            f"Topic {topic} is in several Kafka clusters here.", f"Name one of them: {' or '.join(names)}."
        )
    if not chosen:
        known = ", ".join(each.full_topic for each in found) or "none"
        raise ConfigurationError(
            f"Topic {topic} has no table here; the topics are: {known}.",
            "Add a YAML document of type kafka_lake.KafkaTopic to defs/.",
        )
    return chosen


def derived_tables() -> list[DerivedTable]:
    """Return what the definitions say about derived tables, by their names."""
    return _derived_tables(_metadata_of_assets())


def _derived_tables(assets: Sequence[dict[str, Any]]) -> list[DerivedTable]:
    found = [derived_settings_of(each) for each in assets if DERIVED_SETTINGS in each]
    return sorted(found, key=lambda each: each.identifier)


def maintained_tables(name: str | None = None) -> list[TopicTable | DerivedTable]:
    """Return what the definitions say about tables that are kept fast: those of topics, then derived ones."""
    assets = _metadata_of_assets()
    derived = [each for each in _derived_tables(assets) if name in (None, each.table, each.name)]
    try:
        return [*once_each(_topic_tables(assets, name)), *derived]
    except ConfigurationError:
        if not derived or name is None:
            raise
        return [*derived]


def derived_table(name: str) -> DerivedTable:
    """Return what the definitions say about a derived table."""
    found = derived_tables()
    chosen = [each for each in found if name in (each.table, each.name)]
    if len(chosen) != 1:
        known = ", ".join(sorted(each.name for each in found)) or "none"
        raise ConfigurationError(
            f"{'Several derived tables have' if chosen else 'No derived table has'} the name {name}; those here are: "
            f"{known}.",
            "Name one of them, with its namespace.",
        )
    return chosen[0]


def configured_clusters() -> dict[str | None, tuple[KafkaResource, RegistryResource]]:
    """Return the Kafka clusters and registries of the definitions, by the cluster's name."""
    resources = _resources_at_hand()
    return {
        name: (kafka, _of(resources, of_cluster("registry", name), RegistryResource))
        for name, kafka in (_kafkas(resources) or {None: KafkaResource()}).items()
    }


def configured_catalog() -> CatalogResource:
    """Return the catalog of the definitions; that of the environment outside of a project."""
    return _of(_resources_at_hand(), "catalog", CatalogResource)


def documents_about_many_topics() -> list[KafkaTopics | KafkaTopic]:
    """Return the project's documents of type KafkaTopics, and those by whose patterns topics share a table."""
    at = target()
    with loading(at):
        tree = definitions(at).component_tree
        if tree is None:
            return []
        patterns = [each for each in tree.get_all_components(KafkaTopic) if each.pattern is not None]
        return [*tree.get_all_components(KafkaTopics), *patterns]


def documents_with_tables_by_value() -> list[KafkaTopic]:
    """Return the documents whose topics get tables as values appear."""
    at = target()
    with loading(at):
        tree = definitions(at).component_tree
        if tree is None:
            return []
        many = (topic for each in tree.get_all_components(KafkaTopics) for topic in each.topic_tables())
        return [each for each in (*tree.get_all_components(KafkaTopic), *many) if each.tables_by is not None]


def split(topic: str) -> tuple[str | None, str]:
    """Return the names of cluster and topic of what a user calls a topic.

    >>> split("eu/orders"), split("orders")
    (('eu', 'orders'), (None, 'orders'))
    """
    cluster, _, name = topic.rpartition("/")
    return cluster or None, name


@contextmanager
def connections_at_hand(
    tell_user: Callable[[str], None],
    with_broker: bool = True,
    with_catalog: bool = True,
    with_spark: bool = False,
    of_project: bool = True,
    cluster: str | None = None,
    starts_broker: bool = False,
) -> Iterator[Connections]:
    """Run the block with what its runs work with, as the definitions configure it; Spark is stopped behind it.

    What is needed is asked once before, so that a command ends within seconds where one of them isn't there. What
    fails later is tried again as often as in any run. After the block, unless it failed, Dagster knows the partitions
    of all topics that could be asked.
    """
    resources = _resources_at_hand() if of_project else {}
    catalog = _of(resources, "catalog", CatalogResource)
    kafka = _kafka(resources, cluster, any_will_do=not with_broker)
    registry = _of(resources, of_cluster("registry", kafka.cluster_name), RegistryResource)
    spark = resources.get("spark")
    if not isinstance(spark, SparkResource):
        spark = SparkResource(spark_config={}, catalog=catalog)
    servers = kafka.cluster().bootstrap_servers if kafka.names_brokers else None
    brokers = broker_at_hand(Ports.from_env(), tell_user, servers, starts=starts_broker)
    with brokers if with_broker else nullcontext():
        # The stack kills what is left in its block: Spark is to end before that.
        try:
            connections = build_connections(kafka, catalog, spark, registry)
            if with_broker:
                connections.cluster.check()
            if with_catalog:
                connections.catalog.check()
            if with_spark:
                spark.check()
            yield connections
            if with_broker and of_project:
                specs = [each for each in topics_if_any() if each.cluster == kafka.cluster_name]
                register_topics(specs, connections.cluster, tell_user)
        finally:
            spark.stop()


def topics_if_any() -> list[TopicTable]:
    """Return what `topic_tables` does; nothing outside of a project."""
    try:
        return topic_tables()
    except NoProjectError:
        return []


def _metadata_of_assets() -> list[dict[str, Any]]:
    at = target()
    with loading(at):
        return [dict(asset.metadata) for asset in definitions(at).resolve_all_asset_specs()]


def _resources_at_hand() -> Mapping[str, Any]:
    """Return the project's resources by name; none outside of a project, where the environment says all."""
    try:
        return _resources(target())
    except NoProjectError:
        return {}


def _resources(at: Target) -> Mapping[str, Any]:
    with loading(at):
        return definitions(at).resources or {}


def _kafkas(resources: Mapping[str, Any]) -> dict[str | None, KafkaResource]:
    return {each.cluster_name: each for each in resources.values() if isinstance(each, KafkaResource)}


def _kafka(resources: Mapping[str, Any], cluster: str | None, any_will_do: bool) -> KafkaResource:
    found = _kafkas(resources) or {None: KafkaResource()}
    if cluster in found:
        return found[cluster]
    known = ", ".join(sorted(name for name in found if name))
    if cluster is not None:
        raise ConfigurationError(
            f"No Kafka cluster here has the name {cluster}.",
            f"Name one of {known}." if known else "The only one has no name: leave it out.",
        )
    if len(found) > 1 and not any_will_do:
        raise ConfigurationError(
            f"There are several Kafka clusters here: {known}.",
            f"Name the topic with its cluster, as in {known.partition(',')[0]}/orders.",
        )
    return next(iter(found.values()))


def _of(resources: Mapping[str, Any], name: str, kind: type[_Resource]) -> _Resource:
    found = resources.get(name)
    return found if isinstance(found, kind) else kind()
