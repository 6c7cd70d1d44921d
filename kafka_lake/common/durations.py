"""Durations as people write them: 500ms, 30s, 10m, 1.5h, 7d."""

import re

from kafka_lake.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigurationError: If the text is none.

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
    """Return a time as people say it when they aren't sure of it.

    >>> [rough(each) for each in (0.2, 45, 100, 3600, 9000, 200_000)]
    ['1 s', '45 s', '2 min', '60 min', '2.5 h', '2.3 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"
