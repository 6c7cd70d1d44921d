"""What of a catalog's properties PyIceberg obeys, Spark obeys too, or it is refused by its name."""

import pytest

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog

SQL = {"type": "sql", "uri": "sqlite:////x.db", "warehouse": "s3://lake"}
REST = {"type": "rest", "uri": "http://r", "warehouse": "lake"}
GLUE = {"type": "glue", "warehouse": "s3://lake"}
HIVE = {"type": "hive", "uri": "thrift://hms:9083", "warehouse": "hdfs:///w"}
AZURE = {"type": "rest", "uri": "http://r", "warehouse": "abfss://lake@acme.dfs.core.windows.net/w"}
# A warehouse that is a name says nothing of the account.
NAMED = {**REST, "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
KEYS = {"client.access-key-id": "a", "client.secret-access-key": "b", "client.session-token": "c"}
SIGNED = {**REST, **KEYS, "rest.sigv4-enabled": "1", "client.region": "eu-west-1"}
BASIC = {"auth.type": "basic", "auth.basic.username": "me", "auth.basic.password": "hush"}


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    return {key.removeprefix("spark.sql.catalog.lake."): value for key, value in conf.items()}


def shared_key(name):
    return {"adls.auth.shared-key.account.name": name, "adls.auth.shared-key.account.key": "hush"}


@pytest.mark.parametrize(
    ("given", "told"),
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
        ({**HIVE, "hive.kerberos-authentication": "yes"}, {"hadoop.hive.metastore.sasl.enabled": "true"}),
        ({**AZURE, "adls.account-name": "acme", "adls.account-key": "hush"}, shared_key("acme")),
        ({**AZURE, "adls.account-key": "hush"}, shared_key("acme")),
        ({**NAMED, "adls.account-name": "acme", "adls.account-key": "hush"}, shared_key("acme")),
        ({**AZURE, "adls.sas-token": "sv=1"}, {"adls.sas-token.acme.dfs.core.windows.net": "sv=1"}),
    ],
)
def test_property_of_pyiceberg_reaches_java_by_its_name_there(given, told):
    found = spark(given)
    assert {key: found.get(key) for key in told} == told
    assert not {"s3.region", "client.role-arn", "auth.type", "adls.account-key", "adls.account-name"} & found.keys()


def test_java_s_own_names_win_over_translated_ones():
    own = spark({**SIGNED, "rest.access-key-id": "x", "rest.secret-access-key": "y"})
    assert (own["rest.access-key-id"], own["rest.secret-access-key"]) == ("x", "y")
    # Java's own keys are a pair: none of Python's goes with them.
    assert "rest.session-token" not in own


def test_signatures_need_a_jar_only_where_they_are_on():
    needed = LakeCatalog("lake", SIGNED).needed_classes()
    assert needed["software.amazon.awssdk.auth.signer.Aws4Signer"] == "iceberg-aws-bundle"
    off = {**SIGNED, "rest.sigv4-enabled": "off"}
    assert not any(key.startswith("rest.") and key != "rest.sigv4-enabled" for key in spark(off))
    assert LakeCatalog("lake", off).needed_classes() == {}


@pytest.mark.parametrize("yes", ["true", "True", "yes", "Y", "t", "on", "1"])
@pytest.mark.parametrize("no", ["false", "No", "n", "f", "OFF", "0"])
def test_booleans_are_read_as_pyiceberg_reads_them(yes, no):
    storage = {**SQL, "s3.endpoint": "http://s"}
    told = spark({**storage, "s3.anonymous": yes, "s3.force-virtual-addressing": yes})
    assert told["client.credentials-provider"].endswith("AnonymousCredentialsProvider")
    assert told["s3.path-style-access"] == "false"
    told = spark({**storage, "s3.anonymous": no, "s3.force-virtual-addressing": no})
    assert "client.credentials-provider" not in told
    assert told["s3.path-style-access"] == "true"
    assert spark({**GLUE, "glue.skip-archive": yes})["glue.skip-archive"] == "true"
    assert spark({**GLUE, "glue.skip-archive": no})["glue.skip-archive"] == "false"


@pytest.mark.parametrize(
    ("given", "key", "remedy"),
    [
        ({**SQL, "s3.server-side-encryption": "hush"}, "s3.server-side-encryption", "default encryption"),
        ({**SQL, "s3.sse.key": "hush"}, "s3.sse.key", "default encryption"),
        ({**SQL, "s3.profile-name": "hush"}, "s3.profile-name", "AWS_PROFILE"),
        ({**SQL, "s3.role-arn": "arn:hush"}, "s3.role-arn", "client.role-arn"),
        ({**GLUE, "client.role-arn": "arn:hush"}, "client.role-arn", "AWS_ROLE_ARN"),
        ({**GLUE, "client.secret-access-key": "hush"}, "client.secret-access-key", "AWS_SECRET_ACCESS_KEY"),
        ({**SQL, "client.region": "a", "s3.region": "b"}, "regions differ", "client.region"),
        ({**SQL, "s3.endpoint": "minio:9000"}, "s3.endpoint", "https://host:9000"),
        ({**SQL, "s3.proxy-uri": "http://me:hush@proxy:3128"}, "s3.proxy-uri", "http://host:port"),
        ({**REST, "s3.anonymous": "hush"}, "s3.anonymous is neither true nor false", "true or false"),
        ({**REST, "catalog-impl": "hush"}, "catalog-impl", "Leave it out"),
        ({**REST, "ssl.client.cert": "/hush.pem"}, "ssl.client.cert", "Leave it out"),
        ({**REST, "auth.type": "oauth2", "auth.oauth2.client_secret": "hush"}, "auth.oauth2", "oauth2-server-uri"),
        ({**REST, "auth.type": "google"}, "auth.type", "oauth2-server-uri"),
        ({**REST, **BASIC, "rest.sigv4-enabled": "true"}, "auth.type", "oauth2-server-uri"),
        ({**HIVE, "ugi": "bob:hush"}, "ugi", "run as that user"),
        ({**AZURE, "adls.client-secret": "hush"}, "adls.client-secret", "AZURE_CLIENT_SECRET"),
        ({**REST, "adls.connection-string": "AccountKey=hush"}, "adls.connection-string", "adls.account-key"),
        ({**AZURE, "adls.anon": "true"}, "adls.anon", "adls.account-key"),
        ({**NAMED, "adls.sas-token": "hush"}, "adls.sas-token", "adls.account-name"),
        ({**AZURE, "adls.account-name": "other"}, "the account", "abfss://CONTAINER@other.dfs"),
        ({**AZURE, "warehouse": "abfss://lake/w"}, "the account", "abfss://CONTAINER@ACCOUNT.dfs"),
    ],
)
def test_property_that_one_engine_alone_obeys_is_refused(given, key, remedy):
    with pytest.raises(ConfigurationError) as refused:
        spark(given)
    assert key in refused.value.message
    assert remedy in refused.value.remedy
    assert "hush" not in str(refused.value)
