"""Asking a Kafka cluster: clients by its properties, patience with its brokers, and errors that say what to fix."""

import re
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_lake.common.cluster_variables import own_variables
from kafka_lake.errors import KafkaLakeError
from kafka_lake.kafka.explain import Failure, Right, explained, is_refusal, not_made

_SECRET = re.compile(r"password|passphrase|secret|jaas|key\.pem$|private\.key|assertion\.|oauthbearer\.config")

# A refusal by one broker needn't be that of the next one tried, nor that of a moment later; so long an answer may
# still come.
GRACE_SECONDS = 2.0
# Who doesn't answer in so long isn't there, unless it has answered before: then the whole timeout counts.
_FIRST_ANSWER_SECONDS = 8.0
# All brokers refuse connections, or their names are unknown.
_ALL_DOWN_SECONDS = 4.0
POLL_SECONDS = 0.1


class _Reported:
    """What librdkafka said about connections since the last answer: the reason why requests merely time out."""

    def __init__(self) -> None:
        self.refusal: ClientError | None = None
        self.failure: ClientError | None = None
        self.all_down = False

    def note(self, error: ClientError) -> None:
        """Take down one report; librdkafka calls it from within `poll`."""
        if is_refusal(error):
            self.refusal = error
        elif error.code() == ClientError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.failure = error

    def forget(self) -> None:
        """An answer came, so whatever was reported before has passed."""
        self.refusal = self.failure = None
        self.all_down = False


class KafkaClient:
    """A client of a cluster, connected at the first question; those who ask are its subclasses.

    Args:
        properties: librdkafka client properties, ``bootstrap.servers`` among them.
        timeout: Seconds that one question may take. Brokers that have never answered are given up earlier.
        name: The cluster's name in the project, for errors; None if it has none.
    """

    def __init__(self, properties: Mapping[str, Any], timeout: float, name: str | None = None) -> None:
        self.name = name
        self.properties = dict(properties)
        self.timeout = timeout
        self._client: AdminClient | None = None
        self._reported = _Reported()
        self._has_answered = False

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers' addresses as configured."""
        return str(self.properties["bootstrap.servers"])

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = self.made(AdminClient, {})
        return self._client

    def made(self, client: type[Any], settings: Mapping[str, Any]) -> Any:
        """Return a client of the cluster.

        Args:
            settings: Of it alone, by librdkafka's names; they win over the cluster's.

        Raises:
            ConfigurationError: If a property is wrong.
        """
        # Errors of a lost connection come back with the answers; librdkafka's own stderr log would repeat them.
        quiet = {"log_level": 0, **self.properties, "error_cb": self._reported.note}
        try:
            if self.properties.get("sasl.oauthbearer.method") == "oidc" and (tls := _tls_alone(self.properties)):
                # librdkafka 2.16 aborts the process (rd_kafka_q_destroy0: assert) where it has begun to ask for tokens
                # before it finds that a file of TLS is wrong. Without SASL it says so.
                AdminClient(tls)
            return client({**quiet, **settings})
        except KafkaException as error:
            raise own_variables(not_made(self._text(error.args[0]), self.properties), self.name) from error

    def _ask(self, what: str, future: Any, right: Right | None = None) -> Any:
        asked = time.monotonic()
        while True:
            try:
                answer = future.result(timeout=min(POLL_SECONDS, self.timeout))
            except KafkaException as error:
                raise self.explained(what, error, right) from error
            except TimeoutError as error:
                self._admin().poll(0)
                if time.monotonic() - asked >= self._patience():
                    raise self.explained(what, error, right) from error
            else:
                self._answered()
                return answer

    def _patience(self) -> float:
        """Return for how many seconds an answer is waited for, given what was reported about connections so far."""
        if self._reported.refusal:
            return min(GRACE_SECONDS, self.timeout)
        if self._has_answered:
            return self.timeout
        return min(_ALL_DOWN_SECONDS if self._reported.all_down else _FIRST_ANSWER_SECONDS, self.timeout)

    def _answered(self) -> None:
        self._has_answered = True
        self._admin().poll(0)
        self._reported.forget()

    def explained(self, what: str, error: Exception, right: Right | None = None) -> KafkaLakeError:
        """Return the error for the user, with what to fix, that an error of a client of this cluster stands for.

        Args:
            what: What was asked for, as a sentence begins.
            error: What the client raised; a timeout is explained by what was reported about connections meanwhile.
            right: What the principal needs for it.
        """
        cause = error.args[0] if error.args and isinstance(error.args[0], ClientError) else None
        self._admin().poll(0)
        if cause is None or cause.code() < 0:
            # The client's own errors say that it gave up waiting; its reports say why the wait was in vain.
            cause = self._reported.refusal or self._reported.failure or cause
        code, text = (cause.code(), self._text(cause)) if cause else (None, "")
        failure = Failure(what=what, code=code, text=text, waited=self._patience(), right=right)
        return own_variables(explained(failure, self.properties), self.name)

    def _text(self, error: ClientError) -> str:
        text = re.sub(
            r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)|^\S+/bootstrap: ", "", error.str()
        ).rstrip(".")
        for name, value in self.properties.items():
            if value and _SECRET.search(name):
                text = text.replace(value, "***")
        return text


def _tls_alone(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a client that reads TLS's files and connects to nothing; empty without TLS."""
    if not str(properties.get("security.protocol", "")).endswith("SSL"):
        return {}
    own = {name: value for name, value in properties.items() if name.startswith(("ssl.", "enable.ssl."))}
    return {**own, "security.protocol": "SSL", "log_level": 0}
