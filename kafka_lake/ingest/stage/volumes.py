"""How many rows a table has in the last periods, for its volume rules."""

import time
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.keyed.keys import quoted
from kafka_lake.ingest.record_keys import at_version, metadata_column_of
from kafka_lake.ingest.rule import Rule
from kafka_lake.ingest.rules.volume import SECONDS, VolumeFound, starts_before, volume_of
from kafka_lake.ingest.stage.staged import StagedTable

_MOST_KNOWN = 1000
_known: dict[tuple[str, str, int], VolumeFound] = {}


def volume(context: Context, rule: Rule, staged: StagedTable) -> VolumeFound:
    """Return what a volume rule finds of the last period that is over.

    A process that makes one commit after another counts a period once, if it is as expected: that is a query over one
    column of the rows of these periods.

    Args:
        staged: The table with the commit.
    """
    given = rule.entry.volume
    assert given is not None, "the caller has looked"
    starts = starts_before(time.time(), given.per, given.days)
    key = (str(staged.state.table.metadata.table_uuid), rule.name, starts[0])
    if (known := _known.get(key)) is not None:
        return known
    found = volume_of(_counts(context, staged, starts, SECONDS[given.per]), starts, given.deviations)
    if not found.is_broken:
        # Rows that are missing may come with the next commit, of a table that is behind.
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = found
    return found


def _counts(context: Context, staged: StagedTable, starts: list[int], seconds: int) -> dict[int, int]:
    spark, name = context.connections.spark(), context.connections.catalog.spark_name(context.spec.identifier)
    at = F.col(quoted(metadata_column_of(context.spec)))["timestamp"]
    # By literals: files of other times are skipped by their statistics.
    within = reduce(or_, [(at >= _literal(start)) & (at < _literal(start + seconds)) for start in starts])
    period = (F.floor(F.unix_seconds(at) / seconds) * seconds).alias("start")
    found = at_version(spark, name, staged.snapshot).filter(within).groupBy(period).count().collect()
    return {int(row["start"]): row["count"] for row in found}


def _literal(seconds: int) -> Column:
    return F.timestamp_seconds(F.lit(seconds))
