"""A Spark Connect server from PySpark's own package, as a child process; sessions start in a second.

It listens on 127.0.0.1 and asks for a token, which is in a file of its folder that its owner alone can read.
``python -m kafka_lake.engine --work-dir …`` runs it in the foreground.
"""

import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import quote

from kafka_lake.common.environment import CONNECT_DIRECT, CONNECT_HEAP, CONNECT_METASPACE, CONNECT_PORT, Variable
from kafka_lake.common.files import write_atomic
from kafka_lake.common.processes import HOST, Server, ServerProcess
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.java import java_env
from kafka_lake.engine.settings import (
    CLASSPATH,
    FATAL_ERRORS,
    JVM_OPTIONS,
    OUT_OF_MEMORY,
    REDACTION,
    ROOM_FOR_CODE,
    on_driver,
    properties_file,
)
from kafka_lake.errors import ConfigurationError, ServerStartError

# Of a session whose client asks nothing; a client that ends well releases it itself.
_FORGOTTEN_SESSION_TIMEOUT = "30m"

# There is no UI, and what Spark keeps for one would fill a server that lives for weeks.
_FEW_MEMORIES = {
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.connect.ui.retainedSessions": "20",
    "spark.sql.connect.ui.retainedStatements": "20",
    "spark.connect.session.manager.closedSessionsTombstonesSize": "200",
}

TOKEN = "spark.connect.authenticate.token"

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True)
class ConnectMemory:
    """How much memory a server may take, in Java's notation, as ``1g``.

    Args:
        heap: Of its JVM, which does the work itself with the master ``local[*]``.
        direct: Outside the heap, for the buffers of network, Arrow and files.
        metaspace: For classes, generated code among them.
    """

    heap: str = CONNECT_HEAP.default
    direct: str = CONNECT_DIRECT.default
    metaspace: str = CONNECT_METASPACE.default

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return what ``KAFKA_LAKE_CONNECT_HEAP``, ``_DIRECT`` and ``_METASPACE`` say."""
        return cls(*(_size(variable, environment) for variable in (CONNECT_HEAP, CONNECT_DIRECT, CONNECT_METASPACE)))


def _size(variable: Variable, environment: Mapping[str, str]) -> str:
    value = variable.value(environment).lower()
    if not re.fullmatch(r"[1-9]\d*[kmg]", value):
        raise ConfigurationError(f"{variable.name}={value} is not a size of memory.", "Write it as 512m or 2g.")
    return value


class ConnectServer(Server):
    """A Spark Connect server as a child process that dies with its parent.

    Args:
        folder: Of its log and scratch files.
        conf: Spark properties, the catalog's for instance; they win over this module's. Paths are absolute. Among
            them may be the server's token, `TOKEN`.
    """

    name = "Spark Connect"
    log_name = "connect"
    start_timeout = 120
    port_variable = CONNECT_PORT.name

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        conf: Mapping[str, str] | None = None,
        memory: ConnectMemory | None = None,
    ) -> None:
        super().__init__(folder, port)
        self.conf = dict(conf or {})
        self.memory = memory or ConnectMemory()

    @property
    def address(self) -> str:
        """Where it listens. It lacks the token, so that it can be shown."""
        # By this name alone PySpark sends a token without TLS.
        return f"sc://localhost:{self.port}"

    @property
    def remote(self) -> str:
        """The address for ``SPARK_REMOTE`` and ``SparkSession.builder.remote``; whoever has it can use the server."""
        return f"{self.address}/;token={quote(self.token, safe='')}"

    @property
    def token_file(self) -> Path:
        """The file that keeps the token from one start to the next; readable by its owner alone."""
        return self.folder / "token"

    @cached_property
    def token(self) -> str:
        """What a client must know: from the properties, or else of `token_file`, which is written if it isn't there."""
        if given := self.conf.get(TOKEN):
            return given
        if not self.token_file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.token_file, secrets.token_urlsafe(32), owner_only=True)
        return self.token_file.read_text().strip()

    def start(self) -> Self:
        """Start the server, as `Server.start` does; its settings are in a file until it has read them."""
        if self.alive():
            return self
        with properties_file(self.spark_conf()) as self._properties:
            return super().start()

    def _process(self) -> ServerProcess:
        return ServerProcess(connect_command(self._properties), self.log, connect_env(), self.folder)

    def spark_conf(self) -> dict[str, str]:
        """Return all properties the server is started with; raises what ``ensure_jars`` raises."""
        conf = {
            "spark.app.name": "kafka-lake",
            "spark.master": "local[*]",
            "spark.driver.memory": self.memory.heap,
            "spark.driver.defaultJavaOptions": "",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.log.level": "WARN",
            "spark.ui.enabled": "false",
            **REDACTION,
            **_FEW_MEMORIES,
            **ROOM_FOR_CODE,
            **FATAL_ERRORS,
            "spark.connect.session.manager.defaultSessionTimeout": _FORGOTTEN_SESSION_TIMEOUT,
            **self.conf,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            TOKEN: self.token,
        }
        if not {"spark.jars", CLASSPATH} & set(self.conf):
            conf = on_driver(conf, spark_jars())
        # Before the others, so that a user's own win. Out of memory, a server that goes on is worse than none.
        bounds = f"-XX:MaxDirectMemorySize={self.memory.direct} -XX:MaxMetaspaceSize={self.memory.metaspace}"
        options = f"{bounds} {OUT_OF_MEMORY} {conf['spark.driver.defaultJavaOptions']}".strip()
        return {**conf, "spark.driver.defaultJavaOptions": options}


def connect_command(properties: Path) -> list[str]:
    """Return the command that runs a Spark Connect server with the properties in that file.

    The properties go by file and not by arguments, which every user of the machine can read.
    """
    return [
        str(_spark_home() / "bin" / "spark-submit"),
        "--class",
        _SERVER_CLASS,
        "--properties-file",
        str(properties),
        "spark-internal",
    ]


def connect_env() -> dict[str, str | None]:
    """Return the environment variables for ``connect_command``; raises ``JavaNotFoundError``.

    Those that make this process a client of a Connect server are taken away, since a server refuses to be one. Python
    functions are imported by the server's workers from the folder that this process is in, too, as they are by Spark in
    this process.
    """
    return {
        "SPARK_REMOTE": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
        **java_env(),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerStartError("pyspark isn't installed: install this project's requirements.")
    return Path(spec.origin).parent
