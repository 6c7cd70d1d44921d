"""Bounds of keys: no row that has a key lies outside of them."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from kafka_lake.derive.bounds import Bound, Source, _moved, source_of, texts
from kafka_lake.derive.detect import Changes
from kafka_lake.derive.report import DeriveReport, UpstreamRead


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("store", Source("store")),
        ("`a b`", Source("a b")),
        ("date_trunc('HOUR', at)", Source("at", after=timedelta(hours=4))),
        ("to_date(at)", Source("at", timedelta(days=1), timedelta(days=2), of_date=True)),
        ("CAST(at AS DATE)", Source("at", timedelta(days=1), timedelta(days=2), of_date=True)),
        ("to_date(at, 'yyyy')", None),
        ("date_trunc('fortnight', at)", None),
        ("date_trunc('hour', at + INTERVAL 1 DAY)", None),
        ("trunc(at, 'month')", None),
        ("upper(store)", None),
        ("o.store", None),
        ("CAST(at AS STRING)", None),
        ("1", None),
    ],
)
def test_a_key_is_bound_by_its_column_where_that_is_certain(expression: str, expected: Source | None) -> None:
    assert source_of(expression) == expected


UNITS = {"minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    st.sampled_from(sorted(UNITS)),
    st.integers(-14 * 4, 14 * 4),
)
def test_a_time_lies_within_the_bounds_of_its_truncated_time(moment: datetime, unit: str, quarters: int) -> None:
    at = moment.replace(tzinfo=UTC)
    zone = timedelta(minutes=15 * quarters)
    begin = datetime(1899, 1, 2, tzinfo=UTC)
    # As Spark does in a session of that time zone.
    since = (at + zone - begin).total_seconds() // UNITS[unit] * UNITS[unit]
    key = begin + timedelta(seconds=since) - zone
    micros = (key - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    source = source_of(f"date_trunc('{unit}', at)")
    assert source is not None
    low, high = (_moved(micros, by, T.TimestampType()) for by in (-source.before, source.after))
    assert low <= at <= high  # type: ignore[operator]
    day = (at + zone).date()
    of_day = source_of("to_date(at)")
    assert of_day is not None
    low, high = (_moved(day, by, T.TimestampType()) for by in (-of_day.before, of_day.after))
    assert low <= at <= high  # type: ignore[operator]


@pytest.mark.parametrize(
    ("value", "expected"), [(3, 3), ("a", "a"), (date(2026, 1, 1), date(2026, 1, 1)), (None, None)]
)
def test_other_values_stay_as_they_are(value: Any, expected: Any) -> None:
    assert _moved(value, timedelta(), T.StringType()) == expected


def test_bounds_with_nulls_leave_no_file_out() -> None:
    told = [Bound("a", 1, 2, False), Bound("b", 1, 2, True), Bound("c", None, None, True)]
    assert list(texts(told)) == [("a", "1", "2")]


def test_rows_of_partitions_that_had_none_are_new_from_their_first_offset() -> None:
    assert Changes(True, {2: 5}).new_since == {0: 0, 1: 0, 2: 5}
    assert Changes(True).new_since == {}


@pytest.mark.parametrize(
    ("rows", "new", "scanned", "expected"),
    [
        (1_000_000, 10, 900_000, True),
        (1_000_000, 10, 400_000, False),
        (1_000_000, 20_000, 900_000, False),
        (1_000, 1, 1_000, False),
    ],
)
def test_a_large_table_that_is_read_for_hardly_anything_is_told_of(
    rows: int, new: int, scanned: int, expected: bool
) -> None:
    read = UpstreamRead(1, rows, new, scanned)
    assert read.wasteful is expected
    assert bool(DeriveReport("t", upstream={"o": read}).wasteful) is expected
    assert not DeriveReport("t", full="the table is new", upstream={"o": read}).wasteful
