"""A real schema registry (Apicurio, by its Confluent-compatible API) as a child process: for the demo and the tests.

Not for production: no security, bound to 127.0.0.1. Its schemas outlive it, since the records written with them do.
``python -m kafka_lake.local_stack.registry --data-dir … --port …`` runs it in the foreground.
"""

import argparse
import http.client
from contextlib import closing
from pathlib import Path
from typing import Self

from kafka_lake.common import environment
from kafka_lake.common.server_process import Server, ServerProcess, free_port, port_open, run_in_foreground
from kafka_lake.errors import ServerStartError
from kafka_lake.spark.jars import ensure_jars
from kafka_lake.spark.java import find_java

_JVM_OPTIONS = ["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]

# H2 would keep what was registered in memory for half a second before it writes it.
_DATABASE = "jdbc:h2:file:./registry;WRITE_DELAY=0"


class EmbeddedRegistry(Server):
    """A schema registry whose schemas survive ``stop`` and ``kill``; a context manager.

    Unlike Confluent's, its compatibility level is NONE as long as none is set.

    Args:
        data_dir: Folder of its database and log; made on first use.
        port: Port of 127.0.0.1; 0 picks a free one, which is kept over restarts of this object.
        start_timeout: Seconds it may take until it is ready, its download not counted.
    """

    def __init__(self, data_dir: Path, port: int = 0, start_timeout: float = 60) -> None:
        self.data_dir = data_dir.resolve()
        self.port = port or free_port()
        self.start_timeout = start_timeout

    @property
    def url(self) -> str:
        """The address for clients' ``url`` or ``schema.registry.url``."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def log(self) -> Path:
        """The file that the registry logs to; each start appends."""
        return self.data_dir / "registry.log"

    def start(self) -> Self:
        """Start the registry and wait until it is ready; the first start of all downloads 142 MB.

        Returns:
            The registry itself.

        Raises:
            ServerStartError: If the port is taken, another registry has the folder, or this one ends or isn't
                ready in time. Its schemas stay as they are.
            JarsError: If it can't be retrieved.
            JavaNotFoundError: If there is no Java.
        """
        if self.alive():
            return self
        if port_open(self.port):
            raise ServerStartError(
                f"Port {self.port} of 127.0.0.1 is taken by another program.",
                "End it, or set KAFKA_LAKE_REGISTRY_PORT to another port.",
            )
        (jar,) = ensure_jars("registry")
        properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.datasource.jdbc.url": _DATABASE,
        }
        settings = [f"-D{name}={value}" for name, value in properties.items()]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._server = ServerProcess(
            [str(find_java() / "bin" / "java"), *_JVM_OPTIONS, *settings, "-jar", str(jar)],
            log=self.log,
            cwd=self.data_dir,
        )
        try:
            self._server.start(self._ready, self.start_timeout)
        except ServerStartError as error:
            raise ServerStartError(f"The schema registry didn't start on port {self.port}: {error}") from None
        return self

    def _ready(self) -> bool:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)) as connection:
                connection.request("GET", "/health/ready")
                return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def main() -> None:
    """Run a schema registry in the foreground until SIGTERM or SIGINT, or until it ends unexpectedly."""
    parser = argparse.ArgumentParser(prog="python -m kafka_lake.local_stack.registry", description=main.__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the registry's data")
    parser.add_argument(
        "--port", type=int, default=int(environment.REGISTRY_PORT.default), help="port of 127.0.0.1 (%(default)s)"
    )
    options = parser.parse_args()
    registry = EmbeddedRegistry(options.data_dir, options.port)
    run_in_foreground(
        registry,
        f"The schema registry is at {registry.url}; its log is {registry.log}",
        f"The schema registry ended unexpectedly; see {registry.log}",
        prepare=lambda: ensure_jars("registry", tell_user=lambda line: print(line, flush=True)),
    )


if __name__ == "__main__":
    main()
