"""The settings of maintenance. Pure."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from kafka_lake.common.durations import seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.layout import parse_sort_field


@dataclass(frozen=True)
class Maintenance:
    """How the tables of a topic are kept fast, and for how long their past is kept."""

    enabled: bool | None = Field(
        default=None,
        description="Whether the sensor asks for it. By default for tables that kafka_lake has created, and not for "
        "tables that were taken over.",
    )
    # The bound is of the number alone: what Dagster makes of the field would ask null for it, too.
    compact_every: Annotated[int, Field(ge=2)] | None = Field(
        default=100,
        description="Small files, and files with many deleted rows, are rewritten after this many commits, or when a "
        "fifth of the rows are deleted ones; null for never.",
    )
    compact_sort: tuple[str, ...] = Field(
        default=(),
        description="By which columns a compaction sorts the rows; by default by the table's `sort_by`. For the "
        "topic's own table. Rows that aren't compacted keep the order that they came in.",
        examples=[["customer_id", "ordered_at desc"]],
    )
    expire_after: str | None = Field(
        default="5d",
        description="Snapshots older than this expire: as 36h or 5d; null for never. The newest one with a position "
        "never expires.",
    )
    keep_snapshots: int = Field(
        default=100, ge=1, description="So many of the newest snapshots stay, however old they are."
    )
    keep_rows: str | None = Field(
        default=None,
        description="Rows and dead letters older than this are deleted: as 90d or 36h; null for never. For tables with "
        "write: append. A row may stay for a tenth of this longer, at most for a day.",
        examples=["90d"],
    )
    by: str | None = Field(
        default=None,
        description="With keep_rows: the column that tells how old a row is, of type timestamp or date, a "
        "field of a struct as `struct.field`. By default Kafka's timestamp, `_kafka.timestamp`. Without a time zone it "
        "is UTC. A row stays if it has no time there. Of dead letters Kafka's timestamp counts.",
        examples=["created_at"],
    )

    @property
    def expire_after_seconds(self) -> float | None:
        """Return how old a snapshot gets; None if none expires by its age. Raises `ConfigurationError`."""
        return None if self.expire_after is None else seconds_of(self.expire_after)

    @property
    def keep_rows_seconds(self) -> float | None:
        """Return how old a row gets; None if none expires. Raises `ConfigurationError`."""
        return None if self.keep_rows is None else seconds_of(self.keep_rows)

    @property
    def compact_columns(self) -> tuple[str, ...]:
        """Return the columns by which a compaction sorts. Raises `ConfigurationError`."""
        return tuple(parse_sort_field(text)[0] for text in self.compact_sort)

    def order_problem(self) -> str:
        """Return why a compaction can't sort as it is asked to, whatever the table; empty if it can."""
        if self.compact_sort and self.compact_every is None:
            return "maintenance: compact_sort has no effect with compact_every: null. Leave one of them out."
        for text in self.compact_sort:
            try:
                parse_sort_field(text)
            except ConfigurationError:
                return f"maintenance: compact_sort: {text!r} is not understood. Write `column` or `column desc`."
        return ""
