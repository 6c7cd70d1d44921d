"""Read: exactly the planned offsets, through Spark's own Kafka source where that can read them."""

import json

from pyspark.sql import DataFrame

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.kafka.read_ranges import read_ranges

RECORDS_A_SPLIT = 100_000

_TUNED = {
    # Fewer, larger polls: the source's own defaults spend most of their time asking.
    "kafka.max.poll.records": "20000",
    # All that is asked for is there. A fetch that waits for more at the log's end would hold up the next question on
    # its connection: half a second for every partition.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}


def read(connections: Connections, plan: Plan, topic: str) -> DataFrame:
    """Return the records of the planned ranges: key, value, topic, partition, offset, timestamp, headers.

    Args:
        connections: Spark, where it will run, and how it reaches the brokers; nothing runs yet.
        plan: Its ranges are read, and nothing else.
        topic: The topic's name.

    Returns:
        A lazy frame; timestamps outside of the years 1970 to 9999 are null. Evaluating it fails if an offset in the
        ranges is gone (``failOnDataLoss``).

    Raises:
        KafkaError: If this process reads the records, and the brokers don't give them all.
    """
    if plan.by_client:
        records = read_ranges(connections.cluster, topic, plan.ranges)
        return connections.frames.from_arrow(connections.spark(), records)
    options = {**_TUNED, **connections.kafka_options}
    if plan.one_by_one:
        # A poll expands all records that it may give, those behind the range too.
        options["kafka.max.poll.records"] = "1"
    if max((len(r) for r in plan.ranges), default=0) > RECORDS_A_SPLIT:
        # Spark cuts ranges in proportion to their length: no core waits for the one long partition.
        options["minPartitions"] = str(len(plan.ranges) + plan.records_at_most // RECORDS_A_SPLIT)
    options |= {
        "assign": json.dumps({topic: [r.partition for r in plan.ranges]}),
        "startingOffsets": json.dumps({topic: {str(r.partition): r.start for r in plan.ranges}}),
        "endingOffsets": json.dumps({topic: {str(r.partition): r.end for r in plan.ranges}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return connections.frames.from_kafka(connections.spark(), options)
