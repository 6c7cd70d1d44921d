"""The reference Iceberg REST catalog server over SQLite and a local folder or S3, bound to 127.0.0.1.

Its own ``main`` listens on every interface. So the same servlet is put into Jetty from here, through py4j.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway

from kafka_lake.common.processes import Server, ServerProcess, free_port, port_open
from kafka_lake.engine.java import find_java
from kafka_lake_tests.server_jars import of_pyspark, retrieved

IVY_FILE = Path(__file__).with_name("ivy.xml")

_FROM_PYSPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "py4j-*.jar")
_S3 = "org.apache.iceberg.aws.s3.S3FileIO"


def server_jars(s3: bool = False) -> list[Path]:
    """Return the server's class path, retrieving what isn't here yet.

    Args:
        s3: Whether its files are in S3.
    """
    storage = retrieved(IVY_FILE, "rest-s3") if s3 else []
    return [*retrieved(IVY_FILE, "rest"), *of_pyspark(*_FROM_PYSPARK), *storage]


class RestCatalogServer(Server):
    """A REST catalog whose tables survive ``kill``.

    Args:
        folder: Its database and its log; the warehouse too, if there is no other.
        warehouse: Where the tables' files are, on ``s3://``; empty for the folder.
        storage: Iceberg's properties of that place.
    """

    def __init__(self, folder: Path, warehouse: str = "", storage: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder = folder.resolve()
        self._s3 = {"io-impl": _S3, "warehouse": warehouse, **storage} if warehouse else {}
        self.port = free_port()
        self._gateway: JavaGateway | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def start(self) -> Self:
        self.warehouse.mkdir(parents=True, exist_ok=True)
        gateway_port = free_port()
        command = [str(find_java() / "bin" / "java"), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [
            "-cp",
            ":".join(map(str, server_jars(bool(self._s3)))),
            "py4j.GatewayServer",
            "--enable-auth",
            str(gateway_port),
        ]
        self._server = ServerProcess(command, log=self.folder / "catalog.log", cwd=self.folder)
        self._server.start(lambda: len(self._said()) >= 2 and port_open(gateway_port), 60)
        try:
            parameters = GatewayParameters(port=gateway_port, auth_token=self._said()[1], auto_convert=True)
            self._gateway = JavaGateway(gateway_parameters=parameters)
            self._serve(self._gateway.jvm)
        except BaseException:
            self.stop()
            raise
        return self

    def _said(self) -> list[str]:
        assert self._server is not None
        return [line for line in self._server.log_tail(50) if line and not line.startswith("SLF4J")]

    def _serve(self, jvm: Any) -> None:
        properties = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{self.folder / 'catalog.db'}?busy_timeout=30000",
            "jdbc.schema-version": "V1",
            "warehouse": f"file://{self.warehouse}",
            **self._s3,
        }
        catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
            "rest_backend", properties, jvm.org.apache.hadoop.conf.Configuration()
        )
        adapter = jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog)
        servlets = jvm.org.eclipse.jetty.ee10.servlet
        context = servlets.ServletContextHandler(servlets.ServletContextHandler.NO_SESSIONS)
        context.addServlet(servlets.ServletHolder(jvm.org.apache.iceberg.rest.RESTCatalogServlet(adapter)), "/*")
        server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", self.port))
        server.setHandler(context)
        server.start()

    def stop(self) -> None:
        if self._gateway is not None:
            with suppress(Exception):
                self._gateway.close()
        super().stop()
