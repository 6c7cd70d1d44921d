"""Durations: what is one, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.text import seconds_of
from kafka_lake.errors import ConfigurationError

SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("30m", 1800), ("24h", 86400), ("7d", 604800), (" 1.5 h", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@given(st.integers(0, 10**6), st.sampled_from(list(SECONDS)))
def test_they_are_read_whole(number: int, unit: str) -> None:
    assert seconds_of(f" {number}{unit} ") == pytest.approx(number * SECONDS[unit])


@pytest.mark.parametrize(
    "text", ["", "2", "s", "h", "2 days", "-1s", "1w", "1h30m", "1,5s", "2sec", "inf s", "nan s", "٣h"]
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a duration"):
        seconds_of(text)
