"""Which values survive another type of their column, by the real Spark."""

from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.column_type.casts import cast_of

pytestmark = pytest.mark.integration

# From, to, values in SQL that stay, values that would be lost.
CASES: list[tuple[str, str, list[str], list[str]]] = [
    ("bigint", "double", ["1L", "-9007199254740992L"], ["9007199254740993L"]),
    ("bigint", "float", ["16777216L"], ["16777217L"]),
    ("bigint", "int", ["2147483647L"], ["2147483648L"]),
    ("bigint", "decimal(5,2)", ["999L"], ["1000L"]),
    ("bigint", "string", ["-7L"], []),
    ("float", "double", ["0.1f"], []),
    ("double", "bigint", ["3D", "-0D"], ["3.5D", "1e19D", "double('NaN')"]),
    ("double", "decimal(10,2)", ["0.1D", "12.5D"], ["0.125D", "1e9D", "double('Infinity')"]),
    ("double", "string", ["0.1D", "double('NaN')", "1e300D"], []),
    ("decimal(20,4)", "double", ["0.5BD", "123456789.1234BD"], ["1234567890123456.1234BD"]),
    ("decimal(20,4)", "decimal(10,2)", ["1.5BD"], ["1.5555BD"]),
    ("decimal(20,0)", "bigint", ["7BD"], ["99999999999999999999BD"]),
    ("boolean", "string", ["true", "false"], []),
    ("date", "timestamp", ["date'1970-01-01'", "date'2026-01-02'"], []),
    ("timestamp", "date", ["timestamp'2026-01-02 00:00:00Z'"], ["timestamp'2026-01-02 00:00:01Z'"]),
    ("timestamp", "timestamp_ntz", ["timestamp'2026-01-02 03:04:05.123456Z'"], []),
    ("timestamp", "string", ["timestamp'2026-01-02 03:04:05.123456Z'"], []),
    ("array<bigint>", "array<double>", ["array(1L, NULL)", "array()"], ["array(1L, 9007199254740993L)"]),
    ("array<bigint>", "string", ["array(1L, NULL)"], []),
    ("struct<a: bigint, b: string>", "string", ["named_struct('a', 1L, 'b', NULL)"], []),
    ("map<string, bigint>", "string", ["map('a', 1L)"], []),
    ("string", "bigint", ["'7'", "'-0012'"], ["'7.0'", "'x'", "''", "' 7'", "'9223372036854775808'"]),
    ("string", "int", ["'7'"], ["'2147483648'"]),
    (
        "string",
        "double",
        ["'1.50'", "'-3'", "'1e3'", "'.5'"],
        ["'0.1234567890123456789'", "'1d'", "'NaN'", "''", "'1e400'"],
    ),
    ("string", "float", ["'0.5'"], ["'3.14159265'"]),
    ("string", "decimal(6,2)", ["'1.50'", "'1.5000'", "'7'"], ["'1.555'", "'10000'", "'1e2'", "''", "'-'"]),
    ("string", "boolean", ["'true'", "'false'"], ["'yes'", "'1'", "'TRUE '"]),
    ("string", "date", ["'2026-01-02'"], ["'2026-01'", "'2026-02-30'", "'2026-01-02T00:00:00Z'"]),
    (
        "string",
        "timestamp",
        ["'2026-01-02T03:04:05Z'", "'2026-01-02 03:04:05.123456+01:00'"],
        ["'2026-01-02'", "'2026-01-02T03:04:05.1234567Z'", "'03:04:05'", "'2026-01-02T25:00:00Z'"],
    ),
    ("string", "timestamp_ntz", ["'2026-01-02T03:04:05'"], ["'2026-01-02T03:04:05Z'"]),
]
DECLINED = [
    ("bigint", "timestamp"),
    ("bigint", "boolean"),
    ("boolean", "struct<a: int>"),
    ("string", "binary"),
    ("string", "array<string>"),
    ("binary", "string"),
    ("struct<a: bigint>", "struct<a: double>"),
    ("array<string>", "array<bigint>"),
    ("map<string, bigint>", "map<string, double>"),
]


def kind(ddl: str) -> T.DataType:
    fields: Any = T.DataType.fromDDL(f"c {ddl}")
    return fields[0].dataType


def test_values_that_another_type_alters_are_found(spark_resource: SparkResource) -> None:
    spark = spark_resource.spark_session
    for have, want, stay, lost in CASES:
        values = ", ".join(f"(CAST({each} AS {have}))" for each in [*stay, *lost, "NULL"])
        frame = spark.sql(f"SELECT * FROM VALUES {values} AS t(`a b`)")
        cast = cast_of("`a b`", kind(have), kind(want))
        assert cast is not None, (have, want)
        found = frame.select(F.expr(cast.is_lost), F.expr(cast.made)).collect()
        expected = [False] * len(stay) + [True] * len(lost) + [False]
        assert [row[0] for row in found] == expected, (have, want, list(zip(stay + lost, found, strict=False)))
        assert all(row[1] is not None for row in found[: len(stay)]), (have, want)


def test_types_without_a_plain_cast_are_declined(spark_resource: SparkResource) -> None:
    assert spark_resource.spark_session is not None
    assert [pair for pair in DECLINED if cast_of("a", kind(pair[0]), kind(pair[1])) is not None] == []
