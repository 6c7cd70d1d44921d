"""A connection to a Kafka cluster: clients from its properties, waiting for answers, reading at given offsets."""

import re
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient

from kafka_lake.common.environment import own_variables
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.errors import KafkaError, KafkaLakeError
from kafka_lake.kafka.explain import Failure, Right, explained, is_refusal, not_made

_SECRET = re.compile(r"password|passphrase|secret|jaas|key\.pem$|private\.key|assertion\.|oauthbearer\.config")

# After one broker has refused, another may still accept.
GRACE_SECONDS = 2.0
# A cluster that has never answered is given up earlier than one that has.
FIRST_ANSWER_SECONDS = 8.0
# All brokers refuse connections, or their names are unknown.
ALL_DOWN_SECONDS = 4.0
POLL_SECONDS = 0.1
END = ClientError._PARTITION_EOF
_retired: list[AdminClient] = []
"""Clients that nothing uses any more, closed at the next request.

Python may collect a cycle of objects, such as an error that is kept with its traceback, in a thread of librdkafka. A
client that is closed there aborts the process.
"""
_MANY = 20_000
"""Messages of a list: few enough to hold beside what librdkafka has fetched."""
_READING: Mapping[str, Any] = {
    "auto.offset.reset": "error",
    # The only sign that nothing more comes where a topic ends in aborted or compacted records.
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 20,
    # A partition whose queue is full would pause for a second.
    "fetch.queue.backoff.ms": 2,
    "queued.max.messages.kbytes": 16 * 1024,
}


class _Reported:
    """What librdkafka reported about connections since the last answer: the reason why requests time out."""

    def __init__(self) -> None:
        self.refusal: ClientError | None = None
        self.failure: ClientError | None = None
        self.all_down = False

    def note(self, error: ClientError) -> None:
        """Remember one report; librdkafka calls this from within `poll`."""
        if is_refusal(error):
            self.refusal = error
        elif error.code() == ClientError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.failure = error

    def clear(self) -> None:
        """Forget all reports: an answer came."""
        self.refusal = self.failure = None
        self.all_down = False


class KafkaClient:
    """A client of a cluster, connected at the first request.

    Args:
        properties: librdkafka client properties, ``bootstrap.servers`` among them.
        timeout: Seconds that one request may take. Brokers that have never answered are given up earlier.
        read_committed: Whether aborted records, and those of open transactions, are left out.
        name: The cluster's name in the project, for errors; None if it has none.
    """

    def __init__(
        self, properties: Mapping[str, Any], timeout: float = 15.0, read_committed: bool = True, name: str | None = None
    ) -> None:
        self.name = name
        self.properties = dict(properties)
        self.timeout = timeout
        self.reads_committed = read_committed
        self._client: AdminClient | None = None
        self._reported = _Reported()
        self._has_answered = False

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers' addresses as configured."""
        return str(self.properties["bootstrap.servers"])

    def made(self, client: type[Any], settings: Mapping[str, Any]) -> Any:
        """Return a new client of the cluster."""
        # Errors of lost connections come back with the answers; librdkafka's log on stderr would repeat them.
        quiet = {"log_level": 0, **self.properties, "error_cb": self._reported.note}
        try:
            if self.properties.get("sasl.oauthbearer.method") == "oidc" and (tls := _tls_alone(self.properties)):
                # With OIDC and a wrong TLS file librdkafka 2.16 aborts the process; without SASL it reports the error.
                AdminClient(tls)
            return client({**quiet, **settings})
        except KafkaException as error:
            raise own_variables(not_made(self._text(error.args[0]), self.properties), self.name) from error

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """Return a consumer that commits no offsets."""
        isolation = "read_committed" if self.reads_committed else "read_uncommitted"
        return self.made(Consumer, {**settings, "enable.auto.commit": False, "isolation.level": isolation})

    def explained(self, what: str, error: Exception, right: Right | None = None) -> KafkaLakeError:
        """Return the error to show for an error of one of this cluster's clients."""
        cause = error.args[0] if error.args and isinstance(error.args[0], ClientError) else None
        self._admin().poll(0)
        if cause is None or cause.code() < 0:
            # The client's own errors only mean that it gave up; its reports have the reason.
            cause = self._reported.refusal or self._reported.failure or cause
        code, text = (cause.code(), self._text(cause)) if cause else (None, "")
        failure = Failure(what=what, code=code, text=text, waited=self._patience(), right=right)
        return own_variables(explained(failure, self.properties), self.name)

    def _admin(self) -> AdminClient:
        _retired.clear()
        if self._client is None:
            self._client = self.made(AdminClient, {})
            weakref.finalize(self, _retired.append, self._client)
        return self._client

    def _ask(self, what: str, future: Any, right: Right | None = None) -> Any:
        started = time.monotonic()
        while True:
            try:
                answer = future.result(timeout=min(POLL_SECONDS, self.timeout))
            except KafkaException as error:
                raise self.explained(what, error, right) from error
            except TimeoutError as error:
                self._admin().poll(0)
                if time.monotonic() - started >= self._patience():
                    raise self.explained(what, error, right) from error
            else:
                self._answered()
                return answer

    def _patience(self) -> float:
        """Return how many seconds to wait for an answer, given what was reported about connections so far."""
        if self._reported.refusal:
            return min(GRACE_SECONDS, self.timeout)
        if self._has_answered:
            return self.timeout
        return min(ALL_DOWN_SECONDS if self._reported.all_down else FIRST_ANSWER_SECONDS, self.timeout)

    def _answered(self) -> None:
        self._has_answered = True
        self._admin().poll(0)
        self._reported.clear()

    def _text(self, error: ClientError) -> str:
        text = re.sub(
            r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)|^\S+/bootstrap: ", "", error.str()
        ).rstrip(".")
        for name, value in self.properties.items():
            if value and _SECRET.search(name):
                text = text.replace(value, "***")
        return text


class Reader:
    """Reads partitions from given offsets; a context manager, since it holds a connection. It joins no consumer group.

    Args:
        purpose: Part of the group id that librdkafka demands.
    """

    def __init__(self, cluster: KafkaClient, purpose: str, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._cluster = cluster
        self._consumer = cluster.consumer({**_READING, "group.id": f"kafka-lake.{purpose}", **settings})
        self._open: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.close()

    def messages(
        self,
        starts: Iterable[TopicPartition],
        seconds: float | None = None,
        errors: Collection[int] | None = (END,),
    ) -> Iterator[Message]:
        """Yield the messages of partitions until `close` was called for each of them."""
        assigned = sorted(starts, key=lambda start: (start.topic, start.partition))
        self._open = {(start.topic, start.partition) for start in assigned}
        if not assigned:
            return
        self._consumer.assign(assigned)
        topics = {start.topic for start in assigned}
        topic = topics.pop() if len(topics) == 1 else None
        limit = self._cluster.timeout if seconds is None else seconds
        # By itself the client looks only once a second for the leaders of newly assigned partitions.
        with suppress(KafkaException):
            self._consumer.list_topics(*([topic] if topic else []), timeout=max(limit, 0))
        what = f"Reading topic {topic}" if topic else "Reading topics"
        right = Right("READ", "topic", topic) if topic else None
        until = time.monotonic() + limit
        while self._open and (left := until - time.monotonic()) > 0:
            message = self._consumer.poll(min(left, POLL_SECONDS))
            if message is None:
                continue
            error, is_open = message.error(), (message.topic(), message.partition()) in self._open
            # Reading needs no right on the group.
            expected = (
                errors is None or error is None or error.code() in (*errors, ClientError.GROUP_AUTHORIZATION_FAILED)
            )
            if not expected and (is_open or message.topic() in (None, topic)):
                raise self._cluster.explained(what, KafkaException(error), right)
            if is_open:
                until = until if seconds is not None else time.monotonic() + limit
                yield message
        if self._open and seconds is None:
            raise self._cluster.explained(what, TimeoutError(), right)
        self._consumer.unassign()

    def lists(self, topic: str, ranges: Iterable[OffsetRange]) -> Iterator[tuple[list[Message], list[int], list[int]]]:
        """Yield many messages of ranges at once, with their partitions and offsets: much faster than one by one.

        Messages behind the end of a range may be among them.
        """
        ends = {r.partition: r.end for r in ranges if len(r)}
        what, right = f"Reading topic {topic}", Right("READ", "topic", topic)
        if ends:
            self._consumer.assign([TopicPartition(topic, r.partition, r.start) for r in ranges if len(r)])
        until = time.monotonic() + self._cluster.timeout
        while ends:
            if time.monotonic() > until:
                raise self._cluster.explained(what, TimeoutError(), right)
            found = self._consumer.consume(_MANY, POLL_SECONDS)
            if not found:
                continue
            until = time.monotonic() + self._cluster.timeout
            messages = [message for message in found if message.error() is None]
            if len(messages) < len(found):
                for partition, offset in self._partition_ends(found, what, right):
                    if offset < ends.pop(partition, 0):
                        raise KafkaError(
                            f"{what}: partition {partition} ends at offset {offset}, before the table's position.",
                            "Run the topic: the run reports what the log has lost.",
                        )
            partitions, offsets = [m.partition() for m in messages], [m.offset() for m in messages]
            yield messages, partitions, offsets
            done = [p for p, o in dict(zip(partitions, offsets, strict=True)).items() if o + 1 >= ends.get(p, o + 2)]
            if done:
                self._consumer.incremental_unassign([TopicPartition(topic, p) for p in done])
                ends = {p: end for p, end in ends.items() if p not in done}
        self._consumer.unassign()

    def _partition_ends(self, messages: Iterable[Message], what: str, right: Right) -> Iterator[tuple[int, int]]:
        """Yield the partitions that end among messages, with their ends; raises their other errors."""
        for message in messages:
            error = message.error()
            if error is not None and error.code() == END:
                yield message.partition(), message.offset()
            elif error is not None and error.code() != ClientError.GROUP_AUTHORIZATION_FAILED:
                raise self._cluster.explained(what, KafkaException(error), right)

    def close(self, message: Message) -> None:
        """Read no more of a message's partition."""
        partition = (message.topic(), message.partition())
        self._open.discard(partition)
        self._consumer.incremental_unassign([TopicPartition(*partition)])


def _tls_alone(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a client that reads TLS's files and connects to nothing; empty without TLS."""
    if not str(properties.get("security.protocol", "")).endswith("SSL"):
        return {}
    own = {name: value for name, value in properties.items() if name.startswith(("ssl.", "enable.ssl."))}
    return {**own, "security.protocol": "SSL", "log_level": 0}
