"""Sessions of a Spark Connect server, as its client opens them; and what is said where the server doesn't answer."""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy

from kafka_lake.common.catalog_variables import catalog_variable
from kafka_lake.errors import ConfigurationError, EngineUnavailableError
from kafka_lake.spark.compat.connect import make_default, open_session
from kafka_lake.spark.own_server import OwnServerChannel, ensure_own_server
from kafka_lake.spark.settings import SESSION_DEFAULTS, SNAPSHOT_PROPERTY

_THIS_MACHINE = {"127.0.0.1", "localhost", "::1"}

_CONNECT_SECONDS = 5.0
_CONNECT_PAUSE_SECONDS = 0.5

# gRPC's own pauses between two attempts to connect grow to minutes.
_CHANNEL = [("grpc.max_reconnect_backoff_ms", 2000)]


def patience() -> DefaultPolicy:
    """Return how patient a session is with a server that is gone: two minutes, so that one that restarts is awaited.

    PySpark's own policy waits ten, in steps so long that a server which is back in seconds is noticed late.
    """
    return DefaultPolicy(max_retries=60, backoff_multiplier=2.0, initial_backoff=50, max_backoff=2000, jitter=200)


def is_here(remote: str, port: int | None = None) -> bool:
    """Return whether the address of a Connect server is on this machine, and at that port if one is asked for.

    >>> is_here("sc://localhost:15002/;token=a"), is_here("sc://localhost:15002", 15003), is_here("sc://spark.example")
    (True, False, False)
    """
    address = urlsplit(remote)
    return address.hostname in _THIS_MACHINE and port in (None, address.port)


def address_of(remote: str) -> str:
    """Return host and port of a Connect server, without what follows there, which may be a token."""
    return str(DefaultChannelBuilder(remote).endpoint)


def refuse_other_file(session: Any, remote: str, name: str, sqlite: str) -> None:
    """Make sure that a Connect server and Python don't have two catalogs of one name, of which one is an SQLite file.

    As where the server has the embedded catalog, since the other one is in YAML alone. Two that are on servers may
    well be one, reached by different protocols.

    Args:
        remote: The server's address, as in ``SPARK_REMOTE``.
        sqlite: The address of its SQLite database there, as Python has it; empty if it has none.

    Raises:
        ConfigurationError: If the server has an SQLite file where Python has none, or another one.
    """
    kind, uri = (session.conf.get(f"spark.sql.catalog.{name}.{key}", "") for key in ("type", "uri"))
    there = uri if uri.startswith("jdbc:sqlite:") else ""
    if (kind or uri) and there != sqlite:
        raise ConfigurationError(
            f"The Spark Connect server at {address_of(remote)} has another catalog {name} than this project: "
            f"{_file(there)} there, {_file(sqlite)} here. Rows would go to one and be looked for in the other.",
            "Start `kafka-lake up` again: its server takes the project's catalog. `python -m kafka_lake.spark` takes "
            f"that of the environment, so set {catalog_variable(name)}… there. Give a server of your own the same one.",
        )


def _file(sqlite: str) -> str:
    return sqlite.removeprefix("jdbc:sqlite:").partition("?")[0] or "no SQLite file"


def connect_session(remote: str, settings: Mapping[str, Any], session_id: str | None = None) -> Any:
    """Return a session of a Connect server, which is the process's default and active session from then on.

    Args:
        remote: The server's address, as in ``SPARK_REMOTE``.
        settings: Spark settings of the session; those that only a server can have are left out.
        session_id: Of a session that the server shall keep when its client ends it; None for a session of one's own.

    Returns:
        The session; None if it is to be kept, and the server has ended it for good.

    Raises:
        EngineUnavailableError: If the server doesn't answer.
        ConfigurationError: If it doesn't take the token.
    """
    # What PySpark's builder does for an address; that one takes no options for the channel.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    channel = OwnServerChannel(remote, _CHANNEL)
    keep = session_id is not None and channel.session_id is None
    if keep:
        channel.set(DefaultChannelBuilder.PARAM_SESSION_ID, session_id)
    session = open_session(channel)
    # Of all operations that this client of the session asks for.
    session.tag = uuid4().hex
    session.release_session_on_close = not keep
    session.client.set_retry_policies([patience()])
    try:
        for key, value in {**SESSION_DEFAULTS, **settings}.items():
            _set(session, key, value)
        if keep:
            _forget_summaries(session)
    except PySparkException as error:
        session.stop()
        if keep and "SESSION_CLOSED" in str(error):
            return None
        raise _unavailable(remote, error) from error
    session.addTag(session.tag)
    make_default(session)
    return session


def _forget_summaries(session: Any) -> None:
    """Unset what a process that was killed during a MERGE had its snapshots tell: all that the session writes would."""
    for key in session.conf.getAll:
        if key.startswith(SNAPSHOT_PROPERTY):
            session.conf.unset(key)


def is_known(session: Any, remote: str) -> bool:
    """Return whether the server at an address still knows a session of it.

    Raises:
        EngineUnavailableError: If the server doesn't answer.
        ConfigurationError: If it doesn't take the token.
    """
    try:
        session.conf.get("spark.sql.session.timeZone")
    except SparkConnectGrpcException as error:
        if "INVALID_HANDLE" not in str(error):
            raise _unavailable(remote, error) from error
        return False
    return True


def await_port(remote: str) -> None:
    """Return once something accepts connections at a Connect server's address.

    Connecting also starts a server that is stopped while idle; the session then waits for it.

    Raises:
        EngineUnavailableError: If nothing does within seconds, or if another account of this machine does.
    """
    host, _, port = address_of(remote).rpartition(":")
    if is_here(remote) and "token=" in remote:
        ensure_own_server(int(port))
    if getproxies() and not proxy_bypass(host):
        # Only the proxy knows, which gRPC uses by itself.
        return
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            if time.monotonic() + _CONNECT_PAUSE_SECONDS >= deadline:
                raise _gone(remote, error.strerror or str(error)) from error
            time.sleep(_CONNECT_PAUSE_SECONDS)
        else:
            return


def _set(session: Any, key: str, value: Any) -> None:
    try:
        session.conf.set(key, value)
    except PySparkException as error:
        # Memory, cores and the like are the server's; the same settings serve a Spark in the run's own process.
        if "CANNOT_MODIFY" not in str(error.getCondition()):
            raise


def _unavailable(remote: str, error: Exception) -> Exception:
    """Return the error for the user, if a server doesn't answer or take the token; else the error itself."""
    code = error.getGrpcStatusCode() if isinstance(error, SparkConnectGrpcException) else None
    if getattr(code, "name", "") == "UNAUTHENTICATED":
        return ConfigurationError(
            f"Spark Connect at {address_of(remote)} requires a token, and this one is wrong.",
            "Beside `kafka-lake up`, unset SPARK_REMOTE: its server is then found automatically. Otherwise set "
            "SPARK_REMOTE=sc://localhost:PORT/;token=TOKEN; the token is in the file `token` of the server's folder.",
        )
    if getattr(code, "name", "") != "UNAVAILABLE":
        return error
    return _gone(remote)


def _gone(remote: str, reason: str = "") -> EngineUnavailableError:
    return EngineUnavailableError(
        f"Spark Connect at {address_of(remote)} doesn't answer{f': {reason}' if reason else ''}.",
        "Start it, or correct or unset SPARK_REMOTE; `kafka-lake up` starts one of its own if it is unset.",
    )
