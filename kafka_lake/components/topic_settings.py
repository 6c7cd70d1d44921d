"""The settings of a topic's YAML document: those of `TopicTable`, Dagster's own, and which can't go together."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

import dagster as dg
from pydantic import ConfigDict, Field, StringConstraints, create_model, field_validator, model_validator

from kafka_lake.common import environment
from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.continuous_runs import ContinuousRuns
from kafka_lake.components.except_problems import except_problems
from kafka_lake.components.keys import plain_name
from kafka_lake.components.maintenance_problems import maintenance_problems
from kafka_lake.components.maintenance_settings import MaintenanceSettings
from kafka_lake.components.presentation import Presentation
from kafka_lake.components.route_by_settings import route_by_of
from kafka_lake.components.route_settings import OF_RECORDS, route_problems, routes_of, when_of
from kafka_lake.components.rule_problems import rule_problems
from kafka_lake.components.rule_settings import RuleSettings
from kafka_lake.components.shared_table_problems import topics_problems
from kafka_lake.components.text import (
    AsWrittenList,
    Limit,
    OptionalAsWritten,
    OptionalText,
    Properties,
    Text,
    TextList,
    TextMap,
    TextOrList,
    TextOrTextList,
    rendered,
)
from kafka_lake.components.topic_pattern import TopicPattern
from kafka_lake.executors.changes.unavailable import DEFAULT_PLACEHOLDER, Placeholders
from kafka_lake.ingest.decode.ddl import check_ddl
from kafka_lake.ingest.plan.start import start_timestamp_ms
from kafka_lake.ingest.route import When
from kafka_lake.ingest.rule import RuleEntry
from kafka_lake.ingest.samples import check_mask
from kafka_lake.ingest.topic_table import (
    BY_SCHEMA,
    ENVELOPES,
    REGISTERED,
    InDocuments,
    Route,
    RouteBy,
    TopicName,
    TopicTable,
    derived_table_name,
    limit_of,
    pydantic_fields,
)
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.names import shortened
from kafka_lake.lake.tables.layout import parse_partition_field, parse_sort_field

# What YAML has for a type of `TopicTable`: text is taken as it is written, and templates work.
_YAML_TYPES: dict[object, object] = {
    str: Text,
    str | None: OptionalText,
    tuple[str, ...]: TextList,
    tuple[TopicName, ...]: TextOrTextList,
    Mapping[str, str]: TextMap,
    int | str | None: Limit,
    Maintenance: MaintenanceSettings | None,
    tuple[RuleEntry, ...]: list[RuleSettings],
    tuple[Route, ...]: AsWrittenList,
    RouteBy | None: OptionalAsWritten,
    When | None: OptionalAsWritten,
}
# A pydantic model has an attribute `schema` already.
_FIELDS = {"schema": "columns"}
# Null stands for what `TopicTable` makes of the other settings, or of the environment.
_COMPUTED = ("topic", "table", "samples", "maintenance")
_OF_KEYED_TABLES = (
    "key",
    "order_by",
    "envelope",
    "deletes",
    "delete_when",
    "keep_deletes",
    "ignore_null_updates",
    "on_truncate",
    "track",
    "snapshot",
    "max_removed",
    "unavailable_value_placeholder",
)


def _in_yaml(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        inner, *rules = get_args(kind)
        allowed = (StringConstraints(pattern=r.pattern) if isinstance(r, InDocuments) else r for r in rules)
        return Annotated[(_in_yaml(inner), *allowed)]
    if kind in _YAML_TYPES:
        return _YAML_TYPES[kind]
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(map(_in_yaml, get_args(kind)))]  # noqa: UP007 - its parts are known at run time only
    return kind


def _settings() -> dict[str, Any]:
    """Return the fields of `TopicTable` as those of a component: same names, rules, defaults and documentation."""
    kinds = get_type_hints(TopicTable, include_extras=True)
    found: dict[str, Any] = {}
    for name, declared in pydantic_fields(TopicTable).items():
        kind = Properties if name == "table_properties" else _in_yaml(kinds[name])
        own: Any = declared
        if name in _COMPUTED:
            kind, own = kind | None, Field(default=None, description=declared.description, examples=declared.examples)
        alias = declared.serialization_alias or (name if name in _FIELDS else None)
        if alias is not None:
            own = Field(
                default=declared.default,
                alias=alias,
                description=declared.description,
                examples=declared.examples,
            )
        found[_FIELDS.get(name, name)] = (kind, own)
    return found


_TopicFields: Any = create_model("TopicFields", __base__=(dg.Model, dg.Resolvable), **_settings())


class TopicSettings(_TopicFields):  # type: ignore[misc]
    """What can be said of a topic and its table. Only ``topic`` is needed."""

    model_config = ConfigDict(extra="forbid")

    exclude: TextOrList = Field(
        default_factory=list,
        description="With a pattern in topics: topics that aren't meant, as regular expressions.",
        examples=[r".*\.internal"],
    )
    owners: TextList = Field(default_factory=list, description="Owners, as Dagster shows them.")
    group: OptionalText = Field(default=None, description="Dagster's asset group; the namespace by default.")
    description: OptionalText = Field(default=None, description="What the records are.")
    tags: TextMap = Field(
        default_factory=dict,
        description="Tags of the topic's assets in Dagster, which selects by them, as in `tag:domain=sales`.",
        examples=[{"domain": "sales", "pii": "true"}],
    )
    continuous: ContinuousRuns | None = Field(
        default=None,
        description="Continuous runs, with a commit every few seconds; each of its settings is optional.",
        examples=[{"trigger": "2s", "for": "1h", "idle": "5m"}],
    )

    def topic_table(self, folder: Path = Path()) -> TopicTable:
        """Return the settings as the pipeline takes them.

        Args:
            folder: Where the document is; schema files are named from there.

        Raises:
            ConfigurationError: If such a file isn't there, or ``topics`` is a pattern that no known topic matches.
        """
        given = {name: getattr(self, _FIELDS.get(name, name)) for name in pydantic_fields(TopicTable)}
        if self.pattern is not None:
            if not self.every_topic:
                raise ConfigurationError(
                    f"Table {self.namespace}.{self.table}: topics: no topic is known that {self.topics!r} matches.",
                    "Run `kafka-lake topics refresh`.",
                )
            given["topics"], given["topic"] = self.every_topic, self.every_topic[0]
        given["rules"] = tuple(rule.entry() for rule in self.rules)
        given["maintenance"] = self.maintenance and self.maintenance.policy()
        for setting in ("schema_file", "key_schema_file"):
            given[setting] = _file(setting, given[setting], folder)
        given["routes"], given["route_by"] = self._routes(folder)
        given["where"] = self.where and when_of(rendered(self.resolution(), self.where))
        spec = TopicTable(**{name: each for name, each in given.items() if each is not None or name not in _COMPUTED})
        for problem in route_problems(spec):
            raise ConfigurationError(f"Topic {self.topic}: {problem}")
        return spec

    @property
    def pattern(self) -> TopicPattern | None:
        """Return by which names topics fill the table; None if the document names each of them."""
        return TopicPattern((self.topics,), tuple(self.exclude)) if isinstance(self.topics, str) else None

    @property
    def every_topic(self) -> tuple[str, ...]:
        """Return the topics that fill the table; of a pattern none, since only a project knows what it matches."""
        return () if self.pattern is not None else tuple(self.topics) or (self.topic,)

    def _routes(self, folder: Path) -> tuple[tuple[Route, ...], RouteBy | None]:
        if not self.routes and self.route_by is None:
            return (), None
        fields = pydantic_fields(TopicTable)
        own = {name: getattr(self, name) for name in OF_RECORDS}
        given = {name: each for name, each in own.items() if each is not None and each != fields[name].default}
        if self.metadata_column is None:
            given["metadata_column"] = None
        if self.maintenance is not None:
            given["maintenance"] = vars(self.maintenance)
        given |= {"topic": self.topic, **({"cluster": self.cluster} if self.cluster else {})}

        def document(settings: Mapping[str, Any]) -> TopicTable:
            return self._like(settings).topic_table(folder)

        # The other settings of a route are rendered as those of a document.
        context, routes = self.resolution(), self.routes or ()
        routes = [{**each, "when": rendered(context, each["when"])} if "when" in each else each for each in routes]
        by = None if self.route_by is None else route_by_of(self.route_by, given, self.namespace, document)
        return routes_of(routes, given, document), by

    def _like(self, settings: Mapping[str, Any]) -> "TopicSettings":
        """Return what a document with other settings would be; raises as Dagster does when it loads one."""
        found: TopicSettings = TopicSettings.resolve_from_model(
            self.resolution(), TopicSettings.model().model_validate(settings)
        )
        return found

    def resolution(self) -> dg.ResolutionContext:
        """Return by what templates in the document are filled in."""
        return dg.ResolutionContext.default()

    def presentation(self) -> Presentation:
        """Return how Dagster shows the topic's assets."""
        return Presentation(self.group or plain_name(self.namespace), self.owners, self.description, self.tags)

    @field_validator("tags")
    @classmethod
    def _as_dagster_takes_them(cls, tags: Mapping[str, str]) -> Mapping[str, str]:
        if ours := [key for key in tags if key.startswith("kafka_lake/")]:
            raise ValueError(f"{ours[0]} is a tag that kafka_lake sets itself. Choose another name")
        try:
            dg.AssetSpec("any", tags=tags)
        except dg.DagsterInvalidDefinitionError as error:
            raise ValueError(str(error)) from error
        return tags

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for problem in topics_problems(self):
            raise ValueError(problem)
        # Settings and messages have one of them; `TopicTable.each_topic` gives all.
        self.topic: str = self.topic or (self.topics if isinstance(self.topics, str) else self.topics[0])
        try:
            for text in self.partition_by:
                parse_partition_field(text)
            for text in self.sort_by:
                parse_sort_field(text)
            if self.start not in ("earliest", "latest"):
                start_timestamp_ms(self.start)
            limit_of(self.max_dead_letters, "max_dead_letters")
            if self.max_age is not None:
                seconds_of(self.max_age)
            limit_of(self.max_removed, "max_removed")
            environment.samples()
            for pattern in self.mask:
                check_mask(pattern)
            declared = check_ddl(self.columns) if self.columns is not None else None
            if self.key_schema is not None:
                check_ddl(self.key_schema, "key_schema")
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if self.transform is not None:
            if ":" not in self.transform:
                raise ValueError(f"transform: {self.transform!r} is not a reference. Write module:function.")
            if declared is None and self.format == "json":
                raise ValueError(
                    "transform: without schema: the columns that it gets are not known. Declare them with schema:."
                )
        problems = [self._format_problems(), self._keyed_problems(), except_problems(self, declared)]
        if self.maintenance is not None:
            problems.append(maintenance_problems(self, self.maintenance.policy(), complete=False))
        for problem in (*chain(*problems), *rule_problems(self, declared)):
            raise ValueError(problem)
        if self.metadata_column and declared and self.metadata_column.lower() in {d.lower() for d in declared}:
            raise ValueError(
                f"schema: has a column {self.metadata_column}, which is the metadata column too. "
                "Give the metadata column another name with metadata_column:."
            )
        table = self.table or derived_table_name(self.topic)
        if self.cluster is None and self.namespace == "kafka" and self._is_of(table):
            raise ValueError(
                f"namespace: topic {table} and its table would be the same asset, kafka/{table}. "
                "Choose another namespace: or table:."
            )
        for setting, name in (("namespace", self.namespace), ("table", self.table)):
            if name is not None and shortened(name) != name:
                raise ValueError(f"{setting}: a name of {len(name.encode())} bytes is too long. 255 is the most.")
        if self.table_properties.get("write.distribution-mode") == "range":
            raise ValueError(
                "table_properties: write.distribution-mode range reads the topic twice, which the gates refuse. "
                "Use hash or none."
            )
        return self

    def _is_of(self, topic: str) -> bool:
        """Return whether the table is filled from a topic of this name."""
        return bool(self.pattern.matching([topic])) if self.pattern is not None else topic in self.every_topic

    def _keyed_problems(self) -> Iterator[str]:
        """Give what is set and can't be, given how the table is written."""
        fields = pydantic_fields(TopicTable)
        if self.write == "append":
            for name in _OF_KEYED_TABLES:
                default = fields[name].default
                if (given := getattr(self, name)) not in (
                    default,
                    list(default) if isinstance(default, tuple) else None,
                ):
                    yield f"{name}: {given} has no effect with write: append. Set another write:, or leave it out."
            return
        if self.metadata_column is None:
            yield f"metadata_column: write: {self.write} needs it to tell which change a row came from."
        if self.transform is not None:
            instead = "Use a view, or a table made from this one."
            yield f"transform: can't be combined with write: {self.write} yet. {instead}"
        formats = ENVELOPES[self.envelope]
        if formats and self.format not in formats:
            yield f"envelope: {self.envelope} is supported in format {' or '.join(formats)}, not in {self.format}."
        if self.envelope != "none" and self.format == "avro":
            if self.schema_file is not None:
                yield "schema_file: an envelope in format avro needs the registry's schemas. Leave it out."
            if self.key_format is not None:
                yield "key_format: an envelope in format avro reads keys itself. Leave it out."
        yield from self._placeholder_problems()
        if self.envelope == "debezium" and self.order_by:
            yield f"order_by: envelope: {self.envelope} already has the order of its changes. Leave one of them out."
        if self.envelope != "none" and self.ignore_null_updates:
            yield f"ignore_null_updates: in envelope: {self.envelope}, a null is a value. Leave one of them out."
        named = self.ignore_null_updates if isinstance(self.ignore_null_updates, list | tuple) else ()
        if always := [name for name in named if name in (*self.key, *self.order_by)]:
            yield f"ignore_null_updates: {', '.join(always)} is in key: or order_by:, which every change has."
        if self.envelope in ("none", "maxwell") and self.on_truncate != "fail":
            kind = "without an envelope" if self.envelope == "none" else "with envelope: maxwell"
            yield f"on_truncate: has no effect {kind}. Leave it out."
        yield from self._undeclared()
        yield from self._snapshot_problems()
        if self.on_truncate == "apply" and self.deletes == "soft":
            yield "on_truncate: apply takes rows away, and deletes: soft keeps them. Leave one of them out."
        if self.on_truncate == "apply" and self.order_by:
            yield "on_truncate: apply needs the order of Kafka or of the source: a truncate has no column of order_by:."
        if self.deletes == "soft" and self.columns is not None and "_is_deleted" in self.columns.lower().split():
            yield "deletes: soft adds a column _is_deleted. Give the column of schema: another name."
        yield from self._history_problems()
        try:
            seconds_of(self.keep_deletes)
        except ConfigurationError as error:
            yield f"keep_deletes: {error}"

    def _placeholder_problems(self) -> Iterator[str]:
        """Give what is wrong with what stands for values that aren't sent."""
        setting = self.unavailable_value_placeholder
        if self.envelope != "debezium" and setting != DEFAULT_PLACEHOLDER:
            yield "unavailable_value_placeholder: has no effect without envelope: debezium. Leave it out."
        try:
            Placeholders(setting)
        except ValueError:
            yield "unavailable_value_placeholder: behind hex: it has no bytes of UTF-8. Copy the connector's property."

    def _undeclared(self) -> Iterator[str]:
        """Give the settings that name columns which no record can have."""
        if self.columns is None:
            return
        declared = [*check_ddl(self.columns), *([self.key_column] if self.key_format is not None else [])]
        for setting in ("key", "order_by", "ignore_null_updates"):
            given = getattr(self, setting)
            names = given if isinstance(given, list | tuple) else []
            if unknown := [name for name in names if name not in declared]:
                yield f"{setting}: {', '.join(unknown)} isn't in schema:, whose columns are {', '.join(declared)}."

    def _history_problems(self) -> Iterator[str]:
        """Give what is set of a history and can't be."""
        if self.write != "history":
            if self.track:
                yield f"track: {', '.join(self.track)} has no effect without write: history. Leave it out."
            return
        for setting, declined, why in (
            ("deletes", self.deletes == "soft", "a history keeps deleted rows, and apply ends their versions"),
            ("on_truncate", self.on_truncate == "apply", "versions end by the deletes of their own key"),
            ("snapshot", self.snapshot == "reconcile", "versions end by the deletes of their own key"),
            ("keep_deletes", self.keep_deletes != "7d", "a history keeps deletes for ever"),
        ):
            if declined:
                yield f"{setting}: {getattr(self, setting)} isn't there for write: history: {why}. Leave it out."
        if always := [name for name in self.track if name in self.key]:
            yield f"track: {', '.join(always)} is of key:, which tells rows apart. It never changes."
        if self.columns is None:
            return
        declared = check_ddl(self.columns)
        if own := [name for name in declared if name.lower() in ("valid_from", "valid_to", "_event", "_is_deleted")]:
            yield f"write: history has columns {', '.join(own)} of its own. Give those of schema: other names."
        if unknown := [name for name in self.track if name not in declared]:
            yield f"track: {', '.join(unknown)} isn't in schema:, whose columns are {', '.join(declared)}."

    def _snapshot_problems(self) -> Iterator[str]:
        if self.snapshot == "reconcile" and self.envelope != "debezium":
            yield "snapshot: reconcile needs envelope: debezium, which tells where a snapshot ends."
        if self.snapshot == "reconcile" and self.deletes in ("soft", "ignore"):
            yield f"snapshot: reconcile takes rows away, and deletes: {self.deletes} keeps them. Leave one of them out."
        if self.snapshot == "upsert" and self.max_removed != pydantic_fields(TopicTable)["max_removed"].default:
            yield "max_removed: has no effect without snapshot: reconcile. Leave it out."

    def _format_problems(self) -> Iterator[str]:
        """Give what is set and can't be, given the formats."""
        if self.columns is not None and self.format != "json":
            yield f"schema: is for format json; {self.format} brings its own. Leave it out, or use schema_file:."
        if self.schema_file is not None and self.format not in BY_SCHEMA:
            yield f"schema_file: is for formats {', '.join(BY_SCHEMA)}, not {self.format}."
        if self.message is not None and (self.format != "protobuf" or self.schema_file is None):
            yield "message: chooses one of a .proto file's messages. Set format: protobuf and schema_file: with it."
        if self.key_format == "json" and self.key_schema is None:
            yield "key_format: json needs key_schema:, the Spark DDL of the key's fields."
        if self.key_schema is not None and self.key_format != "json":
            yield "key_schema: is for key_format: json."
        if self.key_schema_file is not None and self.key_format not in BY_SCHEMA:
            yield f"key_schema_file: is for key formats {', '.join(BY_SCHEMA)}."
        if self.key_format == "variant":
            yield "key_format: a key can't be a variant. Use json with key_schema:, string or bytes."
        if self.key_format is not None and self.key_column == self.metadata_column:
            yield f"key_column: {self.key_column} is the metadata column too. Give one of them another name."
        if self.infer_timestamps and (self.format != "json" or self.columns is not None):
            yield "infer_timestamps: is for format json without schema:; with schema:, the declared types count."
        if self.timestamp_unit is not None and self.format != "json":
            yield f"timestamp_unit: is for format json; {self.format} brings its own."
        if self.on_incompatible == "new_column" and self.columns is not None:
            yield "on_incompatible: new_column needs inferred columns, and schema: declares them. Leave one out."
        if self.compatibility != "none" and (self.format not in REGISTERED or self.schema_file):
            yield "compatibility: is for formats whose schemas come from a registry."


def _file(setting: str, name: str | None, folder: Path) -> str | None:
    if name is None:
        return None
    path = (folder / name).resolve()
    if not path.is_file():
        raise ConfigurationError(f"{setting}: there is no file {path}.", "Paths start where the YAML document is.")
    return str(path)
