"""`type: kafka_lake.KafkaTopics`: all topics that a pattern matches, each with a table, from one YAML document."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType
from pydantic import Field, PrivateAttr, ValidationError

from kafka_lake.config.project import Place
from kafka_lake.config.table import NAMESPACE
from kafka_lake.config.topic import MatchingTopics
from kafka_lake.config.topic_pattern import FoundTopic, TopicPattern, check_template, compiled, filled, sentence
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.components.base import AssetDocument, ClusterDocument, cache_topics, cached_topics
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.spec.settings import Problem, ShortFor, Text, located, message
from kafka_lake.spec.topic_table import CLUSTER_NAME

if TYPE_CHECKING:
    from kafka_lake.kafka.cluster import KafkaCluster as Brokers


def new_topics(documents: Iterable["KafkaTopics | KafkaTopic"], names: Sequence[str]) -> str:
    """Return what to do about topics that no table is for yet; empty if there are none."""
    documents = list(documents)
    tables = {document.shown: document.full_table for document in documents if isinstance(document, KafkaTopic)}
    return sentence({document.shown: document.new(names) for document in documents}, tables)


log = logging.getLogger(__name__)

_ANY = FoundTopic("any_topic", {"topic": "any_topic"})
_OWN = ("topic", "topics", "cluster", "translation")


def _kept_by_hand() -> DefsStateConfigArgs:
    local = DefsStateConfigArgs.local_filesystem()
    return DefsStateConfigArgs(management_type=local.management_type, refresh_if_dev=False)


class KafkaTopics(dg.StateBackedComponent, AssetDocument):
    """All topics of a cluster that a pattern matches, each as a table of its own.

    A subclass may name a subclass of `KafkaTopic` as its `topic_type`, which makes their assets.

    The names of the cluster's topics are kept by Dagster, so that no broker is asked when definitions load:
    `kafka-lake topics refresh` asks. A topic that has a document of type KafkaTopic is left to that.
    """

    first_fields = frozenset({"topics", "cluster", "table", "defaults"})

    topics: Annotated[MatchingTopics, ShortFor("pattern")] = Field(
        description="Python regular expressions, one or a list, that match whole topic names; or `{pattern, "
        "exclude}`. Topics that begin with two underscores never match.",
        examples=[r"shop\..*", {"pattern": r"shop\..*", "exclude": r".*\.internal"}],
    )
    cluster: Annotated[Text, Field(pattern=CLUSTER_NAME)] | None = Field(
        default=None,
        description="Name of the `KafkaCluster` document, if it has one.",
        examples=["eu"],
    )
    table: Text = Field(
        default="{topic}",
        description="Template for table names, as `namespace.table`: `{topic}`, and groups of the pattern by number "
        "or name. Characters that a name can't have become `_`. The default namespace is `lake`.",
        examples=["shop.raw_{1}"],
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings for all topics, as in a topic's document.",
        examples=[{"format": "avro", "table": {"owners": ["team:shop"]}}],
    )
    overrides: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Settings for some topics, by name or regular expression. If several match, the last one wins.",
        examples=[{r"shop\.orders": {"table": {"write": {"mode": "upsert", "key": ["id"]}}}}],
    )
    defs_state: DefsStateConfigArgs = Field(
        default_factory=_kept_by_hand,
        description="Where Dagster stores the topic names. Default: a file in the project.",
    )

    topic_type: ClassVar[type[KafkaTopic]] = KafkaTopic

    _names: tuple[str, ...] | None = PrivateAttr(default=None)
    _built: dg.Definitions | None = PrivateAttr(default=None)

    def problems(self) -> Iterator[Problem]:
        """Yield problems of combined settings."""
        try:
            check_template("table", self.table, self.pattern)
            for name in self.overrides:
                compiled("overrides", name)
        except ConfigurationError as error:
            yield (), str(error)
        for place, given in (
            (("defaults",), self.defaults),
            *((("overrides", k), v) for k, v in self.overrides.items()),
        ):
            if own := next((setting for setting in given if setting in _OWN), None):
                yield (*place, own), "belongs beside defaults:, not here"

    @cached_property
    def pattern(self) -> TopicPattern:
        """Which topics are meant."""
        return self.topics.topics

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Return where Dagster keeps the names: by document and cluster, so that those of two clusters stay apart."""
        root, place = Path(self._context.project_root), self._place
        # The same on each machine; the names are all those of a cluster, for all documents in one file.
        where = place.relative_to(root) if place.is_relative_to(root) else place
        of = f" of {self.cluster}" if self.cluster else ""
        return DefsStateConfig.from_args(self.defs_state, default_key=f"KafkaTopics[{where.as_posix()}{of}]")

    def write_state_to_path(self, state_path: Path) -> None:
        """Ask the cluster for its topics, and write their names to a file.

        Raises:
            ConfigurationError: If the project has no such cluster.
            KafkaError: If the brokers don't answer. The file is as it was.
        """
        cache_topics(state_path, self.brokers().topics())

    def brokers(self) -> "Brokers":
        """Return the cluster.

        Raises:
            ConfigurationError: If the project has none of that name.
        """
        return self._cluster_document().kafka().cluster()

    def refresh(self) -> None:
        """Let Dagster keep the names of the cluster's topics as they are now; the next load of definitions has them.

        Raises:
            ConfigurationError: If it keeps them elsewhere than in a file of the project, or there is no such cluster.
            KafkaError: If the brokers don't answer. The names are as they were.
        """
        if self.defs_state.management_type is not DefsStateManagementType.LOCAL_FILESYSTEM:
            raise ConfigurationError(
                f"{self.shown}: defs_state is {self.defs_state.management_type.value}, so the topic names are in "
                "Dagster's instance.",
                "Run `dg utils refresh-defs-state` with that instance.",
            )
        asyncio.run(self.refresh_state(self._context.project_root))

    def keep(self, names: Sequence[str]) -> None:
        """Do as `refresh`: what the names are is for Dagster to ask."""
        self.refresh()

    @property
    def is_known(self) -> bool:
        """Return whether the names of the cluster's topics are known."""
        self.build_defs(self._context)
        return self._names is not None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets and checks of all topics; the same ones, however often they are asked for."""
        if self._built is None:
            self._built = super().build_defs(context)
        return self._built

    def build_defs_from_state(self, context: dg.ComponentLoadContext, state_path: Path | None) -> dg.Definitions:
        """Return the assets and checks of the topics whose names were kept.

        Raises:
            ConfigurationError: If the settings of one can't be.
        """
        self._names = None if state_path is None else cached_topics(state_path, self.shown)
        if not self._documents:
            # What can't be is told before there is any topic.
            self._document(_ANY)
        if self._names is None:
            log.warning("%s: no topics are known yet. Run `kafka-lake topics refresh`.", self.shown)
        return dg.Definitions(assets=[asset for topic in self._documents for asset in topic.assets()])

    @property
    def place(self) -> Place:
        """Return where the document is, and which topics and cluster it names."""
        return Place(self.cluster, self._place, " or ".join(self.topics.pattern))

    def topic_tables(self) -> Sequence[KafkaTopic]:
        """Return the topics, each as a document of its own would have it."""
        self.build_defs(self._context)
        return self._documents

    def known(self) -> list[tuple[str, str]]:
        """Return the topics of the document, each with its table."""
        return [
            (document.display_name, ".".join(document.topic_table().identifier)) for document in self.topic_tables()
        ]

    def new(self, names: Iterable[str]) -> list[str]:
        """Return the topics among those of the cluster that the document is about and doesn't know yet."""
        others = {*(document.display_name for document in self.topic_tables()), *self._with_documents}
        others |= {name for pattern in self._patterns for name in pattern.new(names)}
        return [match.name for match in self.pattern.matching(names) if match.name not in others]

    def gone(self, names: Iterable[str]) -> list[str]:
        """Return the topics of the document that are not among those of the cluster."""
        there = set(names)
        return [document.display_name for document in self.topic_tables() if document.display_name not in there]

    @cached_property
    def _documents(self) -> list[KafkaTopic]:
        found = self.pattern.matching(self._names or ())
        for pattern in self.overrides if found else ():
            if not any(self._overrides(pattern, match.name) for match in found):
                log.warning("%s: overrides: %s matches none of the %s topics.", self.shown, pattern, len(found))
        others = self._with_documents
        return [self._document(match) for match in found if match.name not in others]

    @cached_property
    def _with_documents(self) -> frozenset[str]:
        """The topics of the cluster that have documents of their own."""
        every = self._context.component_tree.get_all_components(KafkaTopic)
        return frozenset(
            topic for document in every if document.cluster == self.cluster for topic in document.every_topic
        )

    @property
    def _patterns(self) -> list[KafkaTopic]:
        """The documents of the cluster by whose patterns topics share a table."""
        every = self._context.component_tree.get_all_components(KafkaTopic)
        return [document for document in every if document.cluster == self.cluster and document.pattern is not None]

    def _overrides(self, pattern: str, topic: str) -> bool:
        """Return whether an override is for a topic: the name of a topic isn't a regular expression besides."""
        is_name = pattern in (self._names or ())
        return pattern == topic if is_name else compiled("overrides", pattern).fullmatch(topic) is not None

    def _document(self, topic: FoundTopic) -> KafkaTopic:
        """Return a topic as a document of its own would have it."""
        settings: dict[str, Any] = {**self.defaults}
        for pattern, given in self.overrides.items():
            if self._overrides(pattern, topic.name):
                settings = _merged(settings, given)
        settings |= {"topic": topic.name, **({"cluster": self.cluster} if self.cluster else {})}
        if "tables" not in settings:
            table = settings.get("table") or {}
            own = {"name": table} if isinstance(table, str) else dict(table)
            settings["table"] = {"name": self._table_of(topic), **own}
        try:
            document = self.topic_type(**settings)
        except ValidationError as error:
            raise self._refused(topic, error) from error
        document._place, document._context, document._translation = self._place, self._context, self._translation
        return document

    def _table_of(self, topic: FoundTopic) -> str:
        namespace, _, table = self.table.rpartition(".")
        if topic is _ANY:
            return "any_table"
        return ".".join(filled(part, topic) for part in (namespace or NAMESPACE, table))

    def _refused(self, topic: FoundTopic, error: ValidationError) -> ConfigurationError:
        problems = [located(detail["loc"], message(detail)) for detail in error.errors(include_url=False)]
        of = "defaults" if topic is _ANY else f"topic {topic.name}"
        return ConfigurationError(
            f"{self._place}: {of}: {'; '.join(dict.fromkeys(problems))}.", "Correct defaults: or overrides:."
        )

    def _cluster_document(self) -> ClusterDocument:
        found: list[ClusterDocument] = self._context.component_tree.get_all_components(ClusterDocument)
        for document in found:
            if document.name == self.cluster:
                return document
        known = ", ".join(document.name or "one without a name" for document in found) or "none"
        raise ConfigurationError(
            f"{self._place}: no document of type kafka_lake.KafkaCluster is named {self.cluster}. This project has: "
            f"{known}.",
            "Correct its cluster:, or the cluster's name:.",
        )


def documents_of_topics(tree: dg.ComponentTree) -> list[KafkaTopic]:
    """Return the documents of topics of a project, and the topics that patterns match as documents of their own.

    A document with a pattern is left out as long as no topic is known that it matches.
    """
    alone = [document for document in tree.get_all_components(KafkaTopic) if document.every_topic]
    return [*alone, *(topic for many in tree.get_all_components(KafkaTopics) for topic in many.topic_tables())]


def _merged(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings updated with further ones; groups are merged setting by setting."""
    merged = dict(settings)
    for name, item in given.items():
        before = merged.get(name)
        merged[name] = _merged(before, item) if isinstance(before, Mapping) and isinstance(item, Mapping) else item
    return merged
