"""PyIceberg's catalog properties in the names that Iceberg's Java library knows them by. Pure.

Most are the same in both. What is told otherwise is translated; what can't be told to Java is refused with what to do
instead, since Spark would go on with other credentials, another address or none.

https://py.iceberg.apache.org/configuration/ · https://iceberg.apache.org/docs/latest/aws/
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from pyiceberg.io import SCHEMA_TO_FILE_IO

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.java_names.amazon import amazon_properties
from kafka_lake.lake.java_names.azure import azure_properties
from kafka_lake.lake.java_names.booleans import plain_booleans
from kafka_lake.lake.java_names.database import database_properties
from kafka_lake.lake.java_names.files import AZURE_FILES, GOOGLE_FILES, S3_FILES, files_class
from kafka_lake.lake.java_names.hive import hive_properties
from kafka_lake.lake.java_names.rest import rest_properties

# A class of each one's client, and by whose jar it comes.
_CLIENTS = {
    S3_FILES: ("software.amazon.awssdk.services.s3.S3Client", "iceberg-aws-bundle"),
    AZURE_FILES: ("com.azure.storage.file.datalake.DataLakeFileSystemClient", "iceberg-azure-bundle"),
    GOOGLE_FILES: ("com.google.cloud.storage.Storage", "iceberg-gcp-bundle"),
}

# Of a warehouse: the schemes of addresses that PyIceberg has files at.
_ADDRESSES = {*SCHEMA_TO_FILE_IO, "gcs"}
_CATALOGS = {"rest": rest_properties, "hive": hive_properties}
_PYTHON_ONLY = {
    "py-io-impl",
    "echo",
    "pool_pre_ping",
    "init_catalog_tables",
    "glue.max-retries",
    "glue.retry-mode",
    "rest.sigv4.max-retries",
    "s3.force-virtual-addressing",
    "s3.resolve-region",
    "s3.retry-strategy-impl",
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
    if "catalog-impl" in properties:
        # CatalogUtil: Cannot create catalog, both type and catalog-impl are set.
        raise ConfigurationError(
            f"Catalog {name}: Spark takes no catalog-impl beside a type.", "Leave it out: its type says the class."
        )
    properties = plain_booleans(name, properties)
    told = {key: value for key, value in properties.items() if key not in _PYTHON_ONLY}
    if kind in _CATALOGS:
        told = _CATALOGS[kind](name, told)
    java = {**azure_properties(name, amazon_properties(name, kind, told)), "type": "jdbc" if kind == "sql" else kind}
    if kind == "sql":
        java = {key: value for key, value in java.items() if not key.startswith("jdbc.")}
        java |= {"jdbc.schema-version": "V1", **database_properties(name, properties)}
    if files := _files(kind, properties):
        java.setdefault("io-impl", files)
    if "s3.endpoint" in java:
        # As PyIceberg does: few servers other than Amazon's have a host name for each bucket.
        virtual = properties.get("s3.force-virtual-addressing") == "true"
        java.setdefault("s3.path-style-access", "false" if virtual else "true")
    return java


def _files(kind: str, properties: Mapping[str, str]) -> str | None:
    """Return the Java class for the files; None if it can't be told from the properties, and Java finds it."""
    scheme = urlsplit(properties.get("warehouse", "")).scheme
    if files := files_class(scheme):
        return files
    # A warehouse may be a name as well, as arn:aws:s3tables:… is one; an address says itself where it is.
    is_named = kind == "rest" and scheme not in _ADDRESSES
    return S3_FILES if is_named and any(key.startswith("s3.") for key in properties) else None


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
    if java.get("rest.sigv4-enabled") == "true":
        # Iceberg's RESTSigV4AuthSession signs with it.
        found["software.amazon.awssdk.auth.signer.Aws4Signer"] = "iceberg-aws-bundle"
    if java["type"] == "jdbc" and (driver := _DRIVERS.get(java["uri"].split(":")[1])):
        found |= dict([driver])
    return found
