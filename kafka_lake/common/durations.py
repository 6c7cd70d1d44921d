"""Durations as people write them: 500ms, 30s, 10m, 1.5h, 7d."""

import re

from kafka_lake.common.errors import ConfigurationError

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
            f"{text!r} is no duration.", "Write a number and ms, s, m, h or d: 500ms, 30s, 10m, 24h, 7d."
        )
    return float(match[1]) * _UNITS[match[2]]
