"""A catalog's properties in the names of Iceberg's Java library: renamed, passed on, or refused. Pure.

Most names are the same in PyIceberg and in Java. A property that only one of them obeys is refused with what to do
instead: Spark would go on with other credentials, another address or none.

https://py.iceberg.apache.org/configuration/ · https://iceberg.apache.org/docs/latest/aws/ ·
https://iceberg.apache.org/docs/latest/azure/
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from pyiceberg.io import SCHEMA_TO_FILE_IO
from pyiceberg.types import strtobool

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.jdbc import database_properties

CA_BUNDLE = "ssl.cabundle"
"""The property that names the certificates by which a catalog's server is trusted: a file, as PEM."""
S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
_AZURE_FILES = "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
_GOOGLE_FILES = "org.apache.iceberg.gcp.gcs.GCSFileIO"
_FILES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3_FILES),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), _AZURE_FILES),
    "gs": _GOOGLE_FILES,
}
# A class of each one's client, and by whose jar it comes.
_CLIENTS = {
    S3_FILES: ("software.amazon.awssdk.services.s3.S3Client", "iceberg-aws-bundle"),
    _AZURE_FILES: ("com.azure.storage.file.datalake.DataLakeFileSystemClient", "iceberg-azure-bundle"),
    _GOOGLE_FILES: ("com.google.cloud.storage.Storage", "iceberg-gcp-bundle"),
}
# Of a warehouse: the schemes of addresses that PyIceberg has files at.
_ADDRESSES = {*SCHEMA_TO_FILE_IO, "gcs"}

_BOOLEANS = (
    "gcs.requester-pays", "gcs.version-aware", "glue.skip-archive", "hive.hive2-compatible",
    "hive.kerberos-authentication", "init_catalog_tables", "pool_pre_ping", "rest.sigv4-enabled", "s3.anonymous",
    "s3.force-virtual-addressing", "s3.resolve-region", "view-endpoints-supported",
)  # fmt: skip
"""Those that PyIceberg gives to its `strtobool`; Java knows the words ``true`` and ``false`` alone."""
_PYTHON_ONLY = (
    "adls.account-host", "adls.account-name", "adls.blob-storage-authority", "adls.dfs-storage-authority", "echo",
    "glue.max-retries", "glue.retry-mode", "hive.kerberos-service-name", "init_catalog_tables", "pool_pre_ping",
    "py-io-impl", "rest.sigv4.max-retries", "s3.connect-timeout", "s3.force-virtual-addressing", "s3.request-timeout",
    "s3.resolve-region", "s3.retry-strategy-impl", CA_BUNDLE,
)  # fmt: skip
_RENAMED = {
    "glue.region": "client.region",
    "s3.region": "client.region",
    "s3.proxy-uri": "http-client.proxy-endpoint",
    "adls.account-key": "adls.auth.shared-key.account.key",
    "hive.kerberos-authentication": "hadoop.hive.metastore.sasl.enabled",
    "auth.type": "rest.auth.type",
    "auth.basic.username": "rest.auth.basic.username",
    "auth.basic.password": "rest.auth.basic.password",
    "client.role-arn": "client.assume-role.arn",
    "client.role-session-name": "client.assume-role.session-name",
}
_KEYS = ("access-key-id", "secret-access-key", "session-token")

_ENCRYPTION = "Leave it out and set the bucket's default encryption in S3, which counts for both."
_PROFILE = "Leave it out and set AWS_PROFILE in the environment, which both engines read."
_PRINCIPAL = "Set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET in the environment, which both engines read."
_ACCOUNT = "Use adls.account-name with adls.account-key, adls.sas-token or adls.token, or the environment's identity."
_LOG_IN = "Use credential, token or oauth2-server-uri, which both engines take; or auth.type basic or noop."
_REFUSED = {
    "adls.anon": _ACCOUNT,
    "adls.blob-storage-scheme": "Leave it out: Spark connects to Azure's storage by https.",
    "adls.client-": _PRINCIPAL,
    "adls.connection-string": _ACCOUNT,
    "adls.credential": _ACCOUNT,
    "adls.dfs-storage-scheme": "Leave it out: Spark connects to Azure's storage by https.",
    "adls.tenant-id": _PRINCIPAL,
    "auth.": _LOG_IN,
    "catalog-impl": "Leave it out: its type says the class.",
    "client.profile-name": _PROFILE,
    "glue.profile-name": _PROFILE,
    "s3.profile-name": _PROFILE,
    "s3.role-": "Write it as client.role-arn and client.role-session-name, for all services.",
    "s3.server-side-encryption": _ENCRYPTION,
    "s3.sse": _ENCRYPTION,
    "ssl.client": "Leave it out: Iceberg's Java library has no setting for a client's certificate.",
    "ugi": "Leave it out and run as that user: in Java the user of a metastore is that of the process.",
}
"""How names begin that one engine alone knows, and what to do instead."""
_REFUSED_WITH_GLUE = {
    **dict.fromkeys(
        (f"{service}.{key}" for service in ("glue", "client") for key in _KEYS),
        "Set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in the environment, which both engines "
        "read. Keys for files alone are s3.access-key-id and so on.",
    ),
    "client.role-": "Give the role by the environment, which both engines read for Glue too: by AWS_ROLE_ARN with "
    "AWS_WEB_IDENTITY_TOKEN_FILE, the machine's own role, or AWS_PROFILE.",
}


def java_properties(name: str, kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties as Iceberg's Java library takes them.

    Args:
        name: The catalog's name, for messages.
        kind: Its type: sql, rest, glue or hive.
        properties: In PyIceberg's names. Those in Java's names, as ``jdbc.user``, win over what is translated.

    Raises:
        ConfigurationError: If one has no equivalent in Java.
    """
    properties = _with_plain_booleans(name, properties)
    _check(name, kind, properties)
    java = {key: value for key, value in properties.items() if key not in (*_PYTHON_ONLY, *_RENAMED)}
    for key in [each for each in _RENAMED if each in properties]:
        java.setdefault(_RENAMED[key], properties[key])
    java["type"] = "jdbc" if kind == "sql" else kind
    if files := _files(kind, properties):
        java.setdefault("io-impl", files)
    if kind == "sql":
        java = {key: value for key, value in java.items() if not key.startswith("jdbc.")}
        java |= {"jdbc.schema-version": "V1", **database_properties(name, properties)}
    if kind == "rest":
        _add_rest(java, properties)
    _add_amazon(java, properties)
    if java.get("io-impl") == _AZURE_FILES:
        _add_azure(name, java, properties)
    return java


def files_class(scheme: str) -> str | None:
    """Return the Java class for files at addresses of this scheme; None if it isn't one of a cloud's.

    >>> files_class("s3a")
    'org.apache.iceberg.aws.s3.S3FileIO'
    """
    return _FILES.get(scheme)


def needed_classes(java: Mapping[str, str]) -> dict[str, str]:
    """Return the Java classes that a catalog needs beside Iceberg's own, and by whose jar each comes.

    >>> needed_classes({"type": "rest", "io-impl": S3_FILES})
    {'software.amazon.awssdk.services.s3.S3Client': 'iceberg-aws-bundle'}
    """
    client = _CLIENTS.get(java.get("io-impl", ""))
    found = dict([client] if client else [])
    if java["type"] == "glue":
        found["software.amazon.awssdk.services.glue.GlueClient"] = "iceberg-aws-bundle"
    if java.get("rest.sigv4-enabled") == "true":
        # Iceberg's RESTSigV4AuthSession signs with it.
        found["software.amazon.awssdk.auth.signer.Aws4Signer"] = "iceberg-aws-bundle"
    if java["type"] == "jdbc" and java["uri"].startswith("jdbc:postgresql:"):
        found["org.postgresql.Driver"] = "postgresql"
    return found


def _with_plain_booleans(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    told = dict(properties)
    for key in [each for each in _BOOLEANS if each in told]:
        try:
            told[key] = "true" if strtobool(told[key]) else "false"
        except ValueError:
            raise ConfigurationError(
                f"Catalog {name}: {key} is neither true nor false.", "Write true or false."
            ) from None
    return told


def _check(name: str, kind: str, properties: Mapping[str, str]) -> None:
    """Refuse properties that only one of the two libraries would obey."""
    refused = _REFUSED | (_REFUSED_WITH_GLUE if kind == "glue" else {})
    # Java signs what another way to log in has done first.
    renamed = [] if properties.get("rest.sigv4-enabled") == "true" else [*_RENAMED]
    for key in [each for each in properties if each not in renamed or each.startswith("client.")]:
        if begin := next((each for each in refused if key.startswith(each)), None):
            raise ConfigurationError(f"Catalog {name}: Spark has no property like {key}.", refused[begin])
    if properties.get("auth.type", "basic") not in ("basic", "noop"):
        raise ConfigurationError(f"Catalog {name}: Spark has no property like this auth.type.", _LOG_IN)
    if len({properties[key] for key in ("client.region", "s3.region", "glue.region") if key in properties}) > 1:
        raise ConfigurationError(
            f"Catalog {name}: its regions differ, and Spark knows one for all services.", "Give one, as client.region."
        )
    if "://" not in properties.get("s3.endpoint", "://"):
        # Java takes minio:9000 for an address whose scheme is minio.
        raise ConfigurationError(
            f"Catalog {name}: s3.endpoint is not a URL.", "Write it with its scheme, as https://host:9000."
        )
    if "@" in properties.get("s3.proxy-uri", ""):
        raise ConfigurationError(
            f"Catalog {name}: s3.proxy-uri has a user, and Java takes none for a proxy.",
            "Write http://host:port, and let the proxy know this machine by its address.",
        )


def _files(kind: str, properties: Mapping[str, str]) -> str | None:
    """Return the Java class for the files; None if the properties don't say it, and Java finds it."""
    scheme = urlsplit(properties.get("warehouse", "")).scheme
    if files := files_class(scheme):
        return files
    # A warehouse may be a name as well, as arn:aws:s3tables:… is one; an address says itself where it is.
    is_named = kind == "rest" and scheme not in _ADDRESSES
    return S3_FILES if is_named and any(key.startswith("s3.") for key in properties) else None


def _add_rest(java: dict[str, str], properties: Mapping[str, str]) -> None:
    """Add what PyIceberg does by itself, and the keys and region of Amazon's signatures."""
    if java.get("rest.auth.type") == "noop":
        java["rest.auth.type"] = "none"
    delegation = "header.X-Iceberg-Access-Delegation"
    if not any(key.lower() == delegation.lower() for key in java):
        java[delegation] = "vended-credentials"
    if java.pop("s3.signer", None):
        java.setdefault("s3.remote-signing-enabled", "true")
    if java.get("rest.sigv4-enabled") == "true":
        if "rest.access-key-id" not in java:
            java |= {f"rest.{key}": properties[f"client.{key}"] for key in _KEYS if f"client.{key}" in properties}
        if "client.region" in java:
            java.setdefault("rest.signing-region", java["client.region"])


def _add_amazon(java: dict[str, str], properties: Mapping[str, str]) -> None:
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
    if "s3.endpoint" in java:
        # As PyIceberg does: few servers other than Amazon's have a host name for each bucket.
        virtual = properties.get("s3.force-virtual-addressing") == "true"
        java.setdefault("s3.path-style-access", "false" if virtual else "true")


def _add_azure(name: str, java: dict[str, str], properties: Mapping[str, str]) -> None:
    """Name the account of a key and of a SAS token: Java takes it from each file's address, PyIceberg from properties.

    Iceberg's ``AzureProperties`` looks for ``adls.sas-token.`` and the host of the address.
    """
    place = urlsplit(properties.get("warehouse", ""))
    owner = properties.get("adls.account-name", "")
    if files_class(place.scheme) == _AZURE_FILES:
        _, named, host = place.netloc.partition("@")
        if not named or (owner and host.partition(".")[0] != owner):
            raise ConfigurationError(
                f"Catalog {name}: its warehouse's address lacks the account, and Spark takes it from there.",
                f"Write it as abfss://CONTAINER@{owner or 'ACCOUNT'}.dfs.core.windows.net/PATH.",
            )
    else:
        host = f"{owner}.dfs.core.windows.net" if owner else ""
    secret = {"adls.account-key", "adls.sas-token"} & properties.keys()
    if secret and not host:
        raise ConfigurationError(
            f"Catalog {name}: {min(secret)} is given, and nothing names its account.", "Set adls.account-name."
        )
    if "adls.account-key" in properties:
        java["adls.auth.shared-key.account.name"] = host.partition(".")[0]
    if "adls.sas-token" in java:
        java[f"adls.sas-token.{host}"] = java.pop("adls.sas-token")
