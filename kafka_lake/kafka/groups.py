"""Questions about consumer groups of others: which offsets they have committed, and whether anyone is in them."""

from confluent_kafka import ConsumerGroupTopicPartitions

from kafka_lake.kafka.client import KafkaClient
from kafka_lake.kafka.cluster import KafkaCluster


class ConsumerGroups(KafkaClient):
    """The consumer groups of a cluster. To ask takes the right DESCRIBE on a group.

    Args:
        cluster: Whose properties count.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster.properties, cluster.timeout)

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the next offset that a group has committed, by topic and partition; none if there is no such group.

        Raises:
            KafkaError: If the brokers don't answer, or refuse.
        """
        asked = self._admin().list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=self.timeout
        )
        found = self._ask(f"Offsets of consumer group {group}", asked[group])
        return {(each.topic, each.partition): each.offset for each in found.topic_partitions if each.offset >= 0}

    def members(self, group: str) -> list[str]:
        """Return who is in a group, as the client and the host that it runs on; none if there is no such group.

        Raises:
            KafkaError: If the brokers don't answer, or refuse.
        """
        asked = self._admin().describe_consumer_groups([group], request_timeout=self.timeout)
        found = self._ask(f"Members of consumer group {group}", asked[group])
        return sorted(f"{each.client_id} on {each.host}" for each in found.members or ())
