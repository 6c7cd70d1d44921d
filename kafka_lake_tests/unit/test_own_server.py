"""The token of a Connect server goes to a server of the same account only, whoever has its port meanwhile."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from kafka_lake.common.errors import EngineUnavailableError
from kafka_lake.common.server_process import HOST
from kafka_lake.spark.connect_session import await_port
from kafka_lake.spark.own_server import OwnServerChannel, ensure_own_server, foreign_account, read_sockets

TOKEN = "the-token"
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
REST = "00000000:00000000 00:00000000 00000000"


def line(local: str, account: int, state: str = "0A") -> str:
    return f"   1: {local} 00000000:0000 {state} {REST} {account:5d}        0 4711 1 0000"


@pytest.mark.parametrize(
    ("local", "account", "found"),
    [
        ("0100007F:3A9A", 1000, None),
        ("0100007F:3A9A", 0, None),
        ("0100007F:3A9A", 1001, 1001),
        ("00000000:3A9A", 1001, 1001),
        ("00000000000000000000000000000000:3A9A", 1001, 1001),
        ("00000000000000000000000001000000:3A9A", 1001, 1001),
        ("0000000000000000FFFF00000100007F:3A9A", 1001, 1001),
        ("0100007F:3A9B", 1001, None),
        ("0500000A:3A9A", 1001, None),
    ],
)
def test_account_of_a_port_is_found(local: str, account: int, found: int | None) -> None:
    own = line("0100007F:3A9A", 1000)
    assert foreign_account(15002, "\n".join([HEAD, own, line(local, account)]), 1000) == found


def test_accepted_connection_of_another_account_counts() -> None:
    text = "\n".join([HEAD, line("0100007F:3A9A", 1000), line("0100007F:3A9A", 1001, "01")])
    assert foreign_account(15002, text, 1000) == 1001


def test_own_listener_is_in_the_tables_of_sockets() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        ensure_own_server(port)
        there = foreign_account(port, read_sockets(), os.geteuid() + 1)
    # Root may have every port.
    assert there == (os.geteuid() or None if sys.platform == "linux" else None)


def test_server_of_another_account_is_named() -> None:
    with pytest.raises(EngineUnavailableError, match="Port 15002 of this machine belongs to account 4242"):
        ensure_own_server(15002, lambda: line("0100007F:3A9A", 4242))


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


def call(port: int, sockets: Callable[[], str]) -> None:
    with OwnServerChannel(f"sc://localhost:{port}/;token={TOKEN}", [], sockets).toChannel() as channel:
        channel.unary_unary("/a/b")(b"", timeout=20)


def test_own_server_gets_the_token(server: tuple[int, list[dict[str, Any]]]) -> None:
    port, calls = server
    call(port, read_sockets)
    assert [each["authorization"] for each in calls] == [f"Bearer {TOKEN}"]


def test_server_of_another_account_gets_no_call(server: tuple[int, list[dict[str, Any]]]) -> None:
    port, calls = server
    with pytest.raises(grpc.RpcError, match="belongs to account 4242") as refused:
        call(port, lambda: line(f"0100007F:{port:04X}", 4242))
    assert calls == []
    assert TOKEN not in str(refused.value)


def test_account_that_takes_the_port_later_gets_no_call(server: tuple[int, list[dict[str, Any]]]) -> None:
    port, calls = server
    tables = iter([read_sockets(), line(f"0100007F:{port:04X}", 4242)])
    builder = OwnServerChannel(f"sc://localhost:{port}/;token={TOKEN}", [], lambda: next(tables))
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
