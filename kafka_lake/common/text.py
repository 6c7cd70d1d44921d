"""Text for people: durations, numbers with what they count, and the text of records made safe to show."""

import re

from kafka_lake.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """Return a duration in seconds.

    >>> seconds_of("500ms"), seconds_of("0s"), seconds_of("30m"), seconds_of("1.5h"), seconds_of("7d")
    (0.5, 0.0, 1800.0, 5400.0, 604800.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text.strip(), re.ASCII)
    if match is None:
        raise ConfigurationError(
            f"{text!r} is not a duration.", "Write a number and ms, s, m, h or d: 500ms, 30s, 10m, 24h, 7d."
        )
    return float(match[1]) * _UNITS[match[2]]


def rough(seconds: float) -> str:
    """Return an approximate duration.

    >>> [rough(seconds) for seconds in (0.2, 45, 100, 3600, 9000, 200_000)]
    ['1 s', '45 s', '2 min', '60 min', '2.5 h', '2.3 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"


def printable(text: str) -> str:
    r"""Return text that a terminal shows in one line and never obeys.

    >>> printable("a\n b\x1b[2J")
    'a b�[2J'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def counted(count: int, what: str, plural: str = "s") -> str:
    """Return a number and what it counts.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "branch", "es")
    ('1 row', '1,200 rows', '2 branches')
    """
    return f"{count:,} {what}{'' if count == 1 else plural}"


def offset_span(start: int, end: int | None) -> str:
    """Return the first and the last of some offsets; ``end`` is exclusive, and None if it is unknown.

    >>> offset_span(3, 9), offset_span(3, 4), offset_span(3, None)
    ('3 to 8', '3', 'from 3 on')
    """
    if end is None:
        return f"from {start:,} on"
    return f"{start:,} to {end - 1:,}" if end - start > 1 else f"{start:,}"
