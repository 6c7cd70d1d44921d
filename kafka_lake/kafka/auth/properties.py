"""Kafka client properties: from environment variables, and translated for librdkafka and for Spark's Java client."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka_lake.common import environment
from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth import sasl, tls
from kafka_lake.kafka.auth.spelling import FOR_JAVA, FOR_LIBRDKAFKA, SERVERS, addresses, setting, spelled

SAME_IN_BOTH = (
    "allow.auto.create.topics",
    "client.id",
    "client.rack",
    "client.dns.lookup",
    "check.crcs",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "max.partition.fetch.bytes",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "socket.connection.setup.timeout.ms",
)
"""Properties with the same name in both clients."""
RENAMED = MappingProxyType({"fetch.wait.max.ms": "fetch.max.wait.ms", "socket.timeout.ms": "request.timeout.ms"})
"""Properties with another name in Java."""

# Of consumer groups, which neither client joins here, and of keep-alive, which Java always has. Providers' pages list
# them for librdkafka.
_NOTHING_TO_JAVA = {"heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms", "socket.keepalive.enable"}
_ASSIGNED = "Remove it: each run assigns its partitions and offsets itself, and joins no consumer group."
_OURS = {
    "auto.offset.reset": "Remove it: new tables start at starting_offsets:, and then continue at their position.",
    "enable.auto.commit": _ASSIGNED,
    "group.id": f"{_ASSIGNED} For lag tools, use the group kafka-lake.<namespace>.<table>.",
    "isolation.level": "Remove it, and set read_committed: in the KafkaCluster document.",
}


def properties_from_env(environ: Mapping[str, str] | None = None, cluster: str | None = None) -> dict[str, str]:
    """Return the client properties that environment variables set.

    ``KAFKA_LAKE_KAFKA_SASL_PASSWORD`` is ``sasl.password``: one underscore stands for a dot.
    ``KAFKA_LAKE_BOOTSTRAP_SERVERS`` is ``bootstrap.servers``. A cluster with a name has only its own variables,
    ``KAFKA_LAKE_KAFKA__EU__SASL_PASSWORD``, so that no other brokers get its password.
    """
    variables = os.environ if environ is None else environ
    properties = environment.properties_of(environment.KAFKA, cluster, variables)
    if not cluster:
        properties[SERVERS] = environment.BOOTSTRAP_SERVERS.value(variables) or properties.get(
            SERVERS, f"127.0.0.1:{environment.BROKER_PORT.value(variables)}"
        )
    return properties


def client_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties for librdkafka."""
    every = _checked(properties)
    own = {n.removeprefix(FOR_LIBRDKAFKA): value for n, value in every.items() if n.startswith(FOR_LIBRDKAFKA)}
    given = _for_both(every) | own
    given[SERVERS] = addresses(given.get(SERVERS, ""))
    return sasl.for_librdkafka(given)


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka's connection and security properties to the Java client's."""
    every = _checked(properties)
    java = {name.removeprefix(FOR_JAVA): value for name, value in every.items() if name.startswith(FOR_JAVA)}
    given = {name: value for name, value in _for_both(every).items() if name not in _NOTHING_TO_JAVA}
    known = {SERVERS, "security.protocol", *SAME_IN_BOTH, *RENAMED, *tls.TRANSLATED, *sasl.TRANSLATED, *java}
    if unknown := next((name for name in given if name not in known), None):
        raise ConfigurationError(
            f"Spark's Java client has no equivalent of Kafka property {unknown}. {tls.HINTS.get(unknown, '')}".strip(),
            f"Remove it, or set {FOR_LIBRDKAFKA}{unknown} instead, which only Python's client gets.",
        )
    protocol = java.get("security.protocol") or given.get("security.protocol", "PLAINTEXT")
    java[SERVERS] = addresses(java.get(SERVERS) or given.get(SERVERS, ""))
    translated = {name: given[name] for name in ("security.protocol", *SAME_IN_BOTH) if name in given}
    translated |= {java_name: given[name] for name, java_name in RENAMED.items() if name in given}
    if translated.get("connections.max.idle.ms") == "0":
        # Never to librdkafka, at once to Java.
        translated["connections.max.idle.ms"] = "-1"
    if protocol.endswith("SSL"):
        translated |= tls.for_java(given, java)
    if protocol.startswith("SASL"):
        translated |= sasl.for_java(given, java)
    return translated | java


def _checked(properties: Mapping[str, str]) -> dict[str, str]:
    every = spelled(properties)
    for name in every:
        bare = name.removeprefix(FOR_JAVA).removeprefix(FOR_LIBRDKAFKA)
        # Brokers may allow Spark to read only in some groups.
        if bare in _OURS and name != f"{FOR_JAVA}group.id":
            raise ConfigurationError(f"{setting(name)} can't be set.", _OURS[bare])
    return every


def _for_both(every: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in every.items() if not name.startswith((FOR_JAVA, FOR_LIBRDKAFKA))}
