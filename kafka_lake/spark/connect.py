"""A Spark Connect server from PySpark's own package: sessions in a second.

It is bound to 127.0.0.1 and asks for a token, which is in a file of its folder that its owner alone can read.
``kafka_lake.spark.supervisor`` keeps it at hand; ``python -m kafka_lake.spark --work-dir …`` does so in the foreground.
"""

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import quote

from kafka_lake.common.server_process import HOST, Server, ServerProcess, free_port, port_open
from kafka_lake.common.whole_file import write_private
from kafka_lake.errors import ServerStartError
from kafka_lake.spark import daemon
from kafka_lake.spark.class_archive import archive_options
from kafka_lake.spark.jars import spark_jars
from kafka_lake.spark.java import java_env
from kafka_lake.spark.private_conf import REDACTION, properties_file

JVM_OPTIONS = "-XX:+UseParallelGC -XX:MetaspaceSize=200m " + " ".join(
    f"-XX:Tier4{what}Threshold={ten_times}"
    for what, ten_times in (
        ("Invocation", 50_000),
        ("MinInvocation", 6_000),
        ("Compile", 150_000),
        ("BackEdge", 400_000),
    )
)
"""JVM options for what decodes and plans, which users' own replace.

Spark's classes alone take more than the metaspace from which on Java collects all of the heap.

The thresholds are ten times Java's: of Spark's code a little is called for every record and gets there at once; by the
usual ones the slow compiler takes a fifth of the CPU of a start for what is called a few thousand times.
"""

FORGOTTEN_SESSION_TIMEOUT = "30m"
"""The server forgets a session whose client asks nothing for so long; a client that ends well releases it itself."""

# What Spark keeps for a UI, which there is none of, would fill a server that lives for weeks.
_FEW_MEMORIES = {
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.connect.ui.retainedSessions": "20",
    "spark.sql.connect.ui.retainedStatements": "20",
    "spark.connect.session.manager.closedSessionsTombstonesSize": "200",
}

ROOM_FOR_CODE = {"spark.sql.codegen.cache.maxEntries": "4000"}
"""Each session has generated code of its own, some fifty classes, and a keyed table with a history a few hundred. With
less room than what is at work has, all of it is generated and compiled again for each commit.
"""

FATAL_ERRORS = {"spark.executor.killOnFatalError.depth": "0"}
"""Java's regular expressions overflow the stack on a long text, and Spark would end its JVM by that, each time that the
record is read. So such an error is the task's. Memory that is used up still ends the JVM, by an option of its own.
"""
OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"

TOKEN = "spark.connect.authenticate.token"

CLASSPATH = "spark.driver.extraClassPath"
_DAEMON = "spark.python.daemon.module"

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer(Server):
    """A Spark Connect server as a child process that dies with its parent; a context manager.

    Args:
        work_dir: Folder of its log and scratch files; one server at a time to a folder.
        port: Port of 127.0.0.1; 0 picks a free one.
        conf: Spark properties, the catalog's for instance; they win over this module's. Paths are absolute. Among
            them may be the server's token, `TOKEN`.
        driver_memory: Heap of the server's JVM, which does the work itself with the master ``local[*]``.
        direct_memory: Its memory outside the heap, for the buffers of network, Arrow and files.
        start_timeout: Seconds it may take until it accepts connections.
    """

    def __init__(
        self,
        work_dir: Path,
        port: int = 0,
        conf: Mapping[str, str] | None = None,
        driver_memory: str = "1g",
        direct_memory: str = "512m",
        metaspace: str = "512m",
        start_timeout: float = 120,
    ) -> None:
        self.work_dir = work_dir.resolve()
        self.port = port or free_port()
        self.conf = dict(conf or {})
        self.driver_memory = driver_memory
        self.direct_memory = direct_memory
        self.metaspace = metaspace
        self.start_timeout = start_timeout

    @property
    def address(self) -> str:
        """Where it listens. The token is no part of it, so that it can be shown."""
        # By this name alone PySpark sends a token without TLS.
        return f"sc://localhost:{self.port}"

    @property
    def remote(self) -> str:
        """The address for ``SPARK_REMOTE`` and ``SparkSession.builder.remote``; whoever has it can use the server."""
        return f"{self.address}/;token={quote(self.token, safe='')}"

    @property
    def token_file(self) -> Path:
        """The file that keeps the token from one start to the next; readable by its owner alone."""
        return self.work_dir / "token"

    @cached_property
    def token(self) -> str:
        """What a client must know: from the properties, or else of `token_file`, which is written if it isn't there."""
        if given := self.conf.get(TOKEN):
            return given
        if not self.token_file.exists():
            self.work_dir.mkdir(parents=True, exist_ok=True)
            write_private(self.token_file, secrets.token_urlsafe(32))
        return self.token_file.read_text().strip()

    @property
    def log(self) -> Path:
        """The file that the server logs to; each start appends."""
        return self.work_dir / "connect.log"

    def start(self, cancelled: Callable[[], bool] = lambda: False) -> Self:
        """Start the server and wait until it accepts connections.

        Args:
            cancelled: Asked several times a second; once it says so, the start is given up.

        Returns:
            The server itself.

        Raises:
            ServerStartError: If the port is taken, or the server ends or isn't ready in time, or the start was
                cancelled.
            JarsError: If the jars can't be retrieved.
            JavaNotFoundError: If there is no Java.
        """
        if self.alive():
            return self
        if port_open(self.port):
            raise ServerStartError(
                f"Port {self.port} of 127.0.0.1 is taken by another program.",
                "End it, or set KAFKA_LAKE_CONNECT_PORT to another port.",
            )
        self.work_dir.mkdir(parents=True, exist_ok=True)
        with properties_file(self.spark_conf()) as properties:
            server = ServerProcess(connect_command(properties), log=self.log, env=connect_env(), cwd=self.work_dir)
            self._server = server
            try:
                server.start(lambda: self._ready(cancelled), self.start_timeout)
            except ServerStartError as error:
                raise ServerStartError(f"Spark Connect didn't start on {self.address}: {error}") from None
        return self

    def _ready(self, cancelled: Callable[[], bool]) -> bool:
        if cancelled():
            raise ServerStartError("it was stopped before it was ready.")
        return port_open(self.port)

    def spark_conf(self) -> dict[str, str]:
        """Return all properties the server is started with; raises what ``ensure_jars`` raises."""
        conf = {
            "spark.app.name": "kafka-lake",
            "spark.master": "local[*]",
            "spark.driver.memory": self.driver_memory,
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
            "spark.connect.session.manager.defaultSessionTimeout": FORGOTTEN_SESSION_TIMEOUT,
            **self.conf,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            TOKEN: self.token,
        }
        if not {"spark.jars", CLASSPATH} & set(self.conf):
            conf = on_driver(conf, spark_jars())
        # Before the others, so that a user's own win. Out of memory, a server that goes on is worse than none.
        bounds = f"-XX:MaxDirectMemorySize={self.direct_memory} -XX:MaxMetaspaceSize={self.metaspace} {OUT_OF_MEMORY}"
        options = f"{bounds} {conf['spark.driver.defaultJavaOptions']}".strip()
        return {**conf, "spark.driver.defaultJavaOptions": options}


def on_driver(conf: Mapping[str, str], jars: str) -> dict[str, str]:
    """Return the settings of a Spark whose driver does all the work, with jars to load.

    They are on the JVM's own class path, and not in ``spark.jars``: Spark would copy them at each start, load them by
    a loader of its own, and Java's archive of classes couldn't have them. Python workers come from a daemon of ours,
    unless they are of another Python than this process.

    Raises:
        JavaNotFoundError: If there is no Java.
    """
    if not jars:
        return dict(conf)
    ours = jars.replace(",", os.pathsep)
    options = f"{archive_options(ours)} {conf['spark.driver.defaultJavaOptions']}".strip()
    classpath = os.pathsep.join(filter(None, [conf.get(CLASSPATH), ours]))
    whole = {**conf, CLASSPATH: classpath, "spark.driver.defaultJavaOptions": options}
    if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
        whole.setdefault(_DAEMON, daemon.__name__)
    return whole


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
        daemon.FORK_SERVER: "1",
    }


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerStartError("pyspark isn't installed: install this project's requirements.")
    return Path(spec.origin).parent
