"""A catalog's properties reach Spark by the names that Iceberg's Java library has for them."""

import pytest

from kafka_lake.catalog.catalog_properties import python_properties
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import ConfigurationError

SQL = {"type": "sql", "uri": "sqlite:////x.db", "warehouse": "s3://lake"}
REST = {"type": "rest", "uri": "http://r", "warehouse": "lake"}
GLUE = {"type": "glue", "warehouse": "s3://lake"}
HIVE = {"type": "hive", "uri": "thrift://hms:9083", "warehouse": "hdfs:///w"}
AZURE = {"type": "rest", "uri": "http://r", "warehouse": "abfss://lake@acme.dfs.core.windows.net/w"}
# A warehouse that is a name says nothing of the account.
NAMED = {**REST, "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
KEYS = {"client.access-key-id": "a", "client.secret-access-key": "b", "client.session-token": "c"}
SIGNED = {**REST, **KEYS, "rest.sigv4-enabled": "true", "client.region": "eu-west-1"}
BASIC = {"auth.type": "basic", "auth.basic.username": "me", "auth.basic.password": "hush"}


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    return {key.removeprefix("spark.sql.catalog.lake."): value for key, value in conf.items()}


def shared_key(name):
    return {"adls.auth.shared-key.account.name": name, "adls.auth.shared-key.account.key": "hush"}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({**SQL, "s3.region": "eu-west-1"}, {"client.region": "eu-west-1"}),
        ({**SQL, **KEYS}, {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c"}),
        ({**SQL, "s3.proxy-uri": "http://proxy:3128"}, {"http-client.proxy-endpoint": "http://proxy:3128"}),
        (
            {**SQL, "client.role-arn": "arn:r", "client.role-session-name": "me", "client.region": "eu-west-1"},
            {
                "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
                "client.assume-role.arn": "arn:r",
                "client.assume-role.session-name": "me",
                "client.assume-role.region": "eu-west-1",
            },
        ),
        ({**SQL, "s3.endpoint": "http://s"}, {"s3.path-style-access": "true"}),
        (
            {**SIGNED, "s3.signer": "S3V4RestSigner"},
            {
                "rest.sigv4-enabled": "true",
                "rest.access-key-id": "a",
                "rest.secret-access-key": "b",
                "rest.session-token": "c",
                "rest.signing-region": "eu-west-1",
                "s3.remote-signing-enabled": "true",
            },
        ),
        ({**SIGNED, "rest.signing-region": "us-east-1"}, {"rest.signing-region": "us-east-1"}),
        (
            {**REST, **BASIC},
            {"rest.auth.type": "basic", "rest.auth.basic.username": "me", "rest.auth.basic.password": "hush"},
        ),
        ({**REST, "auth.type": "noop"}, {"rest.auth.type": "none"}),
        ({**REST, "ssl.cabundle": "/ca.pem"}, {"header.X-Iceberg-Access-Delegation": "vended-credentials"}),
        ({**HIVE, "hive.kerberos-authentication": "true"}, {"hadoop.hive.metastore.sasl.enabled": "true"}),
        ({**AZURE, "adls.account-name": "acme", "adls.account-key": "hush"}, shared_key("acme")),
        ({**AZURE, "adls.account-key": "hush"}, shared_key("acme")),
        ({**NAMED, "adls.account-name": "acme", "adls.account-key": "hush"}, shared_key("acme")),
        ({**AZURE, "adls.sas-token": "sv=1"}, {"adls.sas-token.acme.dfs.core.windows.net": "sv=1"}),
    ],
)
def test_property_of_pyiceberg_reaches_java_by_its_name_there(given, reported):
    found = spark(given)
    assert {key: found.get(key) for key in reported} == reported
    assert not {"s3.region", "client.role-arn", "auth.type", "adls.account-key"} & found.keys()


def test_java_s_own_names_win_over_translated_ones():
    own = spark({**SIGNED, "rest.access-key-id": "x", "rest.secret-access-key": "y"})
    assert (own["rest.access-key-id"], own["rest.secret-access-key"]) == ("x", "y")
    # Java's own keys are a pair: none of Python's goes with them.
    assert "rest.session-token" not in own


def test_signatures_need_a_jar_only_where_they_are_on():
    needed = LakeCatalog("lake", SIGNED).needed_classes()
    assert needed["software.amazon.awssdk.auth.signer.Aws4Signer"] == "iceberg-aws-bundle"
    off = {**SIGNED, "rest.sigv4-enabled": "false"}
    assert not any(key.startswith("rest.") and key != "rest.sigv4-enabled" for key in spark(off))
    assert LakeCatalog("lake", off).needed_classes() == {}


def test_properties_may_be_for_one_engine_alone():
    given = {**REST, "s3.endpoint": "http://s", "spark.s3.endpoint": "http://inside", "python.uri": "http://p"}
    assert spark(given)["s3.endpoint"] == "http://inside"
    assert spark(given)["uri"] == "http://r"
    assert python_properties(given) == {**REST, "s3.endpoint": "http://s", "uri": "http://p"}


@pytest.mark.parametrize("name", ["s3.endpoint", "spark.s3.endpoint", "glue.endpoint", "gcs.service.host"])
def test_an_endpoint_without_a_scheme_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"{name} is not a URL.*https://host:9000"):
        LakeCatalog("lake", {**SQL, name: "minio:9000"})


@pytest.mark.parametrize(
    ("warehouse", "spelled"),
    [("az://lake/w", "abfss://container@account.dfs.core.windows.net/folder"), ("gcs://lake/w", "gs://bucket/folder")],
)
def test_warehouse_that_java_cannot_read_is_refused(warehouse, spelled):
    with pytest.raises(ConfigurationError, match=f"Write it as {spelled}"):
        LakeCatalog("lake", {**SQL, "warehouse": warehouse})
