"""Kinds of catalogs and of storage: what they need, and their properties' names in Iceberg's Java library. Pure.

Most names are the same in PyIceberg and in Java, and Java ignores unknown ones. Properties that begin with ``spark.``
are for Java alone and win there; those that begin with ``python.`` are for PyIceberg alone.

https://py.iceberg.apache.org/configuration/ · https://iceberg.apache.org/docs/latest/aws/ ·
https://iceberg.apache.org/docs/latest/azure/
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from pyiceberg.io import SCHEMA_TO_FILE_IO
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.common.environment import catalog_variable
from kafka_lake.errors import ConfigurationError

FOR_SPARK = "spark."
FOR_PYTHON = "python."


@dataclass(frozen=True)
class Backend:
    """A kind of catalog.

    Args:
        required: Properties without which it can't be used.
        java_defaults: Properties that Java needs to behave as PyIceberg does.
        concurrent_requests: How many tables are loaded at once. A database answers faster than threads take turns.
        folder_ending: What a namespace's folder has after its name.
        may_ignore_requirements: Whether such a catalog may accept outdated commits, so that it is tested.
    """

    java_type: str
    required: tuple[str, ...]
    example: str = "https://host/path"
    java_defaults: Mapping[str, str] = field(default_factory=dict)
    concurrent_requests: int = 1
    folder_ending: str = ""
    may_ignore_requirements: bool = False


BACKENDS: Mapping[str, Backend] = {
    "sql": Backend(
        "jdbc",
        ("uri", "warehouse"),
        example="postgresql+psycopg2://host/database",
        java_defaults={"jdbc.schema-version": "V1"},
    ),
    "rest": Backend(
        "rest",
        ("uri",),
        java_defaults={"header.X-Iceberg-Access-Delegation": "vended-credentials"},
        concurrent_requests=8,
        may_ignore_requirements=True,
    ),
    "glue": Backend("glue", ("warehouse",), concurrent_requests=8, folder_ending=".db"),
    "hive": Backend("hive", ("uri",), folder_ending=".db", may_ignore_requirements=True),
}


@dataclass(frozen=True)
class Storage:
    """A cloud's storage.

    Args:
        schemes: Of its addresses.
        java_files: Iceberg's Java class for its files.
        client: A class that the Java class needs, and ``jar`` the artifact with it.
    """

    schemes: tuple[str, ...]
    java_files: str
    client: str
    jar: str


S3 = Storage(
    ("s3", "s3a", "s3n"),
    "org.apache.iceberg.aws.s3.S3FileIO",
    "software.amazon.awssdk.services.s3.S3Client",
    "iceberg-aws-bundle",
)
AZURE = Storage(
    ("abfs", "abfss", "wasb", "wasbs"),
    "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
    "com.azure.storage.file.datalake.DataLakeFileSystemClient",
    "iceberg-azure-bundle",
)
GOOGLE = Storage(
    ("gs",), "org.apache.iceberg.gcp.gcs.GCSFileIO", "com.google.cloud.storage.Storage", "iceberg-gcp-bundle"
)
STORAGES = (S3, AZURE, GOOGLE)

JAVA_NAMES = {
    "glue.region": "client.region",
    "s3.region": "client.region",
    "s3.proxy-uri": "http-client.proxy-endpoint",
    "adls.account-key": "adls.auth.shared-key.account.key",
    "hive.kerberos-authentication": "hadoop.hive.metastore.sasl.enabled",
    "auth.type": "rest.auth.type",
    "auth.basic.username": "rest.auth.basic.username",
    "auth.basic.password": "rest.auth.basic.password",
    "auth.google.credentials-path": "gcp.auth.credentials-path",
    "auth.google.scopes": "gcp.auth.scopes",
    "client.role-arn": "client.assume-role.arn",
    "client.role-session-name": "client.assume-role.session-name",
}
"""PyIceberg's names of properties → Java's, where they differ."""
_KEYS = ("access-key-id", "secret-access-key", "session-token")
# Parameters of PostgreSQL's driver for Python → JDBC's, where they differ; None for those that Java lacks.
_JDBC_PARAMETERS: Mapping[str, str | None] = {
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "channel_binding": "channelBinding",
    **dict.fromkeys(("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")),
}

_URLS = ("s3.endpoint", "s3.signer.uri", "glue.endpoint", "gcs.service.host")
_SPELLED = {"az": "abfss://container@account.dfs.core.windows.net/folder", "gcs": "gs://bucket/folder"}


def check_addresses(name: str, properties: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` for an address that one of the engines would take for another."""
    for key, value in properties.items():
        if key.removeprefix(FOR_SPARK).removeprefix(FOR_PYTHON) in _URLS and "://" not in value:
            # Java takes minio:9000 for an address whose scheme is minio.
            raise ConfigurationError(
                f"Catalog {name}: {key} is not a URL.", "Write it with its scheme, as https://host:9000."
            )
    scheme = urlsplit(properties.get("warehouse", "")).scheme
    if scheme in _SPELLED:
        raise ConfigurationError(
            f"Catalog {name}: Iceberg's Java library doesn't support {scheme}:// of the warehouse.",
            f"Write it as {_SPELLED[scheme]}.",
        )


def java_properties(name: str, kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties as Iceberg's Java library takes them."""
    given = {key: value for key, value in properties.items() if not key.startswith((FOR_SPARK, FOR_PYTHON))}
    java = {key: value for key, value in given.items() if key not in JAVA_NAMES}
    for key, java_name in JAVA_NAMES.items():
        if key in given:
            java.setdefault(java_name, given[key])
    java["type"] = BACKENDS[kind].java_type
    lower = {key.lower() for key in java}
    java |= {key: value for key, value in BACKENDS[kind].java_defaults.items() if key.lower() not in lower}
    if files := _files_class(kind, given):
        java.setdefault("io-impl", files)
    if kind == "sql":
        java |= _database(name, given)
    if kind == "rest":
        _add_rest(java, given)
    _add_amazon(java)
    if java.get("io-impl") == AZURE.java_files:
        _add_azure(java, given)
    return java | {key.removeprefix(FOR_SPARK): v for key, v in properties.items() if key.startswith(FOR_SPARK)}


def storage_of(scheme: str) -> Storage | None:
    """Return the storage with addresses of this scheme; None if it isn't a cloud's.

    >>> storage_of("s3a").jar
    'iceberg-aws-bundle'
    """
    return next((storage for storage in STORAGES if scheme in storage.schemes), None)


def needed_classes(java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java classes that a catalog needs beside Iceberg's own, with the jar that has each.

    >>> needed_classes({"type": "rest", "io-impl": S3.java_files})
    {'software.amazon.awssdk.services.s3.S3Client': 'iceberg-aws-bundle'}
    """
    classes = {storage.client: storage.jar for storage in STORAGES if storage.java_files == java.get("io-impl")}
    if java["type"] == "glue":
        classes["software.amazon.awssdk.services.glue.GlueClient"] = S3.jar
    if java.get("rest.sigv4-enabled") == "true":
        # Iceberg's RESTSigV4AuthSession signs with it.
        classes["software.amazon.awssdk.auth.signer.Aws4Signer"] = S3.jar
    if java["type"] == "jdbc" and java["uri"].startswith("jdbc:postgresql:"):
        classes["org.postgresql.Driver"] = "postgresql"
    return classes


def _files_class(kind: str, properties: Mapping[str, str]) -> str | None:
    """Return the Java class for the files; None if Java finds it by itself."""
    scheme = urlsplit(properties.get("warehouse", "")).scheme
    if storage := storage_of(scheme):
        return storage.java_files
    if kind != "rest" or scheme in SCHEMA_TO_FILE_IO:
        return None
    # The warehouse is a name.
    if properties.get("auth.type") == "google":
        return GOOGLE.java_files
    return S3.java_files if any(key.startswith("s3.") for key in properties) else None


def _add_rest(java: dict[str, str], properties: Mapping[str, str]) -> None:
    """Add what PyIceberg does by itself, and the keys and region of Amazon's signatures."""
    if java.get("rest.auth.type") == "noop":
        java["rest.auth.type"] = "none"
    if java.pop("s3.signer", None):
        java.setdefault("s3.remote-signing-enabled", "true")
    if java.get("rest.sigv4-enabled") == "true":
        if "rest.access-key-id" not in java:
            java |= {f"rest.{key}": properties[f"client.{key}"] for key in _KEYS if f"client.{key}" in properties}
        if "client.region" in java:
            java.setdefault("rest.signing-region", java["client.region"])


def _add_amazon(java: dict[str, str]) -> None:
    """Give Java's S3 client the keys, the role and the kind of addresses that PyIceberg's has."""
    shared = {f"s3.{key}": java.pop(f"client.{key}") for key in _KEYS if f"client.{key}" in java}
    if "s3.access-key-id" not in java:
        java |= shared
    if java.pop("s3.anonymous", "") == "true":
        provider = "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
        java.setdefault("client.credentials-provider", provider)
    if "client.assume-role.arn" in java:
        java.setdefault("client.factory", "org.apache.iceberg.aws.AssumeRoleAwsClientFactory")
        if "client.region" in java:
            java.setdefault("client.assume-role.region", java["client.region"])
    virtual = java.pop("s3.force-virtual-addressing", "").lower() == "true"
    if "s3.endpoint" in java:
        # As PyIceberg does: few servers other than Amazon's have a host name for each bucket.
        java.setdefault("s3.path-style-access", "false" if virtual else "true")


def _add_azure(java: dict[str, str], properties: Mapping[str, str]) -> None:
    """Name the account of a key and of a SAS token as Java does."""
    account = properties.get("adls.account-name", "")
    host = urlsplit(properties.get("warehouse", "")).netloc.partition("@")[2] or f"{account}.dfs.core.windows.net"
    if "adls.account-key" in properties:
        java["adls.auth.shared-key.account.name"] = host.partition(".")[0]
    if "adls.sas-token" in java:
        java[f"adls.sas-token.{host}"] = java.pop("adls.sas-token")


def sqlite_address(name: str, uri: str) -> str:
    """Return the JDBC address of a catalog's SQLite database; empty for another database."""
    return _sqlite(name, _parsed(name, uri)) if uri.startswith("sqlite") else ""


def _database(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a database's address for JDBC, with user and password apart from it."""
    setting = catalog_variable(name, "uri")
    url = _parsed(name, properties["uri"])
    database = url.get_backend_name()
    if database == "sqlite":
        return {"uri": _sqlite(name, url)}
    if database != "postgresql":
        raise ConfigurationError(
            f"Catalog {name}: database {database} isn't supported; catalogs of type sql use PostgreSQL or SQLite.",
            f"Set {setting} to a PostgreSQL or SQLite database, or use a REST catalog in front of this one.",
        )
    if not url.host:
        raise ConfigurationError(
            f"Catalog {name}: {setting} names no host, and Spark reaches databases only over the network.",
            "Name the host.",
        )
    translated = {_JDBC_PARAMETERS.get(key, key): value for key, value in url.query.items()}
    parameters = {"user": url.username, "password": url.password, **translated}
    jdbc = {f"jdbc.{key}": value for key, value in parameters.items() if key and isinstance(value, str)}
    given = {key: value for key, value in properties.items() if key.startswith("jdbc.")}
    return {"uri": f"jdbc:postgresql://{_hosts(url)}/{quote(url.database or '', safe='')}", **jdbc, **given}


def _parsed(name: str, uri: str) -> URL:
    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        # What SQLAlchemy takes for a port may be a part of the password.
        raise ConfigurationError(
            f"Catalog {name}: its address is not a URL.",
            f"Write {catalog_variable(name, 'uri')} as postgresql+psycopg2://user:password@host:5432/database. "
            "Several hosts share one port: host1,host2:5432.",
        ) from None


def _hosts(url: URL) -> str:
    """Return hosts with their port, which JDBC wants for each, and libpq once for all."""
    port = f":{url.port}" if url.port else ""
    host = url.host or ""
    return f"[{host}]{port}" if ":" in host else ",".join(f"{one}{port}" for one in host.split(","))


def _sqlite(name: str, url: URL) -> str:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise ConfigurationError(
            f"Catalog {name}: its SQLite database isn't a file, so Spark can't open it.",
            f"Write {catalog_variable(name, 'uri')} as sqlite:////folder/file.db.",
        )
    # Spark may run in another folder.
    return f"jdbc:sqlite:{Path(url.database).absolute()}?busy_timeout=30000"
