"""Sends the token of a Connect server on this machine only to a server of the same account.

The server has no TLS, and its port is free for any account while it is down. So before each call, Linux is asked whose
sockets are at the port: of this account or of root, or the token stays here. Connections that were accepted before
count, too, since gRPC would go on using one. On other systems the token is sent as PySpark sends it.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from pyspark.sql.connect.client import ChannelBuilder, DefaultChannelBuilder

from kafka_lake.errors import EngineUnavailableError
from kafka_lake.spark.sockets import Owner, sockets_at

_ROOT = 0
_LOOPBACK, _ANY = bytes([127, 0, 0, 1]), bytes(4)
# Of this machine's own addresses in IPv4, in IPv6, and in IPv6 for IPv4, and of all addresses.
_HERE = {_LOOPBACK, _ANY, bytes(15) + b"\1", bytes(10) + b"\xff\xff" + _LOOPBACK, bytes(16)}


def foreign_account(sockets: Iterable[Owner], account: int) -> int | None:
    """Return the number of an account that has one of these sockets on this machine; None if no other one has. Pure.

    Args:
        account: The number of the account that may have them, as root may.
    """
    return next((owner for address, owner in sockets if address in _HERE and owner not in (account, _ROOT)), None)


def ensure_own_server(port: int, sockets: Callable[[int], Iterable[Owner]] = sockets_at) -> None:
    """Make sure that no other account has a port of this machine.

    Raises:
        EngineUnavailableError: If one has. Nothing was sent there.
    """
    found = foreign_account(sockets(port), os.geteuid())
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
        sockets: Returns the sockets at a port.
    """

    def __init__(
        self, url: str, options: list[tuple[str, Any]], sockets: Callable[[int], Iterable[Owner]] = sockets_at
    ) -> None:
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

    def __init__(self, token: str, port: int, sockets: Callable[[int], Iterable[Owner]]) -> None:
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
