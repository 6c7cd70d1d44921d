"""Ports are checked before anything starts, and the error says which, what for and what to set."""

import socket
from collections.abc import Iterator

import pytest

from kafka_lake.devstack.running import Port, Ports, check_free
from kafka_lake.errors import KafkaLakeError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_free_port_passes() -> None:
    check_free(Port(free(), "a test", "TEST_PORT"))


def test_taken_port_is_reported_by_name(taken: int) -> None:
    with pytest.raises(KafkaLakeError) as caught:
        check_free(Port(free(), "nothing", "FREE_PORT"), Port(taken, "Dagster's UI", "KAFKA_LAKE_UI_PORT"))
    assert str(caught.value) == (
        f"port {taken} for Dagster's UI is taken: end the program that uses it, or set KAFKA_LAKE_UI_PORT"
    )


def test_port_taken_on_all_addresses_counts() -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        assert not Port(server.getsockname()[1], "a test", "TEST_PORT").is_free()


def test_port_of_a_connection_that_just_ended_is_free() -> None:
    with socket.socket() as server:
        # As every server does; Linux keeps the port of one that doesn't for a minute.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        number = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", number))
        accepted, _ = server.accept()
        accepted.close()
        client.close()
    assert Port(number, "a test", "TEST_PORT").is_free()


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER", "UI", "CONNECT", "REGISTRY"):
        monkeypatch.delenv(f"KAFKA_LAKE_{name}_PORT", raising=False)
    ports = Ports.from_env()
    numbers = (ports.broker.number, ports.ui.number, ports.connect.number, ports.registry.number)
    assert numbers == (19092, 3000, 15002, 19095)
    assert ports.broker.address == "127.0.0.1:19092"


def test_environment_sets_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_UI_PORT", "3456")
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY_PORT", "3457")
    assert (Ports.from_env().ui.number, Ports.from_env().registry.number) == (3456, 3457)


@pytest.mark.parametrize("value", ["http", "0", "65536", "-1", "³"])
def test_no_port(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("KAFKA_LAKE_BROKER_PORT", value)
    with pytest.raises(KafkaLakeError, match=f"KAFKA_LAKE_BROKER_PORT={value} is not a port"):
        Ports.from_env()
