"""Kafka client properties: from environment variables, and translated for librdkafka and for the Java client."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka_lake.common import cluster_variables, environment
from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security import msk, sasl, tls
from kafka_lake.kafka.security.addresses import NAME as SERVERS
from kafka_lake.kafka.security.addresses import addresses
from kafka_lake.kafka.security.settings import FOR_JAVA, FOR_LIBRDKAFKA, given_for, setting
from kafka_lake.kafka.security.spelling import spelled

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
"""Properties that both clients have by the same name."""

RENAMED = MappingProxyType(
    {
        "fetch.wait.max.ms": "fetch.max.wait.ms",
        "socket.receive.buffer.bytes": "receive.buffer.bytes",
        "socket.send.buffer.bytes": "send.buffer.bytes",
        "socket.timeout.ms": "request.timeout.ms",
    }
)
"""What Java calls those that have another name there."""

ZERO_IS_OFF = ("connections.max.idle.ms", "socket.receive.buffer.bytes", "socket.send.buffer.bytes")
"""What librdkafka switches off by 0 and Java by -1.

CONFIGURATION.md says ``Close broker connections after the specified time of inactivity. Disable with 0.`` and ``System
default is used if 0.`` Java's Selector closes idle connections at once by 0, and takes ``NO_IDLE_TIMEOUT_MS = -1``;
its documentation of the buffers says ``If the value is -1, the OS default will be used.``
"""

NOTHING_TO_JAVA = MappingProxyType(
    {
        "heartbeat.interval.ms": None,
        "max.poll.interval.ms": None,
        "session.timeout.ms": None,
        "socket.keepalive.enable": "true",
    }
)
"""What Java needn't be told; None for any value.

The first are of consumer groups, which neither client joins here; what Confluent Cloud offers to copy for librdkafka
has ``session.timeout.ms``. Java's Selector does ``socket.setKeepAlive(true)`` always, and Event Hubs' documentation
advises ``socket.keepalive.enable`` for librdkafka.
"""

_RECONNECT_MAX_MS = "10000"
_JAVA_REQUEST_TIMEOUT_MS = "30000"

_ASSIGNED = "Remove it: each run assigns its partitions and offsets itself, and joins no consumer group."
OURS = MappingProxyType(
    {
        "auto.offset.reset": "Remove it: starting_offsets: says where a new table begins; then its position counts.",
        "enable.auto.commit": _ASSIGNED,
        "group.id": f"{_ASSIGNED} Lag tools look at the group kafka-lake.<namespace>.<table>.",
        "isolation.level": "Remove it, and set read_committed: in the KafkaCluster document.",
    }
)
"""What is not for users to set, and what to do instead."""

_CONNECTION = (SERVERS, "security.protocol")


def properties_from_env(environ: Mapping[str, str] | None = None, cluster: str | None = None) -> dict[str, str]:
    """Return the client properties that environment variables set.

    ``KAFKA_LAKE_KAFKA_SASL_PASSWORD`` is ``sasl.password``: one underscore stands for a dot.
    ``KAFKA_LAKE_BOOTSTRAP_SERVERS`` is ``bootstrap.servers``. A cluster with a name has variables of its own alone:
    ``KAFKA_LAKE_KAFKA__EU__SASL_PASSWORD``, so that no other brokers are ever told its password.

    Args:
        environ: Variables to look at; the process's own by default.
        cluster: The cluster's name; None if it has none.
    """
    variables = os.environ if environ is None else environ
    found = cluster_variables.properties(environment.KAFKA, cluster, variables)
    if cluster:
        return found
    found["bootstrap.servers"] = environment.BOOTSTRAP_SERVERS.value(variables) or found.get(
        "bootstrap.servers", f"127.0.0.1:{environment.BROKER_PORT.value(variables)}"
    )
    return found


def client_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties for librdkafka.

    Args:
        properties: librdkafka properties; those that begin with ``java.`` are left out, and the prefix
            ``librdkafka.`` is removed.

    Raises:
        ConfigurationError: If AWS_MSK_IAM lacks its package or its region, an address is not one, or a property has a
            value that it can't have.
    """
    every = spelled(properties)
    _refuse_ours(every)
    given = given_for(FOR_LIBRDKAFKA, every)
    protocol = given.get("security.protocol", "PLAINTEXT")
    given[SERVERS] = addresses(given.get(SERVERS, ""), protocol)
    if protocol.endswith("SSL"):
        given = tls.with_authorities(given, "ssl.ca")
    if sasl.is_used(given):
        given = tls.with_authorities(given, "https.ca")
    if given.get("sasl.mechanism") == msk.MECHANISM and sasl.is_used(given):
        return msk.for_librdkafka(given)
    given.pop(msk.REGION, None)
    return dict(given)


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka's connection and security properties to the Java client's.

    Args:
        properties: librdkafka properties. Those that begin with ``java.`` are for the Java client alone and win over
            what is translated; those that begin with ``librdkafka.`` are left out.

    Returns:
        Java client properties.

    Raises:
        ConfigurationError: If a property about security is missing, if one is not for users to set, has a value that
            it can't have, or has no equivalent in Java and no ``java.`` property replaces it.
    """
    every = spelled(properties)
    _refuse_ours(every)
    java = {name.removeprefix(FOR_JAVA): value for name, value in every.items() if name.startswith(FOR_JAVA)}
    given = {name: value for name, value in every.items() if not name.startswith((FOR_JAVA, FOR_LIBRDKAFKA))}
    given = {name: value for name, value in given.items() if NOTHING_TO_JAVA.get(name, "") not in (None, value)}
    protocol = java.get("security.protocol") or given.get("security.protocol", "PLAINTEXT")
    for name in given:
        if name not in {*_CONNECTION, *SAME_IN_BOTH, *RENAMED, *tls.TRANSLATED, *sasl.TRANSLATED, *java}:
            raise ConfigurationError(
                f"Spark's Java client has no equivalent of Kafka property {name}. {tls.HINTS.get(name, '')}".strip(),
                f"Remove it, or set {FOR_LIBRDKAFKA}{name} instead, which is for Python's client alone.",
            )
    told: dict[str, str] = {}
    java[SERVERS] = addresses(java.get(SERVERS) or given.get(SERVERS, ""), protocol)
    told |= {name: given[name] for name in ("security.protocol", *SAME_IN_BOTH) if name in given}
    told |= {java_name: given[name] for name, java_name in RENAMED.items() if name in given}
    told |= {RENAMED.get(name, name): "-1" for name in ZERO_IS_OFF if given.get(name) == "0"}
    told |= _beside(told)
    if protocol.endswith("SSL"):
        told |= tls.for_java(given, java)
    if protocol.startswith("SASL"):
        told |= sasl.for_java(given, java)
    return told | java


def _refuse_ours(every: Mapping[str, str]) -> None:
    for name in every:
        bare = name.removeprefix(FOR_JAVA).removeprefix(FOR_LIBRDKAFKA)
        # Spark has a use for a group: brokers may allow reading in some groups alone.
        if bare in OURS and name != f"{FOR_JAVA}group.id":
            raise ConfigurationError(f"{setting(name)} can't be set.", OURS[bare])


def _beside(told: Mapping[str, str]) -> dict[str, str]:
    """Return what Java needs beside properties of the same meaning, to do what librdkafka does with these alone.

    CONFIGURATION.md: the pause before another connection ``is increased exponentially until reconnect.backoff.max.ms
    is reached``, 10000 by default; Java's ConsumerConfig sets its own maximum to ``reconnect.backoff.ms`` if that alone
    is given. Java ends a connection's setup after ``socket.connection.setup.timeout.max.ms`` if that is less (its
    ExponentialBackoff: ``Math.min(maxInterval, initialInterval)``); librdkafka's timeout is constant. librdkafka waits
    for a fetch ``fetch.wait.max.ms + socket.timeout.ms``, Java for ``request.timeout.ms`` in all.
    """
    found = {}
    if "reconnect.backoff.ms" in told and "reconnect.backoff.max.ms" not in told:
        found["reconnect.backoff.max.ms"] = _RECONNECT_MAX_MS
    if setup := told.get("socket.connection.setup.timeout.ms"):
        found["socket.connection.setup.timeout.max.ms"] = setup
    timeout = int(told.get("request.timeout.ms", _JAVA_REQUEST_TIMEOUT_MS))
    if (wait := int(told.get("fetch.max.wait.ms", 0))) >= timeout:
        found["request.timeout.ms"] = str(wait + timeout)
    return found
