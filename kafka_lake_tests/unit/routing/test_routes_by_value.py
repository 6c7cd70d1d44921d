"""Tables for values: which name a value gives its table, and which documents are refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_lake.config.project import Place, check_documents
from kafka_lake.errors import ConfigurationError
from kafka_lake.routing.by_value import admitted, as_properties, begins_in, knowing, may_meet, may_name, place_of
from kafka_lake.spec.topic_table import Route, RouteBy, TopicTable, When
from kafka_lake_tests.unit.orchestration.test_component import load


def by_field(**its: Any) -> RouteBy:
    return RouteBy(**{"kind": "field", "name": "type", "to": TopicTable("shop"), "table": "shop_{value}", **its})


def spec_of(by: RouteBy, **its: Any) -> TopicTable:
    return TopicTable("shop", "lake", "shop_events", route_by=by, **its)


VALUES = st.text("aB1_-./*é", max_size=4) | st.sampled_from(
    ["events", "Events", "orders__dead_letters", "a.b", "events__dead_letters", "x" * 300, "../lake", "a`b", "a'; --"]
)
TEMPLATES = st.sampled_from(["shop_{value}", "{value}", "{name}", "x{parent}_{name}y"])


@settings(max_examples=300)
@given(st.lists(st.lists(VALUES, max_size=6), max_size=4), TEMPLATES, st.integers(1, 6), st.data())
def test_a_value_names_no_table_but_one_of_its_own(
    batches: list[list[str]], table: str, most: int, data: st.DataObject
) -> None:
    by = by_field(table=table, max_tables=most, namespace="lake")
    route = Route(When(header="h", values=("x",)), TopicTable("shop", "lake", "shop_orders", write="upsert"))
    spec = spec_of(by, routes=(route,))
    foreign = {("lake", "shop_a"), ("a", "b")}
    properties: dict[str, str] = {}
    for batch in batches:
        known = knowing(spec, properties)
        found = admitted(known, batch, lambda to: not foreign & {*to.identifiers})
        assert found.known[: len(known.route_by.known)] == known.route_by.known if known.route_by else False
        assert {*batch} - {value for value, _, _ in found.known} == {*found.refused}
        properties |= as_properties(by, found.new, {0: 7})
    done = knowing(spec, properties)
    assert done.route_by is not None
    assert sorted(done.route_by.known) == sorted({*done.route_by.known})
    assert len(done.route_by.known) <= most
    # No two tables, dead-letter tables among them, have the same name, in whatever case.
    names = [(space.lower(), name.lower()) for item in done.tables for space, name in item.identifiers]
    assert len(names) == len(set(names))
    for value, namespace, name in done.route_by.known:
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
        assert namespace == "lake"
        assert (namespace, name) not in foreign
        assert may_name(by, (namespace, name))
        assert done.route_by.when(value).values == (value,)


@given(TEMPLATES, TEMPLATES, VALUES, VALUES)
def test_templates_that_may_give_the_same_name_are_known(one: str, other: str, first: str, second: str) -> None:
    left, right = by_field(table=one), by_field(table=other)
    try:
        same = place_of(left, first) == place_of(right, second)
    except ValueError:
        return
    assert may_meet(left, right) or not same


def test_a_value_of_another_field_has_no_table_any_more() -> None:
    by = by_field()
    properties = as_properties(by, [("a", "lake", "shop_a")], {0: 7})
    assert knowing(spec_of(by), properties).tables[1].identifier == ("lake", "shop_a")
    assert len(knowing(spec_of(by_field(name="kind")), properties).tables) == 1


def test_table_of_value_begins_where_value_appeared() -> None:
    properties = as_properties(by_field(), [("a", "lake", "shop_a")], {0: 7, 1: 0})
    assert begins_in(properties, ("lake", "shop_a")) == {0: 7, 1: 0}
    assert begins_in(properties, ("lake", "shop_b")) == {}


ROUTED = """
topic: shop.changes
format: json
table: shop.changes
tables_by: {field: source.table, name: 'shop.shop_{value}'}
"""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("topic: orders\ntable: shop.shop_orders", "could create table shop.shop_orders"),
        ("topic: orders\ntable: shop.orders", None),
        ("topic: orders\ntable: shop_orders", None),
        (
            "topic: other\ntable: shop.other\ntables_by: {field: a, name: 'shop.{value}'}",
            "could create table shop.changes",
        ),
        (
            "topic: other\ntables_by: {field: a, name: 'shop.{value}_a'}",
            "could create tables with the same name",
        ),
        ("topic: other\ntable: shop.other\ntables_by: {field: a, name: 'shop.x_{value}'}", None),
    ],
)
def test_no_value_can_name_the_table_of_another_document(other: str, said: str | None) -> None:
    documents = [load(ROUTED)[0].place, load(other)[0].place]
    clusters = [Place(None, Path())]
    if said is None:
        check_documents(clusters, documents)
        return
    with pytest.raises(ConfigurationError, match=said):
        check_documents(clusters, documents)
