"""Questions to a Kafka cluster: which topics there are, who they are, what they hold. Reads only; no records."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from kafka_lake.common.cluster_variables import own_variables
from kafka_lake.common.last_record import LastRecord, last_record
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.errors import AuthenticationError, KafkaError, KafkaLakeError
from kafka_lake.kafka.client import GRACE_SECONDS, POLL_SECONDS, KafkaClient
from kafka_lake.kafka.explain import UNREACHABLE, Right

_NOT_A_TOPIC_ID = {"", "AAAAAAAAAAAAAAAAAAAAAA"}

# librdkafka tells of it in words only (KIP-320); -1 if the log knows no epoch as old as the one asked for.
_CUT_OFF = re.compile(r"broker end offset is (-?\d+)")
_VALIDATION: Mapping[str, Any] = {
    # librdkafka wants one, though partitions are assigned by hand and nothing is committed.
    "group.id": "kafka-lake.validation",
    # Else the consumer goes on at the cut, and says nothing.
    "auto.offset.reset": "error",
    # The only word that all is well where nothing comes after the position.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,
    "max.partition.fetch.bytes": 1024,
    "queued.min.messages": 1,
}
_LAST_RECORDS: Mapping[str, Any] = {
    **_VALIDATION,
    "group.id": "kafka-lake.last-records",
    "fetch.wait.max.ms": 10,
    # Brokers give a whole batch of one partition at least, of the others only what fits: most batches do.
    "max.partition.fetch.bytes": 64 * 1024,
    # A partition whose queue is full is left alone for a second otherwise.
    "fetch.queue.backoff.ms": 2,
}
# What a partition answers whose records can't be had: they are gone, or no client can read them.
_NOT_THERE = {
    ClientError._PARTITION_EOF,
    ClientError._AUTO_OFFSET_RESET,
    ClientError._BAD_COMPRESSION,
    ClientError._BAD_MSG,
    ClientError.INVALID_MSG,
    ClientError.MSG_SIZE_TOO_LARGE,
    ClientError.OFFSET_OUT_OF_RANGE,
}


class KafkaCluster(KafkaClient):
    """A cluster behind one set of librdkafka properties; the connection is made at the first question.

    Args:
        properties: librdkafka client properties, ``bootstrap.servers`` among them.
        timeout: Seconds that one question may take. Brokers that have never answered are given up earlier.
        read_committed: End of a partition is the last stable offset; else the high watermark.
        name: The cluster's name in the project; None if it has none.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        timeout: float = 15.0,
        read_committed: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(properties, timeout, name)
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED

    @property
    def reads_committed(self) -> bool:
        """Return whether aborted records, and those of open transactions, are left out."""
        return bool(self._isolation == IsolationLevel.READ_COMMITTED)

    def check(self) -> None:
        """Ask the cluster who it is.

        Raises:
            KafkaError: If the brokers don't answer; `AuthenticationError` within seconds if they refuse this client.
        """
        self._ask("Describing the cluster", self._admin().describe_cluster(request_timeout=self.timeout))

    def topics(self, internal: bool = False) -> list[str]:
        """Return the names of all topics but Kafka's own, sorted.

        Raises:
            KafkaError: If the brokers don't answer; `AuthenticationError` within seconds if they refuse this client.
        """
        # In two parts, since nothing is reported as long as this call waits.
        early = min(GRACE_SECONDS, self.timeout)
        try:
            found = self._list_topics(early)
        except AuthenticationError:
            raise
        except KafkaError:
            if (rest := self._patience() - early) <= 0:
                raise
            found = self._list_topics(rest)
        return sorted(name for name in found if internal or not name.startswith("__"))

    def _list_topics(self, timeout: float) -> Iterable[str]:
        try:
            names: Iterable[str] = self._admin().list_topics(timeout=timeout).topics
        except KafkaException as error:
            raise self.explained("Listing the topics", error) from error
        self._answered()
        return names

    def watermarks(self, topics: Iterable[str]) -> dict[str, Watermarks | KafkaLakeError]:
        """Return what each topic holds, with a constant number of requests to each broker.

        Raises:
            KafkaError: If the cluster as a whole doesn't answer.
        """
        names = list(dict.fromkeys(topics))
        if not names:
            return {}
        # Asked together, what one answer takes is waited for once.
        about_cluster = self._admin().describe_cluster(request_timeout=self.timeout)
        described = self._admin().describe_topics(TopicCollection(names), request_timeout=self.timeout)
        cluster = self._ask("Describing the cluster", about_cluster)
        answers: dict[str, Watermarks | KafkaLakeError] = {}
        identities: dict[str, TopicIdentity] = {}
        members: list[TopicPartition] = []
        for name in names:
            try:
                topic = self._ask(f"Topic {name}", described[name], Right("READ", "topic", name))
            except KafkaLakeError as error:
                answers[name] = error
                continue
            topic_id = str(topic.topic_id or "")
            identities[name] = TopicIdentity(
                cluster.cluster_id or "", "" if topic_id in _NOT_A_TOPIC_ID else topic_id, name
            )
            members += [TopicPartition(name, p.id) for p in topic.partitions]
        asked = [self._ask_offsets(members, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())]
        low, end = [self._told_offsets(futures) for futures in asked]
        for name, identity in identities.items():
            errors = [o for side in (low, end) for o in side[name].values() if isinstance(o, KafkaLakeError)]
            answers[name] = (
                errors[0]
                if errors
                else Watermarks(identity, _numbers(low[name]), _numbers(end[name]), _epochs(end[name]))
            )
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
            timestamp_ms: Milliseconds since the epoch, compared with the records' timestamps; 0 if it is less, since
                Kafka's protocol means something else by negative ones.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        members = [TopicPartition(topic, p) for p in partitions]
        futures = self._ask_offsets(members, OffsetSpec.for_timestamp(max(timestamp_ms, 0)))
        found = self._told_offsets(futures)[topic] if members else {}
        for offset in found.values():
            if isinstance(offset, KafkaLakeError):
                raise offset
        return {p: None if o < 0 else o for p, o in _numbers(found).items()}

    def _ask_offsets(self, members: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, Any]:
        if not members:
            return {}
        futures: dict[TopicPartition, Any] = self._admin().list_offsets(
            dict.fromkeys(members, spec),
            isolation_level=self._isolation,
            request_timeout=self.timeout,
        )
        return futures

    def _told_offsets(self, futures: Mapping[TopicPartition, Any]) -> dict[str, dict[int, Any]]:
        """Return per topic and partition what the brokers told of it, or the error."""
        found: dict[str, dict[int, Any]] = {}
        for member, future in futures.items():
            what = f"Offsets of topic {member.topic} partition {member.partition}"
            # All come with the same few answers: to go through the motions of waiting for each takes longer.
            if future.done() and future.exception() is None:
                told = future.result()
            else:
                try:
                    told = self._ask(what, future, Right("READ", "topic", member.topic))
                except KafkaLakeError as error:
                    told = error
            if getattr(told, "offset", 0) == OFFSET_INVALID:
                # A leader that has just been elected doesn't know its end yet, and librdkafka takes that for an answer.
                told = own_variables(
                    KafkaError(f"{what}: the cluster at {self.bootstrap_servers} can't tell them yet.", UNREACHABLE),
                    self.name,
                )
            found.setdefault(member.topic, {})[member.partition] = told
        return found

    def cut_off(self, position: Position, partitions: Iterable[int]) -> dict[int, int | None]:
        """Return where logs were cut off before a position since that was written, whatever they hold by now.

        A leader that was elected though it lacked records, or a broker that lost its last writes, goes on with less;
        once the log has grown beyond the position, offsets alone don't tell. Brokers know where the records of each
        leader end, and a consumer that begins at an offset of a leader's asks for that first. To read a topic is right
        enough for it.

        Args:
            position: Its offsets, with the epochs of the leaders that had them.
            partitions: Which to ask for; those without an epoch are left out.

        Returns:
            The offset where the log was cut off, for those partitions where it was; None in its place if no record of
            the log is of a leader as old as the position's.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        topic, what = position.identity.topic, f"Validating the position in topic {position.identity.topic}"
        right = Right("READ", "topic", topic)
        unsure = {p for p in partitions if p in position.epochs and p in position.offsets}
        if not unsure:
            return {}
        found: dict[int, int | None] = {}
        consumer, until = self.consumer(_VALIDATION), time.monotonic() + self.timeout
        try:
            consumer.assign(
                [TopicPartition(topic, p, position.offsets[p], leader_epoch=position.epochs[p]) for p in sorted(unsure)]
            )
            while unsure:
                if time.monotonic() > until:
                    raise self.explained(what, TimeoutError(), right)
                message = consumer.poll(POLL_SECONDS)
                if message is None or message.topic() != topic or message.partition() not in unsure:
                    # Of the group for instance, on which no right is needed.
                    continue
                error = message.error()
                if error is not None and error.code() != ClientError._PARTITION_EOF:
                    if (told := _CUT_OFF.search(error.str())) is None:
                        raise self.explained(what, KafkaException(error), right)
                    found[message.partition()] = None if int(told[1]) < 0 else int(told[1])
                unsure.discard(message.partition())
                consumer.incremental_unassign([TopicPartition(topic, message.partition())])
        finally:
            consumer.close()
        return found

    def last_records(self, topic: str, ranges: Iterable[OffsetRange]) -> dict[OffsetRange, list[LastRecord]]:
        """Return what is remembered of the records of short ranges; to read the topic is right enough.

        Args:
            ranges: Which offsets to look at; none is empty. Several ranges of a partition are read one after the other.

        Returns:
            The records that a reader sees, ascending; none of a range that can't be read to its end now, as just after
            a new leader was elected, which knows only later how far its log goes.

        Raises:
            KafkaError: If the brokers refuse, or nothing comes for as long as one question may take.
        """
        left: dict[int, list[OffsetRange]] = {}
        for each in ranges:
            left.setdefault(each.partition, []).append(each)
        if not left:
            return {}
        found: dict[OffsetRange, list[LastRecord]] = {}
        consumer = self.consumer(_LAST_RECORDS)
        try:
            # By itself the client finds out but once a second who leads the partitions that it has been given.
            with suppress(KafkaException):
                consumer.list_topics(topic, timeout=self.timeout)
            while left:
                # All at once: to move the partitions one by one takes seconds for a thousand.
                found |= self._last_records(consumer, topic, {p: due[0] for p, due in left.items()})
                left = {p: due[1:] for p, due in left.items() if due[1:]}
        finally:
            consumer.close()
        return found

    def _last_records(
        self, consumer: Consumer, topic: str, at: dict[int, OffsetRange]
    ) -> dict[OffsetRange, list[LastRecord]]:
        what, right = f"Reading single records of topic {topic}", Right("READ", "topic", topic)
        found: dict[OffsetRange, list[LastRecord]] = {each: [] for each in at.values()}
        consumer.assign([TopicPartition(topic, p, each.start) for p, each in at.items()])
        until = time.monotonic() + self.timeout
        while at:
            if time.monotonic() > until:
                raise self.explained(what, TimeoutError(), right)
            message = consumer.poll(POLL_SECONDS)
            if message is None or message.topic() != topic or message.partition() not in at:
                # Of the group for instance, on which no right is needed.
                continue
            error, offset, each = message.error(), message.offset(), at[message.partition()]
            if error is not None and error.code() not in _NOT_THERE:
                raise self.explained(what, KafkaException(error), right)
            if error is not None and not (error.code() == ClientError._PARTITION_EOF and offset >= each.end):
                # Records that are not seen now would look like another log's once they are.
                found[each].clear()
            if error is None and each.start <= offset < each.end:
                found[each].append(last_record(offset, message.timestamp()[1], message.key(), message.value()))
            if error is not None or offset >= each.end - 1:
                until = time.monotonic() + self.timeout
                del at[each.partition]
                consumer.incremental_unassign([TopicPartition(topic, each.partition)])
        consumer.unassign()
        return found

    def cleanup_policies(self, topics: Iterable[str]) -> dict[str, str]:
        """Return ``cleanup.policy`` by topic, with one request; topics whose settings aren't told are left out."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in dict.fromkeys(topics)]
        futures = self._admin().describe_configs(asked, request_timeout=self.timeout) if asked else {}
        found: dict[str, str] = {}
        for resource, future in futures.items():
            # To describe a topic's settings is a right of its own, which reading it doesn't need.
            with suppress(KafkaLakeError):
                settings = self._ask(f"Settings of topic {resource.name}", future)
                found[resource.name] = settings["cleanup.policy"].value
        return found

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """Return a consumer of this cluster's records for a mere look at them: it commits no offsets.

        Args:
            settings: librdkafka properties beside those of the cluster, ``group.id`` among them. To assign partitions
                and to read from given offsets takes no right on that group.

        Raises:
            ConfigurationError: If the properties make no client.
        """
        isolation = "read_committed" if self.reads_committed else "read_uncommitted"
        return self.made(Consumer, {**settings, "enable.auto.commit": False, "isolation.level": isolation})

    def commit_group(self, group: str, position: Position) -> None:
        """Write a position as a consumer group's offsets, so that lag tools see it. Nothing here ever reads it.

        Args:
            group: The consumer group's id; it must have no live members.

        Raises:
            KafkaError: If the brokers refuse; the table is not concerned.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        offsets = [TopicPartition(position.identity.topic, p, o) for p, o in position.offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        future = self._admin().alter_consumer_group_offsets(request, request_timeout=self.timeout)[group]
        self._ask(f"Committing the offsets of consumer group {group}", future, Right("READ", "group", group))


def _numbers(told: Mapping[int, Any]) -> dict[int, int]:
    return {p: each.offset for p, each in told.items() if not isinstance(each, KafkaLakeError)}


def _epochs(told: Mapping[int, Any]) -> dict[int, int]:
    """Return the leaders' epochs, as far as the brokers tell them."""
    epochs = {p: each.leader_epoch for p, each in told.items()}
    return {p: epoch for p, epoch in epochs.items() if epoch is not None and epoch >= 0}
