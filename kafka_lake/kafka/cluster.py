"""Questions to a Kafka cluster: which topics there are, who they are, what they hold. Reads only; no records."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from kafka_lake.common.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    KafkaLakeError,
    UnknownTopicError,
)
from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks

_NOT_A_TOPIC_ID = {"", "AAAAAAAAAAAAAAAAAAAAAA"}

_REFUSED_CLIENT = {
    ClientError._AUTHENTICATION,
    ClientError._SSL,
    ClientError.SASL_AUTHENTICATION_FAILED,
    ClientError.UNSUPPORTED_SASL_MECHANISM,
}
_NEEDED_RIGHTS = {
    ClientError.TOPIC_AUTHORIZATION_FAILED: "Describe and Read on the topic",
    ClientError.GROUP_AUTHORIZATION_FAILED: "Read on the consumer group",
    ClientError.CLUSTER_AUTHORIZATION_FAILED: "Describe on the cluster",
}
_SECRET = re.compile(r"password|secret|token|jaas|\.pem$|oauthbearer\.config")

# A refusal by one broker needn't be that of the next one tried, nor that of a moment later; so long an answer may
# still come.
_GRACE_SECONDS = 2.0
# Who doesn't answer in so long isn't there, unless it has answered before: then the whole timeout counts.
_FIRST_ANSWER_SECONDS = 8.0
# All brokers refuse connections, or their names are unknown.
_ALL_DOWN_SECONDS = 4.0
_GLANCE_SECONDS = 0.1

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

_UNREACHABLE = (
    "Check that the brokers run and KAFKA_LAKE_BOOTSTRAP_SERVERS and the security settings are right; "
    "`kafka-lake doctor` tells more."
)


class _Reported:
    """What librdkafka said about connections since the last answer: the reason why requests merely time out."""

    def __init__(self) -> None:
        self.refusal: ClientError | None = None
        self.failure: ClientError | None = None
        self.all_down = False

    def note(self, error: ClientError) -> None:
        """Take down one report; librdkafka calls it from within `poll`."""
        if error.code() in _REFUSED_CLIENT:
            self.refusal = error
        elif error.code() == ClientError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.failure = error

    def forget(self) -> None:
        """An answer came, so whatever was reported before has passed."""
        self.refusal = self.failure = None
        self.all_down = False


class KafkaCluster:
    """A cluster behind one set of librdkafka properties; the connection is made at the first question.

    Args:
        properties: librdkafka client properties, ``bootstrap.servers`` among them.
        timeout: Seconds that one question may take. Brokers that have never answered are given up earlier.
        read_committed: End of a partition is the last stable offset; else the high watermark.
    """

    def __init__(self, properties: Mapping[str, str], timeout: float = 15.0, read_committed: bool = True) -> None:
        self.properties = dict(properties)
        self.timeout = timeout
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        self._client: AdminClient | None = None
        self._reported = _Reported()
        self._has_answered = False

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers' addresses as configured."""
        return self.properties["bootstrap.servers"]

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = self._made(AdminClient, {})
        return self._client

    def _made(self, client: type[Any], settings: Mapping[str, Any]) -> Any:
        # Errors of a lost connection come back with the answers; librdkafka's own stderr log would repeat them.
        quiet = {"log_level": 0, **self.properties, "error_cb": self._reported.note}
        try:
            return client({**quiet, **settings})
        except KafkaException as error:
            raise ConfigurationError(
                f"The Kafka client for {self.bootstrap_servers} can't be made: {self._text(error.args[0])}.",
                "Mend the property among the Kafka resource's properties or KAFKA_LAKE_KAFKA_*.",
            ) from error

    def _ask(self, what: str, future: Any) -> Any:
        asked = time.monotonic()
        while True:
            try:
                answer = future.result(timeout=min(_GLANCE_SECONDS, self.timeout))
            except KafkaException as error:
                raise self.explained(what, error) from error
            except TimeoutError as error:
                self._admin().poll(0)
                if time.monotonic() - asked >= self._patience():
                    raise self.explained(what, error) from error
            else:
                self._answered()
                return answer

    def _patience(self) -> float:
        """Return for how many seconds an answer is waited for, given what was reported about connections so far."""
        if self._reported.refusal:
            return min(_GRACE_SECONDS, self.timeout)
        if self._has_answered:
            return self.timeout
        return min(_ALL_DOWN_SECONDS if self._reported.all_down else _FIRST_ANSWER_SECONDS, self.timeout)

    def _answered(self) -> None:
        self._has_answered = True
        self._admin().poll(0)
        self._reported.forget()

    def explained(self, what: str, error: Exception) -> KafkaLakeError:
        """Return the error for the user, with what to mend, that an error of a client of this cluster stands for.

        Args:
            what: What was asked for, as a sentence begins.
            error: What the client raised; a timeout is explained by what was reported about connections meanwhile.
        """
        cause = error.args[0] if error.args and isinstance(error.args[0], ClientError) else None
        self._admin().poll(0)
        if cause is None or cause.code() < 0:
            # The client's own errors say that it gave up waiting; its reports say why the wait was in vain.
            cause = self._reported.refusal or self._reported.failure or cause
        where = f"{what}: the cluster at {self.bootstrap_servers}"
        if cause is None:
            return KafkaError(f"{where} gave no answer within {self._patience():g} s.", _UNREACHABLE)
        code, text = cause.code(), self._text(cause)
        if code == ClientError.UNKNOWN_TOPIC_OR_PART:
            return UnknownTopicError(f"{where} has no such topic.", "Create it, or mend the name in the topic's YAML.")
        if code == ClientError._BAD_MSG:
            return KafkaError(f"{where} gave an answer that is no Kafka broker's.", _UNREACHABLE)
        if code == ClientError._SSL:
            return AuthenticationError(
                f"{where} and this client don't trust each other: {text}.",
                "Check KAFKA_LAKE_KAFKA_SSL_CA_LOCATION (the certificate that signed the brokers'), and the client's "
                "own key and certificate if the brokers ask for one.",
            )
        if code in _REFUSED_CLIENT:
            return AuthenticationError(
                f"{where} refused the credentials of {self._principal}: {text}.",
                "Check KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL, KAFKA_LAKE_KAFKA_SASL_MECHANISM and the credentials, for "
                "instance KAFKA_LAKE_KAFKA_SASL_USERNAME and KAFKA_LAKE_KAFKA_SASL_PASSWORD.",
            )
        if code in _NEEDED_RIGHTS:
            return AuthorizationError(
                f"{where} doesn't allow it to {self._principal}: {text}.",
                f"Grant {_NEEDED_RIGHTS[code]}, with kafka-acls.sh for instance, or use another account.",
            )
        return KafkaError(f"{where} gave no answer: {text}.", _UNREACHABLE)

    @property
    def _principal(self) -> str:
        user = self.properties.get("sasl.username")
        return f"user {user}" if user else "this client"

    def _text(self, error: ClientError) -> str:
        text = re.sub(
            r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)|^\S+/bootstrap: ", "", error.str()
        ).rstrip(".")
        for name, value in self.properties.items():
            if value and _SECRET.search(name):
                text = text.replace(value, "***")
        return text

    def check(self) -> None:
        """Ask the cluster who it is.

        Raises:
            KafkaError: If the brokers don't answer; `AuthenticationError` within seconds if they refuse this client.
        """
        self._ask("Describing the cluster", self._admin().describe_cluster(request_timeout=self.timeout))

    def topics(self, internal: bool = False) -> list[str]:
        """Return the names of all topics but Kafka's own, sorted.

        Args:
            internal: Kafka's own as well.

        Raises:
            KafkaError: If the brokers don't answer; `AuthenticationError` within seconds if they refuse this client.
        """
        # In two parts, since nothing is reported as long as this call waits.
        early = min(_GRACE_SECONDS, self.timeout)
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
        # Asked together, what one answer takes is waited for once.
        about_cluster = self._admin().describe_cluster(request_timeout=self.timeout)
        described = self._admin().describe_topics(TopicCollection(names), request_timeout=self.timeout)
        cluster = self._ask("Describing the cluster", about_cluster)
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
            topic: The topic's name.
            partitions: Partition numbers.
            timestamp_ms: Milliseconds since the epoch, compared with the records' timestamps.

        Returns:
            Offsets; None where every record is older.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        members = [TopicPartition(topic, p) for p in partitions]
        futures = self._ask_offsets(members, OffsetSpec.for_timestamp(timestamp_ms))
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
                    told = self._ask(what, future)
                except KafkaLakeError as error:
                    told = error
            if getattr(told, "offset", 0) == OFFSET_INVALID:
                # A leader that has just been elected doesn't know its end yet, and librdkafka takes that for an answer.
                told = KafkaError(f"{what}: the cluster at {self.bootstrap_servers} can't tell them yet.", _UNREACHABLE)
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
                    raise self.explained(what, TimeoutError())
                message = consumer.poll(_GLANCE_SECONDS)
                if message is None or message.topic() != topic or message.partition() not in unsure:
                    # Of the group for instance, on which no right is needed.
                    continue
                error = message.error()
                if error is not None and error.code() != ClientError._PARTITION_EOF:
                    if (told := _CUT_OFF.search(error.str())) is None:
                        raise self.explained(what, KafkaException(error))
                    found[message.partition()] = None if int(told[1]) < 0 else int(told[1])
                unsure.discard(message.partition())
                consumer.incremental_unassign([TopicPartition(topic, message.partition())])
        finally:
            consumer.close()
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
        isolation = "read_committed" if self._isolation == IsolationLevel.READ_COMMITTED else "read_uncommitted"
        return self._made(Consumer, {**settings, "enable.auto.commit": False, "isolation.level": isolation})

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


def _numbers(told: Mapping[int, Any]) -> dict[int, int]:
    return {p: each.offset for p, each in told.items() if not isinstance(each, KafkaLakeError)}


def _epochs(told: Mapping[int, Any]) -> dict[int, int]:
    """Return the leaders' epochs, as far as the brokers tell them."""
    epochs = {p: each.leader_epoch for p, each in told.items()}
    return {p: epoch for p, epoch in epochs.items() if epoch is not None and epoch >= 0}
