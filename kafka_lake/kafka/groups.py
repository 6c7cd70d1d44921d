"""Questions about consumer groups of others: which offsets they have committed, and whether anyone is in them."""

import time
from collections.abc import Iterable

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from kafka_lake.errors import KafkaError
from kafka_lake.kafka.client import POLL_SECONDS, KafkaClient
from kafka_lake.kafka.cluster import KafkaCluster

# The group's coordinator has just been chosen, and reads what it must know.
_PASSING = {
    ClientError.COORDINATOR_LOAD_IN_PROGRESS,
    ClientError.COORDINATOR_NOT_AVAILABLE,
    ClientError.NOT_COORDINATOR,
}


class ConsumerGroups(KafkaClient):
    """The consumer groups of a cluster. To ask takes the right DESCRIBE on a group."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.properties, cluster.timeout)
        self._cluster = cluster

    def offsets(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the next offset of a topic's partitions that a group has committed; none if there is no such group.

        Raises:
            KafkaError: If the brokers don't answer, or refuse.
        """
        # Not by the admin client: confluent-kafka 2.16 crashes there if the coordinator isn't ready. A consumer that
        # subscribes to nothing doesn't join the group.
        consumer = self._cluster.consumer({"group.id": group})
        try:
            found = consumer.committed([TopicPartition(topic, p) for p in partitions], timeout=self.timeout)
        except KafkaException as error:
            raise self.explained(f"Offsets of consumer group {group}", error) from error
        finally:
            consumer.close()
        for each in found:
            if each.error is not None:
                raise self.explained(f"Offsets of consumer group {group}", KafkaException(each.error))
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def members(self, group: str) -> list[str]:
        """Return who is in a group, as the client and the host that it runs on; none if there is no such group.

        Raises:
            KafkaError: If the brokers don't answer, or refuse.
        """
        until = time.monotonic() + self.timeout
        while True:
            asked = self._admin().describe_consumer_groups([group], request_timeout=self.timeout)
            try:
                found = self._ask(f"Members of consumer group {group}", asked[group])
            except KafkaError as error:
                if not _passes(error) or time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return sorted(f"{each.client_id} on {each.host}" for each in found.members or ())


def _passes(error: KafkaError) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in _PASSING
