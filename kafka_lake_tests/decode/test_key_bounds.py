"""Conditions of a batch's keys: the rows of each key meet them, and few others do."""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.writers.upsert.keys import KeyBounds, Keys, key_bounds
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

ROWS = 5_000
TEXTS = "concat(array('', ' ', \"it's\", '\\\\\\\\', ',', '%', 'Ä€😀', char(0))[n % 8], if(n < 8, '', string(n)))"
KEYS = {
    "text": TEXTS,
    "long text": "repeat(md5(string(n)), 100)",
    "binary": f"unhex(concat('ff00', hex({TEXTS})))",
    "int": "int(n - 2500)",
    "bigint": "(n - 2500) * 3689348814741910",
    "decimal": "CAST(n - 2500 AS DECIMAL(38, 10)) / 3",
    "date": "date_from_unix_date(int(n * 300 - 700000))",
    "timestamp": "timestamp_micros(n * 300000000001 - 700000000000000)",
    # The hour that clocks skip in spring, and others.
    "timestamp_ntz": "TIMESTAMP_NTZ'2024-03-31 00:00:00' + make_dt_interval(0, 0, n)",
    "several": "struct(int(n % 70) AS a, string(n DIV 70) AS b)",
}

USUAL = ("text", "int", "timestamp_ntz", "several")


@pytest.fixture
def spark(spark_resource: SparkResource) -> Iterator[SparkSession]:
    spark = spark_resource.spark_session
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", zone)


def keyed(spark: SparkSession, key: str) -> tuple[DataFrame, Keys]:
    rows = spark.range(ROWS).selectExpr("id AS n").withColumn("id", F.expr(KEYS[key]))
    columns = ("id",)
    if key == "several":
        rows, columns = rows.select("n", "id.*"), ("a", "b")
    return rows, Keys(columns, (), has_envelope=False, topic_id="")


def kept(rows: DataFrame, bounds: KeyBounds) -> list[int]:
    return [row.n for row in rows.alias("t").filter(" AND ".join(bounds.conditions("t"))).collect()]


@pytest.mark.parametrize("key", [key if key in USUAL else exhaustive(key) for key in KEYS])
def test_each_key_of_a_batch_is_kept_and_few_others(key: str, spark: SparkSession) -> None:
    rows, keys = keyed(spark, key)
    for count, is_listed in ((1, True), (200, True), (201, False), (1_500, False)):
        wanted = [n * (ROWS // count) for n in range(count)]
        bounds, _ = key_bounds(rows.filter(F.col("n").isin(wanted)), keys, records=count)
        if key == "several":
            # Each column has at most 200 values.
            is_listed = count <= 1_000
        if key == "long text":
            is_listed = count == 1
        assert bool(bounds.values) is is_listed
        assert bool(bounds.filter_words) is (key == "several" or not is_listed)
        found = kept(rows, bounds)
        assert set(wanted) <= set(found)
        assert len(found) < count * 1.1 + ROWS / 30


def test_a_batch_of_many_records_is_bounded_by_its_range(spark: SparkSession) -> None:
    rows, keys = keyed(spark, "int")
    bounds, _ = key_bounds(rows.filter("n BETWEEN 10 AND 20 AND n != 15"), keys)
    assert sorted(kept(rows, bounds)) == list(range(10, 21))


def test_no_key_or_one_without_a_value_has_no_bounds(spark: SparkSession) -> None:
    rows, keys = keyed(spark, "several")
    assert key_bounds(rows.filter("n < 0"), keys, records=5)[0].conditions("t") == []
    without = rows.filter("n < 3").withColumn("b", F.lit(None).cast("string"))
    assert key_bounds(without, keys, records=5)[0].conditions("t") == []


def test_key_of_the_record_is_kept(spark: SparkSession) -> None:
    rows = keyed(spark, "binary")[0].select("n", F.struct(F.col("id").alias("key")).alias("_kafka"))
    bounds, _ = key_bounds(rows.filter("n % 10 = 0"), Keys((), (), has_envelope=False, topic_id=""), records=500)
    found = kept(rows, bounds)
    assert set(range(0, ROWS, 10)) <= set(found)
    assert len(found) < 700
