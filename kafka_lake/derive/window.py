"""Time partitions of a derived table: which rows are of an hour, a day or a month. Pure.

They are Dagster's, and have nothing to do with how Iceberg lays the files out: a partition can be computed again by
itself.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.catalog import quoted

Unit = Literal["hourly", "daily", "monthly"]
EXAMPLE = "daily(ordered_at, 2026-01-01)"
_TEXT = re.compile(rf"({'|'.join(get_args(Unit))})\(\s*([^,()]*[^,()\s])\s*,\s*(\d{{4}}-\d\d-\d\d)\s*\)")
_FORMATS = {"hourly": "%Y-%m-%d-%H:%M", "daily": "%Y-%m-%d", "monthly": "%Y-%m-%d"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LITERALS = {
    "timestamp": "TIMESTAMP '{:%Y-%m-%d %H:%M:%S} UTC'",
    "timestamp_ntz": "TIMESTAMP_NTZ '{:%Y-%m-%d %H:%M:%S}'",
    "date": "DATE '{:%Y-%m-%d}'",
}
_MICROS = "timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {0})"
_HOURS = {
    "timestamp": "floor(unix_seconds({}) / 3600)",
    # Whole microseconds, since Spark rounds seconds towards 1970.
    "timestamp_ntz": f"floor(({_MICROS} - pmod({_MICROS}, 3600000000)) / 3600000000)",
    "date": "24 * datediff({}, DATE '1970-01-01')",
}


@dataclass(frozen=True)
class TimePartitions:
    """How a table is cut into partitions."""

    unit: Unit
    column: str
    since: str

    @classmethod
    def of(cls, text: str) -> "TimePartitions":
        """Parse what the setting has.

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

    def key(self, hours: int) -> str | None:
        """Return the key of a partition, as Dagster has it; None outside the years 1 to 9999.

        >>> TimePartitions("daily", "at", "2026-01-01").key(24 * 20_000 + 5)
        '2024-10-04'
        >>> TimePartitions("daily", "at", "2026-01-01").key(100_000_000) is None
        True
        """
        try:
            at = _EPOCH + timedelta(hours=hours)
        except OverflowError:
            return None
        if self.unit != "hourly":
            at = at.replace(hour=0)
        return (at.replace(day=1) if self.unit == "monthly" else at).strftime(_FORMATS[self.unit])

    def shown(self, now: float) -> tuple[int, int]:
        """Return when the first partition begins, and when the one ends that has begun, in hours since 1970.

        >>> TimePartitions("monthly", "at", "1970-01-01").shown(31.5 * 86400)
        (0, 1416)
        """
        first = datetime.fromisoformat(self.since).replace(tzinfo=UTC)
        end = datetime.fromtimestamp(now, UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        while self.unit != "hourly" and (end.hour or (self.unit == "monthly" and end.day != 1)):
            end += timedelta(hours=1)
        since, until = ((each - _EPOCH) // timedelta(hours=1) for each in (first, end))
        return since, until

    def hours(self, kind: str) -> str:
        """Return the expression that gives a row's hours since 1970, in Spark SQL."""
        return _HOURS[kind].format(quoted(self.column))

    def checked(self, kind: str | None, table: str) -> str:
        """Return the type of the column, which tells the time of rows.

        Raises:
            ConfigurationError: If it doesn't.
        """
        if kind is None or kind not in _LITERALS:
            why = "is no column of the table" if kind is None else f"has type {kind}"
            raise ConfigurationError(
                f"Table {table}: partitions: {self.column} {why}.",
                "Name a column of type timestamp or date of the query's result.",
            )
        if kind == "date" and self.unit == "hourly":
            raise ConfigurationError(
                f"Table {table}: partitions: {self.column} has type date, which tells no hours.",
                "Write daily instead of hourly.",
            )
        return kind


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

    def __str__(self) -> str:
        start, end = (each.astimezone(UTC) for each in (self.start, self.end))
        return f"{self.partitions.column} from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
