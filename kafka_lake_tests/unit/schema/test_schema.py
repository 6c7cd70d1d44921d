"""Which schema changes are seen, and which of them are safe."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from kafka_lake.schema.evolution.evolve import evolve
from kafka_lake.schema.evolution.model import Incoming, Policy
from kafka_lake.schema.rules import SAFE, Change, changes, needed_changes, promotes, type_name
from kafka_lake_tests.unit.schema.schema_rules import RULES, rules_list


def field(number, name, kind, required=False):
    return NestedField(number, name, kind, required=required)


def listed(found):
    return [(c.column, c.kind, c.safe) for c in found]


BASE = Schema(
    field(1, "id", IntegerType(), required=True),
    field(2, "where", StructType(field(3, "city", StringType()), field(4, "zip", IntegerType()))),
    field(5, "tags", ListType(6, FloatType(), element_required=False)),
    field(7, "prices", MapType(8, StringType(), 9, DecimalType(10, 2), value_required=False)),
)


def test_no_change():
    assert changes(BASE, BASE) == []


def test_order_and_docs_are_no_change():
    other = [NestedField(f.field_id, f.name, f.field_type, f.required, f"What {f.name} is") for f in BASE.fields]
    assert changes(BASE, Schema(*reversed(other))) == []


def test_a_column_keeps_its_field_id_when_it_is_renamed():
    after = Schema(
        field(1, "key", LongType(), required=True),
        field(2, "place", StructType(field(3, "town", StringType()), field(4, "zip", IntegerType()))),
        *BASE.fields[2:],
    )
    assert changes(BASE, after) == [
        Change("id", "renamed", "id", "key"),
        Change("key", "widened", "int", "long"),
        Change("where", "renamed", "where", "place"),
        Change("place.city", "renamed", "city", "town"),
    ]
    assert all(c.safe for c in changes(BASE, after))


@pytest.mark.parametrize(
    ("before", "after", "kind", "safe"),
    [
        (IntegerType(), LongType(), "widened", True),
        (FloatType(), DoubleType(), "widened", True),
        (DecimalType(10, 2), DecimalType(12, 2), "widened", True),
        (LongType(), IntegerType(), "type changed", False),
        (DoubleType(), FloatType(), "type changed", False),
        (DecimalType(12, 2), DecimalType(10, 2), "type changed", False),
        (DecimalType(10, 2), DecimalType(12, 3), "type changed", False),
        (StringType(), IntegerType(), "type changed", False),
        (IntegerType(), StringType(), "type changed", False),
        (IntegerType(), DoubleType(), "type changed", False),
        (StringType(), ListType(9, StringType()), "type changed", False),
        (StructType(field(8, "a", StringType())), StringType(), "type changed", False),
    ],
)
def test_types(before, after, kind, safe):
    found = changes(Schema(field(1, "c", before)), Schema(field(1, "c", after)))
    assert found == [Change("c", kind, type_name(before), type_name(after))]
    assert found[0].safe is safe


def test_columns_come_and_go():
    before = Schema(field(1, "a", StringType()), field(2, "b", StringType()))
    after = Schema(field(1, "a", StringType()), field(3, "b", StringType()), field(4, "c", StringType(), required=True))
    assert listed(changes(before, after)) == [
        ("b", "added", True),
        ("c", "required added", False),
        ("b", "removed", False),
    ]


@pytest.mark.parametrize(("before", "kind", "safe"), [(True, "made optional", True), (False, "made required", False)])
def test_required(before, kind, safe):
    found = changes(Schema(field(1, "a", StringType(), before)), Schema(field(1, "a", StringType(), not before)))
    assert listed(found) == [("a", kind, safe)]


def test_nested_changes_have_dotted_paths():
    after = Schema(
        field(1, "id", LongType()),
        field(
            2,
            "where",
            StructType(field(3, "city", StringType()), field(4, "zip", LongType()), field(10, "x", DateType())),
        ),
        field(5, "tags", ListType(6, DoubleType(), element_required=True)),
        field(7, "prices", MapType(8, StringType(), 9, DecimalType(9, 2), value_required=True)),
    )
    assert listed(changes(BASE, after)) == [
        ("id", "made optional", True),
        ("id", "widened", True),
        ("where.zip", "widened", True),
        ("where.x", "added", True),
        ("tags.element", "made required", False),
        ("tags.element", "widened", True),
        ("prices.value", "made required", False),
        ("prices.value", "type changed", False),
    ]


def test_needed_matches_names_in_any_case_and_any_ids():
    wanted = Schema(
        field(31, "ID", IntegerType(), required=True),
        field(32, "Where", StructType(field(33, "CITY", StringType()), field(34, "zip", IntegerType()))),
    )
    assert needed_changes(BASE, wanted) == []
    assert needed_changes(Schema(field(1, "ID", LongType())), Schema(field(9, "id", LongType()))) == []


def test_needed_leaves_out_what_the_rows_lack_or_the_table_holds():
    current = Schema(field(1, "a", LongType()), field(2, "b", StringType()), field(3, "d", DecimalType(12, 2)))
    wanted = Schema(field(1, "a", IntegerType(), required=True), field(2, "d", DecimalType(9, 2)))
    assert needed_changes(current, wanted) == []


def test_needed_nested():
    wanted = Schema(
        field(1, "id", LongType(), required=True),
        field(2, "where", StructType(field(3, "city", IntegerType()), field(4, "street", StringType()))),
        field(5, "tags", ListType(6, StructType(field(7, "a", StringType())), element_required=False)),
        field(8, "prices", MapType(9, StringType(), 10, DecimalType(12, 2), value_required=False)),
        field(11, "new", StructType(field(12, "inner", StringType()))),
        field(13, "must", StringType(), required=True),
    )
    assert listed(needed_changes(BASE, wanted)) == [
        ("id", "widened", True),
        ("where.city", "type changed", False),
        ("where.street", "added", True),
        ("tags.element", "type changed", False),
        ("prices.value", "widened", True),
        ("new", "added", True),
        ("must", "required added", False),
    ]


def test_needed_makes_optional_what_rows_may_lack():
    assert listed(needed_changes(BASE, Schema(field(1, "id", IntegerType())))) == [("id", "made optional", True)]


primitives = st.one_of(
    st.sampled_from(
        [
            BinaryType(),
            BooleanType(),
            DateType(),
            DoubleType(),
            FloatType(),
            IntegerType(),
            LongType(),
            StringType(),
            TimeType(),
            TimestampType(),
            TimestamptzType(),
            UUIDType(),
            UnknownType(),
        ]
    ),
    st.builds(FixedType, st.integers(1, 32)),
    st.builds(DecimalType, st.integers(3, 38), st.integers(0, 3)),
)


@given(primitives, primitives)
def test_promotions_are_those_of_iceberg(before, after):
    try:
        iceberg = promote(before, after) == after and before != after
    except ResolveError:
        iceberg = False
    if {type(before), type(after)} in ({StringType, BinaryType}, {FixedType, UUIDType}):
        # PyIceberg reads these as each other (Avro files); the specification allows no such change of a table.
        iceberg = False
    if isinstance(before, DecimalType) and isinstance(after, DecimalType) and before.scale != after.scale:
        # PyIceberg's `promote` looks at the precision alone; the specification keeps the scale.
        iceberg = False
    assert promotes(before, after) is iceberg


def test_keys_of_a_map_must_stay():
    def table(key):
        return Schema(field(1, "m", MapType(2, key, 3, StringType(), value_required=False)))

    assert listed(needed_changes(table(IntegerType()), table(LongType()))) == [("m.key", "type changed", False)]
    assert needed_changes(table(LongType()), table(IntegerType())) == []


def answer(rule, **policy):
    incoming = [Incoming("the records", rule.records)]
    return evolve(rule.table, {}, incoming, Policy(renames=rule.renames or {}, **policy))


def kinds(changes):
    return [c.kind for c in changes]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.change)
class TestRulebook:
    def test_what_happens(self, rule):
        done = answer(rule)
        if rule.verdict == "unsafe":
            assert [c.new_column for c in done.conflicts] == [None]
            assert (done.changes, done.columns) == ((), rule.table)
        else:
            assert kinds(done.changes) == ([rule.kind] if rule.kind else [])
            assert done.conflicts == ()
        assert (done.refused, done.ignored) == ((), ())

    def test_what_is_frozen(self, rule):
        done, usual = answer(rule, evolution="freeze"), answer(rule)
        refused = () if rule.kind == "renamed" else usual.changes
        assert done.refused == refused
        assert bool(done.refused) is ("`freeze` refuses" in rule.otherwise)

    def test_what_is_ignored(self, rule):
        done, usual = answer(rule, evolution="ignore_new"), answer(rule)
        left_out = rule.kind == "added"
        assert (done.ignored, done.changes) == ((usual.changes, ()) if left_out else ((), usual.changes))
        assert left_out is ("`ignore_new` leaves it out" in rule.otherwise)

    def test_what_does_not_fit(self, rule):
        unsafe = rule.verdict == "unsafe"
        assert kinds(answer(rule, on_incompatible="fail").refused) == (["type changed"] if unsafe else [])
        assert unsafe is ("`fail` refuses the run" in rule.otherwise)
        added = [c.column for c in answer(rule, on_incompatible="new_column").changes if c.column.endswith("__v2")]
        assert added == (["a__v2"] if unsafe else [])
        assert unsafe is ("`new_column` adds `a__v2`" in rule.otherwise)


def test_the_rulebook_in_the_docs_is_this_one():
    page = (Path(__file__).parents[3] / "docs" / "schema-evolution.md").read_text()
    shown = page.partition("<!-- rules -->\n")[2].partition("<!-- /rules -->")[0]
    assert shown == rules_list(), "write what rules_list() returns between the marks"


def test_every_safe_kind_has_a_rule():
    assert {rule.kind for rule in RULES if rule.kind} == {*SAFE, "type changed"}
