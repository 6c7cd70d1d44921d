"""Time partitions of derived tables: the keys that rows get are those that Dagster has."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from kafka_lake.derived.derived_table import DerivedTable, TimePartitions, Unit
from kafka_lake.derived.stage import time_type
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.derived_assets import time_partitions_of

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(partitions: str) -> DerivedTable:
    return DerivedTable(
        table="t", sources=("orders",), write="append", sql="SELECT * FROM orders", partitions=partitions
    )


@given(
    unit=st.sampled_from(get_args(Unit)),
    since=st.dates(datetime(1900, 1, 1).date(), datetime(2026, 1, 1).date()),
    after=st.timedeltas(timedelta(), timedelta(days=70)),
)
def test_keys_of_hours_are_those_that_dagster_has(unit: Unit, since: Any, after: timedelta) -> None:
    since = since.replace(day=1) if unit == "monthly" else since
    cut = TimePartitions(unit, "at", since.isoformat())
    known = time_partitions_of(table(f"{unit}(at, {since})"))
    assert known is not None
    now = datetime(since.year, since.month, since.day, tzinfo=UTC) + after
    keys = known.get_partition_keys(current_time=now)
    assert EPOCH + cut.first_hour * HOUR == known.time_window_for_partition_key(keys[0]).start
    end = (known.time_window_for_partition_key(keys[-1]).end - EPOCH) // HOUR
    assert list(dict.fromkeys(cut.key(each) for each in range(cut.first_hour, end))) == list(keys)


@pytest.mark.parametrize(
    ("columns", "unit", "why"),
    [
        ("id int", "daily", "Table lake.t: partitions: at is not a column of the table"),
        ("at bigint", "daily", "Table lake.t: partitions: at has type bigint"),
        ("at timestamp_ntz", "daily", "Table lake.t: partitions: at has type timestamp_ntz"),
        ("at date", "hourly", "Table lake.t: partitions: at has type date"),
        ("At timestamp", "hourly", ""),
        ("at date", "monthly", ""),
    ],
)
def test_partition_column_without_its_time_is_refused(columns: str, unit: Unit, why: str) -> None:
    name, kind = columns.split()
    types = {"int": T.IntegerType(), "bigint": T.LongType(), "timestamp": T.TimestampType(), "date": T.DateType()}
    there = T.StructType().add(name, types.get(kind, T.TimestampNTZType()))
    spec = table(f"{unit}(at, 2026-01-01)")
    if why:
        with pytest.raises(ConfigurationError, match=why):
            time_type(spec, there)
    else:
        assert time_type(spec, there) == kind
