"""New upstream rows that came later than somebody expects: they are computed as all others, and counted."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.query import ORIGIN
from kafka_lake.lake.catalog import quoted

_TIMES = (T.TimestampType, T.TimestampNTZType, T.DateType)


def late_rows(frames: Frames, spec: DerivedTable, plan: DerivePlan) -> int | None:
    """Return how many of the new rows came later than ``lookback``, by Kafka's timestamp of their records.

    Args:
        frames: Give what the commit reads.
        spec: The derived table.
        plan: Of the commit.

    Returns:
        None if nobody asks for it, or if everything is computed. A row without a time is not late.

    Raises:
        ConfigurationError: If no upstream table has the column ``time``, or one has it and it tells no time.
    """
    if spec.lookback is None or spec.time is None or plan.full:
        return None
    micros, late = int(seconds_of(spec.lookback) * 1_000_000), list[int]()
    for name in plan.upstream:
        rows = frames.new(name)
        if (time := _time(rows, spec, name)) is not None:
            came = F.unix_micros(f"{quoted(ORIGIN)}.`timestamp`")
            late.append(rows.filter(F.unix_micros(time) < came - micros).count())
    if not late:
        raise ConfigurationError(
            f"Table {spec.name}: time: {spec.time} is no column of {', '.join(spec.sources)}.",
            "Name the column that tells when a row happened, or leave lookback: and time: out.",
        )
    return sum(late)


def _time(rows: DataFrame, spec: DerivedTable, name: str) -> Column | None:
    """Return when a row happened; None if the table has no such column."""
    found = next((each for each in rows.schema if each.name.lower() == str(spec.time).lower()), None)
    if found is None:
        return None
    if not isinstance(found.dataType, _TIMES):
        kind = found.dataType.simpleString()
        raise ConfigurationError(
            f"Table {spec.name}: time: {spec.time} of {name} is of type {kind}, which tells no time.",
            "Name a column of type timestamp, timestamp_ntz or date.",
        )
    column = F.col(quoted(found.name))
    # A day is over at its end.
    return (F.date_add(column, 1) if isinstance(found.dataType, T.DateType) else column).cast("timestamp")
