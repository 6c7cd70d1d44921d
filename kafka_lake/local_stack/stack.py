"""The local stack's processes: broker, schema registry, Spark Connect server, Dagster.

Started in order, stopped completely.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self
from urllib.request import urlopen
from uuid import uuid4

import psutil

from kafka_lake.common.environment import HOME, SPARK_REMOTE
from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.common.home import home
from kafka_lake.common.server_process import ServerProcess
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.catalog_properties import catalog_name
from kafka_lake.local_stack.broker import EmbeddedBroker
from kafka_lake.local_stack.dagster_storage import prepare_dagster_home
from kafka_lake.local_stack.debezium import Debezium
from kafka_lake.local_stack.environment import use_broker, use_catalog, use_registry
from kafka_lake.local_stack.object_store import EmbeddedObjectStore
from kafka_lake.local_stack.ports import Ports
from kafka_lake.local_stack.postgres import EmbeddedPostgres
from kafka_lake.local_stack.registry import EmbeddedRegistry
from kafka_lake.local_stack.running import Running, RunningFile
from kafka_lake.spark.connect_session import is_here
from kafka_lake.spark.jars import ensure_jars, spark_jars
from kafka_lake.spark.settings import local_conf
from kafka_lake.spark.supervisor import ConnectSettings, ConnectSupervisor

_MARK = "KAFKA_LAKE_STACK"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP end the block by ``SystemExit`` with the shell's code, 130 for Ctrl-C.

    That also holds in a background job of a shell, which starts its programs deaf to SIGINT.
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
    """The local stack as a context manager: what was started in the block is gone after it, however it ends.

    Every process started meanwhile inherits a mark in its environment, so that also those that left their process
    group (Dagster's code servers and run workers) are found.

    Args:
        ports: Where the servers listen, on 127.0.0.1 only.
        tell_user: Called with a line for the user when something begins.
        shared: Whether commands beside this process use the servers: what runs is written to the deployment's folder.

    Attributes:
        log_dir: Folder of the servers' logs.
        dagster_began: When Dagster was started, in seconds since the epoch; what it did before is of earlier stacks.
    """

    def __init__(self, ports: Ports, tell_user: Callable[[str], None], shared: bool = False) -> None:
        self.ports = ports
        self.log_dir = home() / "logs"
        self.dagster_began = 0.0
        self._tell_user = tell_user
        self._shared = shared
        self._file: RunningFile | None = None
        self._mark = uuid4().hex
        self._earlier: set[int] = set()
        self._dagster: ServerProcess | None = None
        self._metrics: ServerProcess | None = None
        self._connect: ConnectSupervisor | None = None
        self._registry: EmbeddedRegistry | None = None
        self._broker: EmbeddedBroker | None = None
        self._store: EmbeddedObjectStore | None = None
        self._source: dict[str, EmbeddedPostgres | Debezium] = {}

    def __enter__(self) -> Self:
        self._file = RunningFile() if self._shared else None
        os.environ[_MARK] = self._mark
        self._earlier = {child.pid for child in psutil.Process().children()}
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start_broker(self) -> str:
        """Start the embedded broker and make it this process's and its children's cluster.

        Returns:
            Its address for ``bootstrap.servers``.
        """
        self._tell_user(f"Starting Kafka on {self.ports.broker.address}")
        use_broker(self.ports.broker.address)
        self._broker = embedded_broker(self.ports)
        address = self._broker.start().bootstrap_servers
        self._tell()
        return address

    def start_registry(self) -> str:
        """Start the embedded schema registry and make it this process's and its children's.

        Returns:
            Its address for clients.

        Raises:
            JarsError: If it can't be retrieved; nothing is started and the environment is as it was.
            RegistryStartError: If it doesn't come up.
        """
        ensure_jars("registry", self._tell_user)
        self._tell_user(f"Starting the schema registry on {self.ports.registry.address}")
        self._registry = EmbeddedRegistry(home() / "registry", self.ports.registry.number)
        url = self._registry.start().url
        use_registry(url)
        self._tell()
        return url

    def start_object_store(self) -> None:
        """Start the embedded S3 store and make its REST catalog this process's and its children's.

        Raises:
            JarsError: If what Spark needs for it can't be retrieved; nothing is started.
            ObjectStoreStartError: If it doesn't come up.
        """
        ensure_jars("aws", self._tell_user)
        self._store = EmbeddedObjectStore(home() / "object-store")
        self._tell_user(f"Starting an S3 store with a REST catalog on {self._store.catalog_uri}")
        use_catalog(catalog_name(), self._store.start().catalog_properties())
        self._tell()

    def start_server(self, name: str, server: EmbeddedPostgres | Debezium) -> None:
        """Start a server that changes come from.

        Args:
            name: What users call it.
            server: Is stopped before those that were started earlier; raises what its ``start`` does.
        """
        self._tell_user(f"Starting {name}")
        self._source[name] = server
        server.start()
        self._tell()

    def start_connect(self, catalog: LakeCatalog) -> None:
        """Start a Spark Connect server, keep it at hand, and make it the engine of this process and of its children.

        Args:
            catalog: Which it shall know.

        Raises:
            ConfigurationError: If one of ``KAFKA_LAKE_CONNECT_HEAP``, ``_DIRECT``, ``_METASPACE`` and ``_IDLE`` is
                wrong, or the catalog has a property that Spark can't be told. Nothing is started.
            ConnectStartError: If it doesn't come up.
        """
        settings = ConnectSettings.from_env()
        self._tell_user(f"Starting Spark Connect on {self.ports.connect.address}")
        conf = local_conf(catalog.for_spark(), "local[*]", spark_jars(), {})
        server = settings.server(home() / "connect", self.ports.connect.number, conf)
        self._connect = ConnectSupervisor(server, settings.idle_seconds, self._tell_user)
        os.environ[SPARK_REMOTE.name] = self._connect.start().remote
        self._tell()

    def start_dagster(self, options: Sequence[str], folder: Path) -> str:
        """Start Dagster's webserver and daemon and wait until the UI answers.

        Args:
            options: Of `dagster dev`: where it finds the definitions; none if its folder says it.
            folder: Where it is started.

        Returns:
            The UI's address.
        """
        url = f"http://{self.ports.ui.address}"
        self._tell_user(f"Starting Dagster on {url}")
        environment = {"DAGSTER_HOME": str(prepare_dagster_home()), HOME.name: str(home())}
        self.dagster_began = time.time()
        command = [sys.executable, "-m", "dagster", "dev", *options]
        command += ["-h", self.ports.ui.address.split(":")[0], "-p", str(self.ports.ui.number)]
        self._dagster = ServerProcess(command, log=self.log_dir / "dagster.log", env=environment, cwd=folder)
        self._dagster.start(lambda: _answers(f"{url}/server_info"), timeout=120)
        self._tell()
        return url

    def start_metrics(self) -> str:
        """Start the process that serves metrics, for the project of this process, and wait until it answers.

        Returns:
            The address for Prometheus.
        """
        url = f"http://{self.ports.metrics.address}/metrics"
        self._tell_user(f"Starting the metrics on {url}")
        program = "from kafka_lake.cli.main import main; main()"
        serve = ["metrics", "serve", "--port", str(self.ports.metrics.number)]
        command = [sys.executable, "-c", program, *serve]
        self._metrics = ServerProcess(command, log=self.log_dir / "metrics.log", env={HOME.name: str(home())})
        self._metrics.start(lambda: _answers(url), timeout=60)
        self._tell()
        return url

    def _tell(self) -> None:
        """Write down what runs by now, where other processes look for it."""
        if self._file is None:
            return
        servers = {
            "broker": self._broker,
            "registry": self._registry,
            "object-store": self._store,
            **{name.lower(): server for name, server in self._source.items()},
            "connect": self._connect,
            "dagster": self._dagster,
            "metrics": self._metrics,
        }
        pids = {name: server.pid for name, server in servers.items() if server and server.pid}
        self._file.write(
            Running(
                bootstrap_servers=self._broker.bootstrap_servers if self._broker else "",
                registry_url=self._registry.url if self._registry else "",
                spark_remote=self._connect.remote if self._connect else "",
                ui_url=f"http://{self.ports.ui.address}" if self._dagster else "",
                pids={"kafka-lake": os.getpid(), **pids},
                catalog=self._store.catalog_properties() if self._store else {},
            )
        )

    def check(self) -> None:
        """Raise a KafkaLakeError that names the log if a server ended unexpectedly."""
        for name, server in (
            ("Kafka", self._broker),
            ("The schema registry", self._registry),
            ("The S3 store", self._store),
            *self._source.items(),
            ("Spark Connect", self._connect),
            ("Dagster", self._dagster),
            ("The process of the metrics", self._metrics),
        ):
            if server is not None and not server.alive():
                raise KafkaLakeError(f"{name} ended unexpectedly.", f"Its log tells why: {server.log}")

    def stop(self) -> None:
        """Stop what was started, last one first, then kill what is left; further signals don't cut this short."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        try:
            if self._file is not None:
                self._file.remove()
            source = reversed(self._source.values())
            for server in (
                self._metrics,
                self._dagster,
                self._connect,
                *source,
                self._store,
                self._registry,
                self._broker,
            ):
                if server is not None:
                    with suppress(OSError):
                        server.stop()
        finally:
            _kill(self._left_over())
            os.environ.pop(_MARK, None)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _left_over(self) -> list[psutil.Process]:
        # A child that a signal caught between fork and exec doesn't carry the mark yet.
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
    """Return this deployment's embedded broker, not started."""
    return EmbeddedBroker(home() / "kafka", ports.broker.number)


def needs_connect(ports: Ports) -> bool:
    """Return whether the stack starts a Spark Connect server: ``SPARK_REMOTE`` names none, or one that has ended.

    `kafka-lake env` may have set the variable in this shell, for the server of a stack that has ended.
    """
    remote = os.environ.get(SPARK_REMOTE.name)
    return remote is None or (is_here(remote, ports.connect.number) and ports.connect.is_free())


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False
