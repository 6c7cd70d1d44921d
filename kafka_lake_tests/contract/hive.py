"""A real Hive Metastore over PostgreSQL on 127.0.0.1.

With Derby, its locks wait for each other until a timeout as soon as three clients take them at once.
"""

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

from kafka_lake.common.processes import HOST, Server, ServerProcess, free_port, port_open
from kafka_lake.devstack.sources import Owner
from kafka_lake.engine.jars import ensure_jars
from kafka_lake.engine.java import find_java
from kafka_lake_tests.contract.postgres import database
from kafka_lake_tests.server_jars import of_pyspark, retrieved

LOG = "metastore.log"
IVY_FILE = Path(__file__).with_name("ivy.xml")

_FROM_PYSPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "commons-cli-*.jar", "commons-io-*.jar")
_OWNER = Owner("hive", "hive-secret", "metastore")
_PACKAGE = "org.apache.hadoop.hive.metastore"
_LOGGING = f"""\
appender.console.type = Console
appender.console.name = console
rootLogger.level = ERROR
rootLogger.appenderRef.console.ref = console
logger.calls.name = {_PACKAGE}.HiveMetaStore.audit
logger.calls.level = INFO
"""
_JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class HiveMetastore(Server):
    """A metastore with a database of its own, which ends with it.

    Args:
        folder: Its database, its log and the warehouse.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self._database_port = free_port()
        self._stack = ExitStack()

    @property
    def uri(self) -> str:
        return f"thrift://{HOST}:{self.port}"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def log(self) -> Path:
        """What it does, each call of a client among it."""
        return self.folder / LOG

    def start(self) -> Self:
        self.warehouse.mkdir(parents=True, exist_ok=True)
        try:
            self._stack.enter_context(database(self._database_port, _OWNER))
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        super().stop()
        self._stack.close()

    def _start(self) -> None:
        jars = [*retrieved(IVY_FILE, "hive"), *ensure_jars("postgresql")]
        (home,) = jars[0].parent.glob("apache-hive-metastore-*-bin")
        self._configure()
        path = [str(self.folder), f"{home / 'lib'}/*", *map(str, jars), *map(str, of_pyspark(*_FROM_PYSPARK))]
        java = [str(find_java() / "bin" / "java"), *_JAVA_OPTIONS, "-cp", ":".join(path)]
        tool = [*java, f"{_PACKAGE}.tools.schematool.MetastoreSchemaTool", "-dbType", "postgres", "-initSchema"]
        with (self.folder / "schema.log").open("w") as log:
            subprocess.run(tool, env={"METASTORE_HOME": str(home)}, cwd=self.folder, stdout=log, stderr=log, check=True)
        logging = self.folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        self._server = ServerProcess(
            [
                java[0],
                f"-Dlog4j.configurationFile={logging}",
                *java[1:],
                f"{_PACKAGE}.HiveMetaStore",
                "-p",
                str(self.port),
            ],
            log=self.log,
            cwd=self.folder,
        )
        self._server.start(lambda: port_open(self.port), 120)

    def _configure(self) -> None:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{HOST}:{self._database_port}/{_OWNER.database}",
            "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
            "javax.jdo.option.ConnectionUserName": _OWNER.user,
            "javax.jdo.option.ConnectionPassword": _OWNER.password,
            # Of tables that Hive itself owns, which Iceberg's aren't.
            "metastore.warehouse.dir": f"file://{self.folder / 'managed'}",
            "metastore.warehouse.external.dir": f"file://{self.warehouse}",
            "metastore.thrift.bind.host": HOST,
            "metastore.expression.proxy": f"{_PACKAGE}.DefaultPartitionExpressionProxy",
            # Ends locks whose holders are gone. Those of the others want tables that only Hive itself has.
            "metastore.task.threads.always": f"{_PACKAGE}.txn.service.AcidHouseKeeperService",
        }
        lines = (
            f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()
        )
        document = "<configuration>{}</configuration>"
        (self.folder / "metastore-site.xml").write_text(document.format("".join(lines)))
