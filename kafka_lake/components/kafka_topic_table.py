"""`type: kafka_lake.KafkaTopicTable`: a few lines of YAML become source asset, table asset and checks."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.assets import build_topic_assets
from kafka_lake.components.from_document import FromDocument
from kafka_lake.components.has_defaults import cluster_maintenance
from kafka_lake.components.maintenance_problems import maintenance_problems
from kafka_lake.components.maintenance_settings import MaintenanceSettings
from kafka_lake.components.names_of_topics import keep_names, kept_names
from kafka_lake.components.routed_state import kept, state_of_document
from kafka_lake.components.topic_settings import TopicSettings
from kafka_lake.components.which_cluster import Place
from kafka_lake.ingest.routes.by_value import knowing, may_meet, may_name
from kafka_lake.ingest.topic_table import TopicTable, full_topic
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.names import column_name
from kafka_lake.lake.tables.layout import parse_partition_field

log = logging.getLogger(__name__)


class KafkaTopicTable(FromDocument, TopicSettings):
    """A Kafka topic as an Iceberg table.

    Only ``topic`` is needed. Unknown keys, bad values and combinations that can't work are refused when
    definitions load.
    """

    @property
    def place(self) -> Place:
        """Return where the document is, and which topic and cluster it names."""
        return Place(self.cluster, self._place, self.topic)

    @property
    def every_topic(self) -> tuple[str, ...]:
        """Return the topics that fill the table; of a pattern those that it matches, as far as they are known.

        Raises:
            ConfigurationError: If the file that has the names of the cluster's topics is damaged.
        """
        if self.pattern is None:
            return super().every_topic
        return self._matching(self._names or ()) if self._context is not None else ()

    @property
    def is_known(self) -> bool:
        """Return whether it is known which topics fill the table."""
        return self.pattern is None or self._names is not None

    @property
    def shown(self) -> str:
        """Return where the document is, as users name it."""
        return "/".join(self._place.parts[-3:])

    @property
    def full_table(self) -> str:
        """Return the table's name; of a document with a pattern, which names its table."""
        return f"{self.namespace}.{self.table}"

    def known(self) -> list[tuple[str, str]]:
        """Return the topics that the pattern matches, as far as they are known, each with the table."""
        return [(topic, self.full_table) for topic in self.every_topic]

    def new(self, names: Iterable[str]) -> list[str]:
        """Return the topics among those of the cluster that the pattern matches and that aren't known yet."""
        known = set(self.every_topic)
        return [topic for topic in self._matching(names) if topic not in known]

    def gone(self, names: Iterable[str]) -> list[str]:
        """Return the topics that fill the table and are not among those of the cluster."""
        there = set(names)
        return [topic for topic in self.every_topic if topic not in there]

    def keep(self, names: Sequence[str]) -> None:
        """Keep the names of the cluster's topics; the next load of definitions has those that the pattern matches.

        Args:
            names: Those of all topics of the cluster, as they are now.
        """
        keep_names(self.state_path, names)

    def _matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the topics that the pattern matches, but for those that another document names."""
        assert self.pattern is not None, "who asks has looked"
        every = self._context.component_tree.get_all_components(KafkaTopicTable)
        others = {
            topic
            for each in every
            if each.pattern is None and each.cluster == self.cluster
            for topic in each.every_topic
        }
        return tuple(each.name for each in self.pattern.matching(names) if each.name not in others)

    @cached_property
    def _names(self) -> tuple[str, ...] | None:
        """The names of the cluster's topics, as they are kept; None if they aren't yet."""
        try:
            state = self.state_path
        except OSError:
            # Where no folder can be made for it, nothing has been kept.
            return None
        return kept_names(state, self.shown) if state.exists() else None

    def topic_table(self, folder: Path = Path()) -> TopicTable:
        """Return the settings as the pipeline takes them, with the tables that values have got.

        Args:
            folder: Where the document is; schema files are named from there.

        Raises:
            ConfigurationError: If a schema file isn't there, or what is kept of those tables is damaged.
        """
        spec = super().topic_table(folder)
        if spec.route_by is None or self._context is None:
            return spec
        try:
            state = self.state_path
        except OSError as error:
            # Where no folder can be made for it, nothing has been kept.
            log.warning("Topic %s: route_by: no tables of values are assets: %s", spec.full_topic, error)
            return spec
        return knowing(spec, kept(state))

    @property
    def state_path(self) -> Path:
        """Return the file that has what `kafka-lake topics refresh` found: the tables that values have, or topics."""
        topic = full_topic(self.cluster, self.topic if self.pattern is None else self.full_table)
        return state_of_document(Path(self._context.project_root), self._place, topic)

    def tables(self) -> tuple[tuple[str, str], ...]:
        """Return namespace and name of the tables that are this topic's alone."""
        spec = self.topic_table(self._place.parent)
        return tuple(
            name
            for each in spec.tables
            for name in each.identifiers
            if each.dead_letters == "table" or name != each.dead_letter_table
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks; none as long as it isn't known which topics there are."""
        if not self.every_topic:
            why = "none that is known matches topics:" if self.is_known else "no topics are known yet"
            log.warning("%s: table %s: %s. Run `kafka-lake topics refresh`.", self.shown, self.full_table, why)
            return dg.Definitions()
        return dg.Definitions(assets=self.assets(context.path))

    def assets(self, folder: Path) -> list[Any]:
        """Return the topic's assets and checks.

        Args:
            folder: Where the document is; schema files are named from there.
        """
        continuous = self.continuous.settings() if self.continuous else None
        policy = self._maintenance_policy()
        spec = self.topic_table(folder)
        routes = tuple(
            route if given.get("maintenance") else replace(route, to=replace(route.to, maintenance=policy))
            for route, given in zip(spec.routes, self.routes or (), strict=True)
        )
        by = spec.route_by
        if by is not None and not (self.route_by or {}).get("maintenance"):
            by = replace(by, to=replace(by.to, maintenance=policy))
        spec = replace(spec, maintenance=policy, routes=routes, route_by=by)
        if apart := partitions_apart_from_the_key(spec):
            log.warning("Topic %s: %s", spec.full_topic, apart)
        return list(build_topic_assets(spec, self.presentation(), continuous))

    def resolution(self) -> dg.ResolutionContext:
        """Return by what templates in the document are filled in: those of its project, if it is in one."""
        return self._context.resolution_context if self._context else super().resolution()

    def _maintenance_policy(self) -> Maintenance:
        """Return how the topic's tables are maintained, by its own settings and by its cluster's.

        Raises:
            ConfigurationError: If that can't be.
        """
        defaults = cluster_maintenance(self._context, self.cluster)
        policy = (self.maintenance or MaintenanceSettings()).policy(defaults)
        for problem in maintenance_problems(self, policy, complete=True):
            raise ConfigurationError(
                f"Topic {self.topic} ({self._place}): {problem}",
                "Its maintenance: overrides that of the cluster's document, setting by setting.",
            )
        return policy


def partitions_apart_from_the_key(spec: TopicTable) -> str:
    """Return what it costs that the partition of a keyed table's row doesn't follow from its key; empty if it does.

    A key that the records' keys tell isn't known before they are read: nothing is said of it.
    """
    if not spec.is_keyed or not spec.key:
        return ""
    columns = [parse_partition_field(each)[0] for each in spec.partition_by]
    others = [each for each in columns if not {each, each.partition(".")[0], column_name(each, ())} & set(spec.key)]
    if not others:
        return ""
    return (
        f"partition_by has {', '.join(dict.fromkeys(others))}, and the key is {', '.join(spec.key)}. A change may move "
        "a row to another partition, and a delete tells the key alone. So each commit looks for its keys in all "
        "partitions, and its cost grows with the table. Partition by columns of the key, such as "
        f"bucket(16, {spec.key[0]}), if changes are of keys from anywhere."
    )


def refuse_shared_tables(components: Iterable[KafkaTopicTable]) -> None:
    """Make sure that no two topics have a table in common, dead-letter tables among them, and that each is there once.

    Args:
        components: All topics of a deployment.

    Raises:
        ConfigurationError: If two do, with both documents' names.
    """
    components = list(components)
    owners: dict[tuple[str, str], KafkaTopicTable] = {}
    topics: dict[tuple[str | None, str], KafkaTopicTable] = {}
    for each in components:
        for topic in each.every_topic:
            if (same := topics.setdefault((each.cluster, topic), each)) is not each:
                raise ConfigurationError(
                    f"Topic {topic} would have two tables: by {same._place} and by {each._place}.",
                    "Leave it to one of them; a document with a pattern has exclude: for that.",
                )
        for table in each.tables():
            if (other := owners.setdefault(table, each)) is not each:
                raise ConfigurationError(
                    f"Table {'.'.join(table)} would be two topics': {other.topic}'s ({other._place}) and "
                    f"{each.topic}'s ({each._place}).",
                    "Give one of them another table: or namespace:. If both are to fill the same table, write one "
                    f"document with topics: [{other.topic}, {each.topic}].",
                )
    by = [
        (each, given)
        for each in components
        if each.route_by and (given := each.topic_table(each._place.parent).route_by)
    ]
    for number, (each, one) in enumerate(by):
        for table, other in owners.items():
            if other is not each and may_name(one, table):
                raise ConfigurationError(
                    f"Topic {each.topic} ({each._place}): route_by: a value could make table {'.'.join(table)}, "
                    f"which is topic {other.topic}'s ({other._place}).",
                    _APART,
                )
        for other, another in by[:number]:
            if may_meet(one, another):
                raise ConfigurationError(
                    f"Topics {other.topic} ({other._place}) and {each.topic} ({each._place}): route_by: values could "
                    "make tables of the same name.",
                    _APART,
                )


_APART = "Give route_by: a namespace: of its own, or let its table: begin with what no other table begins with."
