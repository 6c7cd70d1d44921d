"""What vendors document for their REST catalogs reaches both engines: none of these servers is run here."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from kafka_lake.catalog.catalog_properties import properties_from_environment, python_properties
from kafka_lake.catalog.lake_catalog import LakeCatalog

_DELEGATION = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
_AWS_JAR, _GOOGLE_JAR = "iceberg-aws-bundle", "iceberg-gcp-bundle"
_GOOGLE_FILES = "org.apache.iceberg.gcp.gcs.GCSFileIO"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@dataclass(frozen=True)
class Vendor:
    """A vendor's catalog.

    Args:
        configured: Variables as docs/catalogs.md has them, without their prefix.
        spark: Properties that the vendor's documentation gives for Spark.
        python: Likewise for PyIceberg.
        jars: What Spark needs beside Iceberg's runtime.
    """

    configured: dict[str, str]
    spark: dict[str, str]
    python: dict[str, Any]
    jars: set[str] = field(default_factory=set)


# https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-tables-integrating-open-source.html
_S3_TABLES_COMMON = {
    "type": "rest",
    "uri": "https://s3tables.eu-west-1.amazonaws.com/iceberg",
    "warehouse": "arn:aws:s3tables:eu-west-1:111122223333:bucket/lake",
    "rest.sigv4-enabled": "true",
    "rest.signing-name": "s3tables",
    "rest.signing-region": "eu-west-1",
}
_S3_TABLES = Vendor(
    {
        "URI": _S3_TABLES_COMMON["uri"],
        "WAREHOUSE": _S3_TABLES_COMMON["warehouse"],
        "REST__SIGV4_ENABLED": "true",
        "REST__SIGNING_NAME": "s3tables",
        "REST__SIGNING_REGION": "eu-west-1",
        "S3__REGION": "eu-west-1",
    },
    {**_S3_TABLES_COMMON, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": "eu-west-1"},
    {**_S3_TABLES_COMMON, "s3.region": "eu-west-1"},
    {_AWS_JAR},
)

# https://docs.cloud.google.com/lakehouse/docs/spark-support · rest.auth.type google is GoogleAuthManager's short name.
_BIGLAKE_COMMON = {
    "type": "rest",
    "uri": "https://biglake.googleapis.com/iceberg/v1/restcatalog",
    "warehouse": "bl://projects/acme/catalogs/lake",
    "header.x-goog-user-project": "acme",
}
_BIGLAKE = Vendor(
    {
        "URI": _BIGLAKE_COMMON["uri"],
        "WAREHOUSE": _BIGLAKE_COMMON["warehouse"],
        "HEADER__X_GOOG_USER_PROJECT": "acme",
        "AUTH__TYPE": "google",
        "AUTH__GOOGLE__CREDENTIALS_PATH": "/etc/key.json",
    },
    {
        **_BIGLAKE_COMMON,
        **_DELEGATION,
        "rest.auth.type": "google",
        "gcp.auth.credentials-path": "/etc/key.json",
        "io-impl": _GOOGLE_FILES,
    },
    {
        **_BIGLAKE_COMMON,
        "auth": {"type": "google", "google": {"credentials_path": "/etc/key.json", "scopes": [_SCOPE]}},
    },
    {_GOOGLE_JAR},
)

# https://docs.snowflake.com/en/user-guide/opencatalog/register-service-connection
_OPEN_CATALOG_COMMON = {
    "type": "rest",
    "uri": "https://acme-lake.snowflakecomputing.com/polaris/api/catalog",
    "warehouse": "lake",
    "credential": "client-id:client-secret",
    "scope": "PRINCIPAL_ROLE:ingest",
}
_OPEN_CATALOG = Vendor(
    {
        "URI": _OPEN_CATALOG_COMMON["uri"],
        "WAREHOUSE": "lake",
        "CREDENTIAL": "client-id:client-secret",
        "SCOPE": "PRINCIPAL_ROLE:ingest",
        "S3__REGION": "eu-west-1",
    },
    {**_OPEN_CATALOG_COMMON, **_DELEGATION, "client.region": "eu-west-1"},
    {**_OPEN_CATALOG_COMMON, "s3.region": "eu-west-1"},
    {_AWS_JAR},
)

# https://docs.databricks.com/aws/en/external-access/iceberg
_UNITY_COMMON = {
    "type": "rest",
    "uri": "https://acme.cloud.databricks.com/api/2.1/unity-catalog/iceberg-rest",
    "warehouse": "lake",
    "oauth2-server-uri": "https://acme.cloud.databricks.com/oidc/v1/token",
    "credential": "client-id:client-secret",
    "scope": "all-apis",
}
_UNITY = Vendor(
    {
        "URI": _UNITY_COMMON["uri"],
        "WAREHOUSE": "lake",
        "OAUTH2_SERVER_URI": _UNITY_COMMON["oauth2-server-uri"],
        "CREDENTIAL": "client-id:client-secret",
        "SCOPE": "all-apis",
        "S3__REGION": "eu-west-1",
    },
    {**_UNITY_COMMON, **_DELEGATION, "client.region": "eu-west-1"},
    {**_UNITY_COMMON, "s3.region": "eu-west-1"},
    {_AWS_JAR},
)

VENDORS = {"s3_tables": _S3_TABLES, "biglake": _BIGLAKE, "open_catalog": _OPEN_CATALOG, "unity": _UNITY}


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)
def test_documented_properties_reach_both_engines(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TYPE": "rest", **vendor.configured}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    catalog = LakeCatalog("lake", properties_from_environment("lake"))
    conf = catalog.spark_conf()
    spark = {key: conf.get(f"spark.sql.catalog.lake.{key}") for key in vendor.spark}
    python = python_properties(catalog.properties)
    assert spark == vendor.spark
    assert {key: python.get(key) for key in vendor.python} == vendor.python
    assert set(catalog.needed_classes().values()) == vendor.jars


def test_scopes_of_google_are_a_list_in_python() -> None:
    given = {"auth.type": "google", "auth.google.scopes": "https://a,https://b"}
    assert python_properties(given)["auth"]["google"] == {"scopes": ["https://a", "https://b"]}
    conf = LakeCatalog("lake", {"type": "rest", "uri": "http://r", "warehouse": "gs://lake", **given}).spark_conf()
    assert conf["spark.sql.catalog.lake.gcp.auth.scopes"] == "https://a,https://b"
