"""The settings of a topic and its tables, as plain data: the fields, their defaults, and what they mean for callers."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass, rebuild_dataclass

from kafka_lake.common import environment
from kafka_lake.common.text import is_over, limit_of
from kafka_lake.schema.evolution.model import EvolutionMode, OnIncompatible, Policy
from kafka_lake.schema.names import shortened
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.rule import Rule, RuleEntry, rules_of

Unmatched = Literal["dead_letter", "ignore", "fail"]
RouteByKind = Literal["field", "schema_name", "source_table"]

LONGEST_VALUE = 200
"""Characters of a value that may have a table of its own."""


@dataclass(frozen=True)
class When:
    """The condition of a route. One of ``field``, ``header``, ``schema``, ``source_table`` and ``sql`` is set.

    Args:
        field: Field of a JSON value; a dot leads into an object. Its text is compared, as JSON has it.
        header: Name of a header; of several by that name, the last one counts. Its bytes are compared as text.
        sql: SQL condition on the record's columns: key, value, headers, partition, offset, timestamp.
        values: Of ``field``, ``header`` or ``source_table``: the texts that are meant.
        schema: Names of the value's schema in the registry; ``*`` stands for any text.
        source_table: The envelope whose changes name their source table.
    """

    field: str | None = None
    header: str | None = None
    sql: str | None = None
    values: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    source_table: str | None = None

    @property
    def source(self) -> tuple[str, str]:
        """Return what is compared: its kind and its name. Conditions on the same source read it once."""
        if self.field is not None:
            return "field", self.field
        if self.header is not None:
            return "header", self.header
        if self.source_table is not None:
            return "source_table", self.source_table
        if self.schema:
            return "schema", ""
        return "sql", str(self.sql)

    def means(self, schema: str) -> bool:
        """Return whether a schema of this name is meant.

        >>> [When(schema=("shop.*", "Order")).means(name) for name in ("shop.Order", "shop_Order", "Order", "Orders")]
        [True, False, True, False]
        """
        return any(_glob(pattern).fullmatch(schema) for pattern in self.schema)

    def __str__(self) -> str:
        """Return the condition as the end of a sentence about records.

        >>> str(When(field="type", values=("click", "view"))), str(When(sql="key is null"))
        ("with field type 'click' or 'view'", 'for which key is null')
        """
        kind, name = self.source
        if kind == "schema":
            return f"with schema {' or '.join(map(repr, self.schema))}"
        if kind == "source_table":
            return f"of the source's table {' or '.join(map(repr, self.values))}"
        return f"for which {name}" if kind == "sql" else f"with {kind} {name} {' or '.join(map(repr, self.values))}"


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


TimestampUnit = Literal["s", "ms", "us", "ns"]
WriteMode = Literal["append", "upsert", "history"]
Envelope = Literal["none", "debezium", "maxwell", "canal"]
DeleteMode = Literal["apply", "soft", "ignore", "fail"]
SnapshotMode = Literal["merge", "replace"]
TruncateMode = Literal["apply", "fail", "ignore"]

_NO_NAME = re.compile(r"[^a-z0-9_]+")


TOPIC_NAME = r"^[A-Za-z0-9._-]{1,249}$"
CLUSTER_NAME = r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
"""What a cluster may be called: it is a part of variables' names, where two underscores end it, and of resources'."""
# Iceberg takes any name; a slash or a sign that URIs have a use for would make another folder of a table's.
TABLE_NAME = r"^\w([\w .'-]*\w)?$"


@dataclass(frozen=True)
class TopicTable:
    """A topic and the table that it becomes. Only ``topic`` is needed.

    Raises:
        ValidationError: If a value is not of its type. What can't go together is for `config` to refuse.
        ConfigurationError: If ``$KAFKA_LAKE_SAMPLES`` can't be.
    """

    topic: str
    namespace: str = "lake"
    table: str = Field(default_factory=lambda given: derived_table_name(given["topic"]))
    cluster: str | None = None
    schema: str | None = None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = Field(default_factory=dict)
    start: str = "earliest"
    max_records_per_commit: int = Field(default=5_000_000, ge=1)
    max_bytes_per_commit: Annotated[int, Field(ge=1)] | None = 2_000_000_000
    transform: str | None = None
    on_data_loss: Literal["fail", "continue"] = "fail"
    dead_letters: Literal["table", "fail", "skip"] = "table"
    max_dead_letters: int | str | None = None
    rules: tuple[RuleEntry, ...] = ()
    rules_fail_above: int | str | None = "5%"
    max_record_bytes: Annotated[int, Field(ge=1)] | None = None
    max_age: str | None = None
    samples: bool = Field(default_factory=environment.samples)
    mask: tuple[str, ...] = ()
    format: str = "json"
    schema_file: str | None = None
    message: str | None = None
    subject: str | None = None
    key_format: str | None = None
    key_column: str = "_key"
    key_schema: str | None = None
    infer_timestamps: bool = False
    evolution: EvolutionMode = "evolve"
    on_incompatible: OnIncompatible = "dead_letter"
    renames: Mapping[str, str] = Field(default_factory=dict)
    except_columns: tuple[str, ...] = ()
    max_columns: int = Field(default=1000, ge=1)
    timestamp_unit: TimestampUnit | None = None
    write: WriteMode = "append"
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    envelope: Envelope = "none"
    deletes: DeleteMode = "apply"
    delete_when: str | None = None
    keep_deletes: str = "7d"
    on_truncate: TruncateMode = "fail"
    snapshot: SnapshotMode = "merge"
    max_removed: int | str | None = "10%"
    ignore_null_updates: bool | tuple[str, ...] = False
    track: tuple[str, ...] = ()
    maintenance: Maintenance = Maintenance()
    routes: tuple["Route", ...] = ()
    topics: tuple[str, ...] = ()
    where: When | None = None
    unmatched: Unmatched = "dead_letter"
    route_by: "RouteBy | None" = None

    def null_leaves(self, column: str) -> bool:
        """Return whether a change leaves a column as it is by a null."""
        named = self.ignore_null_updates
        return named if isinstance(named, bool) else column in named

    @property
    def is_keyed(self) -> bool:
        """Return whether records are changes of rows that have a key."""
        return self.write != "append"

    @property
    def has_versions(self) -> bool:
        """Return whether the table has a row for each version of a row."""
        return self.write == "history"

    @property
    def adds_columns(self) -> bool:
        """Return whether new fields become columns."""
        return self.evolution == "evolve"

    @property
    def ignores_new_fields(self) -> bool:
        """Return whether new fields are left out."""
        return self.evolution == "ignore_new"

    @property
    def is_frozen(self) -> bool:
        """Return whether a change of the columns fails the run."""
        return self.evolution == "freeze"

    @property
    def has_envelope(self) -> bool:
        """Return whether values are change events in an envelope."""
        return self.envelope != "none"

    @property
    def has_source_order(self) -> bool:
        """Return whether the envelope has the position of a change in its source's order."""
        return self.envelope == "debezium"

    @property
    def replaces_by_snapshot(self) -> bool:
        """Return whether rows that a source's snapshot lacks are deleted."""
        return self.snapshot == "replace"

    @property
    def applies_truncates(self) -> bool:
        """Return whether a truncate in the source deletes rows."""
        return self.on_truncate == "apply"

    @property
    def marks_deletes(self) -> bool:
        """Return whether deleted rows stay, marked."""
        return self.deletes == "soft"

    @property
    def ignores_deletes(self) -> bool:
        """Return whether deletes have no effect."""
        return self.deletes == "ignore"

    @property
    def keeps_dead_letters(self) -> bool:
        """Return whether dead letters have a table."""
        return self.dead_letters == "table"

    @property
    def is_partial(self) -> bool:
        """Return whether a change may leave columns as they are by a null."""
        return bool(self.ignore_null_updates)

    @property
    def each_topic(self) -> tuple["TopicTable", ...]:
        """Return the settings of each topic that fills the table; their runs are runs of one topic each."""
        return tuple(replace(self, topic=topic) for topic in self.topics) or (self,)

    @property
    def display_topics(self) -> str:
        """Return the topic, or the topics, as the middle of a sentence about the table."""
        names = [topic_spec.full_topic for topic_spec in self.each_topic]
        return f"Kafka topic{'s' if len(names) > 1 else ''} {', '.join(names)}"

    @property
    def full_topic(self) -> str:
        """Return the topic's name among those of all clusters: ``eu/orders``, if its cluster has a name."""
        return full_topic(self.cluster, self.topic)

    @property
    def identifier(self) -> tuple[str, str]:
        """Return namespace and name of the table."""
        return self.namespace, self.table

    @property
    def dead_letter_table(self) -> tuple[str, str]:
        """Return namespace and name of the dead-letter table: the table's with an ending, cut where it is too long."""
        return self.namespace, shortened(self.table, "__dead_letters")

    @property
    def deletes_table(self) -> tuple[str, str]:
        """Return namespace and name of the table of deleted keys."""
        return self.namespace, shortened(self.table, "__deletes")

    @property
    def identifiers(self) -> tuple[tuple[str, str], ...]:
        """Return namespace and name of each of the topic's tables, the one with its rows first."""
        deletes = (self.deletes_table,) if self.is_keyed and not self.has_versions else ()
        return (self.identifier, self.dead_letter_table, *deletes)

    @cached_property
    def tables(self) -> tuple["TopicTable", ...]:
        """Return the settings of each table that the topic fills: its own first, then those of its routes."""
        return (self, *(route.to for route in self.every_route))

    @property
    def has_routes(self) -> bool:
        """Return whether the topic's own table may lack records: other tables take them, or none does."""
        return bool(self.routes) or self.route_by is not None or self.where is not None

    @property
    def every_route(self) -> tuple["Route", ...]:
        """Return the routes, and after them those of values that have a table."""
        return self.routes if self.route_by is None else (*self.routes, *self.route_by.routes)

    @property
    def may_match_several(self) -> bool:
        """Return whether a record may be for several tables.

        It can't be where all conditions compare the same field, header or schema with values of their own.
        """
        whens = [*([self.where] if self.where else []), *(route.when for route in self.routes)]
        values = [value for when in whens for value in when.schema or when.values]
        is_exact = not any(when.sql for when in whens) and not any("*" in value for value in values)
        excludes = is_exact and len({when.source for when in whens}) == 1 and len(set(values)) == len(values)
        return len(whens) > 1 and not excludes

    @property
    def group(self) -> str:
        """Return the consumer group that mirrors the position."""
        return f"kafka-lake.{self.namespace}.{self.table}"

    @property
    def value_subject(self) -> str:
        """Return the registry's subject of the values."""
        return self.subject or f"{self.topic}-value"

    @property
    def named_rules(self) -> tuple[Rule, ...]:
        """Return the rules one by one, with all defaults filled in."""
        return rules_of(self.rules, self.rules_fail_above)

    @property
    def policy(self) -> Policy:
        """Return how the table may change."""
        return Policy(self.evolution, self.on_incompatible, self.renames)

    def is_within_limit(self, dead_letters: int, records: int) -> bool:
        """Return whether a run may go on with so many dead letters among so many records."""
        return not is_over(limit_of(self.max_dead_letters, "max_dead_letters"), dead_letters, of=records)


@dataclass(frozen=True)
class Route:
    """Records of a topic that go to a table of their own."""

    when: When
    to: TopicTable


@dataclass(frozen=True)
class RouteBy:
    """Tables that a topic gets as values appear in its records.

    Args:
        name: Of the field; of a source's table, the envelope.
        to: The settings of these tables except their names; topic and cluster are the topic's.
        known: Those that have one: value, namespace, table.
    """

    kind: RouteByKind
    name: str
    to: TopicTable
    table: str = "{value}"
    namespace: str = "lake"
    max_tables: int = Field(default=50, ge=1, le=500)
    known: tuple[tuple[str, str, str], ...] = ()

    @property
    def is_by_schema(self) -> bool:
        """Return whether the values are names of schemas."""
        return self.kind == "schema_name"

    @property
    def source(self) -> str:
        """Return what has the values, as the state has it."""
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """Return a route for each value that has a table."""
        return tuple(Route(self.when(value), self.table_of(space, table)) for value, space, table in self.known)

    def when(self, value: str) -> When:
        """Return the condition that a record has a value."""
        if self.kind == "field":
            return When(field=self.name, values=(value,))
        return When(schema=(value,)) if self.is_by_schema else When(source_table=self.name, values=(value,))

    def table_of(self, namespace: str, table: str) -> TopicTable:
        """Return the settings of a table."""
        return replace(self.to, namespace=namespace, table=table)


rebuild_dataclass(TopicTable)  # type: ignore[arg-type]


def once_each(specs: Iterable[TopicTable]) -> list[TopicTable]:
    """Return the settings of the tables of topics, those that several topics fill once."""
    return list({table.identifier: table for spec in specs for table in spec.tables}.values())


def full_topic(cluster: str | None, topic: str) -> str:
    """Return a topic's name among those of all clusters; no topic has a slash in its own.

    >>> full_topic("eu", "orders"), full_topic(None, "orders")
    ('eu/orders', 'orders')
    """
    return f"{cluster}/{topic}" if cluster else topic


def derived_table_name(topic: str) -> str:
    """Return the table name that a topic gets by default.

    >>> derived_table_name("shop.Completed-Pizzas")
    'shop_completed_pizzas'
    """
    name = _NO_NAME.sub("_", topic.lower()).strip("_")
    return name if name[:1].isalpha() else f"t_{name}"
