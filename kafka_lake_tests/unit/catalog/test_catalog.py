"""One configuration in Iceberg's names becomes that of PyIceberg and that of Spark."""

import pytest

from kafka_lake.catalog.catalog_properties import is_secret, properties_from_environment, python_properties
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.resources import CatalogResource

PREFIX = "spark.sql.catalog.lake."


# As PyIceberg asks by itself.
ASKS = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}


def spark(properties):
    conf = LakeCatalog("lake", properties).spark_conf()
    assert conf["spark.sql.extensions"].endswith("IcebergSparkSessionExtensions")
    assert conf["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert conf[PREFIX + "cache-enabled"] == "false"
    return {k.removeprefix(PREFIX): v for k, v in conf.items() if k.startswith(PREFIX) and "cache" not in k}


def test_names_are_quoted_whatever_is_in_them():
    lake = LakeCatalog("lake", {"type": "rest", "uri": "http://r"})
    assert lake.spark_name(("lake", "a.b")) == "`lake`.`lake`.`a.b`"
    assert lake.spark_name(("it's", "a`b"), "x") == "`lake`.`it's`.`a``b`.`branch_x`"
    assert lake.call("expire_snapshots", ("lake", "orders"), retain_last="1") == (
        "CALL `lake`.system.expire_snapshots(table => '`lake`.`lake`.`orders`', retain_last => 1)"
    )
    assert r"table => '`lake`.`it\'s`.`t`'" in lake.call("compact", ("it's", "t"))


def test_sqlite():
    assert spark({"type": "sql", "uri": "sqlite:////x/catalog.db", "warehouse": "file:///x/w"}) == {
        "type": "jdbc",
        "uri": "jdbc:sqlite:/x/catalog.db?busy_timeout=30000",
        "jdbc.schema-version": "V1",
        "warehouse": "file:///x/w",
    }


def test_postgres_as_sql():
    conf = spark({"type": "sql", "uri": "postgresql+psycopg2://bob:pw@db:5432/lake", "warehouse": "s3://bucket/w"})
    assert conf["uri"] == "jdbc:postgresql://db:5432/lake"
    assert conf["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"


@pytest.mark.parametrize("kind", [{"type": "rest"}, {}])
def test_rest_on_object_storage(kind):
    given = {
        "uri": "http://rest:8181",
        "warehouse": "s3://lake",
        "credential": "a:b",
        "s3.endpoint": "http://s3:9000",
        "s3.region": "eu-west-1",
    }
    assert spark({**kind, **given}) == {
        "type": "rest",
        "uri": "http://rest:8181",
        "warehouse": "s3://lake",
        "credential": "a:b",
        "s3.endpoint": "http://s3:9000",
        "s3.path-style-access": "true",
        "client.region": "eu-west-1",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        **ASKS,
    }


REST = {"type": "rest", "uri": "http://r"}


def test_who_asks_for_signatures_does_not_ask_for_keys():
    conf = spark({**REST, "header.x-iceberg-access-delegation": "remote-signing", "s3.signer": "S3V4RestSigner"})
    assert conf["header.x-iceberg-access-delegation"] == "remote-signing"
    assert "header.X-Iceberg-Access-Delegation" not in conf
    assert conf["s3.remote-signing-enabled"] == "true"
    assert "s3.signer" not in conf


def test_a_signer_needs_files_that_others_sign_for():
    reported = python_properties({**REST, "s3.signer": "S3V4RestSigner"})
    assert reported["py-io-impl"] == "pyiceberg.io.fsspec.FsspecFileIO"
    assert python_properties({**reported, "py-io-impl": "mine.IO"})["py-io-impl"] == "mine.IO"
    assert python_properties(REST) == REST


def test_a_warehouse_by_name_with_settings_of_s3_is_in_s3():
    assert spark({**REST, "warehouse": "prod", "s3.region": "a"})["io-impl"].endswith("S3FileIO")
    assert "io-impl" not in spark({**REST, "warehouse": "prod"})


def test_a_private_ca_is_for_both(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "https://r")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__SSL__CABUNDLE", "/ca.pem")
    catalog = LakeCatalog("lake", properties_from_environment("lake"))
    assert python_properties(catalog.properties)["ssl"] == {"cabundle": "/ca.pem"}
    assert catalog.for_spark().ca_bundle == "/ca.pem"


def test_a_file_may_nest_the_settings(monkeypatch, tmp_path):
    text = "catalog:\n  lake:\n    type: rest\n    uri: https://r\n    ssl:\n      cabundle: /ca.pem\n"
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    assert properties_from_environment("lake") == {"type": "rest", "uri": "https://r", "ssl.cabundle": "/ca.pem"}


def test_a_catalog_that_is_given_gets_nothing_of_the_embedded_one():
    given = {"type": "rest", "uri": "https://r", "s3.region": "eu-central-1"}
    opened = CatalogResource(name="lake", properties=given).open()
    assert opened.properties == given
    assert opened.spark_conf()["spark.sql.catalog.lake.io-impl"].endswith("S3FileIO")


def test_a_catalog_may_have_an_underscore_in_its_name(monkeypatch):
    """PyIceberg takes those of a variable's name for hyphens."""
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__URI", "https://r")
    assert properties_from_environment("my_lake") == {"type": "rest", "uri": "https://r"}


def test_an_empty_value_is_none():
    given = {"type": "REST", "uri": "https://r", "s3.access-key-id": "", "client.access-key-id": "mine"}
    catalog = LakeCatalog("lake", {**given, "s3.endpoint": ""})
    assert catalog.type == "rest"
    assert catalog.spark_conf()["spark.sql.catalog.lake.s3.access-key-id"] == "mine"
    assert "spark.sql.catalog.lake.s3.endpoint" not in catalog.spark_conf()


@pytest.mark.parametrize("name", ["arn:aws:s3tables:eu-west-1:123456789012:bucket/b", "bl://projects/x/catalogs/y"])
def test_a_warehouse_whose_name_has_a_colon_is_in_s3_if_a_setting_says_so(name):
    assert spark({**REST, "warehouse": name, "s3.region": "a"})["io-impl"].endswith("S3FileIO")
    assert "io-impl" not in spark({**REST, "warehouse": name})


@pytest.mark.parametrize("warehouse", ["hdfs://nn/w", "viewfs://c/w", "file:///w", "oss://b/w"])
def test_a_warehouse_at_an_address_is_not_in_s3_because_of_a_setting(warehouse):
    assert "io-impl" not in spark({**REST, "warehouse": warehouse, "s3.region": "a"})


def test_what_spark_is_told_does_not_show_its_secrets():
    assert "hush" not in repr(LakeCatalog("lake", {**REST, "credential": "me:hush"}).for_spark())


@pytest.mark.parametrize(
    "name",
    ["header.x-api-key", "header.cookie", "s3.sse.key", "gcs.decryption-key", "header.ocp-apim-subscription-key"],
)
def test_a_property_that_is_secret_by_its_name(name):
    assert is_secret(name, "hush")
    assert not is_secret(name.replace("key", "kind").replace("cookie", "kind"), "told")


def test_the_embedded_catalog_may_have_its_tables_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    opened = CatalogResource(name="lake", properties={"warehouse": "file:///lake"}).open()
    assert opened.properties == {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": "file:///lake",
    }


def test_a_given_io_wins():
    conf = spark({"type": "rest", "uri": "http://r", "warehouse": "s3://lake", "io-impl": "mine.IO"})
    assert conf["io-impl"] == "mine.IO"


def test_glue():
    conf = spark({"type": "glue", "warehouse": "s3://lake", "glue.region": "eu-west-1"})
    assert (conf["type"], conf["client.region"]) == ("glue", "eu-west-1")


def test_hive():
    given = {"type": "hive", "uri": "thrift://hms:9083", "warehouse": "hdfs:///w"}
    assert spark(given) == given


@pytest.mark.parametrize(
    ("properties", "lacks", "variable"),
    [
        ({"type": "sql", "uri": "sqlite:///x"}, "lacks warehouse", "PYICEBERG_CATALOG__LAKE__WAREHOUSE"),
        ({"type": "sql"}, "lacks uri, warehouse", "PYICEBERG_CATALOG__LAKE__URI"),
        ({"type": "rest"}, "lacks uri", "PYICEBERG_CATALOG__LAKE__URI"),
        ({"type": "hive", "uri": ""}, "lacks uri", "PYICEBERG_CATALOG__LAKE__URI"),
        ({"type": "glue"}, "lacks warehouse", "PYICEBERG_CATALOG__LAKE__WAREHOUSE"),
        ({"type": "nessie"}, "type nessie", "PYICEBERG_CATALOG__LAKE__TYPE"),
        ({}, r"type \(none\)", "PYICEBERG_CATALOG__LAKE__TYPE"),
    ],
)
def test_what_is_missing_is_named(properties, lacks, variable):
    with pytest.raises(ConfigurationError, match=f"{lacks}.*{variable}"):
        LakeCatalog("lake", properties)


def test_the_environment_configures_it(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "http://rest:8181")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID", "me")
    found = properties_from_environment("lake")
    assert found == {"type": "rest", "uri": "http://rest:8181", "s3.access-key-id": "me"}
    assert CatalogResource(name="lake", properties={"uri": "http://mine"}).open().properties["uri"] == "http://mine"


def test_without_environment_it_is_sqlite_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    catalog = LakeCatalog("elsewhere", properties_from_environment("elsewhere"))
    assert catalog.table(("a", "b")) is None
    assert (tmp_path / "home" / "catalog.db").exists()


def test_the_catalog_is_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("KAFKA_LAKE_CATALOG", "prod")
    assert CatalogResource().name == "prod"
    monkeypatch.delenv("KAFKA_LAKE_CATALOG")
    assert CatalogResource().name == "lake"


def test_spark_names():
    catalog = LakeCatalog("lake", {"type": "rest", "uri": "http://r"})
    assert catalog.spark_name(("a", "b")) == "`lake`.`a`.`b`"
    assert catalog.spark_name(("a", "b"), "x") == "`lake`.`a`.`b`.`branch_x`"


AWS = {"type": "glue", "warehouse": "s3://lake"}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (
            {"glue.region": "eu-west-1", "s3.region": "eu-west-1", "glue.id": "1", "glue.endpoint": "http://g"},
            {"client.region": "eu-west-1", "glue.id": "1", "glue.endpoint": "http://g"},
        ),
        ({"glue.skip-archive": "true"}, {"glue.skip-archive": "true"}),
        ({"s3.access-key-id": "a", "s3.session-token": "b"}, {"s3.access-key-id": "a", "s3.session-token": "b"}),
        ({"s3.endpoint": "http://s"}, {"s3.endpoint": "http://s", "s3.path-style-access": "true"}),
        (
            {"s3.endpoint": "http://s", "s3.force-virtual-addressing": "True"},
            {"s3.endpoint": "http://s", "s3.path-style-access": "false"},
        ),
        ({"s3.proxy-uri": "http://p"}, {"http-client.proxy-endpoint": "http://p"}),
    ],
)  # fmt: skip
def test_settings_of_amazon_s_services_reach_java(given, reported):
    assert spark({**AWS, **given}) == {**AWS, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **reported}


def test_keys_for_all_services_are_those_of_files_where_the_catalog_needs_none():
    rest = {"type": "rest", "uri": "http://r", "warehouse": "s3://lake"}
    keys = {"client.access-key-id": "a", "client.secret-access-key": "b", "client.session-token": "c"}
    conf = spark({**rest, **keys})
    assert [conf[f"s3.{key}"] for key in ("access-key-id", "secret-access-key", "session-token")] == ["a", "b", "c"]
    conf = spark({**rest, **keys, "s3.access-key-id": "d", "s3.secret-access-key": "e"})
    assert (conf["s3.access-key-id"], conf["s3.secret-access-key"], conf.get("s3.session-token")) == ("d", "e", None)
    anonymous = spark({**rest, "s3.anonymous": "true"})
    assert anonymous["client.credentials-provider"].endswith("AnonymousCredentialsProvider")


def test_settings_of_google_s_storage_are_the_same_in_java():
    google = {"type": "rest", "uri": "http://r", "warehouse": "gs://lake", "gcs.oauth2.token": "t"}
    assert spark(google) == {**google, **ASKS, "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}


def test_namespace_that_another_process_creates_meanwhile_is_there(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.ensure_namespace("shop")
    real, asked = catalog.pyiceberg.namespace_exists, list[object]()

    def exists(namespace: object) -> bool:
        asked.append(namespace)
        return len(asked) > 1 and bool(real(namespace))

    # The catalog looks, finds none, and inserts what the other has inserted by then.
    monkeypatch.setattr(catalog.pyiceberg, "namespace_exists", exists)
    catalog.ensure_namespace("shop")
    assert len(asked) >= 1
    assert ("shop",) in catalog.pyiceberg.list_namespaces()
