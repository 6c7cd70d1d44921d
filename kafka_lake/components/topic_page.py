"""What Dagster's page of a topic shows: where it ends, what its table lacks of it, and how fast records come."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

import dagster as dg

from kafka_lake.common.offsets import Watermarks
from kafka_lake.components.keys import table_key, topic_key
from kafka_lake.ingest.topic_table import TopicTable

_PLOTTED_PARTITIONS = 20
"""Of topics with more partitions, only those that lag are told of."""


@dataclass(frozen=True)
class Told:
    """What Dagster was told of a topic before.

    Args:
        end: Its end offset, summed over the partitions.
        at: When, in seconds since 1970.
    """

    end: int
    at: float

    def rate(self, end: int, now: float) -> float | None:
        """Return how many records per second have come since; None if nobody can tell.

        Args:
            end: The end offset now. Offsets without a record count, too: of transactions and of compaction.

        >>> Told(100, 10.0).rate(400, 70.0), Told(100, 10.0).rate(40, 70.0), Told(100, 10.0).rate(400, 10.0)
        (5.0, None, None)
        """
        # A topic that was made again ends before it did.
        return round((end - self.end) / (now - self.at), 2) if end >= self.end and now > self.at else None


def told_before(instance: dg.DagsterInstance, specs: Collection[TopicTable]) -> dict[dg.AssetKey, Told]:
    """Return what Dagster was told of topics last, of those that it was told of: one query for all."""
    found = {}
    for record in instance.get_asset_records([topic_key(each) for each in specs]) if specs else ():
        event = record.asset_entry.last_materialization
        told = event.asset_materialization if event else None
        end = told.metadata.get("end_offset") if told else None
        if event and isinstance(end, dg.IntMetadataValue) and end.value is not None:
            found[record.asset_entry.asset_key] = Told(end.value, event.timestamp)
    return found


def topic_materialization(
    spec: TopicTable, now: Watermarks, behind: Mapping[int, int], rate: float | None = None
) -> dg.AssetMaterialization:
    """Return what Dagster shows of a topic: its end, which is its data version, and what its table lacks of it.

    It is others who fill the topic. Dagster's page of what is only ever observed says that it is never materialized.

    Args:
        behind: Offsets still to consume by partition; those that are left out have none.
        rate: Records per second; None if nobody can tell.
    """
    version = sha256(repr(sorted(now.end.items())).encode()).hexdigest()[:16]
    few = len(now.end) <= _PLOTTED_PARTITIONS
    lags = {f"lag_partition_{p}": behind.get(p, 0) for p in sorted(now.end) if few or behind.get(p)}
    return dg.AssetMaterialization(
        topic_key(spec),
        metadata={
            "table": dg.MetadataValue.asset(table_key(spec)),
            "lag": sum(behind.values()),
            **({} if rate is None else {"records_per_second": rate}),
            "end_offset": sum(now.end.values()),
            "partitions": len(now.end),
            **lags,
        },
        tags={"dagster/data_version": version},
    )
