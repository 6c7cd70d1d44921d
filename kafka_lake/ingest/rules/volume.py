"""Volume: did the last hour or day bring as many rows as those before it? By the median and what is around it. Pure.

https://en.wikipedia.org/wiki/Median_absolute_deviation: half of the values lie within it, and a few that are far off
don't move it. Times 1.4826 it is the standard deviation of values that are normally distributed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

SECONDS = {"hour": 3600, "day": 86_400}
"""How long a period is."""
LEAST_HISTORY = 5
"""With fewer periods there is no band."""
LEAST_SHARE = 0.1
"""So much of the median the band reaches to either side at least: equal counts have no deviation."""
LEAST_ROWS = 10
"""Likewise, in rows."""
_NORMAL = 1.4826


@dataclass(frozen=True)
class Band:
    """Between how many rows a period is expected to have, both allowed.

    Args:
        median: Of the periods before it.
    """

    low: float
    high: float
    median: float
    periods: int

    def __contains__(self, rows: int) -> bool:
        """Return whether a count is in it."""
        return self.low <= rows <= self.high


@dataclass(frozen=True)
class VolumeFound:
    """What a volume rule found.

    Args:
        start: Where the period begins, in seconds since the epoch.
        rows: How many rows it has.
        band: What was expected; None if there is too little history.
        periods: How many periods of history there are.
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
        """Return how many rows there are beside the band, in words."""
        assert self.band is not None, "without one nothing is broken"
        return (
            f"{self.rows} rows in the period from {_time(self.start)}, and {self.band.low:.0f} to {self.band.high:.0f} "
            f"are expected by the {self.periods} periods before it"
        )


def starts_before(now: float, per: str, days: int) -> list[int]:
    """Return where the last period that is over begins, and then those that it is compared with, newest first.

    Args:
        per: `hour`: the same hours of the days before; `day`: the days before. In UTC.

    >>> [datetime.fromtimestamp(each, UTC).strftime("%d %H:%M") for each in starts_before(1_700_000_000, "hour", 2)]
    ['14 21:00', '13 21:00', '12 21:00']
    """
    last = int(now // SECONDS[per] - 1) * SECONDS[per]
    return [last - SECONDS["day"] * each for each in range(days + 1)]


def volume_of(counts: Mapping[int, int], starts: Sequence[int], deviations: float) -> VolumeFound:
    """Return what counts of rows say of the last period.

    Args:
        counts: Rows by where their period begins; those without rows may be missing.
        starts: As `starts_before` gives them. Before the first period that has rows there was no topic yet.
        deviations: How many standard deviations the band reaches to either side.
    """
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
