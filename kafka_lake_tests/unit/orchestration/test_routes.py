"""Several tables of a topic: which records are whose, and how Dagster shows them."""

import json
from itertools import chain
from pathlib import Path

import dagster as dg
import pytest

from kafka_lake.config.project import Place, check_documents
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.schema_names import schema_name
from kafka_lake.kafka.registry import SchemaType, WriterSchema
from kafka_lake.orchestration.metadata import topics_in
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake_tests.unit.orchestration.test_component import load, resolved

ROUTED = """
topic: shop.events
tables:
  - {name: shop.orders, where: {field: type, equals: order}, dead_letters: fail, group: sales, description: Each order.}
  - {name: web.clicks, where: {header: kind, equals: [click, '7', 'true']}, tags: {pii: 'true'}}
  - {name: shop.events, owners: ["team:shop"]}
"""


@pytest.mark.parametrize(
    ("own", "others", "several"),
    [
        (None, [When(field="type", values=("a",)), When(field="type", values=("b", "c"))], False),
        (When(field="type", values=("d",)), [When(field="type", values=("a",))], False),
        (When(field="type", values=("a",)), [When(field="type", values=("a",))], True),
        (None, [When(field="type", values=("a",)), When(field="kind", values=("b",))], True),
        (None, [When(field="type", values=("a",)), When(sql="true")], True),
        (None, [When(schema=("a.b",)), When(schema=("a.c",))], False),
        (None, [When(schema=("a.*",)), When(schema=("a.c",))], True),
        # A value that has a table by itself is one value.
        (None, [], False),
    ],
)
def test_a_record_is_of_one_table_if_conditions_exclude_each_other(
    own: When | None, others: list[When], several: bool
) -> None:
    routes = tuple(Route(when, TopicTable("e", "n", f"t{number}")) for number, when in enumerate(others))
    spec = TopicTable("e", "n", "t", where=own, routes=routes)
    assert spec.may_match_several is several


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("AVRO", {"type": "enum", "name": "a.b.Kind", "namespace": "c", "symbols": ["x"]}, "a.b.Kind"),
        ("AVRO", {"type": {"type": "record", "name": "Order", "fields": []}}, "Order"),
        ("AVRO", "shop.Order", "shop.Order"),
        ("AVRO", "string", None),
        ("AVRO", ["null", {"type": "record", "name": "Order", "fields": []}], None),
        ("JSON", {"type": "object"}, None),
        ("JSON", {"title": 7}, None),
        ("JSON", True, None),
    ],
)
def test_names_of_schemas(kind: SchemaType, text: object, name: str | None) -> None:
    assert schema_name(WriterSchema(kind, json.dumps(text))) == name


@pytest.mark.parametrize(("kind", "text"), [("AVRO", "{"), ("JSON", ""), ("PROTOBUF", "no proto")])
def test_what_cant_be_read_has_no_name(kind: SchemaType, text: str) -> None:
    assert schema_name(WriterSchema(kind, text)) is None


def test_templates_in_conditions_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGION", "007")
    component, _ = load(ROUTED.replace("equals: order", 'equals: "{{ env.REGION }}"'))
    assert component.topic_table().routes[0].when.values == ("007",)


def test_a_table_of_a_topic_is_no_other_topics() -> None:
    routed, _ = load(ROUTED)
    other, _ = load("topic: orders\ntable: shop.orders")
    letters, _ = load("topic: letters\ntable: web.clicks__dead_letters")
    for item in (other, letters):
        with pytest.raises(ConfigurationError, match="would belong to two topics"):
            check_documents([Place(None, Path())], [routed.place, item.place])


def test_each_table_is_an_asset_of_the_topics_run() -> None:
    _, defs = load(ROUTED)
    every = [item.specs if isinstance(item, dg.AssetsDefinition) else [item] for item in defs.assets or ()]
    specs = {item.key.to_user_string(): item for item in chain(*every) if isinstance(item, dg.AssetSpec)}
    assert {*specs} == {"kafka/shop.events", "shop/events", "shop/orders", "web/clicks"}
    topics = topics_in(spec.metadata for spec in specs.values())
    assert [(topic.topic, len(topic.tables)) for topic in topics] == [("shop.events", 3)]


def test_each_table_is_shown_as_its_settings_say() -> None:
    _, defs = load(ROUTED)
    shown = {node.key.to_user_string(): node for node in resolved(defs).asset_nodes}
    assert (shown["shop/orders"].group_name, shown["shop/orders"].description) == ("sales", "Each order.")
    assert shown["web/clicks"].group_name == "web"
    assert shown["web/clicks"].tags["pii"] == "true"
    assert "pii" not in shown["shop/orders"].tags
    assert list(shown["shop/events"].owners) == ["team:shop"]
    assert str(shown["web/clicks"].description).startswith("The records of Kafka topic shop.events with header kind")
