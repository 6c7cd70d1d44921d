"""Routes in YAML: which settings a table of a route has, and which documents are refused."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import dagster as dg
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.assets import SETTINGS, settings_of
from kafka_lake.components.kafka_topic_table import KafkaTopicTable, refuse_shared_tables
from kafka_lake.components.route_settings import route_problems, when_of
from kafka_lake.ingest.decode.by_schema.names import schema_name
from kafka_lake.ingest.route import When
from kafka_lake.ingest.topic_table import Route, TopicTable
from kafka_lake.kafka.schemas import SchemaType, WriterSchema
from kafka_lake_tests.unit.test_component import load

ROUTED = """
topic: shop.events
namespace: shop
table: events
format: json
samples: false
maintenance: {compact_every: 7}
max_dead_letters: 5%
routes:
  - when: {field: type, equals: order}
    table: orders
    schema: type string, id bigint
    rules: [{not_null: [id], on_failure: fail}]
    dead_letters: fail
  - when: {header: kind, in: [click, '7', 'true']}
    table: clicks
    namespace: web
    write: upsert
    key: [id]
match: first
"""


def test_a_table_of_a_route_has_its_settings_and_those_of_the_records() -> None:
    component, _ = load(ROUTED)
    spec = component.topic_table()
    own, orders, clicks = spec.tables
    assert [each.identifier for each in spec.tables] == [("shop", "events"), ("shop", "orders"), ("web", "clicks")]
    assert (own.schema, orders.schema, clicks.schema) == (None, "type string, id bigint", None)
    assert [each.samples for each in spec.tables] == [False] * 3
    assert [each.max_dead_letters for each in spec.tables] == ["5%"] * 3
    assert [each.maintenance.compact_every for each in spec.tables] == [7] * 3
    assert [each.dead_letters for each in spec.tables] == ["table", "fail", "table"]
    assert [len(each.named_rules) for each in spec.tables] == [0, 1, 0]
    assert [each.write for each in spec.tables] == ["append", "append", "upsert"]
    assert spec.routes[1].when.values == ("click", "7", "true")
    assert (spec.match, spec.may_match_several) == ("first", False)


def assert_refused(document: str, change: tuple[str, str], said: str | None) -> None:
    """Assert that a document with a change isn't loaded, and what is said then; that it is loaded, if nothing is."""
    text = document.replace(*change)
    assert text != document
    if said is None:
        load(text)
        return
    with pytest.raises(Exception, match="building definitions") as error:
        load(text)
    with pytest.raises(ConfigurationError, match=said):
        raise error.value.__cause__ or error.value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("equals: order", "equals: null"), "None is no text"),
        (("equals: order", "equals: NO"), r"YAML reads a value as false \(also yes, no, on, off\). Write the text in"),
        (("equals: order", "equals: 007"), "YAML reads a value as the number 7"),
        (("field: type", "field: on"), "YAML reads a value as true"),
        (("field: type", "field: $.type"), "is a path"),
        (("field: type, equals: order", "sql: ''"), "sql: is empty"),
        (("dead_letters: fail", "maintenance: 5"), "maintenance: Input should be a valid dictionary"),
        (("dead_letters: fail", "mask: 5"), r"number 1 \(orders\): mask: "),
        (("equals: order", ""), "needs equals: with a value or in:"),
        (("field: type", "feld: type"), "there is no feld"),
        (("field: type", "field: a..b"), "no name of a field"),
        (("field: type, equals: order", "field: type, header: x, equals: 1"), "field and header of field"),
        (("field: type, equals: order", "sql: 'true', equals: 1"), "sql: is a whole condition"),
        (("field: type, equals: order", "schema: a, equals: 1"), "schema: is a whole condition"),
        (("table: orders", "start: latest"), "table: is missing"),
        (("dead_letters: fail", "start: latest"), "start: is the topic's"),
        (("dead_letters: fail", "match: first"), "match: is the topic's"),
        (("dead_letters: fail", "snapshot: reconcile"), "snapshot: can't be combined with routes yet"),
        (
            ("dead_letters: fail", "rules: [{range: {column: b, min: 0, on_failure: warn}}]"),
            r"rules: number 1 \(range\): on_failure: is a setting of the rule. Write it beside range:, not in it",
        ),
        (("dead_letters: fail", "colour: red"), "colour: there is no such setting"),
        (("dead_letters: fail", "key: [id]"), r"number 1 \(orders\): key: .* has no effect with write: append"),
        (("dead_letters: fail", "evolution: never"), r"number 1 \(orders\): evolution"),
        (("table: orders", "table: Events"), "table shop.events would be that of events and Events"),
        (("table: orders", "table: events__dead_letters"), "would be that of events and events__dead_letters"),
        (("table: clicks", "table: orders\n    #"), None),
        (("table: clicks\n    namespace: web", "table: orders"), "table shop.orders would be that of orders twice"),
        (
            (
                "header: kind, in: [click, '7', 'true']",
                "sql: key is null}\n    table: nulls\n  - when: {sql: key is null",
            ),
            "table clicks would never get a record",
        ),
        (("namespace: web", "namespace: shop"), None),
        (("header: kind, in: [click, '7', 'true']", "field: type, equals: order"), "table clicks would never get type"),
    ],
)
def test_what_is_no_route_is_refused_by_name(change: tuple[str, str], said: str | None) -> None:
    assert_refused(ROUTED, change, said)


def test_routes_may_take_the_same_records_unless_the_first_counts() -> None:
    whens = (When(field="type", values=("a",)), When(field="type", values=("a", "b")))
    routes = tuple(Route(when, TopicTable("e", "n", f"t{number}")) for number, when in enumerate(whens))
    spec = TopicTable("e", "n", "t", routes=routes, match="first")
    assert ["would never get type 'a'" in each for each in route_problems(spec)] == [True]
    assert list(route_problems(replace(spec, match="all"))) == []


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
    ],
)
def test_a_record_is_of_one_table_if_conditions_exclude_each_other(
    own: When | None, others: list[When], several: bool
) -> None:
    routes = tuple(Route(when, TopicTable("e", "n", f"t{number}")) for number, when in enumerate(others))
    spec = TopicTable("e", "n", "t", where=own, routes=routes)
    assert spec.may_match_several is several
    assert not replace(spec, match="first").may_match_several


def test_the_schema_file_of_a_topic_counts_for_its_routes(tmp_path: Path) -> None:
    for name in ("events.proto", "orders.proto"):
        (tmp_path / name).write_text("message X {}")
    routes = """
routes:
  - when: {header: type, equals: a}
    table: a
  - when: {header: type, equals: b}
    table: b
    message: B
  - when: {header: type, equals: c}
    table: c
    schema_file: orders.proto
  - when: {header: type, equals: d}
    table: d
    format: json
route_by: {header: type, table: "x_{value}", message: V}
"""
    text = f"topic: e\nformat: protobuf\nschema_file: events.proto\nmessage: E\nsubject: s{routes}"
    for name in ("events.proto", "orders.proto"):
        text = text.replace(f" {name}", f" {tmp_path / name}")
    component, _ = load(text)
    spec = component.topic_table()
    found = [*(route.to for route in spec.routes), spec.route_by.to]
    assert [(each.schema_file and Path(each.schema_file).name, each.message, each.subject) for each in found] == [
        ("events.proto", "E", "s"), ("events.proto", "B", "s"), ("orders.proto", None, "s"), (None, None, "s"),
        ("events.proto", "V", "s"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("metadata_column: null", "table events needs it"),
        ("format: string", "field: is for JSON"),
        ("snapshot: reconcile\nwrite: upsert\nenvelope: debezium", "snapshot: can't be combined"),
    ],
)
def test_what_the_topics_own_settings_rule_out(more: str, said: str) -> None:
    with pytest.raises(Exception, match="building definitions") as error:
        load(f"topic: events\nroutes: [{{when: {{field: type, equals: a}}, table: a}}]\n{more}")
    with pytest.raises(ConfigurationError, match=said):
        raise error.value.__cause__ or error.value


def test_conditions_compare_text_as_json_has_it() -> None:
    assert when_of({"field": "n", "in": ["1", "1.50", "false", "x"]}).values == ("1", "1.50", "false", "x")


def test_templates_in_conditions_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGION", "007")
    component, _ = load(ROUTED.replace("equals: order", 'equals: "{{ env.REGION }}"'))
    assert component.topic_table().routes[0].when.values == ("007",)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("format: json", "routes: schema: is for formats avro, protobuf, json_schema, confluent, and format is json"),
        ("format: avro\nschema_file: a.avsc", "schema_file says that values have none"),
        ("format: avro", None),
        ("format: confluent", None),
    ],
)
def test_schemas_are_of_formats_whose_values_have_ids(more: str, said: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text("{}")
    routes = [{"when": {"schema": "shop.Order"}, "table": "orders"}]
    document = KafkaTopicTable.resolve_from_yaml(yaml.safe_dump({"topic": "events", "routes": routes}) + more)
    if said is None:
        assert document.topic_table(tmp_path).routes[0].when == When(schema=("shop.Order",))
        return
    with pytest.raises(ConfigurationError, match=said):
        document.topic_table(tmp_path)


@pytest.mark.parametrize("given", [[], "", 7, ["a", 7], [""], {"a": 1}])
def test_what_is_no_name_of_a_schema(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"neither a name nor a list of names|has none of field"):
        when_of({"schema": given})


@given(st.lists(st.text("ab*", min_size=1, max_size=4), min_size=2, max_size=2), st.text("ab", max_size=5))
def test_a_schema_that_comes_too_late_is_told_and_no_other(patterns: list[str], name: str) -> None:
    earlier, later = (When(schema=(each,)) for each in patterns)
    routes = [Route(earlier, TopicTable("e", "n", "first")), Route(later, TopicTable("e", "n", "second"))]
    told = list(route_problems(TopicTable("e", "n", "t", format="avro", routes=tuple(routes), match="first")))
    if told:
        assert "table second would never get schema" in told[0]
        assert earlier.means(name) or not later.means(name)
    else:
        # What is no pattern is taken by the first alone if that is one of it.
        assert "*" in patterns[1] or not earlier.means(patterns[1])


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


def test_a_table_of_a_route_is_nobody_elses() -> None:
    routed, _ = load(ROUTED)
    other, _ = load("topic: orders\nnamespace: shop\ntable: orders")
    letters, _ = load("topic: letters\nnamespace: web\ntable: clicks__dead_letters")
    for each in (other, letters):
        with pytest.raises(ConfigurationError, match="would be two topics'"):
            refuse_shared_tables([routed, each])


def test_each_table_is_an_asset_of_the_topics_run() -> None:
    _, defs = load(f"{ROUTED}\ndead_letter_asset: true")
    every = [each.specs if isinstance(each, dg.AssetsDefinition) else [each] for each in defs.assets or ()]
    specs = {each.key.to_user_string(): each for each in chain(*every) if isinstance(each, dg.AssetSpec)}
    assert {"shop/events", "shop/orders", "web/clicks", "web/clicks__dead_letters"} <= {*specs}
    # What fails the run has no dead letters.
    assert "shop/orders__dead_letters" not in specs
    topics = [settings_of(dict(each.metadata)) for each in specs.values() if SETTINGS in each.metadata]
    assert [(each.topic, len(each.tables)) for each in topics] == [("shop.events", 3)]
