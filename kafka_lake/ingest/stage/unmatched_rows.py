"""Records that no table of a topic takes, as dead letters beside what was staged of a table's own records."""

from dataclasses import replace

from pyspark.sql import DataFrame

from kafka_lake.executors.task import OBSERVED
from kafka_lake.ingest.decode import UNMATCHED
from kafka_lake.ingest.decode.decoder import batch_metrics, decoded
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.decode.undecodable import Unreadable
from kafka_lake.ingest.stage.batch import CLASSES, WrittenBatch

_REASON = "No table takes it, and unmatched is dead_letter."


def with_unmatched(batch: WrittenBatch, unmatched: DataFrame, target: Target, *, also_none: bool) -> WrittenBatch:
    """Return what was written of a table's own records, with other records as dead letters beside it.

    Args:
        unmatched: The other records, as Kafka gave them, lazy.
        target: The columns of the batch.
        also_none: Whether a record without a value becomes a dead letter, too.
    """
    decoder = Unreadable(_REASON, UNMATCHED, also_none)
    found = decoded(unmatched, decoder, target)
    judged = found.drop(OBSERVED)
    counts = {name: each for name, each in batch.counts.items() if name != CLASSES}
    counted = found.agg(*batch_metrics()).collect()[0].asDict()
    # Nothing is learned of records that no table takes.
    counted.pop(OBSERVED)
    for name, each in counted.items():
        both = [count for count in (counts.get(name), each) if count is not None]
        join = {"oldest_ms": min, "newest_ms": max}.get(name, sum)
        counts[name] = join(both) if both else None
    return replace(
        batch,
        counts=counts,
        judged=lambda: batch.judged().unionByName(judged, allowMissingColumns=True),
    )
