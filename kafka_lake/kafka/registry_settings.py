"""The settings of a schema registry's client: by environment variables and properties, addresses and secrets apart."""

import base64
import math
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from kafka_lake.common import cluster_variables, environment
from kafka_lake.errors import ConfigurationError

# The client's own retries are for a hiccup between two of many questions; who waits longer calls again.
_BRIEF_RETRIES = {"max.retries": 1, "retries.wait.ms": 200, "retries.max.wait.ms": 500}
_NUMBERS = {"timeout", "cache.capacity", "cache.latest.ttl.sec", *_BRIEF_RETRIES}
_SECRET = re.compile(r"password|secret|token$|user\.info")

PROPERTIES = (
    "Correct it among the registry resource's properties, or in the KAFKA_LAKE_REGISTRY_* variable of that name."
)
"""What to do about a property that is wrong."""


def properties_from_env(environ: Mapping[str, str] | None = None, cluster: str | None = None) -> dict[str, str]:
    """Return the client properties that environment variables set.

    ``KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO`` is ``basic.auth.user.info``: one underscore stands for a dot.
    ``KAFKA_LAKE_SCHEMA_REGISTRY_URL`` is ``url``. Empty variables count as unset. The registry of a cluster with a name
    has variables of its own: ``KAFKA_LAKE_REGISTRY__EU__URL``.

    Args:
        environ: Variables to look at; the process's own by default.
        cluster: The cluster's name; None if it has none.
    """
    variables = os.environ if environ is None else environ
    given = {name: each for name, each in variables.items() if each and name != environment.REGISTRY_PORT.name}
    found = cluster_variables.properties(environment.REGISTRY, cluster, given)
    if cluster:
        return found
    if url := environment.SCHEMA_REGISTRY_URL.value(variables):
        found["url"] = url
    return found


def addresses_of(url: str) -> tuple[list[str], str]:
    """Return a property ``url`` as addresses without credentials, and the credentials that they had."""
    addresses, credentials = [], set()
    for each in url.split(","):
        try:
            parts = urlsplit(each.strip())
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            sound = False
        if not sound:
            # Where the credentials end in what is no URL nobody knows; at the last @ they have.
            raise ConfigurationError(
                f"The schema registry's address {url.rpartition('@')[2]!r} is not an http or https URL.",
                "Correct KAFKA_LAKE_SCHEMA_REGISTRY_URL, or url among the registry resource's properties: one URL, or "
                "several separated by commas; special characters in a password must be percent-encoded there.",
            )
        user, at, host = parts.netloc.rpartition("@")
        addresses.append(urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")))
        credentials |= {unquote(user)} if at else set()
    if len(credentials) > 1:
        raise ConfigurationError(
            f"The schema registry's addresses {', '.join(addresses)} have differing credentials.",
            "Leave them out there, and set KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO.",
        )
    return addresses, "".join(credentials)


def client_settings(properties: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Return the properties as the client takes them.

    Args:
        properties: In the names of confluent-kafka's ``SchemaRegistryClient``.
        timeout: Seconds of silence after which a request counts as failed.

    Raises:
        ConfigurationError: If a property that must be a number isn't one.
    """
    settings: dict[str, Any] = {"timeout": timeout, **_BRIEF_RETRIES, **properties}
    for name in _NUMBERS & settings.keys():
        try:
            number = float(settings[name])
        except (TypeError, ValueError):
            number = math.nan
        # A timeout of nan never ends, and one of inf is too large for a socket.
        if not 0 <= number < math.inf:
            raise ConfigurationError(
                f"The schema registry's {name} is {settings[name]}, which is not a number from 0.", PROPERTIES
            )
        settings[name] = number
    if "bearer.auth.token" in settings:
        settings.setdefault("bearer.auth.credentials.source", "STATIC_TOKEN")
    if "bearer.auth.credentials.source" in settings:
        # The client demands what only Confluent Cloud has.
        settings.setdefault("bearer.auth.logical.cluster", "")
    if "ssl.certificate.location" in settings:
        # Without any, OpenSSL asks for the password of an encrypted key at the terminal.
        settings.setdefault("ssl.key.password", "")
    return settings


def secrets_of(settings: Mapping[str, Any]) -> list[str]:
    """Return all that must not be told, the longest first, so that none is left in part."""
    found = {str(value) for name, value in settings.items() if _SECRET.search(name)}
    user_info = settings.get("basic.auth.user.info", "")
    found |= {user_info.partition(":")[2], base64.b64encode(user_info.encode()).decode()}
    found.add(settings.get("proxy", "").rpartition("@")[0].rpartition(":")[2])
    return sorted(found - {""}, key=len, reverse=True)
