"""Whose sockets are at a port: what Linux says when it is asked, and what its tables list."""

import os
import socket
from ipaddress import ip_address

import pytest

from kafka_lake.common.server_process import HOST
from kafka_lake.spark.sockets import listed, sockets_at

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
REST = "00000000:00000000 00:00000000 00000000"


def line(local: str, account: int, state: str = "0A") -> str:
    return f"   1: {local} 00000000:0000 {state} {REST} {account:5d}        0 4711 1 0000"


@pytest.mark.parametrize("host", [HOST, "0.0.0.0", "::1", "::"])
def test_listener_and_accepted_connection_are_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = ip_address(host).packed, os.geteuid()
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert sockets_at(port) == [own]
        with socket.create_connection(("::1" if ":" in host else HOST, port)) as client, server.accept()[0]:
            assert len(sockets_at(port)) == 2
            assert len(sockets_at(client.getsockname()[1])) == 1


@pytest.mark.parametrize(
    ("local", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "0.0.0.0"),
        ("00000000000000000000000000000000", "::"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000100007F", "::ffff:127.0.0.1"),
        ("0500000A", "10.0.0.5"),
    ],
)
def test_tables_list_sockets_of_the_port_alone(local: str, address: str) -> None:
    tables = "\n".join([HEAD, line(f"{local}:3A9A", 7), line(f"{local}:3A9B", 8), line(f"{local}:3A9A", 9, "01")])
    assert list(listed(tables, 15002)) == [(ip_address(address).packed, 7), (ip_address(address).packed, 9)]


def test_tables_are_read_where_linux_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        asked = sockets_at(port)
        monkeypatch.setattr(socket, "AF_NETLINK", 9999)
        assert sockets_at(port) == asked
