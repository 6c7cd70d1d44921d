"""Settings of maintenance."""

from pydantic.dataclasses import dataclass as settings

from kafka_lake.common.text import seconds_of


@settings(frozen=True)
class Maintenance:
    """How tables are kept fast, and how long their past is kept; `config.maintenance` says what the settings mean."""

    enabled: bool | None = None
    compact_every: int | None = 100
    expire_after: str | None = "5d"
    keep_snapshots: int = 100
    keep_rows: str | None = None
    by: str | None = None

    @property
    def expire_after_seconds(self) -> float | None:
        """Return how old a snapshot gets; None if none expires by its age. Raises `ConfigurationError`."""
        return None if self.expire_after is None else seconds_of(self.expire_after)

    @property
    def keep_rows_seconds(self) -> float | None:
        """Return how old a row gets; None if none expires. Raises `ConfigurationError`."""
        return None if self.keep_rows is None else seconds_of(self.keep_rows)
