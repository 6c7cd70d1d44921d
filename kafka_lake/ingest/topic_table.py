"""What a topic's table shall be: each setting with its type, default and documentation, declared here and only here.

The keys of a YAML document (`components.topic_settings`), the metadata of a Dagster asset and docs/reference.md derive
from it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass, rebuild_dataclass
from pydantic.fields import FieldInfo

from kafka_lake.common import environment
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.executors.changes.unavailable import DEFAULT_PLACEHOLDER
from kafka_lake.ingest.route import Match, RouteByKind, Unmatched, When
from kafka_lake.ingest.rule import Rule, RuleEntry, rules_of
from kafka_lake.lake.evolution.model import EvolutionMode, OnIncompatible, Policy
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.names import column_name, shortened

Format = Literal["json", "avro", "protobuf", "json_schema", "string", "bytes", "variant", "confluent"]
FORMATS: tuple[Format, ...] = get_args(Format)
BY_SCHEMA: tuple[Format, ...] = ("avro", "protobuf", "json_schema")
"""Formats whose schema may stand in a file."""
REGISTERED: tuple[Format, ...] = (*BY_SCHEMA, "confluent")
"""Formats whose schema a registry has."""
TimestampUnit = Literal["s", "ms", "us", "ns"]
TimestampPrecision = Literal["micros", "exact"]
Compatibility = Literal["none", "backward", "forward", "full"]
WriteMode = Literal["append", "upsert", "history"]
Envelope = Literal["none", "debezium", "maxwell", "canal"]
ENVELOPES: Mapping[Envelope, tuple[Format, ...]] = MappingProxyType(
    {"none": (), "debezium": ("json", "avro"), "maxwell": ("json",), "canal": ("json",)}
)
"""Envelopes, and the formats in which each is known; none for all."""
DeleteMode = Literal["apply", "soft", "ignore", "fail"]
SnapshotMode = Literal["upsert", "reconcile"]
TruncateMode = Literal["apply", "fail", "ignore"]

_NO_NAME = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True)
class InDocuments:
    """Which texts a YAML document may have for a setting. Tables that others made may have more.

    Args:
        pattern: A regular expression.
    """

    pattern: str


TopicName = Annotated[str, InDocuments(r"^[A-Za-z0-9._-]{1,249}$")]
CLUSTER_NAME = r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
"""What a cluster may be called: it is a part of variables' names, where two underscores end it, and of resources'."""
ClusterName = Annotated[str, InDocuments(CLUSTER_NAME)]
ColumnName = Annotated[str, InDocuments(r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Iceberg takes any name; a slash or a sign that URIs have a use for would make another folder of a table's.
TABLE_NAME = r"^\w([\w .'-]*\w)?$"
TableName = Annotated[str, InDocuments(TABLE_NAME)]


@dataclass(frozen=True)
class TopicTable:
    """A topic and the table that it becomes. Only ``topic`` is needed.

    Raises:
        ValidationError: If a value is not of its type. What can't go together is for `components` to refuse.
        ConfigurationError: If ``$KAFKA_LAKE_SAMPLES`` is neither true nor false.
    """

    topic: TopicName = Field(description="Name of the Kafka topic. **Needed**, unless `topics` names several.")
    namespace: TableName = Field(default="lake", description="Iceberg namespace of the table.")
    table: TableName = Field(
        default_factory=lambda given: derived_table_name(given["topic"]),
        description="Name of the table; the topic's, in lower case, by default.",
    )
    cluster: ClusterName | None = Field(
        default=None,
        description="Name of the KafkaCluster document whose topic it is; needed where that has a name.",
        examples=["eu"],
    )
    schema: str | None = Field(
        default=None,
        description="Format json: Spark DDL of the value's columns. Without it the columns are inferred from the "
        "records and evolve.",
        examples=["order_id bigint not null, items array<string>, ordered_at timestamp"],
    )
    partition_by: tuple[str, ...] = Field(
        default=(), description="Iceberg partition transforms.", examples=[["day(ordered_at)", "bucket(16, store_id)"]]
    )
    sort_by: tuple[str, ...] = Field(
        default=(), description="Columns within each file.", examples=[["ordered_at desc"]]
    )
    table_properties: Mapping[str, str] = Field(
        default_factory=dict,
        description="Iceberg table properties of a new table. `location` is where its files shall be; by default a "
        "folder of its own, named after the table.",
        examples=[{"write.parquet.compression-codec": "zstd"}],
    )
    metadata_column: ColumnName | None = Field(
        default="_kafka", description="Struct that says where a row came from; null for none."
    )
    start: str = Field(
        default="earliest",
        description="Where a new table begins: earliest, latest, or an ISO 8601 time.",
        examples=["2026-01-31T00:00:00Z"],
    )
    max_records_per_commit: int = Field(
        default=5_000_000, ge=1, description="A longer backlog becomes several commits of at most so many offsets each."
    )
    max_bytes_per_commit: Annotated[int, Field(ge=1)] | None = Field(
        default=2_000_000_000,
        description="A longer backlog becomes several commits that read about so many bytes each: keys, values and "
        "headers, uncompressed, by an estimate. null for no such limit.",
    )
    transform: str | None = Field(
        default=None,
        description="`module:function`, from DataFrame to DataFrame, one row for one row.",
        examples=["my_project.transforms:clean"],
    )
    consumer_group: str | None = Field(
        default="kafka-lake.{namespace}.{table}",
        description="Consumer group that shows the table's position to lag tools; null for none. It is written and "
        "never read.",
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="If Kafka no longer has what the table lacks: fail, or continue with what is left; the loss is "
        "recorded.",
    )
    dead_letters: Literal["table", "fail", "skip"] = Field(
        default="table",
        description="What becomes of records that fit no row: kept in a table, fail the run, or skipped (and counted).",
    )
    dead_letter_asset: bool = Field(
        default=False,
        description="Whether the dead-letter table is an asset of its own in Dagster, beside the table. The table's "
        "check `no_dead_letters` shows the dead letters in any case.",
    )
    max_dead_letters: int | str | None = Field(
        default=None,
        description="How many of them a run may have before it fails: a count or a share. Without it any number.",
        examples=["5%"],
    )
    rules: tuple[RuleEntry, ...] = Field(
        default=(),
        description="What rows must keep, asked of each commit before anyone can read it. See [rules](rules.md).",
    )
    rules_fail_above: int | str | None = Field(
        default="5%",
        description="How many rows of a commit may break one rule with on_failure dead_letter before nothing is "
        "published and the run fails: a count or a share; up to 10 rows are never too large a share. null for any "
        "number.",
        examples=["20%"],
    )
    max_record_bytes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Longer values are dead letters."
    )
    max_age: str | None = Field(
        default=None,
        description="How long a record may wait for its row, by its Kafka timestamp: the table's check `freshness` "
        "warns while one waits longer. A topic without new records is fresh.",
        examples=["5m"],
    )
    samples: bool = Field(
        default_factory=environment.samples,
        description="Whether Dagster's log and pages quote a dead letter of each class: its reason, and the first 200 "
        "characters of its value. Class and offset are always told. By default KAFKA_LAKE_SAMPLES, and that is true.",
    )
    sample_rows: int = Field(
        default=0,
        ge=0,
        le=20,
        description="How many rows of a run's newest commit the table's page in Dagster shows, with texts of up to 80 "
        "characters; 0 for none. Nothing is shown with `samples: false`.",
        examples=[5],
    )
    mask: tuple[str, ...] = Field(
        default=(),
        description="Regular expressions (Python's); `***` takes the place of what they find in quotes and in "
        "sample rows.",
        examples=[[r"\d{4}-\d{4}"]],
    )
    format: Format = Field(
        default="json",
        description="What values are: json, avro, protobuf, json_schema (each with a registry's schema ids, or by "
        "schema_file), confluent (whatever the ids say), or string, bytes, variant: the whole value as one column.",
    )
    schema_file: str | None = Field(
        default=None,
        description="Schema of the values, in a file beside the YAML document: Avro, .proto or JSON Schema. Without it "
        "the registry's.",
        examples=["order.avsc"],
    )
    message: str | None = Field(
        default=None, description="With a .proto file: the values' message; its first one by default."
    )
    subject: str | None = Field(
        default=None, description="The registry's subject of the values; `<topic>-value` by default."
    )
    key_format: Format | None = Field(
        default=None,
        description="What keys are, as format; they get a column of their own. Without it they are bytes in the "
        "metadata column.",
    )
    key_column: ColumnName = Field(default="_key", description="The column of decoded keys.")
    key_schema: str | None = Field(
        default=None, description="Key format json: Spark DDL of the key's fields.", examples=["id bigint"]
    )
    key_schema_file: str | None = Field(default=None, description="Schema of the keys, as schema_file.")
    infer_timestamps: bool = Field(
        default=False,
        description="Format json without schema: text that is an ISO 8601 date or time in all records that show a "
        "field first becomes a column of that type.",
    )
    evolution: EvolutionMode = Field(
        default="evolve",
        description="What new fields and wider types do: evolve the table, freeze it (such a run fails before it "
        "publishes), or ignore_new (fields without a column are left out, and reported).",
    )
    on_incompatible: OnIncompatible = Field(
        default="dead_letter",
        description="What becomes of values that their column can't take: dead letters, fail the run, or a new_column "
        "`name__v2` beside it.",
    )
    renames: Mapping[str, str] = Field(
        default_factory=dict,
        description="Columns that get a new name, as `old: new`. The field id stays.",
        examples=[{"store": "store_id"}],
    )
    except_columns: tuple[str, ...] = Field(
        default=(),
        serialization_alias="except",
        description="Fields of records that the table has no column for. With schema: and a key, columns that "
        "only delete_when needs.",
        examples=[["search_vector"]],
    )
    max_columns: int = Field(
        default=1000,
        ge=1,
        description="How many columns new fields may bring the table to, fields of structs counted one by one. A run "
        "that needs more fails before it changes the table: names that are data belong in a map.",
    )
    compatibility: Compatibility = Field(
        default="none",
        description="What a new schema version must be to the one before (backward, forward, full), or the run fails "
        "before it publishes.",
    )
    arrow: bool = Field(
        default=True,
        description="JSON that plainly fits the table is decoded by Arrow in Spark's tasks, which write its files too. "
        "If false, records are decoded one by one and Spark writes: the same rows, slower.",
    )
    timestamp_unit: TimestampUnit | None = Field(
        default=None,
        description="Format json: what numbers in columns of times count since 1970 (s, ms, us, ns). Without it such "
        "numbers don't fit.",
    )
    timestamp_precision: TimestampPrecision = Field(
        default="micros",
        description="Format json: micros cuts, and counts, what a time has beyond microseconds; exact has it not fit.",
    )
    write: WriteMode = Field(
        default="append",
        description="append: a row for each record. upsert: a row for each key, as its newest change left it; a record "
        "without a value takes its key's row away. history: the versions of each key (SCD 2), from `valid_from` to "
        "`valid_to`, which is null for the current version.",
    )
    key: tuple[str, ...] = Field(
        default=(),
        description="With write upsert or history: columns that tell rows apart; the record's key by default.",
        examples=[["order_id"]],
    )
    order_by: tuple[str, ...] = Field(
        default=(),
        description="With write upsert or history: columns that tell which of two changes of a key is the newer one. "
        "Equal ones are told apart by Kafka partition and offset. Without them, and without an envelope, Kafka's "
        "offset alone counts.",
        examples=[["updated_at"]],
    )
    envelope: Envelope = Field(
        default="none",
        description="With write upsert or history: what values are wrapped in: none; debezium (before, after, op, "
        "source; in format json or avro); maxwell or canal (their JSON, a topic for each table).",
    )
    deletes: DeleteMode = Field(
        default="apply",
        description="With write upsert, what becomes of a deleted row: it goes (apply), it stays and `_is_deleted` is "
        "true (soft), it stays as it is (ignore), or the run fails before it publishes (fail). With write history, "
        "apply ends the key's version.",
    )
    delete_when: str | None = Field(
        default=None,
        description="With write upsert or history: SQL condition on a row's columns that makes a delete of it.",
        examples=["status = 'removed'"],
    )
    keep_deletes: str = Field(
        default="7d",
        description="With write upsert: how long a deleted key is remembered, so that a late change doesn't bring its "
        "row back: as 90m, 36h or 7d.",
    )
    on_truncate: TruncateMode = Field(
        default="fail",
        description="With an envelope, when the source's table was emptied: the older rows go (apply), the run fails "
        "before it publishes (fail), or the rows stay (ignore).",
    )
    snapshot: SnapshotMode = Field(
        default="upsert",
        description="With envelope debezium, what a new snapshot of the source does: its rows are changes like others "
        "(upsert), or at its end the rows go whose keys it lacks, too (reconcile). A topic with one partition.",
    )
    max_removed: int | str | None = Field(
        default="10%",
        description="With snapshot reconcile: how many rows may go at the end of a snapshot; beyond that the run fails "
        "before it publishes. A count, or a share of the table's rows; null for any number.",
        examples=["1%"],
    )
    unavailable_value_placeholder: str = Field(
        default=DEFAULT_PLACEHOLDER,
        min_length=1,
        description="With envelope debezium: the connector's `unavailable.value.placeholder`, which stands for a value "
        "that PostgreSQL didn't send because it hasn't changed (TOAST). The row keeps the value that it has.",
    )
    ignore_null_updates: bool | tuple[str, ...] = Field(
        default=False,
        description="With write upsert or history, without an envelope: columns that a change leaves as they are by a "
        "null; true for all but those of key and order. A row that isn't there yet gets the null.",
        examples=[["email", "phone"]],
    )

    track: tuple[str, ...] = Field(
        default=(),
        description="With write history: the columns whose changes make a version. A change of other columns updates "
        "the version that is there. By default all columns.",
        examples=[["status", "address"]],
    )
    maintenance: Maintenance = Field(
        default=Maintenance(),
        description="How the topic's tables are kept fast: small files are compacted, and old snapshots expire.",
        examples=[{"compact_every": 50, "expire_after": "30d"}, {"enabled": False}],
    )
    routes: tuple["Route", ...] = Field(
        default=(),
        description="Records that go to tables of their own: a list of `when`, `table`, and settings of that table. "
        "See [routing](routing.md).",
        examples=[[{"when": {"field": "type", "equals": "order"}, "table": "orders"}]],
    )
    topics: tuple[TopicName, ...] = Field(
        default=(),
        description="Instead of topic: several topics of one cluster that fill the same table, which `table` names: a "
        "list, or one text, which is a regular expression that matches their names. `_kafka.topic` tells their rows "
        "apart. See [many topics](many-topics.md#many-topics-in-one-table).",
        examples=[["shop.eu.orders", "shop.us.orders"]],
    )
    where: When | None = Field(
        default=None,
        description="With routes: which records are the table's own. Without it, those that no other table takes.",
    )
    unmatched: Unmatched = Field(
        default="dead_letter",
        description="With routes and where: what becomes of records that no table takes: dead letters of this table "
        "(dead_letter), nothing but a count (ignore), or the run fails and the table stays where it is (fail).",
    )
    route_by: "RouteBy | None" = Field(
        default=None,
        description="Tables that are made as values appear in records that no route takes: of a `field`, a `header`, "
        "the `schema_name`, or the `source_table` of an envelope. With `table`, a template, `max_tables`, and "
        "settings of these tables. See [routing](routing.md#a-table-for-each-value).",
        examples=[{"field": "type", "table": "shop_{value}", "max_tables": 50}],
    )
    match: Match = Field(
        default="all",
        description="With routes: a record goes to each table whose condition it meets (all), or to the first one.",
    )

    @field_validator("key", "order_by", "track", "ignore_null_updates", mode="after")
    @classmethod
    def _as_columns(cls, named: Any, info: ValidationInfo) -> Any:
        """Return the columns that some fields get, unless they are declared: a field may have any name."""
        if info.data.get("schema") is not None or named is None or isinstance(named, bool):
            return named
        return tuple(column_name(each, ()) for each in named)

    def null_leaves(self, column: str) -> bool:
        """Return whether a change leaves a column as it is by a null."""
        named = self.ignore_null_updates
        return named if isinstance(named, bool) else column in named

    @property
    def is_keyed(self) -> bool:
        """Return whether records are changes of rows that have a key."""
        return self.write != "append"

    @property
    def has_source_order(self) -> bool:
        """Return whether the envelope tells where a change is in its source's order."""
        return self.envelope == "debezium"

    @property
    def is_partial(self) -> bool:
        """Return whether a change may leave columns as they are by a null."""
        return bool(self.ignore_null_updates)

    @property
    def each_topic(self) -> tuple["TopicTable", ...]:
        """Return the settings of each topic that fills the table; their runs are runs of one topic each."""
        return tuple(replace(self, topic=topic) for topic in self.topics) or (self,)

    @property
    def told(self) -> str:
        """Return the topic, or the topics, as the middle of a sentence about the table."""
        names = [each.full_topic for each in self.each_topic]
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
        deletes = (self.deletes_table,) if self.write == "upsert" else ()
        return (self.identifier, self.dead_letter_table, *deletes)

    @property
    def tables(self) -> tuple["TopicTable", ...]:
        """Return the settings of each table that the topic fills: its own first, then those of its routes."""
        return (self, *(route.to for route in self.every_route))

    @property
    def has_routes(self) -> bool:
        """Return whether records may go to other tables than the topic's own."""
        return bool(self.routes) or self.route_by is not None

    @property
    def every_route(self) -> tuple["Route", ...]:
        """Return the routes, and after them those of values that have a table."""
        return self.routes if self.route_by is None else (*self.routes, *self.route_by.routes)

    @property
    def may_match_several(self) -> bool:
        """Return whether a record may be for several tables.

        It can't be where all conditions compare the same field, header or schema with values of their own.
        """
        if self.match == "first":
            return False
        whens = [*([self.where] if self.where else []), *(route.when for route in self.routes)]
        values = [value for when in whens for value in when.schema or when.values]
        is_exact = not any(when.sql for when in whens) and not any("*" in value for value in values)
        return not (is_exact and len({when.source for when in whens}) == 1 and len(set(values)) == len(values))

    @property
    def group(self) -> str | None:
        """Return the consumer group that mirrors the position; None for none."""
        given = self.consumer_group
        return given.replace("{namespace}", self.namespace).replace("{table}", self.table) if given else None

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
        """Return whether a run may go on with so many dead letters among so many records.

        Raises:
            ConfigurationError: If ``max_dead_letters`` is neither a count nor a share.
        """
        return not is_over(limit_of(self.max_dead_letters, "max_dead_letters"), dead_letters, of=records)


@dataclass(frozen=True)
class Route:
    """Records of a topic that go to a table of their own.

    Args:
        when: Which records.
        to: The table's settings; topic and cluster are the topic's.
    """

    when: When
    to: TopicTable


@dataclass(frozen=True)
class RouteBy:
    """Tables that a topic gets as values appear in its records.

    Args:
        kind: What has the values.
        name: Of the field or header; of a source's table, the envelope.
        to: The settings of all these tables, but for their names; topic and cluster are the topic's.
        table: Template of their names.
        namespace: Template of their namespaces.
        namespaces: Which namespaces a template may give.
        max_tables: How many values may have a table.
        known: Those that have one: value, namespace, table.
    """

    kind: RouteByKind
    name: str
    to: TopicTable
    table: str = "{value}"
    namespace: str = "lake"
    namespaces: tuple[str, ...] = ()
    max_tables: int = Field(default=50, ge=1, le=500)
    known: tuple[tuple[str, str, str], ...] = ()

    @property
    def source(self) -> str:
        """Return what has the values, as the state has it."""
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def routes(self) -> tuple[Route, ...]:
        """Return a route for each value that has a table."""
        return tuple(Route(self.when(value), self.table_of(space, table)) for value, space, table in self.known)

    def when(self, value: str) -> When:
        """Return the condition that a record has a value."""
        if self.kind == "field":
            return When(field=self.name, values=(value,))
        if self.kind == "header":
            return When(header=self.name, values=(value,))
        return When(schema=(value,)) if self.kind == "schema_name" else When(source_table=self.name, values=(value,))

    def table_of(self, namespace: str, table: str) -> TopicTable:
        """Return the settings of a table."""
        return replace(self.to, namespace=namespace, table=table)


rebuild_dataclass(TopicTable)  # type: ignore[arg-type]


def pydantic_fields(kind: Any) -> dict[str, FieldInfo]:
    """Return the declarations of a dataclass's fields by name: type, default, documentation, examples."""
    return dict(kind.__pydantic_fields__)


def limit_of(text: int | str | None, setting: str) -> int | float | None:
    """Return a limit as a count (int) or a share (float, 0 to 1); None for no limit.

    Args:
        text: It, as a setting has it.
        setting: The setting's name.

    Raises:
        ConfigurationError: If it is neither.

    >>> limit_of(100, "x"), limit_of("5%", "x"), limit_of(None, "x")
    (100, 0.05, None)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(?:(?P<count>\d+)|(?P<share>\d+(?:\.\d+)?)\s*%)", str(text).strip())
    if match and match["count"]:
        return int(match["count"])
    if match and float(match["share"]) <= 100:
        return float(Decimal(match["share"]) / 100)
    raise ConfigurationError(f"{setting}: {text!r} is no limit.", "Write a count as 100, or a share as 5%.")


def is_over(limit: int | float | None, count: int, of: int) -> bool:
    """Return whether a count is above a limit that `limit_of` gave.

    Args:
        limit: A count, a share, or None for no limit.
        count: What is limited.
        of: What a share is one of.

    >>> is_over(0.29, 29, of=100), is_over(0.29, 30, of=100), is_over(5, 6, of=100), is_over(None, 6, of=6)
    (False, True, True, False)
    """
    if isinstance(limit, float):
        # 0.29 * 100 is less than 29, and 29 / 100 is 0.29: a quotient is the float that is nearest.
        return count > 0 and (of <= 0 or count / of > limit)
    return limit is not None and count > limit


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
