"""`type: kafka_lake.KafkaTopic`: a few lines of YAML become the assets of a topic and its tables, and their checks."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from kafka_lake.config.project import Place
from kafka_lake.config.table import TableSettings, table_name
from kafka_lake.config.topic import Topic
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.assets import Presentation, build_topic_assets, run_topic
from kafka_lake.orchestration.components.base import (
    AssetDocument,
    cache_topics,
    cached_routes,
    cached_topics,
    cluster_maintenance,
    state_of_document,
)
from kafka_lake.orchestration.components.scaffolder import TopicScaffolder
from kafka_lake.orchestration.keys import default_key, default_topic_key, plain_name, rename
from kafka_lake.orchestration.metadata import document_metadata
from kafka_lake.routing.by_value import knowing
from kafka_lake.spec.layout import parse_partition_field
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable, full_topic

log = logging.getLogger(__name__)


@dg.scaffold_with(TopicScaffolder)
class KafkaTopic(AssetDocument, Topic):
    """A Kafka topic as Iceberg tables.

    Only ``topic`` is needed. Unknown keys, bad values and combinations that can't work are refused when
    definitions load. Subclasses may override `get_asset_spec`, `get_topic_spec` and `execute`.
    """

    first_fields = frozenset({"topic", "topics", "cluster", "format", "table", "tables"})

    _shown: dg.MarkdownMetadataValue | None = PrivateAttr(default=None)

    def get_asset_spec(self, table: TopicTable) -> dg.AssetSpec:
        """Return the asset of one of the topic's tables; dependencies and kafka_lake's own metadata are added later."""
        return self.presentation(table).table(table)

    def get_topic_spec(self, topic: TopicTable) -> dg.AssetSpec:
        """Return the asset of a topic."""
        return self.presentation(topic).topic(topic)

    def execute(self, context: dg.AssetExecutionContext, topic: TopicTable) -> Iterator[Any]:
        """Fill the topic's tables, and give Dagster's events."""
        continuous = self.read.continuous.settings() if self.read.continuous else None
        yield from run_topic(context, topic, continuous)

    @property
    def place(self) -> Place:
        """Return where the document is, and which topic, tables and cluster it names."""
        return Place(self.cluster, self._place, self.display_name, self.topic_table() if self.every_topic else None)

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
    def full_table(self) -> str:
        """Return the name of the table that several topics fill."""
        return ".".join(table_name(str(self.table and self.table.name)))

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
        cache_topics(self.state_path, names)

    def _matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the topics that the pattern matches, without topics that another document names."""
        assert self.pattern is not None, "who asks has looked"
        every = self._context.component_tree.get_all_components(KafkaTopic)
        others = {
            topic
            for document in every
            if document.pattern is None and document.cluster == self.cluster
            for topic in document.every_topic
        }
        return tuple(match.name for match in self.pattern.matching(names) if match.name not in others)

    @cached_property
    def _names(self) -> tuple[str, ...] | None:
        """The names of the cluster's topics, as they are kept; None if they aren't yet."""
        try:
            state = self.state_path
        except OSError:
            # Where no folder can be made for it, nothing has been kept.
            return None
        return cached_topics(state, self.shown) if state.exists() else None

    def topic_table(
        self, folder: Path | None = None, defaults: Maintenance | None = None, topics: Sequence[str] = ()
    ) -> TopicTable:
        """Return the settings as the pipeline takes them, with the tables that values have got.

        Args:
            folder: Where the document is: schema files are there. Without it they aren't looked for.
            topics: The topics that a pattern matches; by default those that are known.

        Raises:
            ConfigurationError: If a schema file isn't there, no topic is known that a pattern matches, or what is kept
                of tables by value is damaged.
        """
        if self.pattern is not None and folder is not None and not (topics := topics or self.every_topic):
            raise ConfigurationError(
                f"Table {self.full_table}: topics: no cached topic matches {self.display_name!r}.",
                "Run `kafka-lake topics refresh`.",
            )
        spec = super().topic_table(folder, defaults, topics)
        if spec.route_by is not None and self._context is not None:
            spec = self._with_tables_of_values(spec)
        for table in spec.tables:
            rename(default_key(table.identifier), self._asset(table).key)
        for topic in spec.each_topic:
            rename(default_topic_key(topic), self.get_topic_spec(topic).key)
        return spec

    def _asset(self, table: TopicTable) -> dg.AssetSpec:
        return self.translated(self.get_asset_spec(table), table)

    def _with_tables_of_values(self, spec: TopicTable) -> TopicTable:
        try:
            state = self.state_path
        except OSError as error:
            # Where no folder can be made for it, nothing has been kept.
            log.warning("Topic %s: tables_by: no tables of values are assets: %s", spec.full_topic, error)
            return spec
        return knowing(spec, cached_routes(state))

    @property
    def state_path(self) -> Path:
        """Return the file that has what `kafka-lake topics refresh` found: the tables that values have, or topics."""
        topic = full_topic(self.cluster, self.display_name if self.pattern is None else self.full_table)
        return state_of_document(Path(self._context.project_root), self._place, topic)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks; none as long as it isn't known which topics there are."""
        if not self.every_topic:
            why = "no known topic matches topics:" if self.is_known else "no topics are known yet"
            log.warning("%s: table %s: %s. Run `kafka-lake topics refresh`.", self.shown, self.full_table, why)
            return dg.Definitions()
        return dg.Definitions(assets=self.assets())

    def assets(self) -> list[Any]:
        """Return the topic's assets and checks."""
        continuous = self.read.continuous.settings() if self.read.continuous else None
        spec = self.checked_table(self._place, cluster_maintenance(self._context, self.cluster))
        for table in spec.tables:
            if apart := partitions_without_key(table):
                log.warning("Topic %s: %s", spec.full_topic, apart)
        return build_topic_assets(
            spec,
            self.presentation(spec),
            continuous,
            asset_of=self._asset,
            topic_of=self.get_topic_spec,
            execute=self.execute,
        )

    def presentation(self, spec: TopicTable) -> Presentation:
        """Return how Dagster shows a table."""
        shown = self.settings_of(spec.identifier) or TableSettings()
        self._shown = self._shown or document_metadata(self)
        return Presentation(
            shown.group or plain_name(spec.namespace),
            shown.owners,
            description=shown.description,
            tags=shown.tags,
            metadata={"settings": self._shown},
        )


def partitions_without_key(spec: TopicTable) -> str:
    """Return what it costs that the partition of a keyed table's row doesn't follow from its key; empty if it does.

    A key that comes from the records' keys is unknown before they are read, and isn't checked.
    """
    if not spec.is_keyed or not spec.key:
        return ""
    columns = [parse_partition_field(text)[0] for text in spec.partition_by]
    others = [column for column in columns if not {column, column.partition(".")[0]} & set(spec.key)]
    if not others:
        return ""
    return (
        f"partition_by has {', '.join(dict.fromkeys(others))}, and the key is {', '.join(spec.key)}. A change may move "
        "a row to another partition, and a delete has only the key. So each commit searches all partitions for its "
        "keys, and its cost grows with the table. Partition by columns of the key, such as "
        f"bucket(16, {spec.key[0]}), if random keys change."
    )
