"""Environment variables that name the servers of the local stack, for this process and its children."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from kafka_lake.common.environment import (
    BOOTSTRAP_SERVERS,
    KAFKA,
    PYICEBERG_CATALOG,
    REGISTRY,
    REGISTRY_PORT,
    SCHEMA_REGISTRY_URL,
)
from kafka_lake.common.home import dagster_home


def use_broker(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a broker without security the cluster, whatever was configured."""
    _remove(environment, KAFKA.name)
    environment[BOOTSTRAP_SERVERS.name] = address


def use_registry(url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a schema registry without security the one to ask, whatever was configured.

    Args:
        url: Its address, without credentials; empty for none.
    """
    _remove(environment, REGISTRY.name)
    environment[SCHEMA_REGISTRY_URL.name] = url


def use_catalog(name: str, properties: Mapping[str, str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a catalog the one to use, whatever was configured of one by that name.

    >>> found = {}
    >>> use_catalog("lake", {"s3.access-key-id": "a"}, found)
    >>> found
    {'PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID': 'a'}
    """
    prefix = f"{PYICEBERG_CATALOG.name}{name.upper()}__"
    _remove(environment, prefix)
    for key, value in properties.items():
        environment[prefix + key.replace(".", "__").replace("-", "_").upper()] = value


def names_catalog(name: str, environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the variables say anything of a catalog by that name."""
    return any(each.startswith(f"{PYICEBERG_CATALOG.name}{name.upper()}__") for each in environment)


def name_servers(bootstrap_servers: str, registry_url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make brokers and registry the ones to use, where they are told; what is set for their security stays.

    Args:
        bootstrap_servers: The brokers; empty to leave what is configured.
        registry_url: The registry; empty to leave what is configured.
    """
    for variable, value in ((BOOTSTRAP_SERVERS, bootstrap_servers), (SCHEMA_REGISTRY_URL, registry_url)):
        if value:
            environment[variable.name] = value


def names_broker(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the variables say which cluster to use."""
    return BOOTSTRAP_SERVERS.name in environment or f"{KAFKA.name}BOOTSTRAP_SERVERS" in environment


def names_registry(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Return whether the variables say which schema registry to use; an empty address says none."""
    return SCHEMA_REGISTRY_URL.name in environment or f"{REGISTRY.name}URL" in environment


def _remove(environment: MutableMapping[str, str], prefix: str) -> None:
    for name in [name for name in environment if name.startswith(prefix) and name != REGISTRY_PORT.name]:
        del environment[name]


_IN_FLIGHT = ("STARTING", "STARTED", "CANCELING")


def prepare_dagster_home() -> Path:
    """Make the folder of Dagster's storage as `dagster_home` does, and end runs that no one runs.

    Runs that were cut off together with an earlier stack would count as in flight forever.

    Returns:
        The folder, for ``DAGSTER_HOME``.
    """
    folder = dagster_home()
    if (folder / "storage").exists() or (folder / "history").exists():
        _end_orphaned_runs(folder)
    return folder


def _end_orphaned_runs(folder: Path) -> None:
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    statuses = [DagsterRunStatus[name] for name in _IN_FLIGHT]
    with DagsterInstance.from_config(str(folder)) as instance:
        for run in instance.get_runs(RunsFilter(statuses=statuses)):
            instance.report_run_canceled(run, "Its process ended together with an earlier local stack.")
