"""Spark sessions: of a Connect server, or of a Spark whose driver is in this process."""

import fcntl
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_lake.common.environment import SparkCatalog, catalog_variable
from kafka_lake.engine.frames import forget_all
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.java import java_env
from kafka_lake.engine.settings import (
    SESSION_DEFAULTS,
    SNAPSHOT_PROPERTY,
    configured_master,
    local_conf,
    properties_file,
)
from kafka_lake.errors import ConfigurationError, EngineUnavailableError

_THIS_MACHINE = {"127.0.0.1", "localhost", "::1"}
CONNECT_SECONDS = 5.0
_CONNECT_PAUSE_SECONDS = 0.5
# gRPC's own pauses between two attempts to connect grow to minutes.
_CHANNEL = [("grpc.max_reconnect_backoff_ms", 2000)]
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


class _Session(ConnectSession):  # type: ignore[misc]
    """A Connect session that ends only when it is stopped.

    PySpark's own closes itself when it is collected as garbage. That shuts down a pool of threads that all sessions
    share, behind a lock that the collecting thread may hold just then: it would wait for itself forever.
    """

    def __del__(self) -> None:
        """Do nothing: whoever opened the session stops it."""


def patience() -> DefaultPolicy:
    """Return how patient a session is with a server that is gone: two minutes, so that one that restarts is awaited.

    PySpark's own policy waits ten, in steps so long that a server which is back in seconds is noticed late.
    """
    return DefaultPolicy(max_retries=60, backoff_multiplier=2.0, initial_backoff=50, max_backoff=2000, jitter=200)


def is_here(remote: str, port: int | None = None) -> bool:
    """Return whether the address of a Connect server is on this machine, and at that port if one is given.

    >>> is_here("sc://localhost:15002/;token=a"), is_here("sc://localhost:15002", 15003), is_here("sc://spark.example")
    (True, False, False)
    """
    address = urlsplit(remote)
    return address.hostname in _THIS_MACHINE and port in (None, address.port)


def address_of(remote: str) -> str:
    """Return host and port of a Connect server, without what follows there, which may be a token."""
    return str(DefaultChannelBuilder(remote).endpoint)


def connect_session(remote: str, settings: Mapping[str, Any], session_id: str | None = None) -> Any:
    """Return a session of a Connect server, which is the process's default and active session from then on."""
    # What PySpark's builder does for an address; that one takes no options for the channel.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    channel = DefaultChannelBuilder(remote, _CHANNEL)
    keep = session_id is not None and channel.session_id is None
    if keep:
        channel.set(DefaultChannelBuilder.PARAM_SESSION_ID, session_id)
    session = _Session(channel)
    session.release_session_on_close = not keep
    session.client.set_retry_policies([patience()])
    try:
        for key, value in {**SESSION_DEFAULTS, **settings}.items():
            _set(session, key, value)
        if keep:
            _clean(session)
    except PySparkException as error:
        session.stop()
        if keep and "SESSION_CLOSED" in str(error):
            return None
        raise _unavailable(remote, error) from error
    # The public builder makes sessions of PySpark's own class the default, and no others.
    ConnectSession._set_default_and_active_session(session)
    return session


def _clean(session: Any) -> None:
    """Take away what a process left in a session if it was killed: work, kept frames, properties of its snapshots."""
    session.interruptAll()
    forget_all(session)
    for key in session.conf.getAll:
        if key.startswith(SNAPSHOT_PROPERTY):
            session.conf.unset(key)


def claim_session(folder: Path, session_id: str) -> FileIO | None:
    """Claim a kept session for this process."""
    folder.mkdir(parents=True, exist_ok=True)
    file = FileIO(folder / session_id, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_known(session: Any, remote: str) -> bool:
    """Return whether the server at an address still knows a session of it."""
    try:
        session.conf.get("spark.sql.session.timeZone")
    except SparkConnectGrpcException as error:
        if "INVALID_HANDLE" not in str(error):
            raise _unavailable(remote, error) from error
        return False
    return True


def await_port(remote: str) -> None:
    """Return once something accepts connections at a Connect server's address."""
    host, _, port = address_of(remote).rpartition(":")
    if getproxies() and not proxy_bypass(host):
        # Only the proxy knows, which gRPC uses by itself.
        return
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            if time.monotonic() + _CONNECT_PAUSE_SECONDS >= deadline:
                raise _gone(remote, error.strerror or str(error)) from error
            time.sleep(_CONNECT_PAUSE_SECONDS)
        else:
            return


def check_same_catalog(session: Any, remote: str, name: str, sqlite: str) -> None:
    """Check that a Connect server and Python don't have two catalogs of one name, of which one is an SQLite file.

    Two that are on servers may well be one, reached by different protocols.
    """
    kind, uri = (session.conf.get(f"spark.sql.catalog.{name}.{key}", "") for key in ("type", "uri"))
    there = uri if uri.startswith("jdbc:sqlite:") else ""
    if (kind or uri) and there != sqlite:
        raise ConfigurationError(
            f"The Spark Connect server at {address_of(remote)} has another catalog {name} than this project: "
            f"{_file(there)} there, {_file(sqlite)} here. Rows would be written to one and read from the other.",
            "Start `kafka-lake up` again: its server takes the project's catalog. `python -m kafka_lake.engine` takes "
            f"that of the environment, so set {catalog_variable(name)}… there. Give your own server the same one.",
        )


def _file(sqlite: str) -> str:
    return sqlite.removeprefix("jdbc:sqlite:").partition("?")[0] or "no SQLite file"


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
    return _gone(remote) if getattr(code, "name", "") == "UNAVAILABLE" else error


def _gone(remote: str, reason: str = "") -> EngineUnavailableError:
    return EngineUnavailableError(
        f"Spark Connect at {address_of(remote)} doesn't answer{f': {reason}' if reason else ''}.",
        "Start it, or correct or unset SPARK_REMOTE; if it is unset, `kafka-lake up` starts a server.",
    )


def local_session(catalog: SparkCatalog, settings: Mapping[str, Any]) -> Any:
    """Return a session of a Spark whose driver is in this process, on this machine's cores or on a cluster."""
    # Left by a Connect session of the process that this one was started by; PySpark would look for its server.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    os.environ.update(java_env())
    master = configured_master()
    if master.startswith("local"):
        # Else Python functions run in whatever python3 the PATH has, which may lack every package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = local_conf(catalog, master, spark_jars(), {key: str(value) for key, value in settings.items()})
    start_jvm(conf)
    # By the JVM's socket from here on: a process that had a Spark before keeps its JVM.
    session = SparkSession.builder.config(map={**conf, "spark.app.name": "kafka_lake"}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start this process's JVM with settings, secrets among them, by a file; does nothing if there is a JVM already.

    All that PySpark has documented gives the JVM each setting as an argument.
    """
    # At DEBUG it logs each command with its arguments, so a reader's password too, and Dagster's logs may be at DEBUG.
    logging.getLogger("py4j").setLevel(logging.INFO)
    with properties_file(conf) as file:
        before = os.environ.get(_SUBMIT_ARGUMENTS)
        own = shlex.join(["--load-spark-defaults", "--properties-file", str(file)])
        os.environ[_SUBMIT_ARGUMENTS] = f"{own} {before or 'pyspark-shell'}"
        try:
            SparkContext._ensure_initialized()
        finally:
            with suppress(KeyError):
                del os.environ[_SUBMIT_ARGUMENTS]
            if before is not None:
                os.environ[_SUBMIT_ARGUMENTS] = before
