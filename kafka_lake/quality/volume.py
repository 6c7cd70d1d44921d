"""Volume: compares the rows of the last hour or day with the median of those before it. Pure.

The band is a multiple of the median absolute deviation, which outliers don't move; times 1.4826 it is the standard
deviation of normally distributed values. https://en.wikipedia.org/wiki/Median_absolute_deviation
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from kafka_lake.spec.rule import LEAST_HISTORY

SECONDS = {"hour": 3600, "day": 86_400}
LEAST_SHARE = 0.1
"""The band reaches at least this share of the median to either side: equal counts have no deviation."""
LEAST_ROWS = 10
"""The band reaches at least so many rows to either side."""
_NORMAL = 1.4826


@dataclass(frozen=True)
class Band:
    """The expected number of rows, inclusive, and the median of the periods before."""

    low: float
    high: float
    median: float
    periods: int

    def __contains__(self, rows: int) -> bool:
        """Return whether a count is in the band."""
        return self.low <= rows <= self.high


@dataclass(frozen=True)
class VolumeFound:
    """Result of a volume rule.

    Args:
        start: Start of the period, in seconds since the epoch.
        rows: Rows of the period.
        band: None if there is too little history.
        periods: Number of periods before it.
    """

    start: int
    rows: int
    band: Band | None
    periods: int

    @property
    def is_broken(self) -> bool:
        """Return whether there are too few rows, or too many."""
        return self.band is not None and self.rows not in self.band

    @property
    def facts(self) -> dict[str, object]:
        """Return what the check shows."""
        told: dict[str, object] = {"period": _time(self.start), "rows": self.rows, "periods_before": self.periods}
        if self.band is None:
            return told | {"band": f"none yet: {self.periods} of {LEAST_HISTORY} periods"}
        return told | {"band": f"{self.band.low:.0f} to {self.band.high:.0f}", "median": self.band.median}

    @property
    def said(self) -> str:
        """Return the number of rows and the band as text."""
        assert self.band is not None, "without one nothing is broken"
        return (
            f"{self.rows} rows in the period from {_time(self.start)}, and {self.band.low:.0f} to {self.band.high:.0f} "
            f"are expected by the {self.periods} periods before it"
        )


def starts_before(now: float, per: str, days: int) -> list[int]:
    """Return the start of the last complete period in UTC, and those of the periods it is compared with.

    The hours of other days are the same hour; the newest period comes first.

    >>> [datetime.fromtimestamp(each, UTC).strftime("%d %H:%M") for each in starts_before(1_700_000_000, "hour", 2)]
    ['14 21:00', '13 21:00', '12 21:00']
    """
    last = int(now // SECONDS[per] - 1) * SECONDS[per]
    return [last - SECONDS["day"] * each for each in range(days + 1)]


def volume_of(counts: Mapping[int, int], starts: Sequence[int], deviations: float) -> VolumeFound:
    """Return the result for row counts by start of the period."""
    last, *before = [counts.get(start, 0) for start in starts]
    while before and not before[-1]:
        before.pop()
    if len(before) < LEAST_HISTORY:
        return VolumeFound(starts[0], last, None, len(before))
    middle = float(median(before))
    spread = _NORMAL * float(median(abs(each - middle) for each in before))
    reach = max(deviations * spread, LEAST_SHARE * middle, LEAST_ROWS)
    band = Band(low=max(0.0, middle - reach), high=middle + reach, median=middle, periods=len(before))
    return VolumeFound(starts[0], last, band, len(before))


def _time(start: int) -> str:
    return datetime.fromtimestamp(start, UTC).isoformat().replace("+00:00", "Z")
