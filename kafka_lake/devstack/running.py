"""The ports, variables and file by which the servers of the local stack are found."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from kafka_lake.common.catalog import catalog_variable
from kafka_lake.common.environment import (
    BOOTSTRAP_SERVERS,
    BROKER_PORT,
    CATALOG,
    CONNECT_PORT,
    KAFKA,
    METRICS_PORT,
    REGISTRY,
    REGISTRY_PORT,
    SCHEMA_REGISTRY_URL,
    UI_PORT,
    Variable,
)
from kafka_lake.common.files import ensure_home, home, write_atomic
from kafka_lake.common.processes import HOST
from kafka_lake.errors import KafkaLakeError

_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Port:
    """A port, what it is for, and the environment variable that sets it."""

    number: int
    purpose: str
    variable: str

    @classmethod
    def from_env(cls, purpose: str, variable: Variable) -> Self:
        """Return the port that a variable names; raises `KafkaLakeError` if that isn't a number from 1 to 65535."""
        value = variable.value()
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 65535):
            raise KafkaLakeError(f"{variable.name}={value} is not a port: set it to a number from 1 to 65535")
        return cls(int(value), purpose, variable.name)

    @property
    def address(self) -> str:
        """``host:port`` of this port."""
        return f"{HOST}:{self.number}"

    def is_free(self) -> bool:
        """Return whether a server could listen here now."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As servers do; otherwise connections of a stack that has just ended would count as taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.number))
            except OSError:
                return False
        return True


@dataclass(frozen=True)
class Ports:
    """The ports of the local stack."""

    broker: Port
    ui: Port
    connect: Port
    registry: Port
    metrics: Port

    @classmethod
    def from_env(cls) -> Self:
        """Return the ports that ``KAFKA_LAKE_BROKER_PORT`` and the like name, as `Port.from_env` does."""
        return cls(
            broker=Port.from_env("the embedded Kafka broker", BROKER_PORT),
            ui=Port.from_env("Dagster's UI", UI_PORT),
            connect=Port.from_env("the Spark Connect server", CONNECT_PORT),
            registry=Port.from_env("the schema registry", REGISTRY_PORT),
            metrics=Port.from_env("the metrics", METRICS_PORT),
        )


def check_free(*ports: Port) -> None:
    """Check that every port is free and that no two are the same."""
    problems = [
        f"port {port.number} for {port.purpose} is taken: end the program that uses it, or set {port.variable}"
        for port in ports
        if not port.is_free()
    ]
    for position, port in enumerate(ports):
        problems += [
            f"{port.variable} and {other.variable} are both {port.number}: set one of them to another port"
            for other in ports[position + 1 :]
            if other.number == port.number
        ]
    if problems:
        raise KafkaLakeError("\n".join(problems))


def use_broker(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a broker without security the cluster, whatever was configured."""
    _remove(environment, KAFKA.name)
    environment[BOOTSTRAP_SERVERS.name] = address


def use_registry(url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a schema registry without security the one to ask, whatever was configured; an empty address is none."""
    _remove(environment, REGISTRY.name)
    environment[SCHEMA_REGISTRY_URL.name] = url


def use_catalog(name: str, properties: Mapping[str, str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Make a catalog the one to use, whatever was configured of one by that name.

    >>> found = {}
    >>> use_catalog("lake", {"s3.access-key-id": "a"}, found)
    >>> found
    {'PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID': 'a'}
    """
    _remove(environment, catalog_variable(name))
    environment.update({catalog_variable(name, key): value for key, value in properties.items()})


def use_servers(bootstrap_servers: str, registry_url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make brokers and registry the ones to use, unless they are empty; what is set for their security stays."""
    for variable, value in ((BOOTSTRAP_SERVERS, bootstrap_servers), (SCHEMA_REGISTRY_URL, registry_url)):
        if value:
            environment[variable.name] = value


def names_catalog(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the variables say anything of a catalog by that name."""
    return any(variable.startswith(catalog_variable(name)) for variable in environment)


def names_broker(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the variables say which cluster to use."""
    return BOOTSTRAP_SERVERS.name in environment or f"{KAFKA.name}BOOTSTRAP_SERVERS" in environment


def names_registry(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the variables say which schema registry to use; an empty address says none."""
    return SCHEMA_REGISTRY_URL.name in environment or f"{REGISTRY.name}URL" in environment


def _remove(environment: MutableMapping[str, str], prefix: str) -> None:
    for name in [name for name in environment if name.startswith(prefix) and name != REGISTRY_PORT.name]:
        del environment[name]


@dataclass(frozen=True)
class Running:
    """The servers of a local stack that are up; an address is empty where the stack has not started that server.

    Args:
        pids: Process ids by what they run.
        catalog: Properties of the embedded object store's catalog, its secret among them.
    """

    bootstrap_servers: str = ""
    registry_url: str = ""
    spark_remote: str = ""
    ui_url: str = ""
    pids: Mapping[str, int] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)

    def use(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Set the variables that name these servers; a variable that is set already stays as it is."""
        if self.bootstrap_servers and not names_broker(environment):
            use_broker(self.bootstrap_servers, environment)
        if self.registry_url and not names_registry(environment):
            use_registry(self.registry_url, environment)
        if self.catalog and not names_catalog(name := CATALOG.value(environment), environment):
            use_catalog(name, self.catalog, environment)
        if self.spark_remote:
            environment.setdefault("SPARK_REMOTE", self.spark_remote)


def running() -> Running | None:
    """Return what runs in this deployment's folder; None if no stack does, or the one that did was killed."""
    path, lock = _paths()
    with suppress(FileNotFoundError, json.JSONDecodeError, TypeError):
        found = Running(**json.loads(path.read_text()))
        with lock.open("rb") as file:
            return None if _locked(file, fcntl.LOCK_SH) else found
    return None


def check_alone() -> None:
    """Check that no other stack runs in this deployment's folder; raises `KafkaLakeError` with its process."""
    if other := running():
        ui = f" with its UI at {other.ui_url}" if other.ui_url else ""
        raise KafkaLakeError(
            f"A local stack runs in {home()} already: process {other.pids.get('kafka-lake')}{ui}.",
            "Use that one, or end it with Ctrl-C. For a second one set KAFKA_LAKE_HOME and the ports.",
        )


class RunningFile:
    """The file that tells other processes what runs: readable by its owner alone, and true while its lock is held.

    The system gives the lock back when this process ends, also when it is killed.

    Raises:
        KafkaLakeError: If another process holds the lock.
    """

    def __init__(self) -> None:
        self._path, lock = _paths()
        ensure_home()
        self._lock = os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        # A reader holds it for a moment.
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _locked(self._lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                self._lock.close()
                check_alone()
                raise KafkaLakeError(f"{lock} is locked by another process.", "End it, or set KAFKA_LAKE_HOME.")
            time.sleep(0.05)

    def write(self, now: Running) -> None:
        """Replace what the file says."""
        write_atomic(self._path, json.dumps(asdict(now), indent=2), owner_only=True)

    def remove(self) -> None:
        """Remove the file and give the lock back; once is enough."""
        if not self._lock.closed:
            self._path.unlink(missing_ok=True)
            self._lock.close()


def _paths() -> tuple[Path, Path]:
    return home() / "running.json", home() / "running.lock"


def _locked(file: BinaryIO, kind: int) -> bool:
    """Return whether the lock could be taken; it is held until the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
