"""The group ``maintenance:`` of a table."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from kafka_lake.config.settings import Duration, OptionalText, Problem, Settings, ShortFor
from kafka_lake.spec.maintenance import Maintenance


class RowRetention(Settings):
    """How long rows stay: text alone is `older_than`."""

    older_than: Duration = Field(
        description="Rows and dead letters older than this are deleted: as 90d or 36h. A row may stay for a tenth of "
        "this longer, at most for a day.",
        examples=["90d"],
    )
    by: OptionalText = Field(
        default=None,
        description="The column that tells how old a row is, of type timestamp or date, a field of a struct as "
        "`struct.field`. By default Kafka's timestamp, `_kafka.timestamp`. Without a time zone it is UTC. A row "
        "without a time stays. Dead letters count by Kafka's timestamp.",
        examples=["created_at"],
    )


class MaintenanceSettings(Settings):
    """How tables are kept fast, and for how long their past is kept. Everything has a default."""

    row_retention: Annotated[RowRetention | None, ShortFor("older_than")] = Field(
        default=None,
        description="Rows and dead letters older than this are deleted: as 90d or 36h, by Kafka's timestamp; or "
        "`{older_than: 90d, by: created_at}`. null for never. For tables with write: append.",
        examples=["90d", {"older_than": "90d", "by": "created_at"}],
    )
    enabled: bool | None = Field(
        default=None,
        description="Whether the sensor asks for it. By default for tables that kafka_lake has created, and not for "
        "tables that were taken over.",
    )
    compact_every: Annotated[int, Field(ge=2)] | None = Field(
        default=100,
        description="Small files, and files with many deleted rows, are rewritten after this many commits, or when a "
        "fifth of the rows are deleted ones; null for never.",
    )
    expire_after: Duration | None = Field(
        default="5d",
        description="Snapshots older than this expire: as 36h or 5d; null for never. The newest one with a position "
        "never expires.",
    )
    keep_snapshots: int = Field(
        default=100, ge=1, description="So many of the newest snapshots stay, however old they are."
    )

    def problems(self) -> Iterator[Problem]:
        """Give what can't be, whatever the table."""
        if self.row_retention is not None and not self.policy().keep_rows_seconds:
            why = f"{self.row_retention.older_than} would delete every row. Write null to keep all rows"
            yield ("row_retention",), why

    def policy(self, defaults: "MaintenanceSettings | None" = None) -> Maintenance:
        """Return the settings as maintenance takes them; those that aren't written are the defaults'."""
        written = {name: getattr(self, name) for name in self.model_fields_set}
        chosen = self if defaults is None else defaults.model_copy(update=written)
        rows = chosen.row_retention
        return Maintenance(
            enabled=chosen.enabled,
            compact_every=chosen.compact_every,
            expire_after=chosen.expire_after,
            keep_snapshots=chosen.keep_snapshots,
            keep_rows=rows.older_than if rows else None,
            by=rows.by if rows else None,
        )
