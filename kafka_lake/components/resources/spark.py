"""The Spark session as a Dagster resource: nothing starts before it is used, nothing stays after."""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import NAMESPACE_URL, uuid4, uuid5

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_lake.common.errors import ConfigurationError, EngineUnavailableError
from kafka_lake.common.home import home
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.spark.commit_slots import Turns
from kafka_lake.spark.connect import AVRO_LIMITS, CLASSPATH, JVM_OPTIONS, on_driver
from kafka_lake.spark.jars import lacks
from kafka_lake.spark.private_conf import REDACTION, start_jvm

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark puts these before the user's own extraJavaOptions.
    "spark.driver.defaultJavaOptions": AVRO_LIMITS,
    "spark.executor.defaultJavaOptions": AVRO_LIMITS,
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    # Each idle consumer keeps what it fetched ahead, up to 16 MiB: Spark's 64 would fill a small heap.
    "spark.kafka.consumer.cache.capacity": "16",
    "spark.kafka.consumer.fetchedData.cache.timeout": "30s",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    **REDACTION,
}
PARALLELISM = "spark.default.parallelism"
"""Says how many tasks run at once, to sessions of every kind; set by us where the master is local."""

_SESSION_ONLY = {"spark.sql.session.timeZone", "spark.sql.caseSensitive"}

_THIS_MACHINE = {"127.0.0.1", "localhost", "::1"}

_LOCAL_MASTER = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:\s*,\s*\d+)?\])?")


_CONNECT_SECONDS = 5.0
_CONNECT_PAUSE_SECONDS = 0.5

# gRPC's own pauses between two attempts to connect grow to minutes.
_CHANNEL = [("grpc.max_reconnect_backoff_ms", 2000)]


class _Session(ConnectSession):  # type: ignore[misc]
    """A Connect session that ends when it is told to, and never by itself.

    PySpark's own closes itself when it is collected as garbage. That shuts down a pool of threads that all sessions
    share, behind a lock that the collecting thread may hold just then: it would wait for itself forever.
    """

    def __init__(self, channel: DefaultChannelBuilder) -> None:
        super().__init__(channel)
        self.tag = f"{uuid4()}"
        """Of all operations that this client of the session asks for."""

    def __del__(self) -> None:
        """Do nothing: whoever opened the session stops it."""


def patience() -> DefaultPolicy:
    """Return how patient a session is with a server that is gone: two minutes, so that one that restarts is awaited.

    PySpark's own policy waits ten, in steps so long that a server which is back in seconds is noticed late.
    """
    return DefaultPolicy(max_retries=60, backoff_multiplier=2.0, initial_backoff=50, max_backoff=2000, jitter=200)


def local_cores(master: str) -> int | None:
    """Return how many tasks a local master runs at once; None for a cluster.

    >>> local_cores("local[2]"), local_cores("local"), local_cores("spark://host:7077")
    (2, 1, None)
    """
    found = _LOCAL_MASTER.fullmatch(master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found["cores"] == "*" else int(found["cores"] or 1)


def is_here(remote: str, port: int | None = None) -> bool:
    """Return whether the address of a Connect server is on this machine, and at that port if one is asked for.

    >>> is_here("sc://localhost:15002/;token=a"), is_here("sc://localhost:15002", 15003), is_here("sc://spark.example")
    (True, False, False)
    """
    address = urlsplit(remote)
    return address.hostname in _THIS_MACHINE and port in (None, address.port)


def local_conf(catalog: LakeCatalog, master: str, jars: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Spark that lives in this process or in a Connect server of ours.

    Args:
        catalog: The Iceberg catalog that Spark shall know.
        master: Spark master URL.
        jars: Comma-separated paths of the jars to load.
        extra: Settings that win over ours.

    Returns:
        Spark settings by their standard names.

    Raises:
        ConfigurationError: If one of the catalog's properties can't be told to Spark, or Spark would lack a jar for it.
    """
    _refuse_missing_jars(catalog, jars, extra)
    conf = {**_DEFAULTS, "spark.master": master, **catalog.spark_conf(), **extra}
    if cores := local_cores(master):
        conf.setdefault(PARALLELISM, str(cores))
        return on_driver(conf, jars)
    # On a cluster, executors must reach the driver: let Spark choose the address.
    for key in ("spark.driver.bindAddress", "spark.driver.host"):
        if key not in extra:
            del conf[key]
    return {"spark.jars": jars, **conf}


def _refuse_missing_jars(catalog: LakeCatalog, jars: str, extra: Mapping[str, str]) -> None:
    elsewhere = ("spark.jars.packages", "spark.jars.ivy", "spark.jars.repositories")
    if any(extra.get(key) for key in elsewhere) or any(map(os.environ.get, ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"))):
        # These may bring any jar.
        return
    there = [*jars.split(","), *extra.get("spark.jars", "").split(","), *extra.get(CLASSPATH, "").split(os.pathsep)]
    for needed, artifact in catalog.needed_classes().items():
        if lacks(needed, there):
            raise ConfigurationError(
                f"Catalog {catalog.name}: Spark needs the class {needed}, and no jar has it.",
                f"Set KAFKA_LAKE_SPARK_JARS to the path of {artifact}'s jar, or spark.jars in spark_config.",
            )


class SparkResource(LazyPySparkResource):  # type: ignore[misc]
    """Spark through dagster-pyspark's lazy resource.

    With ``SPARK_REMOTE`` set, sessions are Spark Connect sessions on that server, which must know the catalog
    (``kafka-lake up`` starts such a server). Without it Spark runs in this process, on ``$KAFKA_LAKE_SPARK_MASTER``
    (``local[*]`` by default), with the jars of ``ivy.xml``.
    """

    catalog: CatalogResource
    _kept: dict[str, Any] = PrivateAttr(default_factory=dict)

    def _init_session(self) -> None:
        if self._spark_session is None:  # type: ignore[has-type]
            self._spark_session = self._session("")

    def live_session(self, kept: str = "") -> Any:
        """Return the session, a new one if a Connect server has been restarted and knows the old one no more.

        Args:
            kept: Name of a session that a Connect server keeps when this process ends, with all that it has compiled
                and loaded, for the next process of this deployment that asks for that name. Only for work that leaves
                nothing else behind: settings, views and artifacts would stay, too. Empty for a session of one's own.

        Raises:
            EngineUnavailableError: If there is a Connect server and it doesn't answer.
        """
        remote = os.environ.get("SPARK_REMOTE")
        if not remote:
            return self.spark_session
        session = self._kept.get(kept) if kept else self._spark_session
        # A session that has once been told by the server that it is unknown has closed itself.
        _await_port(remote)
        if session is None or session.is_stopped or not _is_known(session, remote):
            if session is not None:
                # Its connection would count as a client of the server.
                session.stop()
            session = self._session(kept)
            if kept:
                self._kept[kept] = session
            else:
                self._spark_session = session
        return session

    def check(self) -> None:
        """Ask whether a Connect server is there, if there is to be one.

        Raises:
            EngineUnavailableError: If nothing accepts connections at its address within seconds.
        """
        if remote := os.environ.get("SPARK_REMOTE"):
            _await_port(remote)

    def turns(self) -> Turns | None:
        """Return the turns that commits take where Spark works on this machine; None where it doesn't."""
        remote, master = os.environ.get("SPARK_REMOTE"), os.environ.get("KAFKA_LAKE_SPARK_MASTER") or "local[*]"
        here = is_here(remote) if remote else local_cores(master) is not None
        # One more than cores, since a commit waits for files and for the catalog now and then.
        return Turns(home() / "turns", (os.cpu_count() or 1) + 1) if here else None

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session, if one was started."""
        self.stop()

    def stop(self) -> None:
        """Stop what sessions were started; the next use starts others."""
        kept, self._kept = self._kept, {}
        for session in kept.values():
            if not session.is_stopped:
                # What ends with a session of one's own goes on in one that is kept.
                with suppress(PySparkException):
                    session.interruptTag(session.tag)
                session.stop()
        if self._spark_session is not None:
            self._spark_session.stop()
            self._spark_session = None

    def _session(self, kept: str) -> Any:
        builder = SparkSession.builder
        if remote := os.environ.get("SPARK_REMOTE"):
            # What PySpark's builder does for an address; that one takes no options for the channel.
            os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
            return next(filter(None, (self._connected(remote, kept, generation) for generation in count())))
        from kafka_lake.spark.jars import spark_jars
        from kafka_lake.spark.java import java_env

        # Left by a Connect session of the process that this one was started by; PySpark would look for its server.
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        os.environ.update(java_env())
        master = os.environ.get("KAFKA_LAKE_SPARK_MASTER") or "local[*]"
        if master.startswith("local"):
            # Else Python functions run in whatever python3 the PATH has, which may lack every package.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        extra = {key: str(value) for key, value in self.spark_config.items()}
        conf = local_conf(self.catalog.open(), master, spark_jars(), extra)
        start_jvm(conf)
        # By the JVM's socket from here on: a process that had a Spark before keeps its JVM.
        session = builder.config(map={**conf, "spark.app.name": "kafka_lake"}).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session

    def _connected(self, remote: str, kept: str, generation: int) -> Any:
        """Return a session of a Connect server; None if it is to be kept, and the server has ended it for good."""
        channel = DefaultChannelBuilder(remote, _CHANNEL)
        keep = bool(kept) and channel.session_id is None
        if keep:
            channel.set(DefaultChannelBuilder.PARAM_SESSION_ID, self._kept_id(kept, generation))
        session = _Session(channel)
        session.release_session_on_close = not keep
        session.client.set_retry_policies([patience()])
        conf = {key: value for key, value in _DEFAULTS.items() if key in _SESSION_ONLY}
        try:
            for key, value in {**conf, **self.spark_config}.items():
                _set(session, key, value)
        except PySparkException as error:
            session.stop()
            if keep and "SESSION_CLOSED" in str(error):
                return None
            raise _unavailable(remote, error) from error
        session.addTag(session.tag)
        ConnectSession._set_default_and_active_session(session)
        return session

    def _kept_id(self, kept: str, generation: int) -> str:
        # Of this deployment, of this version, and of a session that was set up in the same way. Not of this host: a
        # container that replaces another takes over what that one kept, or a shared server would keep it for nobody.
        deployment = os.environ.get("DAGSTER_HOME") or str(home())
        catalog = self.catalog.open()
        tables = [catalog.name, catalog.type, *map(catalog.address_of, ("uri", "warehouse"))]
        told = [tables, deployment, version("kafka_lake"), self.spark_config, kept, generation]
        return str(uuid5(NAMESPACE_URL, json.dumps(told, sort_keys=True, default=str)))


def address_of(remote: str) -> str:
    """Return host and port of a Connect server, without what follows there, which may be a token."""
    return str(DefaultChannelBuilder(remote).endpoint)


def _is_known(session: Any, remote: str) -> bool:
    try:
        session.conf.get("spark.sql.session.timeZone")
    except SparkConnectGrpcException as error:
        if "INVALID_HANDLE" not in str(error):
            raise _unavailable(remote, error) from error
        return False
    return True


def _await_port(remote: str) -> None:
    """Return once something accepts connections at a Connect server's address.

    To connect also wakes a server that rests, for which the session then waits.
    """
    host, _, port = address_of(remote).rpartition(":")
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
            f"Spark Connect at {address_of(remote)} wants a token, and this one isn't it.",
            "Beside `kafka-lake up`, unset SPARK_REMOTE: its server is found then. Else write "
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
