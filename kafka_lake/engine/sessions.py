"""Spark sessions: of a Connect server, or of a Spark whose driver is in this process."""

import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_lake.common.environment import SPARK_MASTER, SPARK_REMOTE, SparkCatalog, catalog_variable
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.java import java_env
from kafka_lake.engine.settings import (
    MASTER,
    SESSION_DEFAULTS,
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


class OpenCatalog(Protocol):
    """A catalog that is open."""

    name: str

    def for_spark(self) -> SparkCatalog:
        """Return what Spark has to know of it."""

    def sqlite_address(self) -> str:
        """Return its JDBC address if it is an SQLite file; else empty."""


def open_session(catalog: Callable[[], OpenCatalog], settings: Mapping[str, Any]) -> Any:
    """Return a new session: of the Connect server of ``SPARK_REMOTE``, or else of a Spark in this process."""
    # What Spark refuses becomes an error here, without secrets; PySpark would log the JVM's text and trace before.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    remote = SPARK_REMOTE.value()
    if not remote:
        return local_session(catalog().for_spark(), settings)
    session = connect_session(remote, settings)
    try:
        check_same_catalog(session, remote, catalog())
    except Exception:
        # It is the process's default session, and would stay that.
        session.stop()
        raise
    return session


def connect_session(remote: str, settings: Mapping[str, Any]) -> Any:
    """Return a session of a Connect server, which is the process's default and active session from then on."""
    # What PySpark's builder does for an address; that one takes no options for the channel.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = _Session(DefaultChannelBuilder(remote, _CHANNEL))
    session.client.set_retry_policies([patience()])
    try:
        for key, value in {**SESSION_DEFAULTS, **settings}.items():
            _set(session, key, value)
    except PySparkException as error:
        session.stop()
        raise _unavailable(remote, error) from error
    # The public builder makes sessions of PySpark's own class the default, and no others.
    ConnectSession._set_default_and_active_session(session)
    return session


def is_known(session: Any) -> bool:
    """Return whether a Connect server still knows a session of it; always true of a Spark in this process."""
    remote = SPARK_REMOTE.value()
    if not remote:
        return True
    # A session closes itself when the server no longer knows it.
    if session.is_stopped:
        return False
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


def check_same_catalog(session: Any, remote: str, catalog: OpenCatalog) -> None:
    """Check that a Connect server and Python don't have two catalogs of one name, of which one is an SQLite file.

    Two that are on servers may well be one, reached by different protocols.
    """
    name, sqlite = catalog.name, catalog.sqlite_address()
    kind, uri = (session.conf.get(f"spark.sql.catalog.{name}.{key}", "") for key in ("type", "uri"))
    there = uri if uri.startswith("jdbc:sqlite:") else ""
    if (kind or uri) and there != sqlite:
        raise ConfigurationError(
            f"The Spark Connect server at {address_of(remote)} has another catalog {name} than this project: the "
            f"server uses {_file(there)}, the project {_file(sqlite)}. Rows would be written to one catalog and read "
            "from the other.",
            "Restart `kafka-lake up`, whose server uses the project's catalog. For `python -m kafka_lake.engine`, "
            f"set {catalog_variable(name)}… in its environment. Configure your own server with the same catalog.",
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
            f"Spark Connect at {address_of(remote)} requires a token, and the client's token is wrong.",
            "With `kafka-lake up`, unset SPARK_REMOTE: commands then find its server. Otherwise set "
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
    given = {key: str(value) for key, value in settings.items()}
    conf = local_conf(catalog, SPARK_MASTER.value(), spark_jars(), given)
    if conf[MASTER].startswith("local"):
        # Else Python functions run in whatever python3 the PATH has, which may lack every package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
