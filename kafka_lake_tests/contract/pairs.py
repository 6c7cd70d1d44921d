"""The pairs of catalog and storage that are tested, each with real servers."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from kafka_lake.common.processes import HOST, ServerProcess, free_port, port_open
from kafka_lake.devstack.servers import BUCKET, EmbeddedObjectStore
from kafka_lake.devstack.sources import Owner
from kafka_lake_tests.chaos.catalog import RestCatalogServer
from kafka_lake_tests.contract.hive import HiveMetastore
from kafka_lake_tests.contract.postgres import database

Properties = dict[str, str]

_OWNER = Owner("lake", "lake-secret/with@odd:signs", "lake")


def start_pair(name: str, folder: Path) -> AbstractContextManager[Properties]:
    """Start the servers of a pair, and give the catalog's properties in PyIceberg's names; they stop at the end."""
    return PAIRS[name](folder)


@contextmanager
def _sqlite_files(folder: Path) -> Iterator[Properties]:
    yield {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder / 'warehouse'}"}


@contextmanager
def _postgres_files(folder: Path) -> Iterator[Properties]:
    with _postgres(f"file://{folder / 'warehouse'}") as properties:
        yield properties


@contextmanager
def _postgres_s3(folder: Path) -> Iterator[Properties]:
    with EmbeddedObjectStore(folder / "store") as store, _postgres(f"s3://{BUCKET}/postgres") as properties:
        yield {**properties, **store.s3_properties()}


@contextmanager
def _postgres(warehouse: str) -> Iterator[Properties]:
    port = free_port()
    with database(port, _OWNER):
        login = f"{_OWNER.user}:{quote(_OWNER.password, safe='')}"
        uri = f"postgresql+psycopg2://{login}@{HOST}:{port}/{_OWNER.database}"
        yield {"type": "sql", "uri": uri, "warehouse": warehouse}


@contextmanager
def _rest_s3(folder: Path) -> Iterator[Properties]:
    with EmbeddedObjectStore(folder / "store") as store:
        yield store.catalog_properties()


@contextmanager
def _rest_files(folder: Path) -> Iterator[Properties]:
    with RestCatalogServer(folder / "rest") as server:
        yield {"type": "rest", "uri": server.uri}


@contextmanager
def _reference_s3(folder: Path) -> Iterator[Properties]:
    with EmbeddedObjectStore(folder / "store") as store:
        storage = {**store.s3_properties(), "s3.path-style-access": "true", "client.region": "us-east-1"}
        with RestCatalogServer(folder / "rest", f"s3://{BUCKET}/reference", storage) as server:
            yield {"type": "rest", "uri": server.uri, **store.s3_properties()}


@contextmanager
def _glue_s3(folder: Path) -> Iterator[Properties]:
    port = free_port()
    command = [sys.executable, "-m", "kafka_lake_tests.contract.glue_server", str(port)]
    server = ServerProcess(command, folder / "glue.log")
    with EmbeddedObjectStore(folder / "store") as store, ExitStack() as undo:
        undo.callback(server.stop)
        server.start(lambda: port_open(port), 60)
        keys = store.s3_properties()
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        # Both engines read keys for Glue from the environment alone.
        patch.setenv("AWS_ACCESS_KEY_ID", keys["s3.access-key-id"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", keys["s3.secret-access-key"])
        yield {
            "type": "glue",
            "warehouse": f"s3://{BUCKET}/glue",
            "glue.endpoint": f"http://{HOST}:{port}",
            "glue.region": keys["s3.region"],
            **keys,
        }


@contextmanager
def _hive_files(folder: Path) -> Iterator[Properties]:
    with HiveMetastore(folder / "hive") as server:
        yield {"type": "hive", "uri": server.uri, "warehouse": f"file://{server.warehouse}"}


PAIRS: Mapping[str, Callable[[Path], AbstractContextManager[Properties]]] = {
    "sqlite_files": _sqlite_files,
    "postgres_files": _postgres_files,
    "postgres_s3": _postgres_s3,
    "rest_files": _rest_files,
    "rest_s3": _rest_s3,
    "reference_s3": _reference_s3,
    "glue_s3": _glue_s3,
    "hive_files": _hive_files,
}
