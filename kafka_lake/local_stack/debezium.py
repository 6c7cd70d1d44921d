"""A real Debezium, its connector for PostgreSQL in a standalone worker of Kafka Connect, as a child process.

For the demo and the tests. Not for production: one worker without security, bound to 127.0.0.1.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.request import urlopen

from kafka_lake.common.server_process import HOST, Server, ServerProcess, free_port, port_open
from kafka_lake.errors import ServerStartError
from kafka_lake.local_stack.postgres import EmbeddedPostgres
from kafka_lake.spark.jars import retrieve_jars
from kafka_lake.spark.java import find_java

IVY_FILE = Path(__file__).with_name("debezium.xml")
"""Its jars, with a converter to Avro or without."""

SLOT = "debezium"
"""Where PostgreSQL keeps for Debezium what that hasn't confirmed yet."""

CONFIRMED = "SELECT confirmed_flush_lsn > %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
"""Asks PostgreSQL whether Debezium has confirmed a change behind a position, by a slot: all before it is in Kafka."""

_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO")
_NAME = "source"


class Debezium(Server):
    """A worker with one connector; it goes on from where it was when it is started again.

    Args:
        folder: Its properties, offsets and log; made on first use.
        settings: More of the connector's, or others.
        jars: The configuration of its jars in `IVY_FILE`.
        start_timeout: Seconds it may take until the connector runs, its download not counted.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        database: EmbeddedPostgres,
        settings: Mapping[str, str] = MappingProxyType({}),
        jars: str = "debezium",
        start_timeout: float = 120,
    ) -> None:
        self.folder = folder.resolve()
        self.jars = jars
        self.start_timeout = start_timeout
        self._rest = free_port()
        self._worker = {
            "bootstrap.servers": bootstrap,
            "listeners": f"http://{HOST}:{self._rest}",
            "offset.storage.file.filename": f"{self.folder}/offsets",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        }
        self._connector = {
            "name": _NAME,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": SLOT,
            # Without heartbeats it confirms a transaction when it has seen the next one.
            "heartbeat.interval.ms": "1000",
            "database.hostname": HOST,
            "database.port": str(database.port),
            "database.user": database.owner.user,
            "database.password": database.owner.password,
            "database.dbname": database.owner.database,
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "3",
            **settings,
        }

    @property
    def log(self) -> Path:
        """The file that it logs to; each start appends."""
        return self.folder / "connect.log"

    def start(self) -> Self:
        """Start the worker and wait until its connector runs; the first start of all downloads 60 MB.

        Returns:
            The worker itself.

        Raises:
            ServerStartError: If the connector doesn't run in time. What it has captured stays captured.
            JarsError: If it can't be retrieved.
            JavaNotFoundError: If there is no Java.
        """
        if self.alive():
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {"worker.properties": self._worker, "connector.properties": self._connector}
        for name, properties in files.items():
            (self.folder / name).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        path = ":".join(map(str, retrieve_jars(IVY_FILE, self.jars)))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [str(find_java() / "bin" / "java"), *_JAVA_OPTIONS, "-cp", path, main, *files]
        self._server = ServerProcess(command, log=self.log, cwd=self.folder)
        try:
            self._server.start(self.is_running, self.start_timeout)
        except ServerStartError as error:
            raise ServerStartError(
                f"Debezium didn't start: {error}",
                f"If PostgreSQL has lost its slot, remove {self.folder}/offsets; it then reads all rows again.",
            ) from None
        return self

    def is_running(self) -> bool:
        """Return whether the connector and its task are at work."""
        if not port_open(self._rest):
            return False
        try:
            with urlopen(f"http://{HOST}:{self._rest}/connectors/{_NAME}/status", timeout=5) as answer:
                status = json.loads(answer.read())
        except OSError:
            return False
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return len(states) == 2 and set(states) == {"RUNNING"}
