"""Rows of upstream tables by the offsets of their records: conditions by which files are left out, and exact ones."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.plan import Pinned
from kafka_lake.derive.query import ORIGIN
from kafka_lake.derive.waiting import coarse, joined
from kafka_lake.lake.catalog import quoted

_MOST_CONDITIONS = 64
_BUCKET = 4096
_STARTS, _ENDS = "kafka_lake_starts", "kafka_lake_ends"
_ISLAND = "kafka_lake_island"
_PARTITION, _SECTION = "kafka_lake_partition", "kafka_lake_section"


def place(field: str) -> Column:
    """Return a field of the column that tells the record of a row."""
    return F.col(f"{quoted(ORIGIN)}.{quoted(field)}")


def of_topic(each: Pinned) -> Column:
    """Return whether a row is of the upstream table's topic as it is now."""
    topic_id = each.identity.topic_id
    return place("topic_id") == F.lit(topic_id) if topic_id else place("topic_id").isNull()


def is_new(each: Pinned, ranges: Sequence[OffsetRange] = ()) -> Column:
    """Return whether a row came after the upstream table was read, or is of some offsets."""
    since = each.changes.new_since if each.changes else {}
    found = place("partition") > max(since) if since else F.lit(True)
    for partition, offset in since.items():
        found = found | ((place("partition") == partition) & (place("offset") >= offset))
    for one in ranges:
        found = found | _in_range(one)
    return of_topic(each) & found


def within(each: Pinned, ranges: Sequence[OffsetRange]) -> Column:
    """Return whether a row is of some offsets."""
    found = F.lit(False)
    for one in ranges:
        found = found | _in_range(one)
    return of_topic(each) & found


def _in_range(one: OffsetRange) -> Column:
    return (place("partition") == one.partition) & (place("offset") >= one.start) & (place("offset") < one.end)


def new_rows(rows: DataFrame, each: Pinned, ranges: Sequence[OffsetRange] = ()) -> DataFrame:
    """Return the rows that came after the upstream table was read, and those of some offsets, however many ranges."""
    if len(ranges) <= _MOST_CONDITIONS:
        return rows.filter(is_new(each, ranges))
    others = rows.filter(within(each, coarse(ranges, _MOST_CONDITIONS)) & ~_sure(is_new(each)))
    return rows.filter(is_new(each)).unionByName(_joined(others, ranges, "left_semi"))


def rows_within(rows: DataFrame, each: Pinned, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the rows that are of some offsets, however many ranges."""
    if len(ranges) <= _MOST_CONDITIONS:
        return rows.filter(within(each, ranges))
    return _joined(rows.filter(within(each, coarse(ranges, _MOST_CONDITIONS))), joined(ranges), "left_semi")


def islands(rows: DataFrame) -> DataFrame:
    """Return the offsets that rows have as ranges, which neither overlap nor touch.

    Args:
        rows: With the columns ``partition`` and ``offset``, each offset once, and ``at``.

    Returns:
        ``partition``, ``starts``, ``ends``, and the least ``at`` of each range.
    """
    number = F.row_number().over(Window.partitionBy("partition").orderBy("offset"))
    numbered = rows.withColumn(_ISLAND, F.col("offset") - number).groupBy("partition", _ISLAND)
    found = numbered.agg(F.min("offset").alias("starts"), (F.max("offset") + 1).alias("ends"), F.min("at").alias("at"))
    return found.drop(_ISLAND)


def rows_without(rows: DataFrame, each: Pinned, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the rows that are of none of some offsets, however many ranges."""
    if not ranges:
        return rows
    if len(ranges) <= _MOST_CONDITIONS:
        return rows.filter(~_sure(within(each, ranges)))
    others = rows.filter(~_sure(of_topic(each)))
    return others.unionByName(_joined(rows.filter(of_topic(each)), ranges, "left_anti"))


def _sure(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _joined(rows: DataFrame, ranges: Sequence[OffsetRange], how: str) -> DataFrame:
    """Join rows with ranges that don't overlap, section by section, so that no row meets all of them."""
    told = [(each.partition, each.start, each.end) for each in ranges]
    given = rows.sparkSession.createDataFrame(told, f"{_PARTITION} int, {_STARTS} bigint, {_ENDS} bigint")
    first, last = F.floor(F.col(_STARTS) / _BUCKET), F.floor((F.col(_ENDS) - 1) / _BUCKET)
    sections = given.withColumn(_SECTION, F.explode(F.sequence(first, last)))
    same = (place("partition") == F.col(_PARTITION)) & (F.floor(place("offset") / _BUCKET) == F.col(_SECTION))
    inside = (place("offset") >= F.col(_STARTS)) & (place("offset") < F.col(_ENDS))
    return rows.join(sections, same & inside, how)
