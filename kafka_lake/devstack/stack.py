"""The local stack: starts broker, schema registry, Spark Connect server and Dagster, and stops all of them."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any, Self
from urllib.request import urlopen
from uuid import uuid4

import psutil

from kafka_lake.catalog.catalog_properties import catalog_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.environment import HOME, SPARK_REMOTE
from kafka_lake.common.files import ensure_home, home
from kafka_lake.common.processes import Server
from kafka_lake.devstack.dagster_servers import (
    CodeLocation,
    code_server,
    daemon,
    prepare_dagster_home,
    web_server,
    workspace_document,
)
from kafka_lake.devstack.running import (
    Ports,
    Running,
    RunningFile,
    use_broker,
    use_catalog,
    use_registry,
)
from kafka_lake.devstack.servers import EmbeddedBroker, EmbeddedObjectStore, EmbeddedRegistry
from kafka_lake.devstack.sources import Debezium, EmbeddedPostgres
from kafka_lake.devstack.supervision import MAX_DEATHS, Supervision
from kafka_lake.engine.jars import ensure_jars, spark_jars
from kafka_lake.engine.server import ConnectMemory, ConnectServer
from kafka_lake.engine.sessions import is_here
from kafka_lake.engine.settings import local_conf

_MARK = "KAFKA_LAKE_STACK"
_UNSAFE = re.compile(r"[^\w.-]")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise ``SystemExit`` with the shell's code, 130 for Ctrl-C.

    A shell starts its background jobs with SIGINT ignored; this replaces that.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stack:
    """The local stack, a context manager. After the block, all processes that were started in it have ended.

    They inherit a mark in their environment, by which also those outside of their process group are found: Dagster's
    code servers and run workers.

    Args:
        ports: Where the servers listen, on 127.0.0.1 only.
        tell_user: Called with a line for the user when a server starts.

    Attributes:
        log_dir: Folder of the servers' logs.
        dagster_began: When Dagster was started, in seconds since the epoch.
    """

    def __init__(self, ports: Ports, tell_user: Callable[[str], None]) -> None:
        self.ports = ports
        self.log_dir = home() / "logs"
        self.dagster_began = 0.0
        self._tell_user = tell_user
        self._file: RunningFile
        self._mark = uuid4().hex
        self._earlier: set[int] = set()
        self._supervision = Supervision(tell_user)
        self._servers: dict[str, Server] = {}
        self._pids: dict[str, int] = {}
        self._sockets = ExitStack()
        self._connect: ConnectServer | None = None
        self._registry: EmbeddedRegistry | None = None
        self._broker: EmbeddedBroker | None = None
        self._store: EmbeddedObjectStore | None = None
        self._ui_url = ""

    def __enter__(self) -> Self:
        self._file = RunningFile()
        os.environ[_MARK] = self._mark
        self._earlier = {child.pid for child in psutil.Process().children()}
        ensure_home()
        self.log_dir.mkdir(exist_ok=True)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start_broker(self) -> str:
        """Start the embedded broker, configure it as the cluster, and return its address."""
        self._tell_user(f"Starting Kafka on {self.ports.broker.address}")
        use_broker(self.ports.broker.address)
        self._broker = embedded_broker(self.ports)
        address = self._broker.start().bootstrap_servers
        self._supervise("Kafka", "broker", self._broker)
        return address

    def start_registry(self) -> str:
        """Start the embedded schema registry, configure it, and return its address."""
        ensure_jars("registry", self._tell_user)
        self._tell_user(f"Starting the schema registry on {self.ports.registry.address}")
        self._registry = EmbeddedRegistry(home() / "registry", self.ports.registry.number)
        url = self._registry.start().url
        use_registry(url)
        self._supervise("The schema registry", "registry", self._registry)
        return url

    def start_object_store(self) -> None:
        """Start the embedded S3 store, and configure its REST catalog."""
        ensure_jars("aws", self._tell_user)
        self._store = EmbeddedObjectStore(home() / "object-store")
        self._tell_user(f"Starting an S3 store with a REST catalog on {self._store.catalog_uri}")
        use_catalog(catalog_name(), self._store.start().catalog_properties())
        self._supervise("The S3 store", "object-store", self._store)

    def start_server(self, name: str, server: EmbeddedPostgres | Debezium) -> None:
        """Start a source of changes."""
        self._tell_user(f"Starting {name}")
        server.start()
        self._supervise(name, name.lower(), server)

    def start_connect(self, catalog: LakeCatalog) -> None:
        """Start a Spark Connect server, and configure it as the engine."""
        memory = ConnectMemory.from_env()
        self._tell_user(f"Starting Spark Connect on {self.ports.connect.address}")
        conf = local_conf(catalog.for_spark(), "local[*]", spark_jars(), {})
        self._connect = ConnectServer(home() / "connect", self.ports.connect.number, conf, memory)
        os.environ[SPARK_REMOTE.name] = self._connect.start().remote
        # A record that is too large ends the server several times, until the run has isolated the record.
        self._supervise("Spark Connect", "connect", self._connect, max_deaths=2 * MAX_DEATHS)

    def start_dagster(
        self, locations: Sequence[CodeLocation], folder: Path, others: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Start Dagster's code servers, daemon and web server, and return the address of the UI."""
        url = f"http://{self.ports.ui.address}"
        self._tell_user(f"Starting Dagster on {url}")
        home_of_dagster = prepare_dagster_home()
        environment = {"DAGSTER_HOME": str(home_of_dagster), HOME.name: str(home()), "DAGSTER_IS_DEV_CLI": "1"}
        self.dagster_began = time.time()
        # Paths of sockets must be short.
        sockets = Path(self._sockets.enter_context(TemporaryDirectory(prefix="kafka-lake-")))
        files = {location.name: sockets / str(number) for number, location in enumerate(locations)}
        for location in locations:
            log = self.log_dir / f"code-server-{_UNSAFE.sub('_', location.name)}.log"
            code = code_server(location, files[location.name], log, environment, cwd=folder).start()
            self._supervise(f"The code server of {location.name}", f"code-server-{location.name}", code)
        workspace = sockets / "workspace.yaml"
        workspace.write_text(workspace_document(files, others))
        ui = web_server(
            workspace,
            self.log_dir / "dagster-webserver.log",
            environment,
            folder,
            address=self.ports.ui.address,
            ready=lambda: _answers(f"{url}/server_info"),
        )
        for name, key, server in (
            ("Dagster's daemon", "daemon", daemon(workspace, self.log_dir / "dagster-daemon.log", environment, folder)),
            ("Dagster's web server", "webserver", ui),
        ):
            self._supervise(name, key, server.start())
        self._ui_url = url
        self._update_file()
        return url

    def _supervise(self, name: str, key: str, server: Server, max_deaths: int = MAX_DEATHS) -> None:
        self._servers[key] = server
        self._supervision.add(name, server, max_deaths)
        self._update_file()

    def _update_file(self) -> None:
        """Update the file of the running stack."""
        self._pids = self._pids_now()
        self._file.write(
            Running(
                bootstrap_servers=self._broker.bootstrap_servers if self._broker else "",
                registry_url=self._registry.url if self._registry else "",
                spark_remote=self._connect.remote if self._connect else "",
                ui_url=self._ui_url,
                pids={"kafka-lake": os.getpid(), **self._pids},
                catalog=self._store.catalog_properties() if self._store else {},
            )
        )

    def check(self) -> None:
        """Restart servers that have ended. Call it every second."""
        self._supervision.check()
        if self._pids_now() != self._pids:
            self._update_file()

    def _pids_now(self) -> dict[str, int]:
        return {key: server.pid for key, server in self._servers.items() if server.pid}

    def stop(self) -> None:
        """Stop the servers, the last one first, then kill remaining processes. Signals are ignored meanwhile."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        try:
            self._file.remove()
            self._supervision.stop()
            self._sockets.close()
        finally:
            _kill(self._remaining())
            os.environ.pop(_MARK, None)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remaining(self) -> list[psutil.Process]:
        # A child between fork and exec doesn't have the mark yet.
        children = [child for child in psutil.Process().children() if child.pid not in self._earlier]
        found = {process.pid: process for process in children}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark and process.pid != os.getpid():
                    found[process.pid] = process
        return list(found.values())


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def embedded_broker(ports: Ports) -> EmbeddedBroker:
    """Return this deployment's embedded broker, without starting it."""
    return EmbeddedBroker(home() / "kafka", ports.broker.number)


def needs_connect(ports: Ports) -> bool:
    """Return whether the stack starts a Spark Connect server: ``SPARK_REMOTE`` is unset, or names an ended stack's.

    `eval "$(kafka-lake env)"` leaves the variable behind in a shell.
    """
    remote = os.environ.get(SPARK_REMOTE.name)
    return remote is None or (is_here(remote, ports.connect.number) and ports.connect.is_free())


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False
