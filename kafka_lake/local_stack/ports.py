"""The ports of the local stack, and the check that they are free before anything starts."""

import socket
from dataclasses import dataclass
from typing import Self

from kafka_lake.common import environment
from kafka_lake.errors import KafkaLakeError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Port:
    """A port, what it is for, and the environment variable that sets it."""

    number: int
    purpose: str
    variable: str

    @classmethod
    def from_env(cls, purpose: str, variable: environment.Variable) -> Self:
        """Return the port that ``variable`` names.

        Raises:
            KafkaLakeError: The variable isn't a port number from 1 to 65535.
        """
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
        """Return the ports that ``KAFKA_LAKE_BROKER_PORT`` and the like name.

        Raises:
            KafkaLakeError: A variable isn't a port number.
        """
        return cls(
            broker=Port.from_env("the embedded Kafka broker", environment.BROKER_PORT),
            ui=Port.from_env("Dagster's UI", environment.UI_PORT),
            connect=Port.from_env("the Spark Connect server", environment.CONNECT_PORT),
            registry=Port.from_env("the schema registry", environment.REGISTRY_PORT),
            metrics=Port.from_env("the metrics", environment.METRICS_PORT),
        )


def check_free(*ports: Port) -> None:
    """Check that every port is free and that no two are the same.

    Raises:
        KafkaLakeError: Names each port that is taken, what it is for and how to choose another.
    """
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
