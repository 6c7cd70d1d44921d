"""Time partitions of a derived table: which rows are of an hour, a day or a month. Pure.

They are Dagster's, and have nothing to do with how Iceberg lays the files out: a partition can be computed again by
itself.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.catalog import quoted

Unit = Literal["hourly", "daily", "monthly"]
EXAMPLE = "daily(ordered_at, 2026-01-01)"
_TEXT = re.compile(rf"({'|'.join(get_args(Unit))})\(\s*([^,()]*[^,()\s])\s*,\s*(\d{{4}}-\d\d-\d\d)\s*\)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LITERALS = {"timestamp": "TIMESTAMP '{:%Y-%m-%d %H:%M:%S} UTC'", "date": "DATE '{:%Y-%m-%d}'"}
_HOURS = {"timestamp": "floor(unix_seconds({}) / 3600)", "date": "24 * datediff({}, DATE '1970-01-01')"}


@dataclass(frozen=True)
class TimePartitions:
    """How a table is cut into partitions."""

    unit: Unit
    column: str
    since: str

    @classmethod
    def of(cls, text: str) -> "TimePartitions":
        """Parse the setting.

        Raises:
            ConfigurationError: If it is something else.
        """
        found = _TEXT.fullmatch(text.strip())
        try:
            if found is None:
                raise ValueError("no partitions")
            first = datetime.fromisoformat(found[3])
            if found[1] == "monthly" and first.day != 1:
                raise ValueError("Dagster would begin with the next month")
        except ValueError as error:
            raise ConfigurationError(
                f"partitions: {text!r} doesn't tell how long a partition is, which column tells the time, and when the "
                "first one begins.",
                f"Write {EXAMPLE}; hourly, and monthly from the first of a month, are there, too.",
            ) from error
        unit: Unit = next(each for each in get_args(Unit) if each == found[1])
        return cls(unit, found[2], found[3])

    def key(self, hours: int) -> str:
        """Return the key of the partition that an hour since 1970 is of, as Dagster has it.

        >>> TimePartitions("daily", "at", "2026-01-01").key(24 * 20_000 + 5)
        '2024-10-04'
        """
        at = _EPOCH + timedelta(hours=hours)
        if self.unit == "hourly":
            return f"{at:%Y-%m-%d-%H:%M}"
        return f"{at.replace(day=1) if self.unit == 'monthly' else at:%Y-%m-%d}"

    @property
    def first_hour(self) -> int:
        """Return when the first partition begins, in hours since 1970."""
        return (datetime.fromisoformat(self.since).replace(tzinfo=UTC) - _EPOCH) // timedelta(hours=1)

    def hours(self, kind: str) -> str:
        """Return the expression that gives a row's hours since 1970, in Spark SQL."""
        return _HOURS[kind].format(quoted(self.column))

    def has(self, kind: str) -> bool:
        """Return whether a row's partition follows from a value of a type."""
        return kind in _HOURS and (kind != "date" or self.unit != "hourly")


@dataclass(frozen=True)
class Window:
    """The partitions that are computed again."""

    partitions: TimePartitions
    start: datetime
    end: datetime

    def condition(self, kind: str) -> str:
        """Return the condition that a row is of it, in Spark SQL.

        >>> window = Window(TimePartitions("daily", "d", "2026-01-01"), _EPOCH, _EPOCH + timedelta(days=1))
        >>> window.condition("date")
        "`d` >= DATE '1970-01-01' AND `d` < DATE '1970-01-02'"
        """
        column = quoted(self.partitions.column)
        start, end = (_LITERALS[kind].format(each.astimezone(UTC)) for each in (self.start, self.end))
        return f"{column} >= {start} AND {column} < {end}"
