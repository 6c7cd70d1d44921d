"""Makes the Kafka partitions of a deployment's topics known to its Dagster, from outside of Dagster's own processes.

The sensor does so too, but may be off, or not have looked yet. What goes wrong here is told, and stops no command.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kafka_lake.common.offsets import Watermarks
from kafka_lake.components.at_hand import dagster_at_hand
from kafka_lake.components.keys import partition_key, work_name
from kafka_lake.components.partitions import register_partitions
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster


def register_topics(specs: Iterable[TopicTable], cluster: KafkaCluster, tell_user: Callable[[str], None]) -> None:
    """Register the partitions that topics have now; topics that can't be asked are left out.

    Args:
        tell_user: Called with a line for the user if that fails.
    """
    by_topic = {spec.topic: spec for spec in specs}
    try:
        answers = cluster.watermarks(by_topic)
    except KafkaLakeError as error:
        tell_user(_not_registered(error))
        return
    found = [(by_topic[t], answer.partitions) for t, answer in answers.items() if isinstance(answer, Watermarks)]
    _register([(work_name(spec), numbers, partial(partition_key, spec)) for spec, numbers in found], tell_user)


def register(partitions: Mapping[str, Iterable[int]], tell_user: Callable[[str], None]) -> None:
    """Register partitions with the Dagster of ``DAGSTER_HOME``, or with that of this deployment's folder.

    Args:
        partitions: Kafka partitions by the topic's full name.
        tell_user: Called with a line for the user if that fails.
    """
    _register([(topic, numbers, str) for topic, numbers in partitions.items()], tell_user)


def _register(
    topics: Iterable[tuple[str, Iterable[int], Callable[[int], str]]], tell_user: Callable[[str], None]
) -> None:
    try:
        with dagster_at_hand() as instance:
            for topic, numbers, key in topics:
                register_partitions(instance, topic, numbers, key)
    except Exception as error:
        # Whatever Dagster's storage may be, and whatever it may lack: the command has done its work.
        tell_user(_not_registered(error))


def _not_registered(error: Exception) -> str:
    return f"Dagster doesn't know the topics' partitions yet; its sensor registers them when it runs. {error}"
