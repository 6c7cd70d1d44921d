"""Questions to a Kafka cluster: which topics there are, who they are, what they hold. Reads only; no records."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, OffsetSpec

from kafka_lake.errors import KafkaError, KafkaLakeError, UnknownTopicError
from kafka_lake.kafka.offsets import Position, TopicIdentity, Watermarks

_NOT_A_TOPIC_ID = {"", "AAAAAAAAAAAAAAAAAAAAAA"}


class KafkaCluster:
    """A cluster behind one set of librdkafka properties; the connection is made at the first question.

    Args:
        properties: librdkafka client properties, ``bootstrap.servers`` among them.
        timeout: Seconds that one question may take.
        read_committed: End of a partition is the last stable offset; else the high watermark.
    """

    def __init__(self, properties: Mapping[str, str], timeout: float = 15.0, read_committed: bool = True) -> None:
        self.properties = dict(properties)
        self.timeout = timeout
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        self._client: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers' addresses as configured."""
        return self.properties["bootstrap.servers"]

    def _admin(self) -> AdminClient:
        if self._client is None:
            # Errors of a lost connection come back with the answers; librdkafka's own stderr log would repeat them.
            self._client = AdminClient({"log_level": 0, **self.properties})
        return self._client

    def _ask(self, what: str, future: Any) -> Any:
        try:
            return future.result(timeout=self.timeout)
        except (KafkaException, TimeoutError) as error:
            raise self._explained(what, error) from error

    def _explained(self, what: str, error: Exception) -> KafkaLakeError:
        cause = error.args[0] if error.args and isinstance(error.args[0], ClientError) else None
        if cause is not None and cause.code() == ClientError.UNKNOWN_TOPIC_OR_PART:
            return UnknownTopicError(
                f"{what}: the cluster at {self.bootstrap_servers} has no such topic.",
                "Create it, or mend the name in the topic's YAML.",
            )
        return KafkaError(
            f"{what}: the cluster at {self.bootstrap_servers} gave no answer: {cause.str() if cause else error!r}.",
            "Check that the brokers run and KAFKA_LAKE_BOOTSTRAP_SERVERS and the security settings are right; "
            "`kafka-lake doctor` tells more.",
        )

    def topics(self) -> list[str]:
        """Return the names of all topics but Kafka's own, sorted.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        try:
            found = self._admin().list_topics(timeout=self.timeout).topics
        except KafkaException as error:
            raise self._explained("Listing the topics", error) from error
        return sorted(name for name in found if not name.startswith("__"))

    def watermarks(self, topics: Iterable[str]) -> dict[str, Watermarks | KafkaLakeError]:
        """Return what each topic holds, with a constant number of requests to each broker.

        Args:
            topics: Names to ask for.

        Returns:
            Per topic its watermarks, or the error that concerns this topic alone.

        Raises:
            KafkaError: If the cluster as a whole doesn't answer.
        """
        names = list(dict.fromkeys(topics))
        if not names:
            return {}
        cluster = self._ask("Describing the cluster", self._admin().describe_cluster(request_timeout=self.timeout))
        described = self._admin().describe_topics(TopicCollection(names), request_timeout=self.timeout)
        answers: dict[str, Watermarks | KafkaLakeError] = {}
        identities: dict[str, TopicIdentity] = {}
        members: list[TopicPartition] = []
        for name in names:
            try:
                topic = self._ask(f"Topic {name}", described[name])
            except KafkaLakeError as error:
                answers[name] = error
                continue
            topic_id = str(topic.topic_id or "")
            identities[name] = TopicIdentity(
                cluster.cluster_id or "", "" if topic_id in _NOT_A_TOPIC_ID else topic_id, name
            )
            members += [TopicPartition(name, p.id) for p in topic.partitions]
        low = self._offsets(members, OffsetSpec.earliest())
        end = self._offsets(members, OffsetSpec.latest())
        for name, identity in identities.items():
            errors = [o for side in (low, end) for o in side[name].values() if isinstance(o, KafkaLakeError)]
            answers[name] = errors[0] if errors else Watermarks(identity, _numbers(low[name]), _numbers(end[name]))
        return {name: answers[name] for name in names}

    def watermarks_of(self, topic: str) -> Watermarks:
        """Return what one topic holds.

        Raises:
            KafkaLakeError: If it can't be told; `UnknownTopicError` if there is no such topic.
        """
        answer = self.watermarks([topic])[topic]
        if isinstance(answer, KafkaLakeError):
            raise answer
        return answer

    def offsets_at(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int | None]:
        """Return the first offset per partition at or after a time.

        Args:
            topic: The topic's name.
            partitions: Partition numbers.
            timestamp_ms: Milliseconds since the epoch, compared with the records' timestamps.

        Returns:
            Offsets; None where every record is older.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        members = [TopicPartition(topic, p) for p in partitions]
        found = self._offsets(members, OffsetSpec.for_timestamp(timestamp_ms))[topic] if members else {}
        for offset in found.values():
            if isinstance(offset, KafkaLakeError):
                raise offset
        return {p: None if o < 0 else o for p, o in _numbers(found).items()}

    def _offsets(self, members: list[TopicPartition], spec: OffsetSpec) -> dict[str, dict[int, int | KafkaLakeError]]:
        if not members:
            return {}
        futures = self._admin().list_offsets(
            dict.fromkeys(members, spec),
            isolation_level=self._isolation,
            request_timeout=self.timeout,
        )
        found: dict[str, dict[int, int | KafkaLakeError]] = {}
        for member, future in futures.items():
            try:
                offset: int | KafkaLakeError = self._ask(
                    f"Offsets of topic {member.topic} partition {member.partition}", future
                ).offset
            except KafkaLakeError as error:
                offset = error
            found.setdefault(member.topic, {})[member.partition] = offset
        return found

    def commit_group(self, group: str, position: Position) -> None:
        """Write a position as a consumer group's offsets, so that lag tools see it. Nothing here ever reads it.

        Args:
            group: The consumer group's id; it must have no live members.
            position: What to write.

        Raises:
            KafkaError: If the brokers refuse; the table is not concerned.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        offsets = [TopicPartition(position.identity.topic, p, o) for p, o in position.offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        future = self._admin().alter_consumer_group_offsets(request, request_timeout=self.timeout)[group]
        self._ask(f"Committing the offsets of consumer group {group}", future)


def _numbers(offsets: Mapping[int, int | KafkaLakeError]) -> dict[int, int]:
    return {p: o for p, o in offsets.items() if not isinstance(o, KafkaLakeError)}
