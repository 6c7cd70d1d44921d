"""The token of a Connect server goes to a server of the same account only, whoever has its port meanwhile."""

import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any

import grpc
import pytest

from kafka_lake.common.server_process import HOST
from kafka_lake.errors import EngineUnavailableError
from kafka_lake.spark.connect_session import await_port
from kafka_lake.spark.own_server import OwnServerChannel, ensure_own_server, foreign_account
from kafka_lake.spark.sockets import Owner, sockets_at

TOKEN = "the-token"
OURS, THEIRS = 1000, 4242
LOOPBACK = socket.inet_aton("127.0.0.1")
STRANGER = [(LOOPBACK, THEIRS)]


@pytest.mark.parametrize(
    ("address", "account", "found"),
    [
        ("127.0.0.1", OURS, None),
        ("127.0.0.1", 0, None),
        ("127.0.0.1", THEIRS, THEIRS),
        ("0.0.0.0", THEIRS, THEIRS),
        ("::", THEIRS, THEIRS),
        ("::1", THEIRS, THEIRS),
        ("::ffff:127.0.0.1", THEIRS, THEIRS),
        ("10.0.0.5", THEIRS, None),
    ],
)
def test_account_of_a_port_is_found(address: str, account: int, found: int | None) -> None:
    assert foreign_account([(LOOPBACK, OURS), (ip_address(address).packed, account)], OURS) == found


def test_server_of_another_account_is_named() -> None:
    with pytest.raises(EngineUnavailableError, match="Port 15002 of this machine belongs to account 4242"):
        ensure_own_server(15002, lambda _: STRANGER)


@pytest.fixture
def server() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Give the port of a gRPC server that takes any call, and what each brought."""
    calls: list[dict[str, Any]] = []

    class TakesAll(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            calls.append(dict(details.invocation_metadata))
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    running = grpc.server(ThreadPoolExecutor(1), [TakesAll()])
    port = running.add_secure_port(f"{HOST}:0", grpc.local_server_credentials())
    running.start()
    yield port, calls
    running.stop(None).wait()


def call(port: int, sockets: Callable[[int], Iterable[Owner]]) -> None:
    with OwnServerChannel(f"sc://localhost:{port}/;token={TOKEN}", [], sockets).toChannel() as channel:
        channel.unary_unary("/a/b")(b"", timeout=20)


def test_own_server_gets_the_token(server: tuple[int, list[dict[str, Any]]]) -> None:
    port, calls = server
    call(port, sockets_at)
    assert [each["authorization"] for each in calls] == [f"Bearer {TOKEN}"]


def test_server_of_another_account_gets_no_call(server: tuple[int, list[dict[str, Any]]]) -> None:
    port, calls = server
    with pytest.raises(grpc.RpcError, match="belongs to account 4242") as refused:
        call(port, lambda _: STRANGER)
    assert calls == []
    assert TOKEN not in str(refused.value)


def test_account_that_takes_the_port_later_gets_no_call(server: tuple[int, list[dict[str, Any]]]) -> None:
    port, calls = server
    found = iter([sockets_at(port), STRANGER])
    builder = OwnServerChannel(f"sc://localhost:{port}/;token={TOKEN}", [], lambda _: next(found))
    with builder.toChannel() as channel:
        ask = channel.unary_unary("/a/b")
        ask(b"", timeout=20)
        with pytest.raises(grpc.RpcError, match="belongs to account 4242"):
            ask(b"", timeout=20)
    assert len(calls) == 1


def test_session_is_refused_before_the_port_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr("kafka_lake.spark.own_server.foreign_account", lambda *_: 4242)
        with pytest.raises(EngineUnavailableError, match="belongs to account 4242"):
            await_port(f"sc://localhost:{port}/;token={TOKEN}")
        listening.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listening.accept()
