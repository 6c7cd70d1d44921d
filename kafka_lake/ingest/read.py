"""Read: exactly the planned offsets, by Spark's Kafka source or, where that fails, by this process."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.kafka.records import read_ranges
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import Plan
from kafka_lake.writers.append_tables import Prewritten

NewTables = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Records:
    """The records of a commit.

    Args:
        plan: The plan, with the number of the table's records.
        other_tables: Gives the keys of records of the topic's other tables, lazily; None if all are this table's.
        written: The table's data files, if the shared job has written them.
        new_tables: Values that get tables; a commit records them before there are records for them.
        without_table: How many records have a value that gets no table.
        unmatched: Records that no table takes and that become dead letters of this table, lazy; None if there are none.
        ignored: How many records no table takes, and `unmatched: ignore` drops.
    """

    plan: Plan
    frame: DataFrame
    other_tables: Callable[[], DataFrame] | None = None
    written: Prewritten | None = None
    new_tables: NewTables = ()
    table_properties: Mapping[str, str] = field(default_factory=dict)
    without_table: int = 0
    unmatched: DataFrame | None = None
    ignored: int = 0


RECORDS_A_SPLIT = 100_000
SAMPLE_RECORDS, SAMPLE_BYTES = 20_000, 16 << 20

_TUNED = {
    # With the defaults, the source spends most of its time in small polls.
    "kafka.max.poll.records": "20000",
    # The records exist. A fetch that waits for more at the log's end would delay the next partition by half a second.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}


def read(connections: Connections, plan: Plan, topic: str) -> DataFrame:
    """Return the records of the planned ranges: key, value, topic, partition, offset, timestamp, headers."""
    if plan.by_client:
        records = read_ranges(connections.cluster, topic, plan.ranges)
        return connections.frames.from_arrow(connections.spark(), records)
    options = {**_TUNED, **connections.kafka_options}
    if plan.one_by_one:
        # A poll decompresses records behind the range, too.
        options["kafka.max.poll.records"] = "1"
    if max((len(r) for r in plan.ranges), default=0) > RECORDS_A_SPLIT:
        # Spark splits long ranges, so that all cores are busy.
        options["minPartitions"] = str(len(plan.ranges) + plan.records_at_most // RECORDS_A_SPLIT)
    options |= {
        "assign": json.dumps({topic: [r.partition for r in plan.ranges]}),
        "startingOffsets": json.dumps({topic: {str(r.partition): r.start for r in plan.ranges}}),
        "endingOffsets": json.dumps({topic: {str(r.partition): r.end for r in plan.ranges}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return connections.frames.from_kafka(connections.spark(), options)


def read_sample(connections: Connections, plan: Plan, topic: str) -> DataFrame | None:
    """Return a sample of a plan's records; None if the plan has few, or this process must read it.

    The sample has the first and last records of each range: up to `SAMPLE_RECORDS`, fewer if records are large.
    """
    most = SAMPLE_RECORDS
    if plan.record_bytes:
        most = min(most, int(SAMPLE_BYTES / plan.record_bytes))
    if plan.by_client or plan.one_by_one or plan.records_at_most <= 2 * most:
        return None
    first, last = (read(connections, replace(plan, ranges=part), topic) for part in both_ends(plan.ranges, most))
    # One task: starting another one takes longer than reading.
    return first.union(last).coalesce(1)


def both_ends(ranges: Sequence[OffsetRange], most: int) -> tuple[tuple[OffsetRange, ...], tuple[OffsetRange, ...]]:
    """Return the first and the last offsets of ranges: at most ``most`` in all, at least one of each range.

    >>> [len(part) for part in both_ends([OffsetRange(0, 0, 100), OffsetRange(1, 5, 6)], 8)]
    [2, 1]
    """
    filled = [r for r in ranges if len(r)]
    count = max(1, most // (2 * len(filled)))
    first = tuple(OffsetRange(r.partition, r.start, min(r.end, r.start + count)) for r in filled)
    last = (OffsetRange(r.partition, max(r.start + count, r.end - count), r.end) for r in filled if len(r) > count)
    return first, tuple(last)
