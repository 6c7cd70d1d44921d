"""The group ``where:`` of a table."""

import pytest

from kafka_lake.spec.topic_table import When
from kafka_lake_tests.unit.config import refusal, spec


def document(where: str) -> str:
    format_ = "avro" if "schema" in where else "json"
    return f"topic: a\nformat: {format_}\ntables: [{{name: b, where: {where}}}, {{name: a}}]"


@pytest.mark.parametrize(
    ("where", "when"),
    [
        ("{field: type, equals: order}", When(field="type", values=("order",))),
        ("{field: a.b, equals: ['1', '1.50', 'false', x]}", When(field="a.b", values=("1", "1.50", "false", "x"))),
        ("{header: kind, equals: '7'}", When(header="kind", values=("7",))),
        ("{schema: shop.Order}", When(schema=("shop.Order",))),
        ("{schema: [shop.*, Order]}", When(schema=("shop.*", "Order"))),
        ("{sql: key IS NULL}", When(sql="key IS NULL")),
        ("{sql: key = 'today'}", When(sql="key = 'today'")),
    ],
)
def test_a_condition_arrives(where: str, when: When) -> None:
    (route,) = spec(document(where)).routes
    assert route.when == when


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("{field: type, equals: null}", "where: equals: is missing, the value or values of field:"),
        ("{field: type, equals: NO}", "where: equals: YAML reads this value as false (also yes, no, on, off)"),
        ("{field: type, equals: 007}", "where: equals: YAML reads this value as the number 7. Write the text in quote"),
        ("{field: on, equals: a}", "where: field: YAML reads this value as true"),
        ("{field: type, equals: [1]}", "where: equals: number 1: YAML reads this value as the number 1"),
        ("{field: type, equals: []}", "where: equals: Value should have at least 1 item"),
        ("{header: type}", "where: equals: is missing, the value or values of header:"),
        ("{field: $.type, equals: a}", "where: field: '$.type' can't name a field here. Write source.table for nested"),
        ("{field: a..b, equals: a}", "where: field: 'a..b' can't name a field here"),
        ("{feld: type, equals: a}", "where: feld: there is no such setting. Did you mean field?"),
        ("{equals: a}", "where: has none of field:, header:, schema: and sql:. Write one"),
        ("{field: a, header: b, equals: a}", "where: has field and header of field:, header:, schema: and sql:"),
        ("{sql: ''}", "where: sql: Value should have at least 1 item"),
        ("{sql: 'true', equals: a}", "where: equals: has no effect with sql:. Remove it"),
        ("{sql: rand() < 0.5}", "where: sql: rand gives other values each time"),
        ("{sql: timestamp > current_timestamp - interval 1 day}", "where: sql: current_timestamp gives other values"),
        ("{sql: \"timestamp >= date 'Today'\"}", "where: sql: today gives other values each time"),
        ("{sql: \"timestamp < 'now UTC'\"}", "where: sql: now gives other values each time"),
        ("{schema: a, equals: a}", "where: equals: has no effect with schema:"),
        ("{schema: []}", "where: schema: Value should have at least 1 item"),
        ("{schema: 7}", "where: schema: YAML reads this value as the number 7"),
        ("type = 'order'", "where: Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_is_refused(where: str, line: str) -> None:
    text = refusal(document(where)).splitlines()[0]
    assert text.startswith("tables: number 1: ")
    assert line in text


@pytest.mark.parametrize(
    ("where", "format_", "line"),
    [
        ("{field: a, equals: b}", "string", "tables: where: field: is for JSON, and format is string. Use header: or"),
        ("{schema: a}", "json", "tables: schema names need avro or protobuf or json_schema or confluent, and f"),
        ("{schema: a}", "{type: avro, schema: a.avsc}", "schema names come from a registry, and format: schema: is"),
    ],
)
def test_a_condition_on_what_a_format_lacks_is_refused(where: str, format_: str, line: str) -> None:
    text = f"topic: a\nformat: {format_}\ntables: [{{name: b, where: {where}}}, {{name: a}}]"
    assert line in refusal(text).splitlines()[0]
