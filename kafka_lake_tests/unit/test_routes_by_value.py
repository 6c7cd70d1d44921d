"""Tables for values: what a value may name, and that each record is in one table, whatever is killed or races."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.components.kafka_topic_table import refuse_shared_tables
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.route import When
from kafka_lake.ingest.routes.by_value import admitted, as_properties, knowing, may_meet, may_name, place_of
from kafka_lake.ingest.routes.share import share_of
from kafka_lake.ingest.topic_table import Route, RouteBy, TopicTable
from kafka_lake_tests.unit.test_component import load
from kafka_lake_tests.unit.test_routes import assert_refused

TOPIC = TopicIdentity("cluster", "id", "shop")


def by_field(**its: Any) -> RouteBy:
    return RouteBy(**{"kind": "field", "name": "type", "to": TopicTable("shop"), "table": "shop_{value}", **its})


def spec_of(by: RouteBy, **its: Any) -> TopicTable:
    return TopicTable("shop", "lake", "shop_events", route_by=by, **its)


VALUES = st.text("aB1_-./*é", max_size=4) | st.sampled_from(
    ["events", "Events", "orders__dead_letters", "a.b", "events__dead_letters", "x" * 300, "../lake", "a`b", "a'; --"]
)
TEMPLATES = st.sampled_from(["shop_{value}", "{value}", "{name}", "x{parent}_{name}y"])


@settings(max_examples=300)
@given(st.lists(st.lists(VALUES, max_size=6), max_size=4), TEMPLATES, st.booleans(), st.integers(1, 6), st.data())
def test_a_value_names_no_table_but_one_of_its_own(
    batches: list[list[str]], table: str, chooses: bool, most: int, data: st.DataObject
) -> None:
    where = {"namespace": "{parent}", "namespaces": ("a", "lake")} if chooses else {"namespace": "lake"}
    by = by_field(table=table, max_tables=most, **where)
    route = Route(When(header="h", values=("x",)), TopicTable("shop", "lake", "shop_orders", write="upsert"))
    spec = spec_of(by, routes=(route,))
    foreign = {("lake", "shop_a"), ("a", "b")}
    properties: dict[str, str] = {}
    for batch in batches:
        known = knowing(spec, properties)
        found = admitted(known, batch, lambda to: not foreign & {*to.identifiers})
        assert found.known[: len(known.route_by.known)] == known.route_by.known if known.route_by else False
        assert {*batch} - {value for value, _, _ in found.known} == {*found.refused}
        properties |= as_properties(by, found.new)
    done = knowing(spec, properties)
    assert done.route_by is not None
    assert sorted(done.route_by.known) == sorted({*done.route_by.known})
    assert len(done.route_by.known) <= most
    # No two tables, dead-letter tables among them, have the same name, in whatever case.
    names = [(space.lower(), name.lower()) for each in done.tables for space, name in each.identifiers]
    assert len(names) == len(set(names))
    for value, namespace, name in done.route_by.known:
        assert re.fullmatch("[a-z][a-z0-9_]*", name)
        assert namespace in (("a", "lake") if chooses else ("lake",))
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
    properties = as_properties(by, [("a", "lake", "shop_a")])
    assert knowing(spec_of(by), properties).tables[1].identifier == ("lake", "shop_a")
    assert len(knowing(spec_of(by_field(name="kind")), properties).tables) == 1


@dataclass
class Table:
    """A table as a catalog has it."""

    head: int = 0
    position: Position | None = None
    rows: list[int] = field(default_factory=list)


@dataclass
class World:
    """A topic of one partition, whose records are values; tables by name, the topic's own with its properties."""

    log: list[str]
    own: Table
    properties: dict[str, str]
    sides: dict[str, Table]


class Run:
    """A run of the protocol in steps: new values are told of by a commit of their own, and all is planned anew."""

    def __init__(self, world: World, spec: TopicTable) -> None:
        self.world, self.spec = world, spec
        self.plan()

    def plan(self) -> None:
        world, own = self.world, self.world.own
        self.head, known = own.head, knowing(self.spec, world.properties)
        assert known.route_by is not None
        start = own.position.offsets[0] if own.position else 0
        end = len(world.log)
        plan = Plan((OffsetRange(0, start, end),), Position(TOPIC, {0: end}), 0)
        table_of = {value: table for value, _, table in known.route_by.known}
        new = sorted({*world.log[start:end]} - {*table_of})
        self.tells = as_properties(known.route_by, admitted(known, new, lambda _: True).new)
        self.left: list[tuple[Table, int, Position, list[int]]] = []
        for value, table in table_of.items():
            side = world.sides.setdefault(table, Table())
            share = share_of(plan, side.position)
            taken = [o for r in share.ranges for o in range(r.start, r.end) if world.log[o] == value]
            if taken:
                self.left.append((side, side.head, share.after, [*side.rows, *taken]))
        others = [o for o in range(start, end) if world.log[o] not in table_of]
        self.left.append((own, own.head, plan.after, [*own.rows, *others]))

    def step(self) -> bool:
        """Publish what is next; a refusal ends the run. Return whether there is more to do."""
        if self.tells:
            if self.world.own.head != self.head:
                return False
            self.world.own.head += 1
            self.world.properties |= self.tells
            self.plan()
            return True
        table, head, after, rows = self.left.pop(0)
        if table.head != head:
            return False
        table.head, table.position, table.rows = head + 1, after, rows
        return bool(self.left)


@settings(max_examples=300)
@given(st.data(), st.integers(1, 4))
def test_whatever_is_killed_or_races_each_record_comes_once(data: st.DataObject, most: int) -> None:
    world, spec = World([], Table(), {}, {}), spec_of(by_field(max_tables=most))
    running: list[Run] = []
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["produce", "begin", "step", "step", "step", "kill"]))
        if what == "produce":
            world.log += data.draw(st.lists(st.sampled_from("abcdeA"), max_size=4))
        elif what == "begin":
            running.append(Run(world, spec))
        elif running:
            run = data.draw(st.sampled_from(running))
            if what == "kill" or not run.step():
                running.remove(run)
    last = Run(world, spec)
    while last.step():
        pass
    assert sorted(o for each in (world.own, *world.sides.values()) for o in each.rows) == [*range(len(world.log))]
    known = knowing(spec, world.properties).route_by
    assert known is not None
    assert len(known.known) <= most
    for value, _, table in known.known:
        assert all(world.log[o] == value for o in world.sides.get(table, Table()).rows)


ROUTED = """
topic: shop.changes
namespace: shop
table: changes
format: json
on_table_error: dead_letter
route_by:
  field: source.table
  table: "shop_{value}"
  max_tables: 9
  partition_by: [id]
  max_columns: 7
"""


def test_settings_of_route_by_are_those_of_all_its_tables() -> None:
    component, _ = load(ROUTED)
    by = component.topic_table().route_by
    assert by is not None
    assert (by.kind, by.name, by.table, by.namespace, by.max_tables) == (
        "field", "source.table", "shop_{value}", "shop", 9,
    )  # fmt: skip
    (route,) = replace(by, known=(("A", "shop", "shop_a"),)).routes
    assert (route.when, route.to.identifier) == (When(field="source.table", values=("A",)), ("shop", "shop_a"))
    assert (route.to.max_columns, route.to.partition_by, route.to.on_table_error) == (7, ("id",), "dead_letter")
    assert (route.to.topic, route.to.format) == ("shop.changes", "json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("field: source.table", ""), "route_by: has none of field, header, schema_name, source_table"),
        (("field: source.table", "field: a\n  header: b"), "route_by: has field and header of"),
        (("field: source.table", "field: a..b"), "no name of a field"),
        (("field: source.table", "header: ''"), "header: '' is no name"),
        (("field: source.table", "schema_name: a"), "schema_name: 'a' isn't true. Write schema_name: true"),
        (("field: source.table", "schema_name: true"), "routes: schema: is for formats avro"),
        (("field: source.table", "source_table: true"), None),
        (('"shop_{value}"', "shop"), "'shop' gives all values one table. Write for example shop_{value}"),
        (('"shop_{value}"', '"{colour}"'), "names {colour}. There are {value}, {parent}, {name}"),
        (("max_tables: 9", "max_tables: 0"), "route_by: max_tables"),
        (("max_tables: 9", "max_tables: many"), "route_by: max_tables"),
        (("max_tables: 9", 'namespace: "{parent}"'), "values choose it. Say with namespaces: which ones"),
        (("max_tables: 9", "namespaces: [a]"), "namespaces: has no effect without a template"),
        (("max_tables: 9", 'namespace: "{parent}"\n  namespaces: ["a/b"]'), "is no list of namespaces"),
        (("max_tables: 9", "start: latest"), "route_by: start: is the topic's"),
        (("max_tables: 9", "colour: red"), "route_by: colour: there is no such setting"),
        (("max_tables: 9", "write: upsert"), "on_table_error: keyed tables, as"),
        (("format: json", "format: avro"), "route_by: field: is for JSON, and format is avro"),
        (("max_columns: 7", "schema: id bigint what"), "route_by: .*schema"),
    ],
)
def test_what_is_no_route_by_is_refused_by_name(change: tuple[str, str], said: str | None) -> None:
    assert_refused(ROUTED, change, said and said.replace("{", r"\{"))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("topic: orders\nnamespace: shop\ntable: shop_orders", "could make table shop.shop_orders"),
        ("topic: orders\nnamespace: shop\ntable: orders", None),
        ("topic: orders\ntable: shop_orders", None),
        ('topic: other\nnamespace: shop\nroute_by: {field: a, table: "{value}"}', "could make table shop.changes"),
        (
            'topic: other\nroute_by: {field: a, namespace: shop, table: "{value}_a"}',
            "could make tables of the same name",
        ),
        ('topic: other\nnamespace: shop\nroute_by: {field: a, table: "x_{value}"}', None),
    ],
)
def test_no_value_can_name_the_table_of_another_document(other: str, said: str | None) -> None:
    documents = [load(ROUTED)[0], load(other)[0]]
    if said is None:
        refuse_shared_tables(documents)
        return
    with pytest.raises(ConfigurationError, match=said):
        refuse_shared_tables(documents)
