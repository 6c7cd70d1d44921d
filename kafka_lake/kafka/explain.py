"""Errors of librdkafka for users: the class, who was refused what, and what to do next."""

import datetime as dt
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError as ClientError
from cryptography import x509

from kafka_lake.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    KafkaLakeError,
    UnknownTopicError,
)
from kafka_lake.kafka.auth import tls

_REFUSED_CLIENT = {
    ClientError._AUTHENTICATION,
    ClientError._SSL,
    ClientError.SASL_AUTHENTICATION_FAILED,
    ClientError.UNSUPPORTED_SASL_MECHANISM,
}
# Alerts that a TLS server sends about a client's certificate.
_CERTIFICATE_ALERTS = ("alert bad certificate", "alert certificate", "alert unknown ca", "certificate required")
_NO_CONNECTION = ("Failed to connect", "Could not resolve", "Couldn't resolve", "timed out", "Timeout")
_CLOSED_TLS = (
    "connecting to a PLAINTEXT broker listener",
    "SSL connection closed by peer",
    "Disconnected: connection reset by peer",
    "Disconnected: connection closed by peer",
)
"""librdkafka's reports if the other side ends TLS's handshake; which one comes is a matter of chance."""
_HANDSHAKE_SECONDS = 2.0
_TOKEN = "Failed to acquire SASL OAUTHBEARER token"

UNREACHABLE = (
    "Check that the brokers run and KAFKA_LAKE_BOOTSTRAP_SERVERS and the security settings are right; "
    "`kafka-lake doctor` checks them."
)
"""What to do where no broker answers."""


@dataclass(frozen=True)
class Right:
    """An access right of a principal on a topic, a group or the cluster."""

    operation: str
    kind: str
    name: str = ""


_RIGHTS = {
    ClientError.TOPIC_AUTHORIZATION_FAILED: Right("READ", "topic"),
    ClientError.GROUP_AUTHORIZATION_FAILED: Right("READ", "group"),
    ClientError.CLUSTER_AUTHORIZATION_FAILED: Right("DESCRIBE", "cluster"),
}


@dataclass(frozen=True)
class Failure:
    """A failed request.

    Args:
        code: librdkafka's code; None if there was no answer and no report.
    """

    what: str
    code: int | None
    text: str = ""
    waited: float = 0.0
    right: Right | None = None


def is_refusal(error: ClientError) -> bool:
    """Return whether librdkafka reports that one side refuses the other."""
    return error.code() in _REFUSED_CLIENT or _is_certificate_alert(error.str())


def explained(failure: Failure, properties: Mapping[str, str]) -> KafkaLakeError:
    """Return the error to show; a broker is connected to once more if librdkafka doesn't name the reason."""
    where = f"{failure.what}: the cluster at {properties['bootstrap.servers']}"
    code, text = failure.code, failure.text
    if code is None:
        return _silent(where, failure.waited, properties)
    if code == ClientError.UNKNOWN_TOPIC_OR_PART:
        return UnknownTopicError(f"{where} has no such topic.", "Create it, or correct the name in the topic's YAML.")
    if code == ClientError._BAD_MSG:
        return KafkaError(f"{where} sent a response that isn't from a Kafka broker.", UNREACHABLE)
    if _is_certificate_alert(text):
        return _own_certificate_refused(where, text, properties)
    if code == ClientError._SSL or _closes_tls(text, properties):
        return _not_trusted(where, text, properties)
    if _TOKEN in text:
        return _no_token(where, text, properties)
    if code in _REFUSED_CLIENT:
        return AuthenticationError(
            f"{where} refused the credentials of {identity(properties)}: {text}.",
            "Check KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL, KAFKA_LAKE_KAFKA_SASL_MECHANISM and the credentials, for "
            "instance KAFKA_LAKE_KAFKA_SASL_USERNAME and KAFKA_LAKE_KAFKA_SASL_PASSWORD.",
        )
    if code in _RIGHTS:
        return missing_right(where, failure.right or _RIGHTS[code], properties, text)
    return KafkaError(f"{where} didn't answer: {text}.", UNREACHABLE)


def missing_right(where: str, right: Right, properties: Mapping[str, str], text: str = "") -> AuthorizationError:
    """Return the error for a missing right, with the command that grants it."""
    named = f"{right.kind} {right.name}".strip()
    resource = "--cluster" if right.kind == "cluster" else f"--{right.kind} {right.name or 'NAME'}"
    command = (
        f"kafka-acls.sh --bootstrap-server {properties['bootstrap.servers']} --add "
        f"--allow-principal {principal(properties)} --operation {right.operation} {resource}"
    )
    detail = f": {text}" if text else ""
    return AuthorizationError(
        f"{where} doesn't allow {right.operation} on {named} to {identity(properties)}{detail}.",
        f"Grant it (`{command}`), or use another account.",
    )


def not_made(text: str, properties: Mapping[str, str]) -> ConfigurationError:
    """Return the error for properties that make no client."""
    remedy = "Correct the property in kafka_properties: or in its KAFKA_LAKE_KAFKA_* variable."
    if "No provider for SASL mechanism GSSAPI" in text:
        remedy = (
            "The installed confluent-kafka doesn't support Kerberos, like all wheels on PyPI. Install librdkafka with "
            "GSSAPI "
            "and its headers, then `pip install --no-binary confluent-kafka confluent-kafka`; docs/kafka-security.md "
            "has the commands."
        )
    return ConfigurationError(
        f"The Kafka client for {properties['bootstrap.servers']} can't be created: {text}.", remedy
    )


def _is_certificate_alert(text: str) -> bool:
    return any(alert in text for alert in _CERTIFICATE_ALERTS)


def _silent(where: str, waited: float, properties: Mapping[str, str]) -> KafkaLakeError:
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if not protocol.endswith("SSL") and speaks_tls(properties):
        secure = "SASL_SSL" if protocol.startswith("SASL") else "SSL or SASL_SSL"
        return AuthenticationError(
            f"{where} didn't answer: this port requires TLS, and security.protocol is {protocol}.",
            f"Set KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL to {secure}, or use another port.",
        )
    return KafkaError(f"{where} didn't answer within {waited:g} s.", UNREACHABLE)


def _own_certificate_refused(where: str, text: str, properties: Mapping[str, str]) -> AuthenticationError:
    own = own_certificate(properties)
    if own is None and not properties.get("ssl.keystore.location"):
        return AuthenticationError(
            f"{where} requires a client certificate, and none is set.",
            "Set KAFKA_LAKE_KAFKA_SSL_CERTIFICATE_LOCATION and KAFKA_LAKE_KAFKA_SSL_KEY_LOCATION.",
        )
    named = f"certificate {own.subject.rfc4514_string()} of this client" if own else "certificate of this client"
    if own and (dates := validity(own)):
        return AuthenticationError(
            f"{where} refused the {named}, which {dates}.",
            "Renew it, and set KAFKA_LAKE_KAFKA_SSL_CERTIFICATE_LOCATION to the new certificate.",
        )
    issuer = f" by {own.issuer.rfc4514_string()}" if own else ""
    return AuthenticationError(
        f"{where} refused the {named}: {text}.",
        f"Use a certificate from a CA that the brokers trust; this certificate is signed{issuer}. If the brokers "
        "require no client certificate, check the port.",
    )


def _closes_tls(text: str, properties: Mapping[str, str]) -> bool:
    uses_tls = properties.get("security.protocol", "").upper().endswith("SSL")
    return uses_tls and any(reason in text for reason in _CLOSED_TLS)


def _not_trusted(where: str, text: str, properties: Mapping[str, str]) -> KafkaLakeError:
    if _closes_tls(text, properties):
        # A broker that is shutting down looks the same, so that a retry may help.
        return KafkaError(
            f"{where} closed the TLS connection.",
            "If the port doesn't use TLS, KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL must be PLAINTEXT or SASL_PLAINTEXT. "
            "Otherwise the broker may be restarting.",
        )
    reason = distrust(properties) or f"{text}."
    return AuthenticationError(
        f"{where} is not trusted by this client. {reason}",
        "If the certificate is right, set KAFKA_LAKE_KAFKA_SSL_CA_LOCATION to the certificate of the CA that signed "
        "it. If it has expired, or has another host name, the brokers need a new one.",
    )


def _no_token(where: str, text: str, properties: Mapping[str, str]) -> KafkaError:
    endpoint = properties.get("sasl.oauthbearer.token.endpoint.url", "its token endpoint")
    reason = text.partition(_TOKEN)[2].lstrip(": ")
    if any(sign in text for sign in _NO_CONNECTION):
        return KafkaError(
            f"{where} requires a token, and {endpoint} didn't issue one: {reason}.",
            "Check KAFKA_LAKE_KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL, and that this machine reaches it.",
        )
    return AuthenticationError(
        f"{where} requires a token, and {endpoint} didn't issue one to {identity(properties)}: {reason}.",
        "Check KAFKA_LAKE_KAFKA_SASL_OAUTHBEARER_CLIENT_ID, …_CLIENT_SECRET and …_SCOPE.",
    )


def identity(properties: Mapping[str, str]) -> str:
    """Return a client's identity for messages.

    >>> identity({"security.protocol": "SASL_SSL", "sasl.username": "bob"})
    'user bob'
    >>> identity({})
    'this client'
    """
    if properties.get("security.protocol", "").upper().startswith("SASL"):
        for name, kind in (
            ("sasl.username", "user"),
            ("sasl.oauthbearer.client.id", "client"),
            ("sasl.kerberos.principal", "principal"),
        ):
            if given := properties.get(name):
                return f"{kind} {given}"
        return "this client"
    own = own_certificate(properties)
    return f"certificate {own.subject.rfc4514_string()}" if own else "this client"


def principal(properties: Mapping[str, str]) -> str:
    """Return a principal as an access rule names it; ``User:NAME`` if only the brokers know it."""
    kind, _, name = identity(properties).partition(" ")
    return f"User:{name}" if kind in ("user", "client") and name else "User:NAME"


def own_certificate(properties: Mapping[str, str]) -> x509.Certificate | None:
    """Return the client's certificate; None if it has none that can be read without a password."""
    try:
        return x509.load_pem_x509_certificate(tls.certificate_of(properties).encode())
    except (ConfigurationError, ValueError):
        return None


def validity(certificate: x509.Certificate) -> str:
    """Return why a certificate isn't valid now, as the end of a sentence; empty if its dates are right."""
    now = dt.datetime.now(dt.UTC)
    if certificate.not_valid_after_utc < now:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def speaks_tls(properties: Mapping[str, str]) -> bool:
    """Return whether the first broker answers as a TLS server."""
    return _certificate(properties) is not None


def distrust(properties: Mapping[str, str]) -> str:
    """Return why the broker's certificate isn't trusted, as a sentence; empty if unknown."""
    certificate = _certificate(properties)
    if certificate is None:
        return ""
    subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
    named = f"The broker's certificate {subject}, issued by {issuer},"
    if dates := validity(certificate):
        return f"{named} {dates}."
    try:
        context = ssl.create_default_context()
        if pem := properties.get("ssl.ca.pem"):
            context = ssl.create_default_context(cadata=pem)
        elif (location := properties.get("ssl.ca.location", "probe")) != "probe":
            in_folder = Path(location).is_dir()
            context = ssl.create_default_context(
                cafile=None if in_folder else location, capath=location if in_folder else None
            )
        _shake(properties, context)
    except ssl.SSLCertVerificationError as error:
        return f"{named} is refused: {error.verify_message.rstrip('.')}."
    except (OSError, ValueError):
        return ""
    return ""


def _certificate(properties: Mapping[str, str]) -> x509.Certificate | None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        encoded = _shake(properties, context)
        return x509.load_der_x509_certificate(encoded) if encoded else None
    except (OSError, ValueError):
        return None


def _shake(properties: Mapping[str, str], context: ssl.SSLContext) -> bytes | None:
    host, _, port = properties["bootstrap.servers"].split(",")[0].strip().rpartition("://")[2].rpartition(":")
    host = host.strip("[]")
    with (
        socket.create_connection((host, int(port)), timeout=_HANDSHAKE_SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True)
