"""What of Amazon's services PyIceberg obeys, Spark obeys too, or it is refused by its name."""

import pytest

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog

SQL = {"type": "sql", "uri": "sqlite:////x.db", "warehouse": "s3://lake"}
REST = {"type": "rest", "uri": "http://r", "warehouse": "lake"}
GLUE = {"type": "glue", "warehouse": "s3://lake"}


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    return {key.removeprefix("spark.sql.catalog.lake."): value for key, value in conf.items()}


def refused(properties):
    with pytest.raises(ConfigurationError) as error:
        LakeCatalog("lake", properties).spark_conf()
    assert error.value.remedy
    assert "hush" not in str(error.value)
    return error.value


def test_the_role_for_files_reaches_java():
    told = spark({**SQL, "client.role-arn": "arn:r", "client.role-session-name": "me", "client.region": "eu-west-1"})
    assert told["client.factory"] == "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
    assert told["client.assume-role.arn"] == "arn:r"
    assert told["client.assume-role.session-name"] == "me"
    assert told["client.assume-role.region"] == told["client.region"] == "eu-west-1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"client.role-arn": "arn:r"}, "needs the region"),
        ({"client.role-arn": "arn:r", "s3.role-arn": "arn:s", "s3.region": "r"}, "one role"),
    ],
)
def test_a_role_that_java_can_not_be_told_is_refused(given, said):
    assert said in refused({**SQL, **given}).message


@pytest.mark.parametrize("key", ["client.role-arn", "s3.role-arn", "client.role-session-name", "s3.role-session-name"])
def test_a_role_is_refused_with_glue_which_python_would_ask_without_it(key):
    error = refused({**GLUE, "client.region": "eu-west-1", key: "arn:hush"})
    assert key in error.message
    assert "AWS_PROFILE" in error.remedy


SIGNED = {
    **REST,
    "rest.sigv4-enabled": "1",
    "client.access-key-id": "a",
    "client.secret-access-key": "b",
    "client.session-token": "c",
    "client.region": "eu-west-1",
}


def test_requests_to_a_catalog_are_signed_by_both_engines_with_the_same_keys():
    told = spark(SIGNED)
    assert told["rest.sigv4-enabled"] == "true"
    assert [told[f"rest.{key}"] for key in ("access-key-id", "secret-access-key", "session-token")] == ["a", "b", "c"]
    assert told["rest.signing-region"] == "eu-west-1"
    assert [told[f"s3.{key}"] for key in ("access-key-id", "secret-access-key", "session-token")] == ["a", "b", "c"]
    needed = LakeCatalog("lake", SIGNED).needed_classes()
    assert needed["software.amazon.awssdk.auth.signer.Aws4Signer"] == "iceberg-aws-bundle"


def test_the_region_and_the_service_of_signatures_may_be_given():
    told = spark({**SIGNED, "rest.signing-region": "us-east-1", "rest.signing-name": "glue"})
    assert (told["rest.signing-region"], told["rest.signing-name"]) == ("us-east-1", "glue")
    # Java's own keys are a pair: none of Python's goes with them.
    own = spark({**SIGNED, "rest.access-key-id": "x", "rest.secret-access-key": "y"})
    assert (own["rest.access-key-id"], own["rest.secret-access-key"]) == ("x", "y")
    assert "rest.session-token" not in own


def test_without_signatures_no_keys_are_told_for_them():
    told = spark({**SIGNED, "rest.sigv4-enabled": "off"})
    assert not any(key.startswith("rest.") and key != "rest.sigv4-enabled" for key in told)
    assert LakeCatalog("lake", {**SIGNED, "rest.sigv4-enabled": "off"}).needed_classes() == {}


def test_signatures_need_keys_that_anonymous_files_take_away_from_java():
    error = refused({**REST, "rest.sigv4-enabled": "true", "s3.anonymous": "true"})
    assert "s3.anonymous" in error.message
    assert spark({**SIGNED, "s3.anonymous": "true"})["rest.access-key-id"] == "a"


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


@pytest.mark.parametrize("key", ["s3.anonymous", "s3.force-virtual-addressing", "rest.sigv4-enabled"])
def test_what_is_no_boolean_is_refused_by_name(key):
    assert f"{key} is neither true nor false" in refused({**REST, key: "hush"}).message


@pytest.mark.parametrize(
    "key", ["s3.server-side-encryption", "s3.sse-kms-key-id", "s3.sse.type", "s3.sse.key", "s3.sse.md5"]
)
def test_encryption_that_one_engine_alone_knows_is_refused(key):
    error = refused({**SQL, key: "hush"})
    assert key in error.message
    assert "default encryption" in error.remedy


def test_timeouts_are_milliseconds_of_java_s_http_client():
    timeouts = {"s3.connect-timeout": "5", "s3.request-timeout": "1.5"}
    told = spark({**SQL, **timeouts})
    assert told["http-client.apache.connection-timeout-ms"] == "5000"
    assert told["http-client.apache.socket-timeout-ms"] == "1500"
    assert not set(timeouts) & set(told)
    told = spark({**SQL, **timeouts, "http-client.type": "urlconnection"})
    assert told["http-client.urlconnection.socket-timeout-ms"] == "1500"


@pytest.mark.parametrize("value", ["hush", "inf", "nan"])
def test_a_timeout_that_is_no_number_is_refused(value):
    assert "s3.request-timeout is not a number" in refused({**SQL, "s3.request-timeout": value}).message


@pytest.mark.parametrize("proxy", ["http://proxy:3128", "http://proxy:3128/"])
def test_a_proxy_reaches_java(proxy):
    assert spark({**SQL, "s3.proxy-uri": proxy})["http-client.proxy-endpoint"] == "http://proxy:3128"


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("http://me:hush@proxy:3128", "more than a host and a port"),
        ("http://proxy:3128/hush", "more than a host and a port"),
        ("http://proxy:3128?hush", "more than a host and a port"),
        ("hush:3128", "is not a URL"),
        ("http://proxy:hush", "is not a URL"),
    ],
)
def test_a_proxy_that_java_can_not_be_told_is_refused_without_its_password(proxy, said):
    error = refused({**SQL, "s3.proxy-uri": proxy})
    assert said in error.message
    assert "s3.proxy-uri" in error.message


@pytest.mark.parametrize("endpoint", ["minio:9000", "localhost", "//minio:9000", "s3://minio:9000", "http://"])
def test_an_endpoint_that_java_would_take_for_another_is_refused(endpoint):
    error = refused({**SQL, "s3.endpoint": endpoint})
    assert "s3.endpoint is not a URL" in error.message
    assert "https://host:9000" in error.remedy
