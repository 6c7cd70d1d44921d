"""The settings of maintenance. Pure."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from kafka_lake.common.durations import seconds_of
from kafka_lake.lake.maintenance.window import window_of


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
    compact_z_order: tuple[str, ...] = Field(
        default=(),
        description="Instead of compact_sort: two columns or more, all of which queries filter by. Rows that are close "
        "in all of them come into the same files (Z-order).",
        examples=[["customer_id", "store_id"]],
    )
    expire_after: str | None = Field(
        default="5d",
        description="Snapshots older than this expire: as 36h or 5d; null for never. The newest one with a position "
        "never expires.",
    )
    keep_snapshots: int = Field(
        default=100, ge=1, description="So many of the newest snapshots stay, however old they are."
    )
    max_snapshots: int = Field(
        default=2000,
        ge=1,
        description="With expire_after: so many snapshots are kept at most, however young they are. Thousands of them "
        "make commits slow.",
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
    orphan_files: bool = Field(
        default=False,
        description="Whether files that belong to no snapshot are removed once a day, as `kafka-lake clean` does. They "
        "are left by runs and jobs that were killed. Files of the last three days stay.",
    )
    statistics: tuple[str, ...] = Field(
        default=(),
        description="Columns of the topic's own table whose distinct values are counted once a day, for engines that "
        "plan joins by it (a Puffin file). These columns are read for it, of the whole table.",
        examples=[["customer_id"]],
    )
    window: str | None = Field(
        default=None,
        description="When the sensor may ask for it: a part of each day, in UTC or in a time zone that is named; at "
        "any time by default.",
        examples=["01:00-05:00", "22:00-04:30 Europe/Berlin"],
    )

    def may_begin(self, seconds: float) -> bool:
        """Return whether it may begin at a moment, in seconds since 1970. Raises `ConfigurationError`."""
        return self.window is None or window_of(self.window).has(seconds)

    @property
    def expire_after_seconds(self) -> float | None:
        """Return how old a snapshot gets; None if none expires by its age. Raises `ConfigurationError`."""
        return None if self.expire_after is None else seconds_of(self.expire_after)

    @property
    def keep_rows_seconds(self) -> float | None:
        """Return how old a row gets; None if none expires. Raises `ConfigurationError`."""
        return None if self.keep_rows is None else seconds_of(self.keep_rows)
