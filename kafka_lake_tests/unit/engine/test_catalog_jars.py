"""The jars that a catalog needs are fetched for Spark, unless the user has given them."""

import zipfile

import pytest

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.settings import local_conf
from kafka_lake.errors import JarsError
from kafka_lake_tests.exhaustive import exhaustive

AZURE = {"type": "rest", "uri": "http://r", "warehouse": "abfss://lake@acme.dfs.core.windows.net/w"}
POSTGRES = {"type": "sql", "warehouse": "file:///w"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("properties", "needed", "artifact"),
    [
        (
            {"type": "rest", "uri": "http://r", "warehouse": "s3://lake"},
            "software/amazon/awssdk/services/s3/S3Client",
            "iceberg-aws-bundle",
        ),
        exhaustive(AZURE, "com/azure/storage/file/datalake/DataLakeFileSystemClient", "iceberg-azure-bundle"),
        exhaustive(
            {"type": "rest", "uri": "http://r", "warehouse": "gs://lake"},
            "com/google/cloud/storage/Storage",
            "iceberg-gcp-bundle",
        ),
        ({**POSTGRES, "uri": "postgresql://db/lake"}, "org/postgresql/Driver", "postgresql"),
    ],
)
def test_the_jars_that_a_catalog_needs_are_fetched_unless_they_are_there(
    properties, needed, artifact, monkeypatch, tmp_path
):
    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "KAFKA_LAKE_SPARK_JARS"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = tmp_path / "ours.jar", tmp_path / "any name.jar"
    for jar in (ours, theirs):
        with zipfile.ZipFile(jar, "w") as content:
            content.writestr("x/Y.class", "")
            if jar == theirs:
                content.writestr(f"{needed}.class", "")
    catalog = LakeCatalog("lake", properties).for_spark()
    fetched = tmp_path / "fetched.jar"

    def retrieve(conf, tell_user=None):
        return [ours] if conf == "spark" else [fetched]

    monkeypatch.setattr("kafka_lake.engine.jars.ensure_jars", retrieve)
    assert local_conf(catalog, "local", spark_jars(), {})["spark.driver.extraClassPath"] == f"{ours}:{fetched}"
    assert local_conf(catalog, "yarn", spark_jars(), {})["spark.jars"] == f"{ours},{fetched}"
    assert local_conf(catalog, "yarn", "", {"spark.jars": f"{ours}"})["spark.jars"] == f"{ours},{fetched}"
    # What a user gives is not brought a second time; what is elsewhere can't be looked into.
    monkeypatch.setenv("KAFKA_LAKE_SPARK_JARS", f"{theirs}")
    assert local_conf(catalog, "local", spark_jars(), {})["spark.driver.extraClassPath"] == f"{ours}:{theirs}"
    assert local_conf(catalog, "yarn", f"{ours}", {"spark.jars": f"{theirs}"})["spark.jars"] == f"{theirs}"
    for extra in ({"spark.jars": "hdfs:///any.jar"}, {"spark.jars.packages": "a:b:1"}):
        assert str(fetched) not in str(local_conf(catalog, "local", f"{ours}", extra))

    def fail(conf, tell_user=None):
        raise JarsError("Not found.")

    monkeypatch.setattr("kafka_lake.engine.jars.ensure_jars", fail)
    with pytest.raises(JarsError, match=f"needs {artifact}. Not found") as refused:
        local_conf(catalog, "local", f"{ours}", {})
    assert "KAFKA_LAKE_SPARK_JARS" in refused.value.remedy
    monkeypatch.setenv("KAFKA_LAKE_SPARK_JARS", "/nowhere.jar")
    with pytest.raises(JarsError, match=r"/nowhere\.jar"):
        spark_jars()
