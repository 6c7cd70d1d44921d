"""Transforms that the tests' topics name: one that keeps the promise of one row for one row, and some that break it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def unchanged(rows: DataFrame) -> DataFrame:
    return rows


def with_tenfold(rows: DataFrame) -> DataFrame:
    return rows.withColumn("tenfold", F.col("id") * 10)


def drops(rows: DataFrame) -> DataFrame:
    return rows.filter(F.col("id") != 2)


def doubles(rows: DataFrame) -> DataFrame:
    return rows.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2)))).drop("copy")


def unites(rows: DataFrame) -> DataFrame:
    return rows.union(rows)


def swaps(rows: DataFrame) -> DataFrame:
    """Drop one row and double another: the count is right, the rows are not."""
    copies = F.when(F.col("id") == 1, 2).when(F.col("id") == 2, 0).otherwise(1)
    return rows.withColumn("copy", F.explode(F.array_repeat(F.lit(1), copies))).drop("copy")


def loses_origin(rows: DataFrame) -> DataFrame:
    return rows.drop("_kafka")


def raises_at_seven_hundred(rows: DataFrame) -> DataFrame:
    @F.udf("bigint")
    def checked(id_: int) -> int:
        if id_ == 700:
            raise ValueError("seven hundred is more than anybody can bear")
        return id_

    return rows.withColumn("id", checked("id"))


def raises_always(rows: DataFrame) -> DataFrame:
    @F.udf("bigint")
    def checked(id_: int) -> int:
        raise ValueError(f"no {id_} today")

    return rows.withColumn("id", checked("id"))


def cannot_connect(rows: DataFrame) -> DataFrame:
    @F.udf("bigint")
    def asked(id_: int) -> int:
        raise ConnectionRefusedError("nobody answers")

    return rows.withColumn("id", asked("id"))


def raised(rows: DataFrame) -> DataFrame:
    return rows.withColumn("total", F.col("total") + 1000)
