"""Asking a Kafka cluster: clients by its properties, patience with its brokers, and errors that say what to mend."""

import re
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_lake.common.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    KafkaLakeError,
    UnknownTopicError,
)

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
GRACE_SECONDS = 2.0
# Who doesn't answer in so long isn't there, unless it has answered before: then the whole timeout counts.
_FIRST_ANSWER_SECONDS = 8.0
# All brokers refuse connections, or their names are unknown.
_ALL_DOWN_SECONDS = 4.0
POLL_SECONDS = 0.1

UNREACHABLE = (
    "Check that the brokers run and KAFKA_LAKE_BOOTSTRAP_SERVERS and the security settings are right; "
    "`kafka-lake doctor` tells more."
)
"""What to do where no broker answers."""


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


class KafkaClient:
    """A client of a cluster, connected at the first question; those who ask are its subclasses.

    Args:
        properties: librdkafka client properties, ``bootstrap.servers`` among them.
        timeout: Seconds that one question may take. Brokers that have never answered are given up earlier.
    """

    def __init__(self, properties: Mapping[str, str], timeout: float) -> None:
        self.properties = dict(properties)
        self.timeout = timeout
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
                answer = future.result(timeout=min(POLL_SECONDS, self.timeout))
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
            return min(GRACE_SECONDS, self.timeout)
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
            return KafkaError(f"{where} gave no answer within {self._patience():g} s.", UNREACHABLE)
        code, text = cause.code(), self._text(cause)
        if code == ClientError.UNKNOWN_TOPIC_OR_PART:
            return UnknownTopicError(f"{where} has no such topic.", "Create it, or mend the name in the topic's YAML.")
        if code == ClientError._BAD_MSG:
            return KafkaError(f"{where} gave an answer that is no Kafka broker's.", UNREACHABLE)
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
        return KafkaError(f"{where} gave no answer: {text}.", UNREACHABLE)

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
