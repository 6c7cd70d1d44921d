"""Properties in the one spelling that both clients read alike, or an error. Pure.

librdkafka and Java read the same text differently. librdkafka (rd_kafka_anyconf_set_prop in rdkafka_conf.c) takes
``true``, ``t`` and ``1`` for true, in upper and lower case; it reads numbers by ``strtol(value, &end, 0)``, so that
``010`` is 8, ``0x10`` is 16 and ``1e3`` is 1; it matches enumerations without regard to case; and it removes white
space before a text (``Left-trim string(likes)``). Java (ConfigDef.parseType) trims everything at both ends, takes
``true`` and ``false`` alone, decimal numbers alone, and most enumerations in one case alone.
"""

import re
import string
from collections.abc import Mapping
from types import MappingProxyType

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security.settings import FOR_JAVA, FOR_LIBRDKAFKA, setting

BOOLEANS = (
    "allow.auto.create.topics",
    "check.crcs",
    "enable.metrics.push",
    "enable.ssl.certificate.verification",
    "socket.keepalive.enable",
)
"""The properties that are true or false."""

NUMBERS = MappingProxyType(
    {
        "connections.max.idle.ms": (0, 2147483647),
        "fetch.max.bytes": (0, 2147483135),
        "fetch.min.bytes": (1, 100000000),
        "fetch.wait.max.ms": (0, 300000),
        "max.partition.fetch.bytes": (1, 1000000000),
        "metadata.max.age.ms": (1, 86400000),
        "reconnect.backoff.ms": (0, 3600000),
        "reconnect.backoff.max.ms": (0, 3600000),
        "retry.backoff.ms": (1, 300000),
        "retry.backoff.max.ms": (1, 300000),
        "sasl.kerberos.min.time.before.relogin": (0, 86400000),
        "socket.connection.setup.timeout.ms": (1000, 2147483647),
        "socket.receive.buffer.bytes": (0, 100000000),
        "socket.send.buffer.bytes": (0, 100000000),
        "socket.timeout.ms": (10, 300000),
    }
)
"""The properties that are whole numbers, with the ranges of librdkafka's CONFIGURATION.md; Java's are wider."""

ENUMERATIONS = MappingProxyType(
    {
        "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "sasl.oauthbearer.grant.type": ("client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        "sasl.oauthbearer.method": ("default", "oidc"),
        "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "ssl.endpoint.identification.algorithm": ("none", "https"),
    }
)
"""The properties with few values, in the case that Java knows."""

ALIASES = MappingProxyType(
    {
        "fetch.message.max.bytes": "max.partition.fetch.bytes",
        "metadata.broker.list": "bootstrap.servers",
        "sasl.mechanisms": "sasl.mechanism",
        "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    }
)
"""librdkafka's second names of properties: the last one that is set wins there."""

CREDENTIALS = (
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "ssl.key.password",
    "ssl.keystore.password",
)
"""What is not changed, as white space may be part of it."""

_ENDPOINT = "ssl.endpoint.identification.algorithm"
_INTEGER = re.compile(r"[+-]?[0-9]+")
# What Java trims; librdkafka's isspace() is a part of it.
_BLANK = "".join(map(chr, range(33)))


def spelled(properties: Mapping[str, object]) -> dict[str, str]:
    """Return properties in one spelling.

    Args:
        properties: Properties in librdkafka's names, and those that begin with ``java.`` and ``librdkafka.``. Values
            are text, or what YAML makes of numbers and truth values.

    Returns:
        librdkafka's main names with values that both clients read alike. What is empty or None is left out. Of the
        properties for Java alone, only what this module knows is spelled anew, as they have Java's names and values.

    Raises:
        ConfigurationError: If a value is none that the property can have, or a property is set twice by two names.
    """
    found: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name, given in properties.items():
        if given is None:
            continue
        text = _text(name, given)
        prefix = next((each for each in (FOR_JAVA, FOR_LIBRDKAFKA) if name.startswith(each)), "")
        bare = name.removeprefix(prefix)
        value = _for_java(name, bare, text) if prefix == FOR_JAVA else _value(name, bare, text)
        if not value and not (prefix == FOR_JAVA and _may_be_empty(bare)):
            continue
        main = prefix + (bare if prefix == FOR_JAVA else ALIASES.get(bare, bare))
        if found.get(main, value) != value:
            raise ConfigurationError(
                f"{setting(origins[main])} and {setting(name)} are two names of one property, and differ.",
                "Remove one of them.",
            )
        found[main], origins[main] = value, name
    return found


def _text(name: str, given: object) -> str:
    text = str(given).lower() if isinstance(given, bool) else str(given)
    if "\0" in text or not _is_unicode(text):
        # Not shown: it may be a secret.
        raise ConfigurationError(
            f"{setting(name)} has a character that is no text, such as a zero byte.", "Remove the character."
        )
    return text


def _value(name: str, bare: str, text: str) -> str:
    if bare in CREDENTIALS or ALIASES.get(bare) in CREDENTIALS:
        return _credential(name, bare, text)
    trimmed = text.strip(_BLANK)
    if bare == _ENDPOINT and not trimmed:
        raise ConfigurationError(
            f"{setting(name)} is empty, which is none to Java and an error to librdkafka.",
            "Set it to none or https, or remove it.",
        )
    if not trimmed:
        return ""
    if bare in NUMBERS or ALIASES.get(bare) in NUMBERS:
        return _number(name, trimmed, NUMBERS[ALIASES.get(bare, bare)])
    if bare.endswith(".pem"):
        # In a .env file a certificate is one line.
        return trimmed.replace("\\n", "\n")
    return _word(name, bare, trimmed)


def _for_java(name: str, bare: str, text: str) -> str:
    trimmed = text.strip(_BLANK)
    if not trimmed:
        return ""
    if bare not in CREDENTIALS:
        # As Java does itself.
        text = _word(name, bare, trimmed) if bare in (*BOOLEANS, *ENUMERATIONS, "sasl.mechanism") else trimmed
    # Java's own way to say it: Setting to an empty string disables the check.
    return "" if bare == _ENDPOINT and text == "none" else text


def _may_be_empty(bare: str) -> bool:
    """Return whether an empty value means something to Java in what is for it alone."""
    return bare not in (*(BOOLEANS + tuple(NUMBERS)), "bootstrap.servers", "sasl.mechanism", "security.protocol")


def _word(name: str, bare: str, text: str) -> str:
    if bare in BOOLEANS:
        return _boolean(name, text)
    if bare in ENUMERATIONS:
        return _one_of(name, text, ENUMERATIONS[bare])
    return text.upper() if ALIASES.get(bare, bare) == "sasl.mechanism" else text


def _credential(name: str, bare: str, text: str) -> str:
    """Java's client gets most of them in quotes, and trims the rest; librdkafka removes white space before all."""
    if text != text.lstrip(string.whitespace) or (bare == "ssl.keystore.password" and text != text.strip(_BLANK)):
        raise ConfigurationError(
            f"{setting(name)} begins or ends with white space, which one of the Kafka clients removes.",
            "Remove it there. If it belongs to the credentials, they need others.",
        )
    return text


def _boolean(name: str, text: str) -> str:
    word = {"true": "true", "t": "true", "1": "true", "false": "false", "f": "false", "0": "false"}.get(text.lower())
    if word is None:
        raise ConfigurationError(f"{setting(name)} is {text!r}.", "Set it to true or false.")
    return word


def _number(name: str, text: str, allowed: tuple[int, int]) -> str:
    least, most = allowed
    # A number of more digits isn't in any range, and Python refuses to read one of thousands.
    if not _INTEGER.fullmatch(text) or len(text) > 20 or not least <= int(text) <= most:
        raise ConfigurationError(
            f"{setting(name)} is {text[:40]!r}, which is no whole number from {least} to {most}.", "Correct it."
        )
    return str(int(text))


def _one_of(name: str, text: str, allowed: tuple[str, ...]) -> str:
    for each in allowed:
        if each.lower() == text.lower():
            return each
    raise ConfigurationError(f"{setting(name)} is {text}.", f"Set it to one of {', '.join(allowed)}.")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
