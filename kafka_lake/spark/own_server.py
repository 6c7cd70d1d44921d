"""Sends the token of a Connect server on this machine only to a server of the same account.

The server has no TLS, and its port is free for any account while it is down. So before each call, Linux is asked whose
sockets are at the port: of this account or of root, or the token stays here. Connections that were accepted before
count, too, since gRPC would go on using one. On other systems the token is sent as PySpark sends it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from pyspark.sql.connect.client import ChannelBuilder, DefaultChannelBuilder

from kafka_lake.common.errors import EngineUnavailableError

_ROOT = 0
# Of this machine's own addresses in IPv4, in IPv6, and in IPv6 for IPv4, and of all addresses.
_HERE = {
    "0100007F",
    "00000000",
    "0" * 24 + "01000000",
    "0" * 16 + "FFFF0000" + "0100007F",
    "0" * 32,
}  # fmt: skip
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def read_sockets() -> str:
    """Return Linux's tables of TCP sockets; empty on other systems."""
    if sys.platform != "linux":
        return ""
    return "\n".join(table.read_text() for table in _TABLES if table.exists())


def foreign_account(port: int, sockets: str, account: int) -> int | None:
    """Return the number of an account that has a socket at a port of this machine; None if no other one has. Pure.

    Args:
        port: The port.
        sockets: The tables, as `read_sockets` gives them.
        account: The number of the account that may have it, as root may.
    """
    for line in sockets.splitlines():
        columns = line.split()
        if len(columns) < 8 or not columns[0].endswith(":"):
            continue
        address, _, at = columns[1].partition(":")
        if address in _HERE and int(at, 16) == port and int(columns[7]) not in (account, _ROOT):
            return int(columns[7])
    return None


def ensure_own_server(port: int, sockets: Callable[[], str] = read_sockets) -> None:
    """Make sure that no other account has a port of this machine.

    Raises:
        EngineUnavailableError: If one has. Nothing was sent there.
    """
    found = foreign_account(port, sockets(), os.geteuid())
    if found is not None:
        raise EngineUnavailableError(
            f"Port {port} of this machine belongs to account {found}, so the token of Spark Connect wasn't sent there.",
            "End that program, or run the Connect server as your own account or as root; KAFKA_LAKE_CONNECT_PORT sets "
            "another port.",
        )


class OwnServerChannel(DefaultChannelBuilder):  # type: ignore[misc]
    """Builds channels as PySpark does; a token for a server on this machine goes to a server of this account alone.

    Args:
        url: The server's address, as in ``SPARK_REMOTE``.
        options: Of the channel.
        sockets: Returns Linux's tables of sockets.
    """

    def __init__(self, url: str, options: list[tuple[str, Any]], sockets: Callable[[], str] = read_sockets) -> None:
        super().__init__(url, options)
        self.options = [*ChannelBuilder.GRPC_DEFAULT_OPTIONS, *options]
        self.sockets = sockets

    def toChannel(self) -> grpc.Channel:
        """Return a new channel; PySpark calls it."""
        if self.use_ssl or self.token is None or self.host != "localhost":
            return super().toChannel()
        port = int(self.endpoint.rpartition(":")[2])
        token = grpc.metadata_call_credentials(_Token(self.token, port, self.sockets))
        credentials = grpc.composite_channel_credentials(grpc.local_channel_credentials(), token)
        return grpc.secure_channel(self.endpoint, credentials, options=self.options)


class _Token(grpc.AuthMetadataPlugin):  # type: ignore[misc]
    """Gives each call the token, if the server is one of this account at that moment."""

    def __init__(self, token: str, port: int, sockets: Callable[[], str]) -> None:
        self._header = (("authorization", f"Bearer {token}"),)
        self._port = port
        self._sockets = sockets

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            ensure_own_server(self._port, self._sockets)
        except EngineUnavailableError as error:
            callback((), error)
        else:
            callback(self._header, None)
