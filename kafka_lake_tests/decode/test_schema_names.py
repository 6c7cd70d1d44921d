"""Routing by the names of schemas, by the real Spark."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from kafka_lake.errors import SchemaNotSupportedError, UnknownSchemaError
from kafka_lake.formats.base import Part
from kafka_lake.formats.schema_names import SchemaNames, names_in
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.routing.conditions import ROUTE, routed
from kafka_lake.spec.topic_table import Route, TopicTable, When

pytestmark = pytest.mark.integration

GUID = ("__value_schema_id", b"\x01" + bytes(range(1, 17)))
CONTENT_ID = ("apicurio.value.contentId", (8).to_bytes(8))
SCHEMAS = {
    7: WriterSchema("JSON", '{"title": "Seven"}'),
    8: WriterSchema("PROTOBUF", 'syntax = "proto3"; message Eight { int64 id = 1; }'),
    "guid 01020304-0506-0708-090a-0b0c0d0e0f10": WriterSchema("JSON", '{"title": "Guid"}'),
    "contentId 8": WriterSchema("JSON", '{"title": "Content"}'),
}
RECORDS = [
    (b"\x00\x00\x00\x00\x07{}", [CONTENT_ID]),
    (b"\x00\x00\x00\x00\x08\x00\x08\x02", [("trace", b"x")]),
    (b"{}", [GUID]),
    (b"{}", []),
    (b"\x00\x00\x00\x00\x09{}", None),
    (b"\x03\x00" + bytes(range(16)), None),
    (None, [GUID]),
]


def by_id(id_: int | str, subject: str | None) -> WriterSchema:
    if str(id_).startswith("version"):
        raise SchemaNotSupportedError("It can't be found here.")
    if id_ not in SCHEMAS:
        raise UnknownSchemaError("There is no such schema.", "Register it.")
    return SCHEMAS[id_]


def frame(spark_resource: SparkResource, records: Any) -> DataFrame:
    rows = [(number, value, headers) for number, (value, headers) in enumerate(records)]
    kind = "id int, value binary, headers array<struct<key: string, value: binary>>"
    return spark_resource.spark_session.createDataFrame(rows, kind)


def spec_of(**settings: Any) -> TopicTable:
    tables = {name: TopicTable("t", table=name.lower()) for name in ("Eight", "Guid", "Content")}
    routes = tuple(Route(When(schema=(name,)), table) for name, table in tables.items())
    return TopicTable("t", format="confluent", where=When(schema=("Seven",)), routes=routes, **settings)


@pytest.mark.parametrize(
    ("kind", "unmatched", "routes"),
    [
        ("confluent", "ignore", [-1, 0, 1, -2, -2, -1, -2]),
        ("confluent", "fail", [-1, 0, 1, -2, -2, -2, -2]),
        ("apicurio", "dead_letter", [2, 0, -2, -2, -2, -1, -2]),
    ],
)
def test_records_go_by_the_names_of_schemas(
    kind: str, unmatched: Any, routes: list[int], spark_resource: SparkResource
) -> None:
    records, spec = frame(spark_resource, RECORDS), spec_of(unmatched=unmatched)
    registry: Any = SimpleNamespace(by_id=by_id, kind=kind)
    found = routed(records, spec, names_in(records, Part(spec, "value", registry=registry)))
    assert found.columns == [*records.columns, ROUTE]
    assert [int(row[ROUTE]) for row in found.orderBy("id").collect()] == routes


def test_headers_are_searched_once_for_all_names(
    spark_resource: SparkResource, capsys: pytest.CaptureFixture[str]
) -> None:
    names = SchemaNames({b"\x00" + number.to_bytes(4): "Eight" for number in range(1, 60)}, "confluent")
    routed(frame(spark_resource, RECORDS), spec_of(), names).explain("extended")
    physical = capsys.readouterr().out.partition("== Physical Plan ==")[2]
    assert physical.count("__value_schema_id") == 1
