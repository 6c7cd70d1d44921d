"""A Kafka cluster: its topics and their ids, watermarks, truncated logs, consumer groups."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from kafka_lake.common.environment import own_variables
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.common.records import LastRecord, last_record
from kafka_lake.errors import AuthenticationError, KafkaError, KafkaLakeError
from kafka_lake.kafka.client import END, GRACE_SECONDS, POLL_SECONDS, KafkaClient, Reader
from kafka_lake.kafka.explain import UNREACHABLE, Right

_NOT_A_TOPIC_ID = {"", "AAAAAAAAAAAAAAAAAAAAAA"}
# librdkafka reports a truncation in words only (KIP-320); -1 if the log has no epoch as old as the one requested.
_CUT_OFF = re.compile(r"broker end offset is (-?\d+)")
_ONE_RECORD = {"max.partition.fetch.bytes": 1024, "queued.min.messages": 1}
# Brokers return at least one whole batch of one partition, and of other partitions only what fits.
_FEW_RECORDS = {"max.partition.fetch.bytes": 64 * 1024, "queued.min.messages": 1}
# What a partition answers whose records can't be had: they are gone, or no client can read them.
_NOT_THERE = {
    END,
    ClientError._AUTO_OFFSET_RESET,
    ClientError._BAD_COMPRESSION,
    ClientError._BAD_MSG,
    ClientError.INVALID_MSG,
    ClientError.MSG_SIZE_TOO_LARGE,
    ClientError.OFFSET_OUT_OF_RANGE,
}
# A group's coordinator that has just been elected still loads its state.
_PASSING = {
    ClientError.COORDINATOR_LOAD_IN_PROGRESS,
    ClientError.COORDINATOR_NOT_AVAILABLE,
    ClientError.NOT_COORDINATOR,
}


class KafkaCluster(KafkaClient):
    """A cluster behind one set of librdkafka properties; `KafkaClient` has the arguments."""

    def check(self) -> None:
        """Ask the cluster for its description.

        Raises:
            KafkaError: If the brokers don't answer; `AuthenticationError` within seconds if they refuse this client.
        """
        self._ask("Describing the cluster", self._admin().describe_cluster(request_timeout=self.timeout))

    def topics(self) -> list[str]:
        """Return the names of all topics but those of Kafka itself, sorted.

        Raises:
            KafkaError: If the brokers don't answer; `AuthenticationError` within seconds if they refuse this client.
        """
        # In two parts, since nothing is reported while this call waits.
        early = min(GRACE_SECONDS, self.timeout)
        try:
            names = self._list_topics(early)
        except AuthenticationError:
            raise
        except KafkaError:
            if (rest := self._patience() - early) <= 0:
                raise
            names = self._list_topics(rest)
        return sorted(name for name in names if not name.startswith("__"))

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
        # Both requests wait at the same time.
        about_cluster = self._admin().describe_cluster(request_timeout=self.timeout)
        described = self._admin().describe_topics(TopicCollection(names), request_timeout=self.timeout)
        cluster_id = self._ask("Describing the cluster", about_cluster).cluster_id or ""
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
            identities[name] = TopicIdentity(cluster_id, "" if topic_id in _NOT_A_TOPIC_ID else topic_id, name)
            members += [TopicPartition(name, p.id) for p in topic.partitions]
        requests = [self._list_offsets(members, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest())]
        low, end = [self._offsets(futures) for futures in requests]
        for name, identity in identities.items():
            errors = [o for side in (low, end) for o in side[name].values() if isinstance(o, KafkaLakeError)]
            if errors:
                answers[name] = errors[0]
                continue
            epochs = {p: o.leader_epoch for p, o in end[name].items()}
            answers[name] = Watermarks(
                identity,
                {p: o.offset for p, o in low[name].items()},
                {p: o.offset for p, o in end[name].items()},
                {p: epoch for p, epoch in epochs.items() if epoch is not None and epoch >= 0},
            )
        return {name: answers[name] for name in names}

    def watermarks_of(self, topic: str) -> Watermarks:
        """Return what one topic holds.

        Raises:
            KafkaLakeError: If the brokers don't answer; `UnknownTopicError` if there is no such topic.
        """
        answer = self.watermarks([topic])[topic]
        if isinstance(answer, KafkaLakeError):
            raise answer
        return answer

    def offsets_at(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, int | None]:
        """Return the first offset of each partition at or after a time; None if there is none.

        Args:
            timestamp_ms: Milliseconds since the epoch, compared with the records' timestamps.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        members = [TopicPartition(topic, p) for p in partitions]
        # Negative numbers have other meanings in Kafka's protocol.
        futures = self._list_offsets(members, OffsetSpec.for_timestamp(max(timestamp_ms, 0)))
        first: dict[int, int | None] = {}
        for partition, offset in (self._offsets(futures)[topic] if members else {}).items():
            if isinstance(offset, KafkaLakeError):
                raise offset
            first[partition] = None if offset.offset < 0 else offset.offset
        return first

    def _list_offsets(self, members: list[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, Any]:
        if not members:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if self.reads_committed else IsolationLevel.READ_UNCOMMITTED
        futures: dict[TopicPartition, Any] = self._admin().list_offsets(
            dict.fromkeys(members, spec), isolation_level=isolation, request_timeout=self.timeout
        )
        return futures

    def _offsets(self, futures: Mapping[TopicPartition, Any]) -> dict[str, dict[int, Any]]:
        """Return the brokers' answer, or the error, by topic and partition."""
        answers: dict[str, dict[int, Any]] = {}
        for member, future in futures.items():
            what = f"Offsets of topic {member.topic} partition {member.partition}"
            # All come with the same few answers: waiting for each in turn takes longer.
            if future.done() and future.exception() is None:
                answer = future.result()
            else:
                try:
                    answer = self._ask(what, future, Right("READ", "topic", member.topic))
                except KafkaLakeError as error:
                    answer = error
            if getattr(answer, "offset", 0) == OFFSET_INVALID:
                # A leader that was just elected doesn't know its end yet, and librdkafka takes that for an answer.
                text = f"{what}: the cluster at {self.bootstrap_servers} can't report them yet."
                answer = own_variables(KafkaError(text, UNREACHABLE), self.name)
            answers.setdefault(member.topic, {})[member.partition] = answer
        return answers

    def cut_off(self, position: Position, partitions: Iterable[int]) -> dict[int, int | None]:
        """Return where logs were truncated before a position since it was written, regardless of later records.

        An unclean leader election, or a broker that lost its last writes, truncates the log. Once the log has grown
        beyond the position again, offsets alone don't show it. Brokers know where the records of each leader epoch
        end, and a consumer that starts with an epoch asks for that first.

        Args:
            partitions: Which to check; those without an epoch are left out.

        Returns:
            The offset where each truncated log ended; None in its place if the log has no epoch as old as the
            position's.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        topic = position.identity.topic
        checked = [p for p in partitions if p in position.epochs and p in position.offsets]
        starts = [TopicPartition(topic, p, position.offsets[p], leader_epoch=position.epochs[p]) for p in checked]
        ends: dict[int, int | None] = {}
        if not starts:
            return ends
        with Reader(self, "validation", _ONE_RECORD) as reader:
            for message in reader.messages(starts, errors=None):
                error, partition = message.error(), message.partition()
                if error is not None and error.code() != END:
                    if (match := _CUT_OFF.search(error.str())) is None:
                        what = f"Validating the position in topic {topic}"
                        raise self.explained(what, KafkaException(error), Right("READ", "topic", topic))
                    ends[partition] = None if int(match[1]) < 0 else int(match[1])
                reader.close(message)
        return ends

    def last_records(self, topic: str, ranges: Iterable[OffsetRange]) -> dict[OffsetRange, list[LastRecord]]:
        """Return digests of the records in short ranges of offsets.

        Args:
            ranges: None is empty. Several ranges of a partition are read one after the other.

        Returns:
            The records that a reader sees, ascending; none of a range that can't be read to its end now, as just after
            the election of a leader that doesn't know its log's end yet.

        Raises:
            KafkaError: If the brokers refuse, or don't answer.
        """
        pending: dict[int, list[OffsetRange]] = {}
        for offsets in ranges:
            pending.setdefault(offsets.partition, []).append(offsets)
        records: dict[OffsetRange, list[LastRecord]] = {}
        if not pending:
            return records
        with Reader(self, "last-records", _FEW_RECORDS) as reader:
            while pending:
                # All partitions at once: moving them one by one takes seconds for a thousand.
                records |= self._last_records(reader, topic, {p: due[0] for p, due in pending.items()})
                pending = {p: due[1:] for p, due in pending.items() if due[1:]}
        return records

    def _last_records(
        self, reader: Reader, topic: str, at: dict[int, OffsetRange]
    ) -> dict[OffsetRange, list[LastRecord]]:
        records: dict[OffsetRange, list[LastRecord]] = {offsets: [] for offsets in at.values()}
        starts = [TopicPartition(topic, p, offsets.start) for p, offsets in at.items()]
        for message in reader.messages(starts, errors=_NOT_THERE):
            error, offset, wanted = message.error(), message.offset(), at[message.partition()]
            if error is not None and not (error.code() == END and offset >= wanted.end):
                # Records that can't be seen now would look like those of another log once they can.
                records[wanted].clear()
            if error is None and wanted.start <= offset < wanted.end:
                records[wanted].append(last_record(offset, message.timestamp()[1], message.key(), message.value()))
            if error is not None or offset >= wanted.end - 1:
                reader.close(message)
        return records

    def cleanup_policies(self, topics: Iterable[str]) -> dict[str, str]:
        """Return ``cleanup.policy`` by topic, with one request; topics whose settings can't be read are left out."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in dict.fromkeys(topics)]
        futures = self._admin().describe_configs(resources, request_timeout=self.timeout) if resources else {}
        policies: dict[str, str] = {}
        for resource, future in futures.items():
            # Describing a topic's settings is a right of its own, which reading it doesn't need.
            with suppress(KafkaLakeError):
                settings = self._ask(f"Settings of topic {resource.name}", future)
                policies[resource.name] = settings["cleanup.policy"].value
        return policies

    def commit_group(self, group: str, position: Position) -> None:
        """Write a position as a consumer group's offsets, for lag tools; nothing in kafka_lake reads it.

        Raises:
            KafkaError: If the brokers refuse; the table isn't concerned.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        offsets = [TopicPartition(position.identity.topic, p, o) for p, o in position.offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, offsets)]
        future = self._admin().alter_consumer_group_offsets(request, request_timeout=self.timeout)[group]
        self._ask(f"Committing the offsets of consumer group {group}", future, Right("READ", "group", group))

    def group_offsets(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the next offset of each partition that a consumer group has committed; needs DESCRIBE on the group.

        Raises:
            KafkaError: If the brokers don't answer, or refuse.
        """
        # Not with the admin client: confluent-kafka 2.16 crashes there if the coordinator isn't ready. A consumer that
        # subscribes to nothing doesn't join the group.
        what = f"Offsets of consumer group {group}"
        consumer = self.consumer({"group.id": group})
        try:
            committed = consumer.committed([TopicPartition(topic, p) for p in partitions], timeout=self.timeout)
        except KafkaException as error:
            raise self.explained(what, error) from error
        finally:
            consumer.close()
        for member in committed:
            if member.error is not None:
                raise self.explained(what, KafkaException(member.error))
        return {member.partition: member.offset for member in committed if member.offset >= 0}

    def group_members(self, group: str) -> list[str]:
        """Return client and host of each member of a consumer group; needs DESCRIBE on the group.

        Raises:
            KafkaError: If the brokers don't answer, or refuse.
        """
        until = time.monotonic() + self.timeout
        while True:
            futures = self._admin().describe_consumer_groups([group], request_timeout=self.timeout)
            try:
                description = self._ask(f"Members of consumer group {group}", futures[group])
            except KafkaError as error:
                cause = error.__cause__
                passes = isinstance(cause, KafkaException) and cause.args[0].code() in _PASSING
                if not passes or time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return sorted(f"{member.client_id} on {member.host}" for member in description.members or ())
