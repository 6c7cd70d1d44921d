"""`type: kafka_lake.DerivedTable`: a query over tables becomes a table, its asset and its checks."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_lake.config.rules import derived_rule_problems
from kafka_lake.derived.derived_table import NEVER, NEWS, Identifier
from kafka_lake.derived.derived_table import DerivedTable as DerivedSpec
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.assets import Presentation
from kafka_lake.orchestration.components.base import AssetDocument
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics
from kafka_lake.orchestration.derived_assets import build_derived_asset, derived_asset, run_derived
from kafka_lake.orchestration.keys import default_key, key_of, op_name, plain_name, rename
from kafka_lake.orchestration.metadata import document_metadata
from kafka_lake.routing.by_value import may_name
from kafka_lake.spec.sql_text import unsafe_condition, unsafe_query
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class Project:
    """The tables of a project."""

    topics: Sequence[TopicTable] = ()
    derived: Sequence[DerivedSpec] = ()
    _known: dict[Identifier, str] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for topic in self.topics:
            for identifier in topic.identifiers:
                self._known[identifier] = f"a table beside {'.'.join(topic.identifier)}, and isn't a log of records"
            self._known[topic.identifier] = _why_not_a_log(topic)
        for table in self.derived:
            changes = f"a derived table with write: {table.write}, whose rows change"
            self._known[table.identifier] = "" if table.is_append_only else changes

    def why_not_incremental(self, identifier: Identifier) -> str | None:
        """Return why a table can't be read incrementally, empty if it can; None for an unknown table."""
        return self._known.get(identifier)

    @property
    def names(self) -> list[str]:
        """Return the names of all tables."""
        return sorted(".".join(identifier) for identifier in self._known)


def _why_not_a_log(topic: TopicTable) -> str:
    if topic.is_keyed:
        return f"a keyed table (write: {topic.write}), whose rows change"
    if topic.topics:
        return "a table of several topics, which has no single order of records"
    return ""


def derived_problems(spec: DerivedSpec) -> Iterator[str]:
    """Yield the problems of a table's settings as sentences, with the setting and what to do."""
    yield from _settings_problems(spec)
    try:
        yield from _key_problems(spec)
        if spec.sql is not None:
            yield from _text_problems(spec, spec.sql)
    except ConfigurationError as error:
        yield str(error)


def _settings_problems(spec: DerivedSpec) -> Iterator[str]:
    if (spec.sql is None) == (spec.transform is None):
        yield "sql: or transform: is needed, and one of them only."
    names = [source.rpartition(".")[2].lower() for source in (*spec.sources, *spec.join)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"from: and join: have {twice[0]} twice, and the query would know both by that name. Remove one."
    if spec.has_keys and not spec.key:
        yield f"write: {spec.write} needs key:, which identifies rows."
    if spec.key and not spec.has_keys:
        yield f"key: has no effect with write: {spec.write}. Remove it."
    if spec.order_by and not spec.keeps_newest:
        yield f"order_by: has no effect with write: {spec.write}. Remove it."
    if not spec.is_incremental and spec.on_change == "forward":
        yield "on_change: forward has no effect with write: replace, which recomputes everything each time."
    if spec.is_incremental and len(spec.sources) > 1:
        yield (
            f"write: {spec.write} takes one table under from:, but there are {len(spec.sources)}. Put lookup tables "
            f"under join:, or use write: replace."
        )
    if spec.maintenance.row_retention:
        yield "maintenance: row_retention: isn't supported for derived tables. Remove it."
    if spec.maintenance.verify:
        yield "maintenance: verify: compares a table with its topic, which a derived table doesn't have. Remove it."


def _key_problems(spec: DerivedSpec) -> Iterator[str]:
    from sqlglot import exp

    from kafka_lake.derived.query import parsed_key

    for name, text in spec.key.items():
        if spec.keeps_newest and text != name:
            yield f"key: {name} has an expression. With write: upsert the key is of columns of the result; list them."
        tree = parsed_key(name, text)
        if unsafe := unsafe_condition(text):
            yield f"key: {name}: {text}: {unsafe}."
        elif tree.find(exp.Query, exp.AggFunc, exp.Window):
            yield f"key: {name}: {text}: isn't an expression over the columns of one row."


def _text_problems(spec: DerivedSpec, sql: str) -> Iterator[str]:
    from kafka_lake.derived.query import parsed, result_columns

    query = parsed(sql)
    if unsafe := unsafe_query(sql):
        yield f"sql: {unsafe}."
        return
    yield from _names_problems(spec, query)
    columns = result_columns(query)
    if columns is not None and (
        missing := [column for column in (*spec.key, *spec.order_by) if column.lower() not in columns]
    ):
        setting = "key" if missing[0] in spec.key else "order_by"
        yield f"{setting}: {missing[0]} isn't a column of the result. Select it under that name."


def _names_problems(spec: DerivedSpec, query: "exp.Query") -> Iterator[str]:
    from kafka_lake.derived.query import tables_read

    read = tables_read(query)
    known = {name.lower(): name for name in (*spec.upstream, *spec.joined)}
    for name in sorted(read - set(known)):
        bare = known.get(name.rpartition(".")[2])
        yield f"sql: reads {name}, which is neither in from: nor in join:. " + (
            f"Write {bare}, as the query knows it." if bare else "Add it to one of them."
        )
    for name in sorted(set(known) - read):
        yield f"sql: doesn't read {known[name]}. Remove it from from: and join:."


def check_derived(spec: DerivedSpec, project: Project) -> None:
    """Make sure that a derived table's settings go together, and with the tables that it reads."""
    for problem in (*derived_problems(spec), *derived_rule_problems(spec.rules)):
        raise ConfigurationError(f"Table {spec.name}: {problem}")
    same = [other for other in project.derived if other.identifier == spec.identifier]
    of_topics = [topic for topic in project.topics if spec.identifier in topic.identifiers]
    if len(same) > 1 or of_topics:
        other = f"topic {of_topics[0].full_topic}" if of_topics else "another derived table"
        raise ConfigurationError(
            f"Table {spec.name} already belongs to {other}.", "Give it another table: or namespace:."
        )
    for topic in project.topics:
        if topic.route_by is not None and may_name(topic.route_by, spec.identifier):
            raise ConfigurationError(
                f"Table {spec.name}: a value of topic {topic.full_topic} could make that table, by tables_by: name:.",
                "Give it another table: or namespace:.",
            )
    for identifier in spec.upstream.values():
        why, name = project.why_not_incremental(identifier), ".".join(identifier)
        if why is None:
            near = get_close_matches(name, project.names, 1)
            meant = f" Is it {near[0]}?" if near else f" Those here are: {', '.join(project.names) or 'none'}."
            raise ConfigurationError(
                f"Table {spec.name}: from: {name} isn't a table of this project.{meant}",
                "Other tables can only be read under join:.",
            )
        if why and spec.is_incremental:
            raise ConfigurationError(
                f"Table {spec.name}: write: {spec.write} reads what is new in upstream tables, and {name} is {why}.",
                "Use write: replace, or put it under join: if its rows are only looked up. Changes of a keyed topic "
                "are in a table of the same topic with write: append.",
            )
    try:
        TopologicalSorter(
            {table.identifier: [*table.upstream.values(), *table.joined.values()] for table in project.derived}
        ).prepare()
    except CycleError as error:
        cycle = " → ".join(".".join(identifier) for identifier in error.args[1])
        raise ConfigurationError(
            f"Each of these tables is made from itself: {cycle}.", "Remove one of them from from: or join:."
        ) from error


log = logging.getLogger(__name__)


class DerivedTable(AssetDocument, DerivedSpec):
    """A table that a query makes of other tables, kept up to date exactly once.

    ``table``, ``from``, ``write`` and a query are needed. A query that doesn't go with ``write``, or an upstream table
    that doesn't, is refused when definitions load. Subclasses may override `get_asset_spec` and `execute`.
    """

    produces = ("asset", "asset_check", "schedule")
    first_fields = frozenset({"table", "from", "join", "write", "sql", "key", "every"})

    def get_asset_spec(self, table: DerivedSpec) -> dg.AssetSpec:
        """Return the table's asset. Its dependencies and kafka_lake's own metadata are added later."""
        return derived_asset(table, self.presentation())

    def execute(self, context: dg.AssetExecutionContext, table: DerivedSpec) -> Iterator[Any]:
        """Bring the table up to date, and give Dagster's events."""
        yield from run_derived(context, table)

    def derived_table(self) -> DerivedSpec:
        """Return the settings as a run takes them."""
        known = self.model_fields_set & DerivedSpec.model_fields.keys()
        spec = DerivedSpec(**{name: getattr(self, name) for name in known})
        rename(default_key(spec.identifier), self._asset(spec).key)
        return spec

    def _asset(self, spec: DerivedSpec) -> dg.AssetSpec:
        return self.translated(self.get_asset_spec(spec), spec)

    def presentation(self) -> Presentation:
        """Return how Dagster shows the table's asset."""
        return Presentation(
            self.group or plain_name(self.namespace),
            self.owners,
            description=self.description,
            tags=self.tags,
            metadata={"settings": document_metadata(self)},
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the table's asset and checks, and its schedule if it has one.

        Raises:
            ConfigurationError: If the settings don't go together, or with the tables that are read.
        """
        tree = context.component_tree
        documents, many = tree.get_all_components(KafkaTopic), tree.get_all_components(KafkaTopics)
        topics = [
            *(document for document in documents if document.every_topic),
            *(topic for document in many for topic in document.topic_tables()),
        ]
        project = Project(
            [table for document in topics for table in document.topic_table(document._place.parent).tables],
            [document.derived_table() for document in tree.get_all_components(DerivedTable)],
        )
        spec = self.derived_table()
        missing = [
            ".".join(identifier)
            for identifier in spec.upstream.values()
            if project.why_not_incremental(identifier) is None
        ]
        if missing and not (
            all(document.every_topic for document in documents) and all(document.is_known for document in many)
        ):
            # What tells the topics needs definitions that load.
            log.warning(
                "Table %s: from: %s isn't known, nor are all topics that a pattern matches. Run `kafka-lake topics "
                "refresh`.",
                spec.name,
                missing[0],
            )
            return dg.Definitions()
        check_derived(spec, project)
        asset = build_derived_asset(spec, self.presentation(), self._asset(spec), self.execute)
        has_schedule = spec.every != NEVER and spec.at_most_every is None
        return dg.Definitions(assets=[asset], schedules=[_schedule(spec)] if has_schedule else [])


def _schedule(spec: DerivedSpec) -> dg.ScheduleDefinition:
    try:
        return dg.ScheduleDefinition(
            name=f"{op_name(spec)}__schedule",
            cron_schedule=spec.every,
            target=dg.AssetSelection.assets(key_of(spec.identifier)),
            default_status=dg.DefaultScheduleStatus.RUNNING,
        )
    except dg.DagsterInvalidDefinitionError as error:
        raise ConfigurationError(
            f"Table {spec.name}: every: {spec.every!r} is neither {NEWS} nor a duration nor a cron expression.",
            "Write 5m for at most once in five minutes, or five fields, as in '0 * * * *' for each hour.",
        ) from error
