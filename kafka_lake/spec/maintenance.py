"""The group ``maintenance:`` of a table: how it is kept fast, and how long its past is kept."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from kafka_lake.common.text import is_cron, limit_of, seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.settings import Duration, Problem, Settings, ShortFor, Text


class Verification(Settings):
    """When a table is verified: text alone is `schedule`."""

    schedule: Text = Field(description="Cron schedule, in UTC.", examples=["0 3 * * *", "@daily"])
    sample: Text = Field(default="1%", description="Share of records whose values are compared.", examples=["5%"])
    since: Duration | None = Field(
        default=None,
        description="Verify only records of this period, by Kafka timestamp. Default: all records that Kafka still "
        "has.",
        examples=["7d"],
    )

    def problems(self) -> Iterator[Problem]:
        """Give a schedule or a share that can't be."""
        if not is_cron(self.schedule):
            why = f"{self.schedule!r} isn't a schedule. Write minute, hour, day, month, weekday: 0 3 * * *"
            yield ("schedule",), why
        try:
            limit = limit_of(self.sample, "sample")
        except ConfigurationError:
            limit = None
        if not isinstance(limit, float):
            yield ("sample",), f"{self.sample!r} is not a share. Write for example 1%"

    @property
    def share(self) -> float:
        """Return the share of the records whose values are compared, 0 to 1."""
        return float(limit_of(self.sample, "sample") or 0.0)


class Maintenance(Settings):
    """How tables are kept fast, and for how long their past is kept. Everything has a default."""

    row_retention: Duration | None = Field(
        default=None,
        description="Delete rows and dead letters older than this, by Kafka timestamp. A row may stay up to 10% "
        "longer, at most a day. `null` keeps all rows. Only for `write: append`.",
        examples=["90d"],
    )
    enabled: bool | None = Field(
        default=None,
        description="Whether maintenance runs automatically. Default: only for tables that kafka_lake created.",
    )
    compact_every: Annotated[int, Field(ge=2)] | None = Field(
        default=100,
        description="Compact after this many commits, or earlier if a fifth of the rows are deleted. `null` never "
        "compacts.",
    )
    expire_after: Duration | None = Field(
        default="5d",
        description="Expire snapshots older than this. The newest snapshot with a position always stays. `null` "
        "expires none.",
    )
    keep_snapshots: int = Field(default=100, ge=1, description="Number of newest snapshots that never expire.")

    verify: Annotated[Verification | None, ShortFor("schedule")] = Field(
        default=None,
        description="Schedule of the check `verified`, as cron, or with more settings. See [verify](verify.md). "
        "`null` turns the check off.",
        examples=["0 3 * * *", {"schedule": "@daily", "since": "7d"}],
    )

    def problems(self) -> Iterator[Problem]:
        """Give a retention that would keep no row."""
        if self.row_retention is not None and not self.row_retention_seconds:
            why = f"{self.row_retention} would delete every row. Write null to keep all rows"
            yield ("row_retention",), why

    def over(self, defaults: "Maintenance | None") -> "Maintenance":
        """Return these settings; those that aren't written are the defaults'."""
        written = {name: getattr(self, name) for name in self.model_fields_set}
        return self if defaults is None else defaults.model_copy(update=written)

    @property
    def expire_after_seconds(self) -> float | None:
        """Return the age at which a snapshot expires; None if no snapshot expires by its age."""
        return None if self.expire_after is None else seconds_of(self.expire_after)

    @property
    def row_retention_seconds(self) -> float | None:
        """Return the age at which a row expires; None if no row expires."""
        return None if self.row_retention is None else seconds_of(self.row_retention)
