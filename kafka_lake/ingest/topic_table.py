"""What a topic's table shall be: the settings of one YAML document, as plain data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.evolution.model import EvolutionMode, OnIncompatible, Policy
from kafka_lake.lake.names import shortened

Format = Literal["json", "avro", "protobuf", "json_schema", "string", "bytes", "variant", "confluent"]
FORMATS: tuple[Format, ...] = get_args(Format)
BY_SCHEMA: tuple[Format, ...] = ("avro", "protobuf", "json_schema")
"""Formats whose schema may stand in a file."""
REGISTERED: tuple[Format, ...] = (*BY_SCHEMA, "confluent")
"""Formats whose schema a registry has."""
TimestampUnit = Literal["s", "ms", "us", "ns"]
TimestampPrecision = Literal["micros", "exact"]
Compatibility = Literal["none", "backward", "forward", "full"]

_NO_NAME = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True)
class TopicTable:
    """A topic and the table that it becomes.

    Args:
        topic: The Kafka topic's name.
        namespace: Iceberg namespace of the table.
        table: The table's name in it.
        schema: Spark DDL of the value's columns; None to infer them from the records.
        partition_by: Iceberg transforms, as in ``day(ordered_at)`` or ``bucket(16, store_id)``.
        sort_by: Columns within each file, as in ``ordered_at desc``.
        properties: Iceberg table properties.
        metadata_column: Name of the struct that says where a row came from; None for none.
        start: Where a table with no position begins: ``earliest``, ``latest`` or an ISO 8601 time.
        max_records_per_commit: A longer backlog becomes several commits of at most so many offsets each.
        transform: ``module:function``, from DataFrame to DataFrame, one row for one row; None for none.
        consumer_group: Group whose offsets follow the table's, for lag tools only.
        on_data_loss: ``fail`` if Kafka no longer has what the table lacks, or ``continue`` with what is left.
        dead_letters: What becomes of records that don't decode: ``table``, ``fail`` the run, or ``skip`` them.
        max_dead_letters: How many of them a run bears, as a count or as a share like ``5%``; None for any number.
        max_record_bytes: Longer values are dead letters; None for no limit.
        samples: Whether logs, errors and Dagster's pages quote a dead letter of each class.
        mask: Regular expressions; ``***`` takes the place of what they find in such quotes.
        format: What values are, one of `FORMATS`.
        schema_file: File with the schema of the values, Avro, `.proto` or JSON Schema; None for the registry's.
        message: Which message of a `.proto` file the values are; None for the first.
        subject: The registry's subject of the values; None for the topic's name and ``-value``.
        key_format: What keys are; None to leave them as bytes in the metadata column.
        key_column: The column of decoded keys.
        key_schema: Spark DDL of the columns of JSON keys.
        key_schema_file: File with the schema of the keys.
        infer_timestamps: Whether text that is an ISO 8601 date or time becomes a column of that type.
        evolution: ``evolve`` with what is safe, ``freeze`` the table's schema, or ``ignore_new`` columns.
        on_incompatible: What becomes of values that their column can't take: ``dead_letter``, ``fail`` the run, or a
            ``new_column``.
        renames: Path of a column as it was → its new name.
        max_columns: How many columns, fields of structs counted one by one, new fields may bring a table to.
        compatibility: What new versions in the registry must be to the ones before, as registries name it.
        arrow: Whether Arrow decodes JSON that plainly fits the table and writes its files, in Spark's tasks. If it is
            false, every record is decoded alone and Spark writes. The rows are the same.
        timestamp_unit: Of JSON numbers in columns of times, since 1970: ``s``, ``ms``, ``us`` or ``ns``; None if such
            numbers don't fit.
        timestamp_precision: ``micros`` cuts and counts the digits of a time beyond microseconds, ``exact`` has them not
            fit.
    """

    topic: str
    namespace: str
    table: str
    schema: str | None = None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    metadata_column: str | None = "_kafka"
    start: str = "earliest"
    max_records_per_commit: int = 5_000_000
    transform: str | None = None
    consumer_group: str | None = None
    on_data_loss: Literal["fail", "continue"] = "fail"
    dead_letters: Literal["table", "fail", "skip"] = "table"
    max_dead_letters: int | str | None = None
    max_record_bytes: int | None = None
    samples: bool = True
    mask: tuple[str, ...] = ()
    format: Format = "json"
    schema_file: str | None = None
    message: str | None = None
    subject: str | None = None
    key_format: Format | None = None
    key_column: str = "_key"
    key_schema: str | None = None
    key_schema_file: str | None = None
    infer_timestamps: bool = False
    evolution: EvolutionMode = "evolve"
    on_incompatible: OnIncompatible = "dead_letter"
    renames: Mapping[str, str] = field(default_factory=dict)
    max_columns: int = 1000
    compatibility: Compatibility = "none"
    arrow: bool = True
    timestamp_unit: TimestampUnit | None = None
    timestamp_precision: TimestampPrecision = "micros"

    @property
    def identifier(self) -> tuple[str, str]:
        """Return namespace and name of the table."""
        return self.namespace, self.table

    @property
    def dead_letter_table(self) -> tuple[str, str]:
        """Return namespace and name of the dead-letter table: the table's with an ending, cut where it is too long."""
        return self.namespace, shortened(self.table, "__dead_letters")

    @property
    def group(self) -> str:
        """Return the consumer group that mirrors the position."""
        return self.consumer_group or f"kafka-lake.{self.namespace}.{self.table}"

    @property
    def value_subject(self) -> str:
        """Return the registry's subject of the values."""
        return self.subject or f"{self.topic}-value"

    @property
    def policy(self) -> Policy:
        """Return how the table may change."""
        return Policy(self.evolution, self.on_incompatible, self.renames)

    def is_within_limit(self, dead_letters: int, records: int) -> bool:
        """Return whether a run may go on with so many dead letters among so many records.

        Raises:
            ConfigurationError: If ``max_dead_letters`` is neither a count nor a share.
        """
        limit = dead_letter_limit(self.max_dead_letters)
        if limit is None:
            return True
        return dead_letters <= (limit * records if isinstance(limit, float) else limit)


def dead_letter_limit(text: int | str | None) -> int | float | None:
    """Return ``max_dead_letters`` as a count (int) or a share of the records (float, 0 to 1).

    Raises:
        ConfigurationError: If it is neither.

    >>> dead_letter_limit(100), dead_letter_limit("5%"), dead_letter_limit(None)
    (100, 0.05, None)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(?:(?P<count>\d+)|(?P<share>\d+(?:\.\d+)?)\s*%)", str(text).strip())
    if match and match["count"]:
        return int(match["count"])
    if match and float(match["share"]) <= 100:
        return float(match["share"]) / 100
    raise ConfigurationError(f"max_dead_letters: {text!r} is no limit.", "Write a count as 100, or a share as 5%.")


def derived_table_name(topic: str) -> str:
    """Return the table name that a topic gets by default.

    >>> derived_table_name("shop.Completed-Pizzas")
    'shop_completed_pizzas'
    """
    name = _NO_NAME.sub("_", topic.lower()).strip("_")
    return name if name[:1].isalpha() else f"t_{name}"
