"""The Spark session as a Dagster resource: nothing starts before it is used, nothing stays after."""

import json
import logging
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from kafka_lake.common import environment
from kafka_lake.common.files import ensure_home, home
from kafka_lake.engine.sessions import (
    await_port,
    check_same_catalog,
    claim_session,
    connect_session,
    is_here,
    is_known,
    local_session,
)
from kafka_lake.orchestration.resources import FixedResource
from kafka_lake.orchestration.resources.catalog import CatalogResource

_MOST_SESSIONS = 100


class SparkResource(FixedResource, LazyPySparkResource):  # type: ignore[misc]
    """Spark through dagster-pyspark's lazy resource.

    With ``SPARK_REMOTE`` set, sessions are Spark Connect sessions on that server, which must know the catalog
    (``kafka-lake up`` starts such a server). Without it Spark runs in this process, on ``$KAFKA_LAKE_SPARK_MASTER``
    (``local[*]`` by default), with the jars of ``ivy.xml``.
    """

    catalog: CatalogResource
    _own: Any = PrivateAttr(default=None)
    _kept: dict[str, Any] = PrivateAttr(default_factory=dict)
    _claims: dict[str, FileIO] = PrivateAttr(default_factory=dict)

    @property
    def spark_session(self) -> Any:
        """Return the session, started at the first use."""
        if self._own is None:
            self._own = self._session("")
        return self._own

    @property
    def spark_context(self) -> Any:
        """Return the session's context, which those of a Connect server don't have."""
        return self.spark_session.sparkContext

    def live_session(self, kept: str = "") -> Any:
        """Return the session, a new one if a Connect server has been restarted and knows the old one no more.

        Args:
            kept: Name of a session that a Connect server on this machine keeps when this process ends, with all that
                it has compiled and loaded, for the next process that asks for that name: a small commit costs half as
                much there as in a new session. Only for work that leaves nothing else behind: settings, views and
                artifacts would stay, too. One process at a time has it. Empty for a session of one's own.

        Raises:
            EngineUnavailableError: If there is a Connect server and it doesn't answer.
        """
        remote = environment.SPARK_REMOTE.value()
        if not remote:
            return self.spark_session
        session = self._kept.get(kept) if kept else self._own
        # A session that has once been told by the server that it is unknown has closed itself.
        await_port(remote)
        if session is None or session.is_stopped or not is_known(session, remote):
            if session is not None:
                # Its connection would count as a client of the server.
                session.stop()
            session = self._session(kept)
            if kept:
                self._kept[kept] = session
            else:
                self._own = session
        return session

    def check(self) -> None:
        """Ask whether a Connect server is there, if there is to be one.

        Raises:
            EngineUnavailableError: If nothing accepts connections at its address within seconds.
        """
        if remote := environment.SPARK_REMOTE.value():
            await_port(remote)

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
                    session.interruptAll()
                session.stop()
        claims, self._claims = self._claims, {}
        for claim in claims.values():
            claim.close()
        if self._own is not None:
            self._own.stop()
            self._own = None

    def _session(self, kept: str) -> Any:
        # What Spark refuses becomes an error here, without secrets; PySpark would log the JVM's text and trace before.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        remote = environment.SPARK_REMOTE.value()
        if not remote:
            return local_session(self.catalog.open().for_spark(), self.spark_config)
        session = self._kept_session(remote, kept) if kept else connect_session(remote, self.spark_config)
        try:
            catalog = self.catalog.open()
            check_same_catalog(session, remote, catalog.name, catalog.sqlite_address())
        except Exception:
            # It is the process's default session, and would stay that.
            session.stop()
            raise
        return session

    def _kept_session(self, remote: str, kept: str) -> Any:
        if kept in self._claims:
            self._claims.pop(kept).close()
        for generation in range(_MOST_SESSIONS if is_here(remote) else 0):
            session_id = _session_id(kept, generation, [os.environ.get("DAGSTER_HOME"), self.spark_config])
            try:
                claim = claim_session(_folder("sessions"), session_id)
            except OSError:
                # Without a claim, two processes could work in it.
                break
            if claim is None:
                continue
            try:
                session = connect_session(remote, self.spark_config, session_id)
            except BaseException:
                claim.close()
                raise
            if session is not None:
                self._claims[kept] = claim
                return session
            claim.close()
        return connect_session(remote, self.spark_config)


def _session_id(kept: str, generation: int, deployment: list[Any]) -> str:
    """Return the id of a session that a deployment's processes share; one that has ended can't come back."""
    told = [str(home()), *deployment, kept, generation]
    return str(uuid5(NAMESPACE_URL, json.dumps(told, sort_keys=True, default=str)))


def _folder(name: str) -> Path:
    """Return a folder of the local state, which need not be writable."""
    with suppress(OSError):
        ensure_home()
    return home() / name
