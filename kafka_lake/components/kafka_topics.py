"""`type: kafka_lake.KafkaTopics`: all topics that a pattern matches, each with a table, from one YAML document."""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.has_topics import HasTopics
from kafka_lake.components.kafka_cluster import KafkaCluster
from kafka_lake.components.kafka_topic_table import KafkaTopicTable
from kafka_lake.components.names_of_topics import keep_names, kept_names
from kafka_lake.components.rule_errors import rule_error
from kafka_lake.components.text import AsWritten, AsWrittenByName, OptionalText, TextOrList
from kafka_lake.components.topic_pattern import FoundTopic, TopicPattern, check_template, compiled, filled
from kafka_lake.components.which_cluster import Place
from kafka_lake.ingest.topic_table import ClusterName
from kafka_lake.kafka.cluster import KafkaCluster as Brokers

log = logging.getLogger(__name__)

_ANY = FoundTopic("any_topic", {"topic": "any_topic"})
_OWN = {"topic": "topics:", "topics": "topics:", "exclude": "exclude:", "cluster": "cluster:"}


def _kept_by_hand() -> DefsStateConfigArgs:
    local = DefsStateConfigArgs.local_filesystem()
    return DefsStateConfigArgs(management_type=local.management_type, refresh_if_dev=False)


class KafkaTopics(dg.StateBackedComponent, HasTopics):
    """All topics of a cluster that a pattern matches, each as a table of its own.

    The names of the cluster's topics are kept by Dagster, so that no broker is asked when definitions load:
    `kafka-lake topics refresh` asks. A topic that has a document of type KafkaTopicTable is left to that.
    """

    model_config = ConfigDict(extra="forbid")

    topics: TextOrList = Field(
        description="Regular expressions (Python's), one or a list. A topic is meant if one matches its whole name.",
        examples=[r"shop\..*"],
    )
    exclude: TextOrList = Field(
        default_factory=list,
        description="Likewise: topics that are not meant. Kafka's own, with two underscores, never are.",
        examples=[r".*\.internal"],
    )
    cluster: ClusterName | None = Field(
        default=None,
        description="Name of the KafkaCluster document whose topics they are; needed where that has a name.",
        examples=["eu"],
    )
    namespace: OptionalText = Field(
        default=None,
        description="Template of the tables' namespaces, as `table`. Without it the default of a topic's document.",
        examples=["{1}"],
    )
    table: OptionalText = Field(
        default=None,
        description="Template of the tables' names: `{topic}`, and what groups of `topics` match, by number or name. "
        "What can't be in a name becomes `_`. Without it the topic's name.",
        examples=["raw_{name}"],
    )
    defaults: AsWritten = Field(
        default_factory=dict,
        description="Settings of all the topics: those of a topic's document.",
        examples=[{"format": "avro", "samples": False}],
    )
    overrides: AsWrittenByName = Field(
        default_factory=dict,
        description="Settings of some of them, by the topic's name or a regular expression. All that match count, the "
        "last one most.",
        examples=[{r"shop\.orders": {"write": "upsert", "key": ["id"]}}],
    )
    defs_state: ResolvedDefsStateConfig = Field(
        default_factory=_kept_by_hand,
        description="Where Dagster keeps the names of the cluster's topics; a file in the project by default.",
    )

    _names: tuple[str, ...] | None = PrivateAttr(default=None)
    _built: dg.Definitions | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            pattern = self.pattern
            for setting in ("namespace", "table"):
                if template := getattr(self, setting):
                    check_template(setting, template, pattern)
            for name, given in (("defaults", self.defaults), *self.overrides.items()):
                where = name if given is self.defaults else f"overrides: {name}"
                if own := next((each for each in given if each in _OWN), None):
                    raise ConfigurationError(f"{where}: {own}: stands above as {_OWN[own]}")
            for name in self.overrides:
                compiled("overrides", name)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self

    @cached_property
    def pattern(self) -> TopicPattern:
        """Which topics are meant."""
        return TopicPattern(tuple(self.topics), tuple(self.exclude))

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

        Args:
            state_path: The file.

        Raises:
            ConfigurationError: If the project has no such cluster.
            KafkaError: If the brokers don't answer. The file is as it was.
        """
        keep_names(state_path, self.brokers().topics())

    def brokers(self) -> Brokers:
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
                f"{self.shown}: defs_state is {self.defs_state.management_type.value}, which Dagster's instance keeps.",
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
        self._names = None if state_path is None else kept_names(state_path, self.shown)
        if not self._documents:
            # What can't be is told before there is any topic.
            self._document(_ANY)
        if self._names is None:
            log.warning("%s: no topics are known yet. Run `kafka-lake topics refresh`.", self.shown)
        return self.defs_of(self._documents)

    @property
    def place(self) -> Place:
        """Return where the document is, and which topics and cluster it names."""
        return Place(self.cluster, self._place, " or ".join(self.topics))

    def topic_tables(self) -> Sequence[KafkaTopicTable]:
        """Return the topics, each as a document of its own would have it."""
        self.build_defs(self._context)
        return self._documents

    def known(self) -> list[tuple[str, str]]:
        """Return the topics of the document, each with its table."""
        return [(each.topic, ".".join(each.topic_table(self._place.parent).identifier)) for each in self.topic_tables()]

    def new(self, names: Iterable[str]) -> list[str]:
        """Return the topics among those of the cluster that the document is about and doesn't know yet."""
        others = {*(each.topic for each in self.topic_tables()), *self._with_documents}
        others |= {name for each in self._patterns for name in each.new(names)}
        return [each.name for each in self.pattern.matching(names) if each.name not in others]

    def gone(self, names: Iterable[str]) -> list[str]:
        """Return the topics of the document that are not among those of the cluster."""
        there = set(names)
        return [each.topic for each in self.topic_tables() if each.topic not in there]

    @cached_property
    def _documents(self) -> list[KafkaTopicTable]:
        found = self.pattern.matching(self._names or ())
        for pattern in self.overrides if found else ():
            if not any(self._overrides(pattern, each.name) for each in found):
                log.warning("%s: overrides: %s matches none of the %s topics.", self.shown, pattern, len(found))
        others = self._with_documents
        return [self._document(each) for each in found if each.name not in others]

    @cached_property
    def _with_documents(self) -> frozenset[str]:
        """The topics of the cluster that have documents of their own."""
        every = self._context.component_tree.get_all_components(KafkaTopicTable)
        return frozenset(topic for each in every if each.cluster == self.cluster for topic in each.every_topic)

    @property
    def _patterns(self) -> list[KafkaTopicTable]:
        """The documents of the cluster by whose patterns topics share a table."""
        every = self._context.component_tree.get_all_components(KafkaTopicTable)
        return [each for each in every if each.cluster == self.cluster and each.pattern is not None]

    def _overrides(self, pattern: str, topic: str) -> bool:
        """Return whether an override is for a topic: what is the name of one is no regular expression besides."""
        is_name = pattern in (self._names or ())
        return pattern == topic if is_name else compiled("overrides", pattern).fullmatch(topic) is not None

    def _document(self, topic: FoundTopic) -> KafkaTopicTable:
        """Return a topic as a document of its own would have it.

        Raises:
            ConfigurationError: If its settings can't be.
        """
        settings: dict[str, Any] = {**self.defaults}
        for setting in ("namespace", "table"):
            if (template := getattr(self, setting)) and topic is not _ANY:
                settings[setting] = filled(template, topic)
        for pattern, given in self.overrides.items():
            if self._overrides(pattern, topic.name):
                settings |= given
        settings |= {"topic": topic.name, **({"cluster": self.cluster} if self.cluster else {})}
        try:
            model = KafkaTopicTable.model().model_validate(settings)
            document: KafkaTopicTable = KafkaTopicTable.resolve_from_model(self._context.resolution_context, model)
        except ValidationError as error:
            raise self._refused(topic, error) from error
        document._place, document._context = self._place, self._context
        return document

    def _refused(self, topic: FoundTopic, error: ValidationError) -> ConfigurationError:
        told = []
        for each in error.errors(include_url=False):
            # Each setting may be a template's text too: where it is none, that says nothing.
            if each["loc"][1:] == ("str",) and len(error.errors()) > 1:
                continue
            text = each["msg"].removeprefix("Value error, ")
            within = [str(name) for name in each["loc"] if re.fullmatch(r"\w+", str(name))]
            if each["type"] == "extra_forbidden":
                text = "there is no such setting"
            of_rule = rule_error(each["loc"], each["type"], text)
            told.append(of_rule or (f"{': '.join(within)}: {text}" if each["loc"] else text))
        of = "defaults" if topic is _ANY else f"topic {topic.name}"
        return ConfigurationError(
            f"{self._place}: {of}: {'; '.join(dict.fromkeys(told))}", "Correct defaults: or overrides:."
        )

    def _cluster_document(self) -> KafkaCluster:
        found: list[KafkaCluster] = self._context.component_tree.get_all_components(KafkaCluster)
        for each in found:
            if each.name == self.cluster:
                return each
        known = ", ".join(each.name or "one without a name" for each in found) or "none"
        raise ConfigurationError(
            f"{self._place}: no document of type kafka_lake.KafkaCluster is named {self.cluster}. Those here: {known}.",
            "Correct its cluster:, or the cluster's name:.",
        )
