"""The addresses of the local stack's servers: ports, environment variables and the file of the running stack."""

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

from kafka_lake.common.environment import (
    BOOTSTRAP_SERVERS,
    BROKER_PORT,
    CATALOG,
    CONNECT_PORT,
    KAFKA,
    REGISTRY,
    REGISTRY_PORT,
    SCHEMA_REGISTRY_URL,
    UI_PORT,
    Variable,
    catalog_variable,
)
from kafka_lake.common.files import ensure_home, home, write_atomic
from kafka_lake.common.processes import HOST, port_open
from kafka_lake.errors import EmbeddedBrokerStoppedError, KafkaLakeError

_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Port:
    """A port, what it is for, and the environment variable that sets it."""

    number: int
    purpose: str
    variable: str

    @classmethod
    def from_env(cls, purpose: str, variable: Variable) -> Self:
        """Return the port in a variable; raises `KafkaLakeError` if it isn't a number from 1 to 65535."""
        value = variable.value()
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 65535):
            raise KafkaLakeError(f"{variable.name}={value} is not a port: set it to a number from 1 to 65535")
        return cls(int(value), purpose, variable.name)

    @property
    def address(self) -> str:
        """``host:port`` of this port."""
        return f"{HOST}:{self.number}"

    def is_free(self) -> bool:
        """Return whether the port can be bound now."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As servers do. Otherwise closing connections of an earlier stack would count.
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

    @classmethod
    def from_env(cls) -> Self:
        """Return the ports in ``KAFKA_LAKE_BROKER_PORT`` and the other variables."""
        return cls(
            broker=Port.from_env("the embedded Kafka broker", BROKER_PORT),
            ui=Port.from_env("Dagster's UI", UI_PORT),
            connect=Port.from_env("the Spark Connect server", CONNECT_PORT),
            registry=Port.from_env("the schema registry", REGISTRY_PORT),
        )


def check_free(*ports: Port) -> None:
    """Check that every port is free."""
    problems = [
        f"port {port.number} for {port.purpose} is taken: end the program that uses it, or set {port.variable}"
        for port in ports
        if not port.is_free()
    ]
    if problems:
        raise KafkaLakeError("\n".join(problems))


def use_broker(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Configure a broker without security as the cluster, instead of any other."""
    _remove(environment, KAFKA.name)
    environment[BOOTSTRAP_SERVERS.name] = address


def use_registry(url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Configure a schema registry without security, instead of any other; an empty address means none."""
    _remove(environment, REGISTRY.name)
    environment[SCHEMA_REGISTRY_URL.name] = url


def use_catalog(name: str, properties: Mapping[str, str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Configure a catalog, instead of any other with its name.

    >>> environment = {}
    >>> use_catalog("lake", {"s3.access-key-id": "a"}, environment)
    >>> environment
    {'PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID': 'a'}
    """
    _remove(environment, catalog_variable(name))
    environment.update({catalog_variable(name, key): value for key, value in properties.items()})


def use_servers(bootstrap_servers: str, registry_url: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Configure the addresses of brokers and registry, unless they are empty. Settings of their security stay."""
    for variable, value in ((BOOTSTRAP_SERVERS, bootstrap_servers), (SCHEMA_REGISTRY_URL, registry_url)):
        if value:
            environment[variable.name] = value


def names_catalog(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable configures this catalog."""
    return any(variable.startswith(catalog_variable(name)) for variable in environment)


def names_broker(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable names the brokers."""
    return BOOTSTRAP_SERVERS.name in environment or f"{KAFKA.name}BOOTSTRAP_SERVERS" in environment


def names_registry(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable names the schema registry, or none by an empty address."""
    return SCHEMA_REGISTRY_URL.name in environment or f"{REGISTRY.name}URL" in environment


def _remove(environment: MutableMapping[str, str], prefix: str) -> None:
    for name in [name for name in environment if name.startswith(prefix) and name != REGISTRY_PORT.name]:
        del environment[name]


@dataclass(frozen=True)
class Running:
    """The running servers of a local stack; the address of a server that wasn't started is empty.

    Args:
        pids: Process ids by server.
        catalog: Properties of the embedded object store's catalog, with its secret.
    """

    bootstrap_servers: str = ""
    registry_url: str = ""
    spark_remote: str = ""
    ui_url: str = ""
    pids: Mapping[str, int] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)

    def use(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Set the variables of these servers, unless they are set already."""
        if self.bootstrap_servers and not names_broker(environment):
            use_broker(self.bootstrap_servers, environment)
        if self.registry_url and not names_registry(environment):
            use_registry(self.registry_url, environment)
        if self.catalog and not names_catalog(name := CATALOG.value(environment), environment):
            use_catalog(name, self.catalog, environment)
        if self.spark_remote:
            environment.setdefault("SPARK_REMOTE", self.spark_remote)


def running() -> Running | None:
    """Return the stack that runs in this deployment's folder, if there is one."""
    path, lock = _paths()
    with suppress(FileNotFoundError, json.JSONDecodeError, TypeError):
        stack = Running(**json.loads(path.read_text()))
        with lock.open("rb") as file:
            return None if _locked(file, fcntl.LOCK_SH) else stack
    return None


def check_alone() -> None:
    """Check that no other stack runs in this deployment's folder; raises `KafkaLakeError` with its process."""
    if other := running():
        ui = f" with its UI at {other.ui_url}" if other.ui_url else ""
        raise KafkaLakeError(
            f"A local stack runs in {home()} already: process {other.pids.get('kafka-lake')}{ui}.",
            "Use it, or end it with Ctrl-C. For a second stack, set KAFKA_LAKE_HOME and the ports.",
        )


class RunningFile:
    """The file of the running stack, for other processes. It is valid while this process holds its lock.

    Raises:
        KafkaLakeError: If another process holds the lock.
    """

    def __init__(self) -> None:
        self._path, lock = _paths()
        ensure_home()
        self._lock = os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        # Readers hold the lock for a moment.
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _locked(self._lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                self._lock.close()
                check_alone()
                raise KafkaLakeError(f"{lock} is locked by another process.", "End it, or set KAFKA_LAKE_HOME.")
            time.sleep(0.05)

    def write(self, now: Running) -> None:
        """Replace the content of the file."""
        write_atomic(self._path, json.dumps(asdict(now), indent=2), owner_only=True)

    def remove(self) -> None:
        """Remove the file and release the lock."""
        if not self._lock.closed:
            self._path.unlink(missing_ok=True)
            self._lock.close()


def _paths() -> tuple[Path, Path]:
    return home() / "running.json", home() / "running.lock"


def _locked(file: BinaryIO, kind: int) -> bool:
    """Try to take the lock, which is held until the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_embedded(ports: Ports, servers: str | None = None) -> bool:
    """Return whether the embedded broker is the configured cluster. Arguments as for `check_embedded_broker`."""
    from kafka_lake.kafka.auth.properties import properties_from_env

    if servers is None and names_broker():
        servers = properties_from_env()["bootstrap.servers"]
    return servers in (None, ports.broker.address)


def check_embedded_broker(ports: Ports, servers: str | None = None) -> None:
    """Check that the embedded broker runs, if it is the configured cluster.

    Args:
        servers: The addresses that a project names; None for those of the environment.
    """
    if not is_embedded(ports, servers):
        return
    if servers is None and not names_broker():
        use_broker(ports.broker.address)
    if not port_open(ports.broker.number):
        raise EmbeddedBrokerStoppedError(
            f"The embedded broker at {ports.broker.address} isn't running.",
            "`kafka-lake up` starts it. For your own brokers, set KAFKA_LAKE_BOOTSTRAP_SERVERS.",
        )
