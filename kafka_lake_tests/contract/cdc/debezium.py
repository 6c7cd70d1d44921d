"""Debezium's connector for PostgreSQL in a standalone worker of Kafka Connect, on 127.0.0.1."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from kafka_lake.common.server_process import HOST, Server, ServerProcess, free_port, port_open
from kafka_lake.spark.java import find_java
from kafka_lake_tests.contract.postgres import Owner
from kafka_lake_tests.server_jars import retrieved

IVY_FILE = Path(__file__).with_name("ivy.xml")
_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO")
_NAME = "source"


class Debezium(Server):
    """A worker with one connector; it goes on from where it was when it is started again.

    Args:
        folder: Its properties, offsets and log.
        bootstrap: The brokers.
        port: Of the database.
        owner: Of the database.
        settings: More of the connector's, or others.
    """

    def __init__(self, folder: Path, bootstrap: str, port: int, owner: Owner, settings: Mapping[str, str]) -> None:
        self.folder = folder.resolve()
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
            "database.hostname": HOST,
            "database.port": str(port),
            "database.user": owner.user,
            "database.password": owner.password,
            "database.dbname": owner.database,
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "3",
            **settings,
        }

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {"worker.properties": self._worker, "connector.properties": self._connector}
        for name, properties in files.items():
            (self.folder / name).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        path = ":".join(map(str, retrieved(IVY_FILE, "debezium")))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [str(find_java() / "bin" / "java"), *_JAVA_OPTIONS, "-cp", path, main, *files]
        self._server = ServerProcess(command, log=self.folder / "connect.log", cwd=self.folder)
        self._server.start(self.is_running, 120)
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
