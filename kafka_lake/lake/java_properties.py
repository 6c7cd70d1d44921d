"""PyIceberg's catalog properties in the names that Iceberg's Java library knows them by. Pure.

Most are the same in both. What is told otherwise is translated; what can't be told to Java is refused with what to do
instead, since Spark would go on with other credentials, another address or none.

https://py.iceberg.apache.org/configuration/ · https://iceberg.apache.org/docs/latest/aws/
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.common.catalog_variables import catalog_variable
from kafka_lake.common.errors import ConfigurationError

S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
AZURE_FILES = "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
GOOGLE_FILES = "org.apache.iceberg.gcp.gcs.GCSFileIO"

CA_BUNDLE = "ssl.cabundle"
"""The property that names the certificates by which a catalog's server is trusted: a file, as PEM."""

_DELEGATION = "header.X-Iceberg-Access-Delegation"

_FILES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3_FILES),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), AZURE_FILES),
    "gs": GOOGLE_FILES,
}
# A class of each one's client, and by whose jar it comes.
_CLIENTS = {
    S3_FILES: ("software.amazon.awssdk.services.s3.S3Client", "iceberg-aws-bundle"),
    AZURE_FILES: ("com.azure.storage.file.datalake.DataLakeFileSystemClient", "iceberg-azure-bundle"),
    GOOGLE_FILES: ("com.google.cloud.storage.Storage", "iceberg-gcp-bundle"),
}

_PYTHON_ONLY = {
    "py-io-impl",
    "echo",
    "pool_pre_ping",
    "init_catalog_tables",
    "glue.max-retries",
    "glue.retry-mode",
    "s3.force-virtual-addressing",
    "s3.resolve-region",
    "s3.retry-strategy-impl",
}
_REGIONS = ("client.region", "s3.region", "glue.region")
_KEYS = ("access-key-id", "secret-access-key", "session-token")
_PROFILES = ("client.profile-name", "s3.profile-name", "glue.profile-name")

_AZURE_SERVICE = ("adls.tenant-id", "adls.client-id", "adls.client-secret")

# By SQLAlchemy's name of the database: JDBC's, and JDBC's names for what the driver for Python takes in the address.
_DATABASES: dict[str, tuple[str, Mapping[str, str]]] = {
    "postgresql": (
        "postgresql",
        {
            **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")},
            **{"user": "user", "password": "password"},
            **{"connect_timeout": "connectTimeout", "application_name": "ApplicationName"},
        },
    ),
    "mysql": ("mysql", {}),
    "mariadb": ("mariadb", {}),
}

_DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "postgresql"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "mysql-connector-j"),
    "mariadb": ("org.mariadb.jdbc.Driver", "mariadb-java-client"),
}


def java_properties(name: str, kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties as Iceberg's Java library takes them.

    Args:
        name: The catalog's name, for messages.
        kind: Its type: sql, rest, glue or hive.
        properties: In PyIceberg's names. Those in Java's names, as ``jdbc.user``, win over what is translated.

    Raises:
        ConfigurationError: If one can't be told to Java.
    """
    told = {key: value for key, value in properties.items() if key not in _PYTHON_ONLY}
    if kind == "rest":
        told = _rest(name, told)
    java = {**_storage(name, kind, told), "type": "jdbc" if kind == "sql" else kind}
    if kind == "sql":
        given = {key: value for key, value in java.items() if key.startswith("jdbc.")}
        java |= {"jdbc.schema-version": "V1", **_database(name, properties["uri"]), **given}
    if files := _files(kind, properties):
        java.setdefault("io-impl", files)
    if "s3.endpoint" in java:
        # As PyIceberg does: few servers other than Amazon's have a host name for each bucket.
        virtual = properties.get("s3.force-virtual-addressing", "").lower() == "true"
        java.setdefault("s3.path-style-access", "false" if virtual else "true")
    return java


def sqlite_address(name: str, uri: str) -> str:
    """Return the address of a catalog's SQLite database there; empty if its database is another.

    Raises:
        ConfigurationError: If it is no file, or no address.
    """
    return _database(name, uri)["uri"] if uri.startswith("sqlite") else ""


def files_class(scheme: str) -> str | None:
    """Return the Java class for files at addresses of this scheme; None if it is none of a cloud's.

    >>> files_class("s3a")
    'org.apache.iceberg.aws.s3.S3FileIO'
    """
    return _FILES.get(scheme)


def _files(kind: str, properties: Mapping[str, str]) -> str | None:
    """Return the Java class for the files; None if it can't be told from the properties, and Java finds it."""
    scheme = urlsplit(properties.get("warehouse", "")).scheme
    if files := files_class(scheme):
        return files
    # A warehouse may be a name as well, as arn:aws:s3tables:… is one.
    is_named = kind == "rest" and scheme != "file"
    return S3_FILES if is_named and any(key.startswith("s3.") for key in properties) else None


def _rest(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties of a REST catalog with those of its protocol in Java's names."""
    if apart := [key for key in told if key.startswith(("ssl.client", "auth."))]:
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told {apart[0]}.",
            "Use credential, token or oauth2-server-uri, which both engines take.",
        )
    told.pop(CA_BUNDLE, None)
    if not any(key.lower() == _DELEGATION.lower() for key in told):
        # As PyIceberg does.
        told[_DELEGATION] = "vended-credentials"
    if "s3.signer" in told:
        told.pop("s3.signer")
        told.setdefault("s3.remote-signing-enabled", "true")
    return told


def needed_classes(java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java classes that a catalog needs beside Iceberg's own, and by whose jar each comes.

    Args:
        java: What `java_properties` returns.

    >>> needed_classes({"type": "rest", "io-impl": S3_FILES})
    {'software.amazon.awssdk.services.s3.S3Client': 'iceberg-aws-bundle'}
    """
    client = _CLIENTS.get(java.get("io-impl", ""))
    found = dict([client] if client else [])
    if java["type"] == "glue":
        found["software.amazon.awssdk.services.glue.GlueClient"] = "iceberg-aws-bundle"
    if java["type"] == "jdbc" and (driver := _DRIVERS.get(java["uri"].split(":")[1])):
        found |= dict([driver])
    return found


def _storage(name: str, kind: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with those of Amazon's services, and of what is like them, in Java's names."""
    regions = {key: told.pop(key) for key in _REGIONS if key in told}
    if len(set(regions.values())) > 1:
        written = ", ".join(f"{key}={value}" for key, value in regions.items())
        raise ConfigurationError(
            f"Catalog {name}: {written}. Spark knows one region for all services.", "Give one, as client.region."
        )
    if regions:
        told["client.region"] = next(iter(regions.values()))
    if profiles := [key for key in _PROFILES if key in told]:
        raise ConfigurationError(
            f"Catalog {name}: Spark has no property for a profile, and the catalog has {profiles[0]}.",
            "Leave it out and set AWS_PROFILE in the environment, which both engines read.",
        )
    keys = [f"{service}.{key}" for service in ("glue", "client") for key in _KEYS if f"{service}.{key}" in told]
    if kind == "glue" and keys:
        raise ConfigurationError(
            f"Catalog {name}: Spark has no properties for Glue's keys, and the catalog has {keys[0]}.",
            "Leave them out and set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment, "
            "which both engines read. Keys for files alone are s3.access-key-id and so on.",
        )
    shared = {f"s3.{key}": told.pop(f"client.{key}") for key in _KEYS if f"client.{key}" in told}
    if "s3.access-key-id" not in told:
        told |= shared
    if told.pop("s3.anonymous", "false").lower() == "true":
        told.setdefault(
            "client.credentials-provider", "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
        )
    if proxy := told.pop("s3.proxy-uri", None):
        told.setdefault("http-client.proxy-endpoint", proxy)
    return _role(name, _azure(name, told))


def _azure(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties with those of Azure's storage in Java's names.

    https://iceberg.apache.org/docs/latest/azure/
    """
    on_azure = AZURE_FILES in (told.get("io-impl"), files_class(urlsplit(told.get("warehouse", "")).scheme))
    if on_azure and (service := [key for key in _AZURE_SERVICE if key in told]):
        raise ConfigurationError(
            f"Catalog {name}: Spark has no property for a service principal, and the catalog has {service[0]}.",
            "Leave it out and set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET in the environment, which "
            "both engines read.",
        )
    account = told.pop("adls.account-name", "")
    if key := told.pop("adls.account-key", None):
        told |= {"adls.auth.shared-key.account.name": account, "adls.auth.shared-key.account.key": key}
    for secret in ("adls.sas-token", "adls.connection-string"):
        if secret in told:
            value = told.pop(secret)
            owner = account or dict(part.partition("=")[::2] for part in value.split(";")).get("AccountName", "")
            if not owner and on_azure:
                raise ConfigurationError(
                    f"Catalog {name}: Spark needs to know the account that {secret} is for.", "Set adls.account-name."
                )
            told[f"{secret}.{owner}.dfs.core.windows.net" if owner else secret] = value
    return told


def _role(name: str, told: dict[str, str]) -> dict[str, str]:
    roles = {told.pop(key) for key in ("client.role-arn", "s3.role-arn") if key in told}
    sessions = [told.pop(key) for key in ("client.role-session-name", "s3.role-session-name") if key in told]
    if not roles:
        return told
    if len(roles) > 1:
        raise ConfigurationError(
            f"Catalog {name}: client.role-arn and s3.role-arn differ. Spark has one role for all services.",
            "Give one, as client.role-arn.",
        )
    if "client.region" not in told:
        raise ConfigurationError(f"Catalog {name}: Spark needs the region of a role.", "Set client.region.")
    assumed = {
        "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": roles.pop(),
        "client.assume-role.region": told["client.region"],
    }
    if sessions:
        assumed["client.assume-role.session-name"] = sessions[0]
    return {**assumed, **told}


def _database(name: str, uri: str) -> dict[str, str]:
    """Return a database's address as JDBC has it, and apart from it what must not be shown."""
    setting = catalog_variable(name, "uri")
    try:
        url = make_url(uri)
    except ArgumentError:
        raise ConfigurationError(
            f"Catalog {name}: its address is not a URL.",
            f"Write {setting} as postgresql+psycopg2://user:password@host/database.",
        ) from None
    database = url.get_backend_name()
    if database == "sqlite":
        return {"uri": _sqlite(name, setting, url)}
    if database not in _DATABASES:
        raise ConfigurationError(
            f"Catalog {name}: its database is {database}, which Spark has no driver for here.",
            f"Set {setting} to one of sqlite, {', '.join(_DATABASES)}, or use a REST catalog in front of it.",
        )
    jdbc, known = _DATABASES[database]
    if unknown := [key for key in url.query if key not in known]:
        raise ConfigurationError(
            f"Catalog {name}: {setting} has the parameter {unknown[0]}, which has no equivalent for Spark's driver.",
            "Leave it out of the address. For Spark alone, set it as jdbc. and its name in JDBC.",
        )
    if not url.host:
        raise ConfigurationError(
            f"Catalog {name}: {setting} names no host, and Spark reaches databases only over the network.",
            "Name the host.",
        )
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = f":{url.port}" if url.port else ""
    told = {"user": url.username, "password": url.password}
    told |= {known[key]: str(value) for key, value in url.query.items()}
    java = {f"jdbc.{key}": value for key, value in told.items() if value}
    return {"uri": f"jdbc:{jdbc}://{host}{port}/{url.database or ''}", **java}


def _sqlite(name: str, setting: str, url: URL) -> str:
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            f"Catalog {name}: a database in memory belongs to one process, and Spark is another process.",
            f"Set {setting} to a file.",
        )
    # Spark may run in another folder.
    return f"jdbc:sqlite:{Path(url.database).absolute()}?busy_timeout=30000"
