"""Environment variables that name the servers of the local stack, for this process and its children."""

import os
from collections.abc import MutableMapping

_CLUSTER = "KAFKA_LAKE_KAFKA_"
_REGISTRY = "KAFKA_LAKE_REGISTRY_"
_REGISTRY_PORT = "KAFKA_LAKE_REGISTRY_PORT"


def use_broker(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a broker without security the cluster, whatever was configured.

    Args:
        address: Its address, ``host:port``.
        environment: The variables to change.
    """
    _remove(environment, _CLUSTER)
    environment["KAFKA_LAKE_BOOTSTRAP_SERVERS"] = address


def use_registry(url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a schema registry without security the one to ask, whatever was configured.

    Args:
        url: Its address, without credentials; empty for none.
        environment: The variables to change.
    """
    _remove(environment, _REGISTRY)
    environment["KAFKA_LAKE_SCHEMA_REGISTRY_URL"] = url


def names_broker(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the variables say which cluster to use."""
    return "KAFKA_LAKE_BOOTSTRAP_SERVERS" in environment or f"{_CLUSTER}BOOTSTRAP_SERVERS" in environment


def names_registry(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the variables say which schema registry to use; an empty address says none."""
    return "KAFKA_LAKE_SCHEMA_REGISTRY_URL" in environment or f"{_REGISTRY}URL" in environment


def _remove(environment: MutableMapping[str, str], prefix: str) -> None:
    for name in [name for name in environment if name.startswith(prefix) and name != _REGISTRY_PORT]:
        del environment[name]
