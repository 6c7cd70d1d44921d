"""Which records of a commit are kept back, since rows that they look up aren't there yet."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.by_offset import islands, of_topic, place, rows_within
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.lookups import lacking_queries
from kafka_lake.derive.plan import DerivePlan
from kafka_lake.derive.waiting import MOST_RANGES, Waiting, joined, without


@dataclass(frozen=True)
class KeptBack:
    """What a commit does with records that find no row to look up.

    Args:
        waiting: All that are kept back after it.
        released: Offsets that were kept back before, and are no longer.
        unmatched: Records that are computed without a row that they look up.
        expired: Records that were kept back before, and whose rows the upstream table has no longer.
    """

    waiting: Waiting = field(default_factory=Waiting)
    released: tuple[OffsetRange, ...] = ()
    unmatched: int = 0
    expired: int = 0


def kept_back(
    frames: Frames,
    spec: DerivedTable,
    plan: DerivePlan,
    rows: DataFrame,
    *,
    looked_at: Sequence[OffsetRange] = (),
    replayed: Sequence[OffsetRange] = (),
) -> KeptBack:
    """Return which of the records that a commit looks at are kept back, and those that were before and stay so.

    What it returns is what was asked once: whatever Spark says later, these offsets and no others are kept back.

    Args:
        frames: Give what the commit reads.
        spec: The derived table.
        plan: Of the commit.
        rows: The rows of the upstream table that the commit looks at.
        looked_at: Those of the offsets that were kept back before whose rows are among them.
        replayed: Offsets whose rows are derived again: those needn't have any now.

    Raises:
        ConfigurationError: If the query doesn't go with the tables that it reads.
        TableError: If more records would wait than a snapshot may tell, one by one.
    """
    stays = without(plan.waiting.ranges, looked_at) if not plan.full else ()
    expired = _expired(plan, rows, without(looked_at, replayed))
    if not spec.wait_for:
        return KeptBack(Waiting(), tuple(looked_at), expired=expired)
    lacking = frames.kept(_lacking(frames, spec, plan, rows))
    lookback = seconds_of(spec.lookback or "0s")
    at, least, most = F.col("at"), int((plan.now - lookback) * 1000), int((plan.now + lookback) * 1000)
    # A clock that is far ahead doesn't keep its records back for longer than twice the time.
    waits = F.coalesce((at > least) & (at <= most), F.lit(False))
    found = _ranges(lacking.filter(waits))
    ranges = joined([*stays, *(OffsetRange(*each) for each, _ in found)])
    if len(ranges) > MOST_RANGES:
        raise TableError(
            f"Table {spec.name}: wait_for: records in more than {MOST_RANGES:,} places of the topic would wait for "
            f"{', '.join(spec.wait_for)}.",
            "main is as it was. See whether the query looks them up by the right columns; give a shorter lookback:, or "
            "leave wait_for: out.",
        )
    oldest = [each for _, each in found] + ([plan.waiting.oldest] if stays and plan.waiting.oldest is not None else [])
    waiting = Waiting(ranges, min(oldest, default=None))
    return KeptBack(waiting, without(looked_at, ranges), lacking.filter(~waits).count(), expired)


def _expired(plan: DerivePlan, rows: DataFrame, ranges: Sequence[OffsetRange]) -> int:
    """Return how many records that were kept back have no row any more; a record without one never was."""
    ((_, each),) = plan.upstream.items()
    if not ranges or not each.read.expired:
        return 0
    there = rows_within(rows, each, ranges).select(place("partition"), place("offset")).distinct()
    found: int = there.count()
    return sum(map(len, ranges)) - found


def _lacking(frames: Frames, spec: DerivedTable, plan: DerivePlan, rows: DataFrame) -> DataFrame:
    """Return partition, offset and Kafka's timestamp of records that find no row of a table that is waited for."""
    ((name, each),) = plan.upstream.items()
    asked = [frames.asked(sql, {name: rows}) for sql in lacking_queries(spec, rows.columns)]
    places = [
        one.filter(of_topic(each)).select(
            place("partition").alias("partition"), place("offset").alias("offset"),
            F.unix_millis(place("timestamp")).alias("at"),
        )
        for one in asked
    ]  # fmt: skip
    every = reduce(DataFrame.union, places)
    # One row a record, whatever an upstream query has made of it.
    return every.groupBy("partition", "offset").agg(F.min("at").alias("at"))


def _ranges(places: DataFrame) -> list[tuple[tuple[int, int, int], int]]:
    """Return the offsets of records as ranges, each with its least timestamp: one more than allowed at most."""
    found = islands(places).select("partition", "starts", "ends", "at").limit(MOST_RANGES + 1).collect()
    return [((partition, first, end), at) for partition, first, end, at in found]
