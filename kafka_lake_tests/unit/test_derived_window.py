"""Time partitions of derived tables: the keys that rows get are those that Dagster has."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.derived_assets import time_partitions_of
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.partitioned import Brought, warn_of
from kafka_lake.derive.window import TimePartitions, Unit

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(partitions: str) -> DerivedTable:
    return DerivedTable("t", sources=("orders",), write="append", sql="SELECT * FROM orders", partitions=partitions)


@given(
    unit=st.sampled_from(get_args(Unit)),
    since=st.dates(datetime(1900, 1, 1).date(), datetime(2026, 1, 1).date()),
    after=st.timedeltas(timedelta(), timedelta(days=70)),
)
def test_what_is_shown_is_what_dagster_has(unit: Unit, since: Any, after: timedelta) -> None:
    since = since.replace(day=1) if unit == "monthly" else since
    cut = TimePartitions(unit, "at", since.isoformat())
    known = time_partitions_of(table(f"{unit}(at, {since})"))
    assert known is not None
    now = datetime(since.year, since.month, since.day, tzinfo=UTC) + after
    first, end = cut.shown(now.timestamp())
    keys = known.get_partition_keys(current_time=now)
    assert list(dict.fromkeys(cut.key(each) for each in range(first, end))) == list(keys)
    window = known.time_window_for_partition_key(keys[0])
    assert EPOCH + first * HOUR == window.start
    assert known.time_window_for_partition_key(keys[-1]).end == EPOCH + end * HOUR


@pytest.mark.parametrize(
    ("kind", "unit", "said"),
    [
        (None, "daily", "Table lake.t: partitions: at is no column of the table"),
        ("bigint", "daily", "Table lake.t: partitions: at has type bigint"),
        ("date", "hourly", "Table lake.t: partitions: at has type date, which tells no hours"),
    ],
)
def test_a_column_that_tells_no_time_is_told_with_its_table(kind: str | None, unit: Unit, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TimePartitions(unit, "at", "2026-01-01").checked(kind, "lake.t")


def test_it_is_told_which_rows_dagster_does_not_show() -> None:
    said: list[str] = []
    warn_of(table("daily(at, 2026-01-01)"), Brought(("2026-01-01",), early=5, timeless=3), said.append)
    assert said == [], "they are a figure of the run"
    warn_of(table("daily(at, 2026-01-01)"), Brought(("2026-01-01",), more=1200, future=1000), said.append)
    assert "by at, 1,000 of the rows that came are in the future" in said[0]
    assert "rows of 1,201 partitions came. Dagster shows the newest 1 of these" in said[1]
