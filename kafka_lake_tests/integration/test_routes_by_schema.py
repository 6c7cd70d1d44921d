"""Routes by the schema of each value, which its registry's id names."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.ingest.preview import preview
from kafka_lake.ingest.run import ingest, replay
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When
from kafka_lake_tests.conftest import NAMESPACE, Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_formats import avro, framed, order, register

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

PROTO = """syntax = "proto3"; package app;
message A { int64 id = 1; }
message B { int64 id = 1; message C { int64 id = 1; } }
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [False, exhaustive(True)])
def test_each_value_goes_by_the_name_of_its_schema(
    more: bool, new_topic: NewTopic, connections: NewConnections, view: NewView, registry: EmbeddedRegistry
) -> None:
    topic, client = new_topic(2), SchemaRegistryClient({"url": registry.url})
    schemas = SchemaRegistry({"url": registry.url}, 5.0)
    first, second = order(("id", "long")), order(("id", "long"), ("note", "string"))
    other = {**order(("id", "long")), "name": "Refund"}
    titled = {"title": "Page view", "type": "object", "properties": {"id": {"type": "integer"}}}
    ids = [register(client, topic, schema) for schema in (first, second)]
    refund = register(client, topic, other, part="refund")
    view_id = register(client, topic, titled, "JSON", "view")
    proto = register(client, topic, PROTO, "PROTOBUF", "proto")
    sent = [
        # Two versions of a schema have one name.
        (framed(ids[0], avro(first, {"id": 0})), "orders"),
        (framed(ids[1], avro(second, {"id": 1, "note": "x"})), "orders"),
        (framed(refund, avro(other, {"id": 2})), "shop"),
        (framed(view_id, b'{"id": 3}'), "views"),
        (framed(proto, b"\x00\x08\x04"), ""),
        # Messages of one schema, one within the other, have names of their own.
        (framed(proto, b"\x02\x02\x08\x05"), "b"),
        (framed(proto, b"\x04\x02\x00\x08\x06"), "c"),
        # No schema, no name: dead letters of the topic's own table.
        (framed(4_000_000, b"\x08\x07"), ""),
        (b"no frame", ""),
        (framed(ids[0], b""), "orders"),
        (None, ""),
    ]
    names = {"orders": ("shop.Order",), "shop": ("*.Re*",)}
    if more:
        names |= {"views": ("Page view",), "b": ("app.B",), "c": ("*.C",)}

    def to(name: str) -> TopicTable:
        return TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", format="confluent")

    routes = tuple(Route(When(schema=patterns), to(name)) for name, patterns in names.items())
    spec = topic.spec(None, format="confluent", routes=routes)
    for number, (value, _) in enumerate(sent):
        topic.send(value, partition=number % 2)

    def assert_each_in_its_table() -> None:
        for name, element in zip(("", *names), spec.tables, strict=True):
            its = [number for number, (value, to) in enumerate(sent) if value and (to if to in names else "") == name]
            places = [(number % 2, number // 2) for number in its]
            see = view(element)
            rows = [(row["_kafka"]["partition"], row["_kafka"]["offset"]) for row in see.rows()]
            letters = [(row["partition"], row["offset"]) for row in see.dead_letters()]
            assert sorted(rows + letters) == sorted(places), name

    ingest(spec, connections(schemas), "first")
    assert_each_in_its_table()
    assert sorted(row["id"] for row in view(spec).rows()) == ([4] if more else [3, 4, 5, 6])
    assert sorted(row["error_class"] for row in view(spec).dead_letters()) == ["no_schema_id", "unknown_schema"]
    assert [row["error_class"] for row in view(spec.tables[1]).dead_letters()] == ["malformed"]
    assert preview(spec.tables[2], connections(schemas), 100, spec).records == 1
    if not more:
        return
    # A schema that nobody has seen, and a part that is read again.
    new = {**order(("id", "long")), "name": "Return"}
    sent.append((framed(register(client, topic, new, part="return"), avro(new, {"id": 11})), "shop"))
    topic.send(sent[-1][0], partition=1)
    ingest(spec, connections(schemas), "second")
    replay(spec, connections(schemas), "again", ReplayRange())
    assert_each_in_its_table()
    # The same records, with a table for each name.
    to = TopicTable(topic.name, format="confluent")
    by = RouteBy("schema_name", "", to, f"{topic.table}_by_{{name}}", namespace=NAMESPACE)
    each_name = replace(spec, table=f"{topic.table}_all", routes=(), route_by=by)
    done = ingest(each_name, connections(schemas), "by name")
    rows = {table: element.total("rows") for (_, table), element in done.others.items()}
    assert {table.removeprefix(f"{topic.table}_by_"): count for table, count in rows.items()} == {
        "order": 2, "refund": 1, "return": 1, "page_view": 1, "a": 1, "b": 1, "c": 1,
    }  # fmt: skip
    assert sorted(row["error_class"] for row in view(each_name).dead_letters()) == ["no_schema_id", "unknown_schema"]


def test_bytes_without_schema_id_are_reported(
    new_topic: NewTopic, connections: NewConnections, registry: EmbeddedRegistry
) -> None:
    topic, schemas = new_topic(1), SchemaRegistry({"url": registry.url}, 5.0)
    for number in range(1_001):
        topic.send(b"\x00" + struct.pack(">I", number) + b"x")
    route = Route(When(schema=("a",)), TopicTable(topic.name, NAMESPACE, f"{topic.table}_a", format="avro"))
    with pytest.raises(Exception, match="more than 1000 different schema ids"):
        ingest(topic.spec(None, format="avro", routes=(route,)), connections(schemas), "refused")
