"""Routes: each table takes what lies beyond its own position, whatever is killed; and what of YAML is no route."""

import json
import re
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import dagster as dg
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.offsets import Loss, OffsetRange, Position, TopicIdentity
from kafka_lake.components.assets import SETTINGS, settings_of
from kafka_lake.components.kafka_topic_table import KafkaTopicTable, refuse_shared_tables
from kafka_lake.components.route_settings import route_problems, when_of
from kafka_lake.ingest.decode.by_schema.names import schema_name
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.route import When
from kafka_lake.ingest.routes.given import GIVEN, Given, conditions_of, given_after, parsed
from kafka_lake.ingest.routes.share import counted, has_more_letters, is_ahead, is_of_another_log, share_of
from kafka_lake.ingest.topic_table import Route, TopicTable
from kafka_lake.kafka.schemas import SchemaType, WriterSchema
from kafka_lake_tests.unit.test_component import load

RESTS = 4
TOPIC = TopicIdentity("cluster", "id", "shop")


def at(*offsets: int) -> Position:
    return Position(TOPIC, dict(enumerate(offsets)))


@dataclass
class Table:
    """A table as a catalog has it, with its dead-letter table: their heads are what publications compare."""

    head: int = 0
    letters_head: int = 0
    letters: tuple[tuple[int, int], ...] = ()
    letters_position: Position | None = None
    position: Position | None = None
    rows: list[tuple[int, int]] = field(default_factory=list)
    unfinished: int | None = None
    given: Given = field(default_factory=Given)

    def reconcile(self) -> None:
        """Take the letters out that are rows, as each run does first."""
        if (left := tuple(each for each in self.letters if each not in self.rows)) != self.letters:
            self.letters, self.letters_head = left, self.letters_head + 1


@dataclass
class Staged:
    """What a run has for a table: dead letters are published first, if there are any."""

    table: Table
    head: int
    letters_head: int
    after: Position
    rows: list[tuple[int, int]]
    letters: tuple[tuple[int, int], ...] | None
    given: Given


def furthest(one: Position, other: Position | None) -> Position:
    return at(*(max(offset, other.offsets[p] if other else 0) for p, offset in one.offsets.items()))


@dataclass
class World:
    """A topic of two partitions, whose tables of routes take records by the rest of the offset; table 0 is its own."""

    ends: list[int]
    tables: list[Table]
    takes: list[frozenset[int]]
    all_matches: bool = False
    resets: set[int] = field(default_factory=set)
    told: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def takers(self, offset: int) -> tuple[int, ...]:
        found = [number for number, rests in enumerate(self.takes, 1) if offset % RESTS in rests]
        return tuple(found if self.all_matches else found[:1]) or (0,)

    def records(self, ranges: tuple[OffsetRange, ...], table: int) -> list[tuple[int, int]]:
        return [(r.partition, o) for r in ranges for o in range(r.start, r.end) if table in self.takers(o)]

    def conditions(self, table: int) -> str:
        routes = tuple(
            Route(When(sql=str(sorted(rests))), TopicTable("t", "n", f"t{n}")) for n, rests in enumerate(self.takes)
        )
        spec = TopicTable("t", "n", "own", routes=routes, all_matches=self.all_matches)
        return conditions_of(spec, table - 1, {}) if table else ""


class Run:
    """A run of the protocol in steps: it stages all, then publishes the tables of routes, and its own table last.

    Some tables of routes refuse their records, which are their dead letters then.
    """

    number = 0

    def __init__(
        self,
        world: World,
        to: tuple[int, int] | None,
        at_most: int = 1000,
        partitions: tuple[int, ...] = (0, 1),
        refusing: frozenset[int] = frozenset(),
    ) -> None:
        Run.number += 1
        self.world, self.id, self.is_reset = world, Run.number, to is not None
        own = world.tables[0]
        position = own.position or at(0, 0)
        self.left: list[Staged] = []
        reads = [at_most if p in partitions else 0 for p in position.offsets]
        ends = [min(end, position.offsets[p] + reads[p]) for p, end in enumerate(world.ends)]
        ranges = tuple(OffsetRange(p, position.offsets[p], ends[p]) for p in partitions)
        plan = Plan(ranges, at(*ends), 0)
        self.reads = ranges
        if to is not None:
            stays = at(*(min(t, o) for t, o in zip(to, position.offsets.values(), strict=True)))
            plan = Plan(
                (), stays, 0, "reset", tuple(OffsetRange(p, o, position.offsets[p]) for p, o in stays.offsets.items())
            )
        for number, table in enumerate(world.tables):
            if table.unfinished is not None and not self.is_reset:
                if table.unfinished not in world.resets and own.position is not None:
                    self.left = []
                    return
                table.unfinished = None
            table.reconcile()
            conditions = world.conditions(number)
            share = plan if number == 0 else share_of(plan, table.position, table.given.by(conditions))
            given = Given() if self.is_reset else given_after(plan, table.position, table.given, conditions)
            taken, letters = world.records(share.ranges, number), table.letters
            if has_more_letters(table.letters_position, table.position if number else None, plan) or share.deletes:
                # Those of other tables are none of its own any more.
                its = world.records(plan.ranges, number)
                read = {(r.partition, o) for r in plan.ranges for o in range(r.start, r.end)}
                letters = tuple(each for each in letters if each in its or each not in read)
            is_refused = number in refusing and bool(taken) and share.kind == "append"
            if is_refused:
                letters = (*letters, *(each for each in taken if each not in letters))
            stay = [
                (p, o)
                for p, o in table.rows
                if not any(d.partition == p and d.start <= o < d.end for d in share.deletes)
            ]
            rows = [*stay, *([] if is_refused else taken)]
            changes = taken or share.deletes or letters != table.letters or (self.is_reset and table.position)
            if number == 0 or changes:
                fresh = letters if letters != table.letters else None
                self.left.append(Staged(table, table.head, table.letters_head, share.after, rows, fresh, given))
        self.left = [*self.left[1:], self.left[0]]

    def step(self) -> bool:
        """Publish the next table; a refusal ends the run. Return whether there is more to do."""
        if not self.left:
            return False
        each, table = self.left[0], self.left[0].table
        if table.head != each.head or table.letters_head != each.letters_head:
            self.left = []
            return False
        if each.letters is not None:
            table.letters, table.letters_head = each.letters, each.letters_head + 1
            table.letters_position = furthest(each.after, table.letters_position)
            self.left[0] = replace(each, letters=None, letters_head=table.letters_head)
            return True
        self.left.pop(0)
        table.head, table.position, table.rows, table.given = each.head + 1, each.after, each.rows, each.given
        is_own = table is self.world.tables[0]
        if is_own and not self.is_reset:
            reads = [(r.partition, o) for r in self.reads for o in range(r.start, r.end)]
            self.world.told |= {(partition, offset): self.world.takers(offset) for partition, offset in reads}
        if self.is_reset:
            if is_own:
                self.world.resets.add(self.id)
            else:
                table.unfinished = self.id
        return bool(self.left)


@settings(max_examples=300)
@given(st.data(), st.integers(2, 4), st.booleans())
def test_whatever_is_killed_or_races_each_record_is_in_its_table_once(
    data: st.DataObject, tables: int, all_matches: bool
) -> None:
    rests = st.frozensets(st.integers(0, RESTS - 1))
    takes = data.draw(st.lists(rests, min_size=tables - 1, max_size=tables - 1))
    world = World([0, 0], [Table() for _ in range(tables)], takes, all_matches)
    running: list[Run] = []
    target = None
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(
            st.sampled_from(["produce", "begin", "step", "step", "step", "kill", "reset", "routes", "drop"])
        )
        if what == "produce":
            world.ends = [end + data.draw(st.integers(0, 5)) for end in world.ends]
        elif what == "begin":
            partitions = data.draw(st.sampled_from([(0, 1), (0,), (1,)]))
            refusing = data.draw(st.frozensets(st.integers(1, tables - 1)))
            running.append(Run(world, None, data.draw(st.sampled_from([2, 1000])), partitions, refusing))
        elif what == "reset":
            target = tuple(data.draw(st.integers(0, end)) for end in world.ends)
            running.append(Run(world, (target[0], target[1])))
        elif what == "routes":
            # Definitions are loaded again: no run goes on by the former ones.
            running, world.takes = [], list(world.takes)
            world.takes[data.draw(st.integers(0, tables - 2))] = data.draw(rests)
            world.all_matches = data.draw(st.booleans())
        elif what == "drop":
            own = world.tables[0]
            own.head, own.position, own.rows = own.head + 1, None, []
        elif running and what == "step":
            run = data.draw(st.sampled_from(running))
            if not run.step():
                running.remove(run)
        elif running:
            running.pop(data.draw(st.integers(0, len(running) - 1)))
    # A reset that was killed in the midst is to be done again, as the next run says.
    if any(t.unfinished is not None and t.unfinished not in world.resets for t in world.tables):
        last = Run(world, (0, 0))
        while last.step():
            pass
    for at_most in (3, 1000):
        last = Run(world, None, at_most)
        while last.step():
            pass
    for number, table in enumerate(world.tables):
        table.reconcile()
        its = sorted(place for place, takers in world.told.items() if number in takers)
        assert sorted([*table.rows, *table.letters]) == its
    assert len(world.told) == sum(world.ends)


def test_a_position_says_nothing_where_the_log_is_another_one() -> None:
    plan = Plan((OffsetRange(0, 5, 9), OffsetRange(1, 5, 9)), at(9, 9), 0, losses=(Loss(0, 5, 8, "truncated"),))
    assert counted(at(8, 8), plan) == {1: 8}
    assert share_of(plan, at(8, 8)).ranges == (OffsetRange(0, 5, 9), OffsetRange(1, 8, 9))
    # Each table is told of it, rows or not: a later plan has no losses, and would count the position again.
    assert is_of_another_log(plan)
    assert share_of(plan, at(8, 8)).after.offsets == {0: 9, 1: 9}
    # Retention takes records away, and makes no others of them.
    retained = Plan((OffsetRange(0, 5, 9),), at(9, 9), 0, losses=(Loss(0, 3, 5, "retention"),))
    assert not is_of_another_log(retained)
    assert share_of(retained, at(8, 8)).ranges == (OffsetRange(0, 8, 9),)
    other = Position(TopicIdentity("cluster", "recreated", "shop"), {0: 8, 1: 8})
    assert counted(other, plan) == {}
    assert not is_ahead(other, plan)
    assert share_of(plan, other).ranges == plan.ranges


def test_a_table_further_than_the_plan_stays_where_it_is() -> None:
    share = share_of(Plan((OffsetRange(0, 5, 9),), at(9, 3), 0), at(20, 1))
    assert (share.ranges, share.after.offsets) == ((), {0: 20, 1: 3})


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
otherwise: ignore
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
    assert spec.otherwise == "ignore"


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
        (("dead_letters: fail", "all_matches: true"), "all_matches: is the topic's"),
        (("dead_letters: fail", "history: true"), "history: can't be combined with routes yet"),
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
        (("otherwise: ignore", "otherwise: dead_letter\ndead_letters: skip"), "loses the records"),
        (("otherwise: ignore", "history: true\nwrite: upsert"), "history: can't be combined"),
    ],
)
def test_what_is_no_route_is_refused_by_name(change: tuple[str, str], said: str | None) -> None:
    assert_refused(ROUTED, change, said)


def test_with_all_matches_routes_may_take_the_same_records() -> None:
    whens = (When(field="type", values=("a",)), When(field="type", values=("a", "b")))
    routes = tuple(Route(when, TopicTable("e", "n", f"t{number}")) for number, when in enumerate(whens))
    spec = TopicTable("e", "n", "t", routes=routes)
    assert ["would never get type 'a'" in each for each in route_problems(spec)] == [True]
    assert list(route_problems(replace(spec, all_matches=True))) == []
    assert list(route_problems(TopicTable("e", "n", "t", all_matches=True))) == [
        "all_matches: true has no effect without routes:. Leave it out."
    ]


LENIENT = """
topic: events
format: json
on_table_error: dead_letter
routes:
  - when: {field: type, equals: a}
    table: a
  - when: {field: type, equals: b}
    table: b
    on_table_error: fail
"""


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


def test_what_a_table_does_that_cant_take_its_records_is_the_topics_setting_or_its_own() -> None:
    component, _ = load(LENIENT)
    assert [each.on_table_error for each in component.topic_table().tables[1:]] == ["dead_letter", "fail"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("on_table_error: fail", "write: upsert\n    key: [id]"), "keyed tables, as b, can't have their commits"),
        (("on_table_error: fail", "on_table_error: dead_letter\n    dead_letters: skip"), "table b has none"),
        (("on_table_error: fail", "on_table_error: ignore"), r"number 2 \(b\): on_table_error: .*'dead_letter'"),
        (("on_table_error: dead_letter", "on_table_error: ignore"), "dead_letter"),
        (("on_table_error: fail", "write: upsert\n    key: [id]\n    on_table_error: fail"), None),
    ],
)
def test_where_dead_letters_cant_stand_for_a_table(change: tuple[str, str], said: str | None) -> None:
    if said is None:
        load(LENIENT.replace(*change))
        return
    with pytest.raises(Exception, match=r"building definitions|defs\.yaml") as error:
        load(LENIENT.replace(*change))
    text, cause = "", error.value
    while cause is not None:
        text, cause = f"{text}\n{cause}", cause.__cause__ or cause.__context__  # type: ignore[assignment]
    assert re.search(said, text), text


def test_without_routes_there_is_no_other_table() -> None:
    assert [*route_problems(TopicTable("e", "n", "t", on_table_error="dead_letter"))] == [
        "on_table_error: dead_letter has no effect without routes:. Leave it out."
    ]


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
    told = list(route_problems(TopicTable("e", "n", "t", format="avro", routes=tuple(routes))))
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


def test_what_a_table_has_been_given_counts_by_the_same_conditions_and_without_a_gap() -> None:
    plan = Plan((OffsetRange(0, 5, 9),), at(9, 3), 0)
    before = Given("now", {0: 2, 1: 1})
    assert given_after(plan, at(5, 3), before, "now").since == {0: 5, 1: 1}
    assert given_after(plan, at(5, 3), before, "other").since == {0: 5}
    # The topic has gone on in partition 1 without it: by which routes, nobody knows.
    assert given_after(plan, at(5, 2), before, "now").since == {0: 5}
    # It was further than this plan goes: by the same conditions, or by others.
    assert given_after(plan, at(20, 3), before, "now").since == {0: 5, 1: 1}
    assert given_after(plan, at(20, 3), before, "other").since == {}
    doubtful = share_of(plan, at(7, 3), {0: 6})
    assert (doubtful.kind, doubtful.keep_missing, doubtful.ranges) == ("replace", True, plan.ranges)
    assert (doubtful.deletes, doubtful.after.offsets) == ((OffsetRange(0, 5, 7),), {0: 9, 1: 3})
    assert share_of(plan, at(20, 3), {}).deletes == (OffsetRange(0, 5, 9),)


def test_a_summary_that_tells_nothing_of_a_share_makes_nothing_certain() -> None:
    told = Given("now", {1: 5})
    for text, found in ((told.marks()[GIVEN], told), ("", Given()), ("[]", Given()), ('{"since": 3}', Given())):
        assert parsed(text) == found
