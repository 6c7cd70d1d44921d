"""What a topic's table shall be: the settings of one YAML document, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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

    @property
    def identifier(self) -> tuple[str, str]:
        """Return namespace and name of the table."""
        return self.namespace, self.table

    @property
    def dead_letters(self) -> tuple[str, str]:
        """Return namespace and name of the dead-letter table."""
        return self.namespace, f"{self.table}__dead_letters"

    @property
    def group(self) -> str:
        """Return the consumer group that mirrors the position."""
        return self.consumer_group or f"kafka-lake.{self.namespace}.{self.table}"
