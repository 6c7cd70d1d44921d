"""`type: kafka_lake.KafkaTopicTable`: a few lines of YAML become source asset, table asset and checks."""

import re
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from kafka_lake.components.assets import build_topic_assets
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.decode.ddl import check_ddl
from kafka_lake.ingest.plan import start_timestamp_ms
from kafka_lake.ingest.topic_table import TopicTable, dead_letter_limit
from kafka_lake.lake.tables import parse_partition_field, parse_sort_field

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_NO_NAME = re.compile(r"[^a-z0-9_]+")


class KafkaTopicTable(dg.Component, dg.Model, dg.Resolvable):
    """A Kafka topic as an Iceberg table.

    Only ``topic`` is needed. Unknown keys, bad values and combinations that can't work are refused when
    definitions load.
    """

    model_config = ConfigDict(extra="forbid")

    topic: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = Field(
        description="Name of the Kafka topic."
    )
    namespace: Name = Field(default="lake", description="Iceberg namespace of the table.")
    table: Name | None = Field(default=None, description="Name of the table; the topic's, in lower case, by default.")
    columns: str | None = Field(
        default=None,
        alias="schema",
        description="Spark DDL of the value's columns; without it they are inferred from the records and evolve.",
    )
    partition_by: list[str] = Field(default_factory=list, description="Iceberg transforms: day(ts), bucket(16, id).")
    sort_by: list[str] = Field(default_factory=list, description="Columns within each file: `ts desc`.")
    table_properties: dict[str, str] = Field(default_factory=dict, description="Iceberg table properties.")
    owners: list[str] = Field(default_factory=list, description="Owners, as Dagster shows them.")
    group: str | None = Field(default=None, description="Dagster's asset group; the namespace by default.")
    description: str | None = Field(default=None, description="What the records are.")
    metadata_column: Name | None = Field(
        default="_kafka", description="Struct that says where a row came from; null for none."
    )
    start: str = Field(
        default="earliest", description="Where a new table begins: earliest, latest, or an ISO 8601 time."
    )
    max_records_per_commit: int = Field(
        default=5_000_000, ge=1, description="A longer backlog becomes several commits."
    )
    transform: str | None = Field(default=None, description="module:function, DataFrame to DataFrame, row by row.")
    consumer_group: str | None = Field(
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
    max_dead_letters: int | str | None = Field(
        default=None, description="How many of them a run bears before it fails: a count (100) or a share (5%)."
    )
    max_record_bytes: int | None = Field(default=None, ge=1, description="Longer values are dead letters.")

    @model_validator(mode="after")
    def _possible(self) -> "KafkaTopicTable":
        try:
            for text in self.partition_by:
                parse_partition_field(text)
            for text in self.sort_by:
                parse_sort_field(text)
            if self.start not in ("earliest", "latest"):
                start_timestamp_ms(self.start)
            dead_letter_limit(self.max_dead_letters)
            declared = check_ddl(self.columns) if self.columns is not None else None
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if self.transform is not None:
            if ":" not in self.transform:
                raise ValueError(f"transform: {self.transform!r} is no reference. Write module:function.")
            if declared is None:
                raise ValueError(
                    "transform: without schema: the columns that it gets are not known. Declare them with schema:."
                )
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
        if self.table_properties.get("write.distribution-mode") == "range":
            raise ValueError(
                "table_properties: write.distribution-mode range reads the topic twice, which the gates refuse. "
                "Use hash or none."
            )
        return self

    def topic_table(self) -> TopicTable:
        """Return the settings as the pipeline takes them."""
        return TopicTable(
            topic=self.topic,
            namespace=self.namespace,
            table=self.table or derived_table_name(self.topic),
            schema=self.columns,
            partition_by=tuple(self.partition_by),
            sort_by=tuple(self.sort_by),
            properties=dict(self.table_properties),
            metadata_column=self.metadata_column,
            start=self.start,
            max_records_per_commit=self.max_records_per_commit,
            transform=self.transform,
            consumer_group=self.consumer_group,
            on_data_loss=self.on_data_loss,
            dead_letters=self.dead_letters,
            max_dead_letters=self.max_dead_letters,
            max_record_bytes=self.max_record_bytes,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks."""
        presentation: dict[str, Any] = {
            "owners": self.owners,
            "group_name": self.group or self.namespace,
            "description": self.description,
        }
        return dg.Definitions(assets=build_topic_assets(self.topic_table(), **presentation))


def derived_table_name(topic: str) -> str:
    """Return the table name that a topic gets by default.

    >>> derived_table_name("shop.Completed-Pizzas")
    'shop_completed_pizzas'
    """
    name = _NO_NAME.sub("_", topic.lower()).strip("_")
    return name if name[:1].isalpha() else f"t_{name}"
