"""What the demo's producers share: their topics, and the ids of records."""

from collections.abc import Callable

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from kafka_lake.errors import KafkaError, KafkaLakeError
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import Record, Sampler
from kafka_lake.kafka.topics import RecordProducer, create_topic

TIMEOUT_S = 30.0


def ensure_topic(bootstrap: str, topic: str, partitions: int) -> bool:
    """Create the topic unless it exists."""
    return create_topic(KafkaCluster({"bootstrap.servers": bootstrap}, TIMEOUT_S), topic, partitions)


def next_id(bootstrap: str, topic: str, id_of: Callable[[Record], int]) -> int:
    """Return an id greater than every record's in the topic.

    Ids rise within a partition, so the newest record of each partition is enough.
    """
    cluster = KafkaCluster({"bootstrap.servers": bootstrap}, TIMEOUT_S)
    # A broker that has just started may have no leaders yet.
    retry = Retrying(
        retry=retry_if_exception_type(KafkaError),
        stop=stop_after_delay(TIMEOUT_S),
        wait=wait_exponential_jitter(0.05, 1.0),
        reraise=True,
    )
    now = retry(cluster.watermarks_of, topic)
    with Sampler(cluster, TIMEOUT_S) as sampler:
        newest = sampler.newest(now, len(now.partitions))
    if not newest.complete:
        raise KafkaLakeError(f"The newest records of topic {topic} could not be read in {TIMEOUT_S:g} s.")
    return max([sum(now.end.values()), *map(id_of, newest.records)]) + 1


class TopicProducer(RecordProducer):
    """A producer for one topic of a broker without security."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(KafkaCluster({"bootstrap.servers": bootstrap}, TIMEOUT_S), topic, TIMEOUT_S)
