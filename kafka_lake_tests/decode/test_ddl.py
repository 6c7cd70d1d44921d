"""Declared columns: parsed without an engine as Spark's own parser does."""

import pytest
from pyspark.sql import types as T

from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.spec.ddl import check_ddl, parsed_ddl

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "ddl",
    [
        "id bigint not null comment 'is not null', a tinyint, b short, c int, d long, e float, f real, g double",
        'a boolean, b byte, c string comment "it\'s", d binary, e date, f decimal, g decimal(38,18), h dec(5)',
        "a timestamp, b timestamp_ntz, c timestamp_ltz NOT NULL, d varchar(3), e char(2)",
        "`a b` array<int>, c map<string, array<struct<x: int, `y``z`: string NOT NULL comment 'z'>>>, d struct<>",
        "who struct<name: string, at: struct<zip string, n: decimal(9, 2)>>, tags ARRAY<STRING>",
    ],
)
def test_declared_columns_are_parsed_as_spark_parses_them(ddl: str, spark_resource: SparkResource) -> None:
    assert spark_resource.spark_session is not None
    parsed, expected = parsed_ddl(ddl), T.DataType.fromDDL(ddl)
    assert parsed == expected.jsonValue()
    assert expected.fieldNames() == check_ddl(ddl)
