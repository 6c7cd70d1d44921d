"""One configuration in Iceberg's names becomes that of PyIceberg and that of Spark."""

import pytest

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog, properties_from_environment
from kafka_lake.lake.resource import CatalogResource

PREFIX = "spark.sql.catalog.lake."


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
    assert spark({"type": "sql", "uri": "sqlite:////x/catalog.db", "warehouse": "file:///x/w", "echo": "true"}) == {
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
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }
    assert spark({**kind, **given}) == {
        "type": "rest",
        "uri": "http://rest:8181",
        "warehouse": "s3://lake",
        "credential": "a:b",
        "s3.endpoint": "http://s3:9000",
        "client.region": "eu-west-1",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
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
