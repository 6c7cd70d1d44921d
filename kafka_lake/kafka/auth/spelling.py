"""Kafka properties in one spelling that both clients read alike, and how messages name them. Pure.

librdkafka reads enumerations in any case, and addresses without a port; Java doesn't.
"""

import re
from collections.abc import Mapping

from kafka_lake.common import environment
from kafka_lake.errors import ConfigurationError

FOR_JAVA = "java."
"""A property that begins so is for Spark's Java client alone."""
FOR_LIBRDKAFKA = "librdkafka."
"""A property that begins so is for librdkafka alone."""
SERVERS = "bootstrap.servers"

_WORDS = {
    "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "ssl.endpoint.identification.algorithm": ("none", "https"),
}
_CREDENTIAL = re.compile(r"username|password|oauthbearer\..*client\.(id|secret)$")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{1,5}))?")
_PORT = 9092


def setting(name: str) -> str:
    """Name a property, and the variable that sets it.

    >>> setting("sasl.username")
    'Kafka property sasl.username (KAFKA_LAKE_KAFKA_SASL_USERNAME)'
    """
    return f"Kafka property {name} ({environment.KAFKA.name}{name.upper().replace('.', '_')})"


def needed(given: Mapping[str, str], name: str, why: str) -> str:
    """Return a property's value."""
    if value := given.get(name):
        return value
    raise ConfigurationError(f"{why} needs {setting(name)}, which is not set.", "Set it.")


def spelled(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties in the spelling that both clients read alike; those without a value are left out."""
    result: dict[str, str] = {}
    for name, text in properties.items():
        bare = name.removeprefix(FOR_JAVA).removeprefix(FOR_LIBRDKAFKA)
        if value := _value(name, bare, text):
            result[name.replace("sasl.mechanisms", "sasl.mechanism")] = value
    return result


def _value(name: str, bare: str, text: str) -> str:
    trimmed = text.strip()
    if _CREDENTIAL.search(bare):
        if trimmed != text:
            raise ConfigurationError(
                f"{setting(name)} begins or ends with white space, which one of the Kafka clients removes.",
                "Remove the white space. If it is part of the credentials, choose other credentials.",
            )
        return text
    if not trimmed:
        return ""
    if bare in ("sasl.mechanism", "sasl.mechanisms"):
        return trimmed.upper()
    if bare in _WORDS:
        words = {word.lower(): word for word in _WORDS[bare]}
        if trimmed.lower() not in words:
            raise ConfigurationError(f"{setting(name)} is {trimmed}.", f"Set it to one of {', '.join(_WORDS[bare])}.")
        return words[trimmed.lower()]
    # In a .env file a certificate is one line.
    return trimmed.replace("\\n", "\n") if bare.endswith(".pem") else trimmed


def addresses(given: str) -> str:
    """Return the brokers' addresses as ``host:port``, separated by commas.

    librdkafka's port is 9092 where there is none; it takes ``a:b`` for port 0. Java refuses an address without a port.

    >>> addresses("one, two:9093, [::1],")
    'one:9092,two:9093,[::1]:9092'
    """
    name = f"Kafka property {SERVERS} ({environment.BOOTSTRAP_SERVERS.name})"
    result = []
    for address in filter(None, map(str.strip, given.split(","))):
        match = _ADDRESS.fullmatch(address)
        port = int(match["port"] or _PORT) if match else 0
        if match is None or not 1 <= port <= 65535:
            raise ConfigurationError(
                # It may be a URL with a password.
                f"{name} has the address {address.rpartition('@')[2]!r}, which is not host:port.",
                "Correct it. Separate addresses by commas, write an IPv6 address in brackets, as [::1]:9092, and a "
                "name with other letters than a to z in its ASCII form (xn--).",
            )
        result.append(f"{match['host']}:{port}")
    if not result:
        raise ConfigurationError(f"{name} has no address.", "Set it to the brokers' addresses, as host:port.")
    return ",".join(result)
