"""The settings of a topic's document, and the specification that the pipeline takes."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator, field_validator

from kafka_lake.common.text import seconds_of, start_timestamp_ms
from kafka_lake.config.formats import Json, KeyFormat, ValueFormat, format_spec, key_spec
from kafka_lake.config.problems import maintenance_problems, routing_problems, table_problems
from kafka_lake.config.table import NAMESPACE, OneTable, Table, TablesBy, TableSettings, table_name
from kafka_lake.config.topic_pattern import TopicPattern, compiled
from kafka_lake.config.write import Append
from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.continuous import Continuous
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.settings import Duration, Problem, Settings, ShortFor, Text, TextList, TextOrList, is_template
from kafka_lake.spec.topic_table import (
    CLUSTER_NAME,
    TOPIC_NAME,
    Route,
    RouteBy,
    TopicTable,
    Unmatched,
    When,
    derived_table_name,
)


class ContinuousRuns(Settings):
    """How often a topic's continuous runs commit, and when they end. All has defaults: ``continuous: {}`` is enough.

    Durations are a number and ms, s, m or h.
    """

    trigger: Duration = Field(default="1s", description="Minimum time between the starts of two commits.")
    time_limit: Duration = Field(
        default="1h", alias="for", description="Time after which the run ends. The sensor then starts the next run."
    )
    idle: Duration = Field(default="5m", description="The run ends if no record arrives for this time.")

    def problems(self) -> Iterator[Problem]:
        """Give the durations that are too short."""
        try:
            self.settings()
        except ConfigurationError as error:
            yield (), str(error)

    def settings(self) -> Continuous:
        """Return the settings as a continuous run takes them."""
        trigger, time_limit, idle = map(seconds_of, (self.trigger, self.time_limit, self.idle))
        # Dagster is told at most once in half a minute: its event log grows with each report.
        return Continuous(trigger, time_limit, idle, report_every=max(_REPORT_SECONDS, trigger))


_REPORT_SECONDS = 30.0


class Read(Settings):
    """How much a commit reads, and how long a run goes on."""

    max_records_per_commit: int = Field(
        default=5_000_000,
        ge=1,
        description="Maximum number of offsets in a commit. A longer backlog becomes several commits.",
    )
    max_bytes_per_commit: Annotated[int, Field(ge=1)] | None = Field(
        default=2_000_000_000,
        description="Approximate maximum of uncompressed bytes (keys, values and headers) in a commit. `null` "
        "removes the limit.",
    )
    continuous: ContinuousRuns | None = Field(
        default=None,
        description="Runs that commit every few seconds. `{}` takes all defaults. See [continuous "
        "runs](continuous.md).",
        examples=[{"trigger": "1s", "for": "1h", "idle": "5m"}],
    )


class MatchingTopics(Settings):
    """Topics by the names that they have: text alone is the pattern."""

    pattern: TextOrList = Field(
        min_length=1,
        description="Python regular expressions, one or a list, that match whole topic names.",
        examples=[r"shop\..*"],
    )
    exclude: TextOrList = Field(
        default=(),
        description="Regular expressions for topics to leave out. Topics that begin with two underscores never match.",
        examples=[r".*\.internal"],
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the patterns that aren't regular expressions."""
        for setting, patterns in (("pattern", self.pattern), ("exclude", self.exclude)):
            for pattern in patterns:
                try:
                    compiled(setting, pattern)
                except ConfigurationError as error:
                    yield (), str(error)

    @property
    def topics(self) -> TopicPattern:
        """Return which topics are meant."""
        return TopicPattern(tuple(self.pattern), tuple(self.exclude))


def _names_or_pattern(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, MatchingTopics):
        return value
    if isinstance(value, str):
        raise ValueError(rf"must be a list of names, or a pattern, as in {{pattern: '{value}'}}")
    return _NAMES.validate_python(value) if isinstance(value, list | tuple) else MatchingTopics.model_validate(value)


_NAMES: TypeAdapter[tuple[str, ...]] = TypeAdapter(Annotated[TextList, Field(min_length=1)])
SeveralTopics = Annotated[MatchingTopics | tuple[str, ...], WrapValidator(_names_or_pattern)]


@dataclass(frozen=True)
class _Planned:
    """A table of a topic, before the pipeline knows it."""

    place: tuple[str | int, ...]
    identifier: tuple[str, str]
    settings: TableSettings

    @property
    def where(self) -> When | None:
        """Which records are the table's; None for those that no other table takes."""
        given = getattr(self.settings, "where", None)
        return None if given is None else given.when()


class Topic(Settings):
    """A Kafka topic and the Iceberg tables that it becomes. Only ``topic`` is needed."""

    topic: Annotated[Text, Field(pattern=TOPIC_NAME)] | None = Field(
        default=None,
        description="Name of the Kafka topic. Required unless `topics` is set.",
    )
    topics: SeveralTopics | None = Field(
        default=None,
        description="Several topics of one cluster that fill the same table, instead of `topic`: a list of names, or "
        "`{pattern, exclude}`. Requires `table`. See [several topics in one "
        "table](many-topics.md#several-topics-in-one-table).",
        examples=[["shop.eu.orders", "shop.us.orders"], {"pattern": r"shop\..*\.orders"}],
    )
    cluster: Annotated[Text, Field(pattern=CLUSTER_NAME)] | None = Field(
        default=None,
        description="Name of the `KafkaCluster` document, if it has one.",
        examples=["eu"],
    )
    format: ValueFormat = Field(
        default_factory=lambda: Json(type="json"),
        description="How values are encoded: the name of a format, or `{type: …}` with its settings. With "
        "`confluent`, each record's schema id determines its format. `string` and `bytes` store the whole value in one "
        "column.",
        examples=["avro", {"type": "json", "envelope": "debezium"}],
    )
    key: KeyFormat | None = Field(
        default=None,
        description="How keys are encoded. Decoded keys get their own column. Without this setting, keys are bytes "
        "in the metadata column.",
        examples=["string", {"format": "json", "column": "id", "schema": "id bigint"}],
    )
    table: Annotated[OneTable, ShortFor("name")] | None = Field(
        default=None,
        description="The table's name, or its settings. By default, the table is named after the topic.",
        examples=["shop.orders", {"name": "shop.orders", "partition_by": ["day(ordered_at)"]}],
    )
    tables: Annotated[list[Table], Field(min_length=1)] | None = Field(
        default=None,
        description="Several tables, instead of `table`. Each has a `name`, a condition `where`, and its own "
        "settings. See [many tables](many-tables.md).",
        examples=[[{"name": "shop.orders", "where": {"field": "type", "equals": "order"}}]],
    )
    tables_by: TablesBy | None = Field(
        default=None,
        description="One table for each value of a field. See [a table for each "
        "value](many-tables.md#a-table-for-each-value).",
        examples=[{"field": "type", "name": "shop.raw_{value}"}],
    )
    unmatched: Unmatched = Field(
        default="dead_letter",
        description="If every table has a condition, what happens to records that match none: `dead_letter` of the "
        "first table, `ignore` only counts them, `fail` fails the run.",
    )
    starting_offsets: Text = Field(
        default="earliest",
        description="Where a new table starts: `earliest`, `latest`, or an ISO 8601 time.",
        examples=["2026-01-31T00:00:00Z"],
    )
    read: Read = Field(default_factory=Read, description="Size of commits, and continuous runs.")

    @field_validator("starting_offsets")
    @classmethod
    def _a_start(cls, text: str) -> str:
        try:
            if text not in ("earliest", "latest") and not is_template(text):
                start_timestamp_ms(text)
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("start: ")) from error
        return text

    def problems(self) -> Iterator[Problem]:
        """Give what is wrong with settings that are right one by one."""
        found = list(self._topics_problems())
        yield from found
        if self.table is not None and self.tables is not None:
            yield ("tables",), "can't be combined with table:. Add that table to the list"
        elif not found:
            yield from self._without_effect()
            yield from self._tables_problems()

    def _topics_problems(self) -> Iterator[Problem]:
        """Give what is wrong with the topics of the document."""
        if self.topics is None:
            if self.topic is None:
                several = "or several that fill one table, as topics: [a, b]"
                yield (), f"topic: is missing, or null without quotes. Name the Kafka topic; {several}"
            return
        if self.topic is not None:
            yield ("topic",), f"{self.topic} can't be combined with topics:. Add it to that list"
        if isinstance(self.topics, tuple):
            if twice := [topic for topic, count in Counter(self.topics).items() if count > 1]:
                yield ("topics",), f"has {twice[0]} twice. Remove one of them"
            if wrong := [topic for topic in self.topics if not re.fullmatch(TOPIC_NAME, topic)]:
                pattern = r"A list has whole names. For a pattern, write topics: {pattern: 'shop\..*'}"
                yield ("topics",), f"{wrong[0]!r} can't be the name of a topic. {pattern}"
        if self.tables is not None or self.tables_by is not None:
            setting = "tables" if self.tables is not None else "tables_by"
            yield (setting,), "can't be combined with topics: yet. Name one table, or give each topic a document"
        elif self.table is None or self.table.name is None:
            yield ("table",), "is missing. Name the table that the topics fill"
        if self.read.continuous is not None:
            yield ("read", "continuous"), "can't be combined with topics: yet. Remove it"

    def _without_effect(self) -> Iterator[Problem]:
        """Give settings that are written and would change nothing."""
        planned = self._planned()
        rest = [".".join(table.identifier) for table in planned if table.where is None]
        if rest and "unmatched" in self.model_fields_set:
            why = f"table {rest[0]} takes the records that no other table takes"
            yield ("unmatched",), f"has no effect: {why}. Remove it"
        every = [settings for _, settings in self.every_settings()]
        envelope = getattr(self.format, "envelope", None)
        by_source = self.tables_by is not None and self.tables_by.source_table
        if envelope and not by_source and all(isinstance(settings.write, Append) for settings in every):
            why = "write: append doesn't decode envelopes. Write mode: upsert or history"
            yield ("format", "envelope"), f"has no effect: {why}, or leave it out"
        if getattr(self.format, "infer_timestamps", False) and all(settings.columns for settings in every):
            yield ("format", "infer_timestamps"), "has no effect: columns: declares the columns. Remove it"
        for place, settings in self.every_settings():
            if "on_truncate" in settings.write.model_fields_set and not envelope:
                why = "only an envelope reports truncates"
                yield (*place, "write", "on_truncate"), f"has no effect: {why}, and format: has none. Remove it"
            evolution = settings.evolution
            if evolution.on_incompatible == "new_column" and evolution.mode == "freeze":
                yield (*place, "evolution", "on_incompatible"), "new_column adds a column, and mode: freeze allows none"

    def _tables_problems(self) -> Iterator[Problem]:
        planned = self._planned()
        rest = [table for table in planned if table.where is None]
        if 1 < len(rest) < len(planned):
            both = " and ".join(".".join(table.identifier) for table in rest[:2])
            why = "Either one table or every table may omit where:"
            yield (*rest[1].place, "name"), f"{both} have no where:, and others have one. {why}"
            return
        try:
            # Not a component's own, which names assets too.
            spec = Topic.topic_table(self)
        except ConfigurationError as error:
            yield (), str(error)
            return
        places = {table.identifier: table.place for table in planned}
        tables = [(places.get(table.identifier, ("table",)), table) for table in spec.tables]
        if spec.route_by is not None:
            tables.append((("tables_by",), spec.route_by.table_of(NAMESPACE, "made_by_value")))
        found = [(place + within, text) for place, table in tables for within, text in table_problems(table)]
        yield from found
        if found:
            return
        if self.pattern is not None and spec.namespace == "kafka" and self.pattern.matching([spec.table]):
            why = f"topic {spec.table} and its table would be the same asset, kafka/{spec.table}"
            yield ("table", "name"), f"{why}. Choose another name"
        yield from routing_problems(spec)
        yield from self.maintenance_problems(spec, complete=False)

    def maintenance_problems(self, spec: TopicTable, complete: bool) -> Iterator[Problem]:
        """Give what the tables' maintenance asks for and can't be."""
        places = {table.identifier: table.place for table in self._planned()}
        for table in spec.tables:
            place = places.get(table.identifier, ("table",))
            for text in maintenance_problems(table, spec, complete):
                yield (*place, "maintenance"), text

    @property
    def pattern(self) -> TopicPattern | None:
        """Return by which names topics fill the table; None if the document names each of them."""
        return self.topics.topics if isinstance(self.topics, MatchingTopics) else None

    @property
    def every_topic(self) -> tuple[str, ...]:
        """Return the topics that fill the table; of a pattern none, since only a project knows what it matches."""
        if isinstance(self.topics, MatchingTopics):
            return ()
        return tuple(self.topics or filter(None, [self.topic]))

    @property
    def display_name(self) -> str:
        """Return the topic, or the pattern of topics, as errors name it."""
        if isinstance(self.topics, MatchingTopics):
            return " or ".join(self.topics.pattern)
        return self.topic or str((self.topics or ["?"])[0])

    def _planned(self) -> list[_Planned]:
        """Return the tables of the document, the one that takes the rest first; those by value aren't among them."""
        if self.tables is not None:
            planned = [
                _Planned(("tables", number), table.identifier, table) for number, table in enumerate(self.tables)
            ]
            return sorted(planned, key=lambda table: table.where is not None)
        one = self.table or OneTable()
        name = table_name(one.name) if one.name else (NAMESPACE, derived_table_name(self.display_name))
        return [_Planned(("table",), name, one)]

    def every_settings(self) -> Iterator[tuple[tuple[str | int, ...], TableSettings]]:
        """Give the settings of each table, and where they are in the document."""
        yield from ((table.place, table.settings) for table in self._planned())
        if self.tables_by is not None:
            yield ("tables_by",), self.tables_by

    def settings_of(self, identifier: tuple[str, str]) -> TableSettings | None:
        """Return the settings of a table, as the document has them; None if a value has made it or will."""
        return next((table.settings for table in self._planned() if table.identifier == identifier), self.tables_by)

    def topic_table(
        self, folder: Path | None = None, defaults: Maintenance | None = None, topics: Sequence[str] = ()
    ) -> TopicTable:
        """Return the settings as the pipeline takes them."""
        names = topics or self.every_topic or ("any_topic",)
        common: dict[str, Any] = {
            "topic": names[0],
            "topics": tuple(names) if self.topics is not None else (),
            "cluster": self.cluster,
            "start": self.starting_offsets,
            "max_records_per_commit": self.read.max_records_per_commit,
            "max_bytes_per_commit": self.read.max_bytes_per_commit,
            **format_spec(self.format),
            **key_spec(self.key),
        }
        if folder is not None and common.get("schema_file") is not None:
            common["schema_file"] = _file(common["schema_file"], folder)

        def made(settings: TableSettings, namespace: str, table: str) -> TopicTable:
            policy = (settings.maintenance or Maintenance()).over(defaults)
            return TopicTable(
                **{**common, **settings.fields(), "namespace": namespace, "table": table, "maintenance": policy}
            )

        own, *others = self._planned()
        by = None
        if self.tables_by is not None:
            (kind,) = self.tables_by.kinds
            namespace, table = self.tables_by.template
            envelope = getattr(getattr(self.format, "envelope", None), "type", "debezium")
            of = {"schema_name": "", "source_table": envelope}.get(kind, str(getattr(self.tables_by, kind)))
            to = made(self.tables_by, NAMESPACE, "any_value")
            by = RouteBy(kind, of, to, table, namespace=namespace, max_tables=self.tables_by.max_tables)
        everything = When(sql="true") if all(other.where is None for other in others) else None
        routes = tuple(
            Route(when, made(other.settings, *other.identifier))
            for other in others
            if (when := other.where or everything)
        )
        where = own.where or (everything if routes else None)
        found = made(own.settings, *own.identifier)
        return replace(found, where=where, routes=routes, route_by=by, unmatched=self.unmatched)

    def checked_table(self, path: Path, defaults: Maintenance | None) -> TopicTable:
        """Return what `topic_table` does for the document at a path, with its cluster's maintenance.

        Raises:
            ConfigurationError: If a schema file isn't there, or the maintenance can't be.
        """
        spec = self.topic_table(path.parent, defaults)
        for place, problem in self.maintenance_problems(spec, complete=True):
            raise ConfigurationError(
                f"Topic {self.display_name} ({path}): {': '.join(map(str, place))}: {problem}",
                "A table's maintenance: overrides that of the cluster's document, setting by setting.",
            )
        return spec


def _file(name: str, folder: Path) -> str:
    path = (folder / name).resolve()
    if not path.is_file():
        raise ConfigurationError(f"schema: there is no file {path}.", "Paths are relative to the YAML document.")
    return str(path)
