"""What a run works with: the cluster, the catalog and the engine, however they were configured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.common.records import Probe
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import record_sizes
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.spark.frames import Frames


@dataclass(frozen=True)
class Connections:
    """The three systems of one run.

    Args:
        cluster: Tells what the topic holds.
        kafka_options: Connection and security as options of Spark's Kafka source.
        spark: Gives the session; the first call may start it, so it isn't called before there is work.
        retry: How often and how patiently transient errors of the three are met with another attempt.
        registry: Tells what a schema id means; None where no registry is configured.
        frames: Computes what names the records of Spark's frames.
        record_sizes: Tells how large records are in equal parts of ranges of a topic, how many of which is its last
            argument.
    """

    cluster: KafkaCluster
    kafka_options: Mapping[str, str]
    catalog: LakeCatalog
    spark: Callable[[], Any]
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    registry: SchemaRegistry | None = None
    frames: Frames = field(default_factory=Frames)
    record_sizes: Callable[[KafkaCluster, str, Sequence[OffsetRange], int], list[Probe]] = record_sizes
