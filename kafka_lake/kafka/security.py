"""One set of Kafka client properties, in librdkafka's names, for both clients: librdkafka's and Spark's Java client."""

import os
from collections.abc import Mapping

from kafka_lake.common import environment
from kafka_lake.common.errors import ConfigurationError

_PASSED_AS_THEY_ARE = ("security.protocol", "sasl.mechanism", "client.id", "client.dns.lookup")


def properties_from_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the client properties that environment variables set.

    ``KAFKA_LAKE_KAFKA_SASL_PASSWORD`` is ``sasl.password``: one underscore stands for a dot.
    ``KAFKA_LAKE_BOOTSTRAP_SERVERS`` is ``bootstrap.servers``.

    Args:
        environ: Variables to look at; the process's own by default.

    Returns:
        librdkafka properties. ``bootstrap.servers`` is the embedded broker's where nothing says otherwise.
    """
    variables = os.environ if environ is None else environ
    found = {
        name.removeprefix(environment.KAFKA.name).lower().replace("_", "."): value
        for name, value in variables.items()
        if name.startswith(environment.KAFKA.name)
    }
    found["bootstrap.servers"] = environment.BOOTSTRAP_SERVERS.value(variables) or found.get(
        "bootstrap.servers", "127.0.0.1:19092"
    )
    return found


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka's connection and security properties to the Java client's.

    Args:
        properties: librdkafka properties; any that begin with ``java.`` are passed to the Java client as they are,
            and to it alone.

    Returns:
        Java client properties; those that concern neither connection nor security are left out.

    Raises:
        ConfigurationError: If a mechanism can't be translated and no ``java.sasl.jaas.config`` is given.
    """
    given = dict(properties)
    java = {"bootstrap.servers": given["bootstrap.servers"]}
    given.setdefault("sasl.mechanism", given.get("sasl.mechanisms", ""))
    java |= {name: given[name] for name in _PASSED_AS_THEY_ARE if given.get(name)}
    java |= _tls(given)
    java |= {name.removeprefix("java."): value for name, value in given.items() if name.startswith("java.")}
    if "SASL" in java.get("security.protocol", "").upper() and "sasl.jaas.config" not in java:
        java["sasl.jaas.config"] = _jaas(given)
    return java


def client_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties meant for librdkafka: all but those that begin with ``java.``."""
    return {name: value for name, value in properties.items() if not name.startswith("java.")}


def _jaas(given: Mapping[str, str]) -> str:
    mechanism = given.get("sasl.mechanism", "").upper()
    modules = {
        "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
        "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
        "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    }
    if mechanism not in modules:
        raise ConfigurationError(
            f"Kafka's SASL mechanism {mechanism or '(none set)'} has no automatic setting for Spark's Java client.",
            "Set KAFKA_LAKE_KAFKA_JAVA_SASL_JAAS_CONFIG (property java.sasl.jaas.config) to the JAAS line it needs.",
        )
    user, password = _quoted(given["sasl.username"]), _quoted(given["sasl.password"])
    return f"{modules[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tls(given: Mapping[str, str]) -> dict[str, str]:
    java: dict[str, str] = {}
    if ca := given.get("ssl.ca.location"):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
    if keystore := given.get("ssl.keystore.location"):
        java |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": keystore}
        java |= {"ssl.keystore.password": given.get("ssl.keystore.password", "")}
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    return java
