"""The settings of a topic's YAML document, each with its documentation, and which of them can't go together."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

import dagster as dg
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.continuous_runs import ContinuousRuns
from kafka_lake.components.text import Limit, OptionalText, Properties, Text, TextList, TextMap
from kafka_lake.ingest.dead_letters.samples import check_mask, samples_from_env
from kafka_lake.ingest.decode.ddl import check_ddl
from kafka_lake.ingest.plan.start import start_timestamp_ms
from kafka_lake.ingest.topic_table import (
    BY_SCHEMA,
    REGISTERED,
    Compatibility,
    Format,
    TimestampPrecision,
    TimestampUnit,
    dead_letter_limit,
    derived_table_name,
)
from kafka_lake.lake.evolution.model import EvolutionMode, OnIncompatible
from kafka_lake.lake.names import shortened
from kafka_lake.lake.tables.layout import parse_partition_field, parse_sort_field

Name = Annotated[Text, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Iceberg takes any name; a slash or a sign that URIs have a use for would make another folder of a table's.
TableName = Annotated[Text, StringConstraints(pattern=r"^\w([\w .'-]*\w)?$")]


class TopicSettings(dg.Model, dg.Resolvable):
    """What can be said of a topic and its table. Only ``topic`` is needed."""

    model_config = ConfigDict(extra="forbid")

    topic: Annotated[Text, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = Field(
        description="Name of the Kafka topic."
    )
    namespace: TableName = Field(default="lake", description="Iceberg namespace of the table.")
    table: TableName | None = Field(
        default=None, description="Name of the table; the topic's, in lower case, by default."
    )
    format: Format = Field(
        default="json",
        description="What values are: json, avro, protobuf, json_schema (each with a registry's schema ids, or by "
        "schema_file), confluent (whatever the ids say), or string, bytes, variant: the whole value as one column.",
    )
    columns: OptionalText = Field(
        default=None,
        alias="schema",
        description="Format json: Spark DDL of the value's columns; without it they are inferred from the records "
        "and evolve.",
    )
    schema_file: OptionalText = Field(
        default=None,
        description="Schema of the values, in a file beside this one: Avro, .proto or JSON Schema; without it the "
        "registry's.",
    )
    message: OptionalText = Field(default=None, description="With a .proto file: the values' message; else its first.")
    subject: OptionalText = Field(
        default=None, description="The registry's subject of the values; <topic>-value by default."
    )
    key_format: Format | None = Field(
        default=None, description="What keys are, as format; a column of its own for them. Without it bytes only."
    )
    key_column: Name = Field(default="_key", description="The column of decoded keys.")
    key_schema: OptionalText = Field(default=None, description="Key format json: Spark DDL of the key's fields.")
    key_schema_file: OptionalText = Field(default=None, description="Schema of the keys, as schema_file.")
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
        "name__v2 beside it.",
    )
    renames: TextMap = Field(
        default_factory=dict, description="Columns that get a new name, as old: new; the field id stays."
    )
    max_columns: Annotated[int, Field(ge=1)] = Field(
        default=1000,
        description="How many columns new fields may bring the table to, fields of structs counted one by one. A run "
        "that needs more fails before it changes the table: names that are data belong in a map.",
    )
    compatibility: Compatibility = Field(
        default="none",
        description="What a new schema version must be to the one before (backward, forward, full), or the run fails "
        "before it publishes.",
    )
    partition_by: TextList = Field(default_factory=list, description="Iceberg transforms: day(ts), bucket(16, id).")
    sort_by: TextList = Field(default_factory=list, description="Columns within each file: `ts desc`.")
    table_properties: Properties = Field(
        default_factory=dict,
        description="Iceberg table properties of a new table. `location` is where its files shall be; by default a "
        "folder of its own, named after the table.",
    )
    owners: TextList = Field(default_factory=list, description="Owners, as Dagster shows them.")
    group: OptionalText = Field(default=None, description="Dagster's asset group; the namespace by default.")
    description: OptionalText = Field(default=None, description="What the records are.")
    metadata_column: Name | None = Field(
        default="_kafka", description="Struct that says where a row came from; null for none."
    )
    start: Text = Field(
        default="earliest", description="Where a new table begins: earliest, latest, or an ISO 8601 time."
    )
    max_records_per_commit: int = Field(
        default=5_000_000, ge=1, description="A longer backlog becomes several commits."
    )
    transform: OptionalText = Field(default=None, description="module:function, DataFrame to DataFrame, row by row.")
    consumer_group: OptionalText = Field(
        default=None, description="Consumer group that shows the table's position to lag tools."
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="If Kafka no longer has what the table lacks: fail, or continue with what is left, loss recorded.",
    )
    dead_letters: Literal["table", "fail", "skip"] = Field(
        default="table",
        description="What becomes of records that fit no row: kept in a table, fail the run, or skipped (and counted).",
    )
    max_dead_letters: Limit = Field(
        default=None, description="How many of them a run bears before it fails: a count (100) or a share (5%)."
    )
    max_record_bytes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Longer values are dead letters."
    )
    samples: bool | None = Field(
        default=None,
        description="Whether Dagster's log and pages quote a dead letter of each class: its reason, and the first 200 "
        "characters of its value. Class and offset are told always. By default KAFKA_LAKE_SAMPLES, and that is true.",
    )
    mask: TextList = Field(
        default_factory=list,
        description="Regular expressions (Python's); *** takes the place of what they find in such quotes.",
    )
    arrow: bool = Field(
        default=True,
        description="JSON that plainly fits the table is decoded and its files are written by Arrow, in Spark's tasks. "
        "If false, records are decoded one by one and Spark writes: the same rows, slower.",
    )
    timestamp_unit: TimestampUnit | None = Field(
        default=None,
        description="Format json: what numbers in columns of times count since 1970 (s, ms, us, ns); without it such "
        "numbers don't fit.",
    )
    timestamp_precision: TimestampPrecision = Field(
        default="micros",
        description="Format json: micros cuts, and counts, what a time has beyond microseconds; exact has it not fit.",
    )
    continuous: ContinuousRuns | None = Field(
        default=None,
        description="Runs that keep on, a commit every few seconds: {trigger: 2s, for: 1h, idle: 5m, "
        "compact_every: 100, report_every: 30s}, each of them optional.",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            for text in self.partition_by:
                parse_partition_field(text)
            for text in self.sort_by:
                parse_sort_field(text)
            if self.start not in ("earliest", "latest"):
                start_timestamp_ms(self.start)
            dead_letter_limit(self.max_dead_letters)
            samples_from_env()
            for pattern in self.mask:
                check_mask(pattern)
            declared = check_ddl(self.columns) if self.columns is not None else None
            if self.key_schema is not None:
                check_ddl(self.key_schema, "key_schema")
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if self.transform is not None:
            if ":" not in self.transform:
                raise ValueError(f"transform: {self.transform!r} is no reference. Write module:function.")
            if declared is None and self.format == "json":
                raise ValueError(
                    "transform: without schema: the columns that it gets are not known. Declare them with schema:."
                )
        for problem in self._format_problems():
            raise ValueError(problem)
        if self.metadata_column and declared and self.metadata_column.lower() in {d.lower() for d in declared}:
            raise ValueError(
                f"schema: has a column {self.metadata_column}, which is the metadata column too. "
                "Give the latter another name with metadata_column:."
            )
        if (self.namespace, self.table or derived_table_name(self.topic)) == ("kafka", self.topic):
            raise ValueError(
                f"namespace: topic {self.topic} and its table would be the same asset, kafka/{self.topic}. "
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
            yield "infer_timestamps: is for format json without schema:; declared types count otherwise."
        if self.timestamp_unit is not None and self.format != "json":
            yield f"timestamp_unit: is for format json; {self.format} brings its own."
        if self.on_incompatible == "new_column" and self.columns is not None:
            yield "on_incompatible: new_column needs inferred columns, and schema: declares them. Leave one out."
        if self.compatibility != "none" and (self.format not in REGISTERED or self.schema_file):
            yield "compatibility: is for formats whose schemas come from a registry."
