"""What becomes of a table when its records change: example by example, and for random pairs of schemas."""

from collections import defaultdict
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
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

from kafka_lake.errors import ConfigurationError
from kafka_lake.schema.evolution.evolve import evolve
from kafka_lake.schema.evolution.model import Conflict, Incoming, Policy
from kafka_lake.schema.rules import Change, type_name

INT, LONG, FLOAT, DOUBLE, TEXT, FLAG = (
    IntegerType(), LongType(), FloatType(), DoubleType(), StringType(), BooleanType()
)  # fmt: skip
DATE, TIMESTAMP, TIMESTAMPTZ, UNKNOWN = (
    DateType(), TimestampType(), TimestamptzType(), UnknownType()
)  # fmt: skip
_ids = count(1)


class Required:
    def __init__(self, kind):
        self.kind = kind


def rec(fields=(), /, **named):
    """A struct: names → types; `Required(type)` for those that must be there."""
    made = []
    for name, kind in {**dict(fields), **named}.items():
        required = isinstance(kind, Required)
        made.append(NestedField(next(_ids), name, kind.kind if required else kind, required=required))
    return StructType(*made)


def many(kind, required=False):
    # PyIceberg takes a struct without fields for a missing argument, if it isn't there twice.
    return ListType(next(_ids), kind, element_required=required, element_type=kind)


def by_key(kind, key=TEXT):
    return MapType(next(_ids), key, next(_ids), kind, value_required=False)


def shown(columns):
    """Names and types without ids; required ones have an exclamation mark."""
    return {f.name + ("!" if f.required else ""): type_name(f.field_type) for f in columns.fields}


def records(*columns):
    return [Incoming(f"schema id {i}", column) for i, column in enumerate(columns, 1)]


def run(current, *columns, sources=(), reserved=("_kafka",), adopted=False, **policy):
    return evolve(current, dict(sources), records(*columns), Policy(**policy), reserved, adopted)


def settled(before, *columns, **options):
    """Evolve, and make sure that nothing is left to do afterwards; return the first answer."""
    done = run(before, *columns, **options)
    again = run(done.columns, *columns, **{**options, "sources": done.sources})
    assert (again.changes, again.refused) == ((), ())
    assert (again.columns, again.sources, again.also) == (done.columns, done.sources, done.also)
    return done


def kinds(changes):
    return [(c.column, c.kind) for c in changes]


# A table that is yet to be made


def test_a_new_table_gets_the_columns_of_its_records():
    done = settled(None, rec(id=Required(INT), where=rec(city=Required(TEXT)), tags=many(TEXT, required=True)))
    assert shown(done.columns) == {"id!": "int", "where": "struct<city: string>", "tags": "list<string>"}
    assert not done.columns.fields[1].field_type.fields[0].required
    assert not done.columns.fields[2].field_type.element_required
    assert (done.changes, done.sources, done.conflicts) == ((), {}, ())


def test_a_new_table_of_several_schemas_takes_what_all_can_give():
    done = settled(None, rec(id=Required(INT), a=Required(TEXT)), rec(id=Required(LONG), b=Required(FLAG)))
    assert shown(done.columns) == {"id!": "long", "a": "string", "b": "boolean"}


def test_the_first_type_counts_in_a_new_table():
    done = settled(None, rec(a=INT), rec(a=TEXT), rec(a=LONG))
    assert shown(done.columns) == {"a": "long"}
    assert done.conflicts == (Conflict("a", "long", "string", "schema id 2"),)


@pytest.mark.parametrize("evolution", ["freeze", "ignore_new"])
def test_a_new_table_is_made_whatever_the_policy(evolution):
    done = run(None, rec(a=INT), rec(b=TEXT), evolution=evolution)
    assert shown(done.columns) == {"a": "int", "b": "string"}
    assert (done.ignored, done.refused) == ((), ())


def test_docs_come_along():
    documented = StructType(NestedField(1, "a", INT, required=False, doc="How many"))
    assert run(None, documented).columns.fields[0].doc == "How many"
    assert run(rec(b=INT), documented).columns.fields[1].doc == "How many"


# Safe changes


def test_new_fields_at_every_depth():
    have = rec(id=INT, where=rec(city=TEXT), items=many(rec(name=TEXT)), prices=by_key(rec(net=LONG)))
    done = settled(
        have,
        rec(
            where=rec(zip=INT, geo=rec(lat=DOUBLE)),
            items=many(rec(name=TEXT, count=INT)),
            prices=by_key(rec(gross=LONG)),
            late=Required(rec(x=Required(INT))),
        ),
    )
    assert done.changes == (
        Change("where.zip", "added", "", "int"),
        Change("where.geo", "added", "", "struct<lat: double>"),
        Change("items.element.count", "added", "", "int"),
        Change("prices.value.gross", "added", "", "long"),
        Change("late", "added", "", "struct<x: int>"),
    )
    assert shown(done.columns) == {
        "id": "int",
        "where": "struct<city: string, zip: int, geo: struct<lat: double>>",
        "items": "list<struct<name: string, count: int>>",
        "prices": "map<string, struct<net: long, gross: long>>",
        "late": "struct<x: int>",
    }


def test_ids_docs_and_defaults_of_columns_stay():
    field = NestedField(7, "a", INT, required=True, doc="How many", initial_default=1, write_default=2)
    (found,) = run(StructType(field), rec(a=LONG)).columns.fields
    assert (found.field_id, found.doc, found.initial_default, found.write_default) == (7, "How many", 1, 2)
    assert (found.field_type, found.required) == (LONG, False)


def test_ids_of_new_columns_are_no_others():
    table = StructType(NestedField(2, "a", StructType(NestedField(3, "b", INT, required=False)), required=False))
    columns = run(table, rec(c=many(rec(d=by_key(INT))))).columns
    assert len(Schema(*columns.fields)._lazy_id_to_name) == 7


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(INT, LONG), (FLOAT, DOUBLE), (DecimalType(9, 2), DecimalType(12, 2))],
    ids=str,
)
def test_types_widen_and_never_back(narrow, wide):
    have = rec(a=narrow, b=many(narrow), c=by_key(narrow), d=rec(e=narrow))
    done = settled(have, rec(a=wide, b=many(wide), c=by_key(wide), d=rec(e=wide)))
    assert kinds(done.changes) == [
        ("a", "widened"),
        ("b.element", "widened"),
        ("c.value", "widened"),
        ("d.e", "widened"),
    ]
    assert done.changes[0] == Change("a", "widened", str(narrow), str(wide))
    assert run(done.columns, have).changes == ()
    assert run(done.columns, have).conflicts == ()


def test_widening_across_schemas_is_the_same_in_any_order():
    forth = run(rec(a=FLOAT, b=INT), rec(a=DOUBLE, b=INT), rec(a=FLOAT, b=LONG))
    back = run(rec(a=FLOAT, b=INT), rec(a=FLOAT, b=LONG), rec(a=DOUBLE, b=INT))
    assert shown(forth.columns) == shown(back.columns) == {"a": "double", "b": "long"}
    assert forth.changes == back.changes
    assert forth.conflicts == back.conflicts == ()


def test_what_records_lack_becomes_optional():
    have = rec(a=Required(INT), b=Required(INT), c=Required(INT), d=many(INT, required=True))
    done = settled(have, rec(a=Required(INT), b=INT, d=many(INT)))
    assert done.changes == (
        Change("b", "made optional", "required", "optional"),
        Change("c", "made optional", "required", "optional"),
        Change("d.element", "made optional", "required", "optional"),
    )
    assert shown(done.columns) == {"a!": "int", "b": "int", "c": "int", "d": "list<int>"}
    assert run(have).changes == (), "no records lack nothing"


def test_optional_if_one_schema_of_several_lacks_it():
    assert kinds(run(rec(a=Required(INT)), rec(a=Required(INT)), rec(b=INT)).changes) == [
        ("a", "made optional"),
        ("b", "added"),
    ]


def test_fields_that_were_always_null_are_not_there():
    nothing = rec(a=UNKNOWN, b=many(UNKNOWN), c=rec(d=UNKNOWN), e=by_key(rec()), f=INT)
    assert shown(settled(None, nothing).columns) == {"f": "int"}
    done = settled(rec(a=Required(INT), b=many(TEXT), f=INT), nothing)
    assert kinds(done.changes) == [("a", "made optional")]
    assert done.conflicts == ()


def test_nothing_known_within_a_list_waits_for_a_record_that_knows():
    assert shown(run(None, rec(a=many(rec(b=UNKNOWN, c=INT)))).columns) == {"a": "list<struct<c: int>>"}
    assert shown(run(None, rec(a=many(UNKNOWN)), rec(a=many(INT))).columns) == {"a": "list<int>"}


# What doesn't fit

INCOMPATIBLE = [
    (INT, TEXT),
    (TEXT, INT),
    (INT, DOUBLE),
    (DOUBLE, LONG),
    (DecimalType(9, 2), DecimalType(9, 3)),
    (DecimalType(9, 2), INT),
    (DATE, TIMESTAMP),
    (TIMESTAMP, TIMESTAMPTZ),
    (TIMESTAMPTZ, TIMESTAMP),
    (rec(x=INT), TEXT),
    (TEXT, rec(x=INT)),
    (many(INT), INT),
    (INT, many(INT)),
    (many(INT), many(TEXT)),
    (by_key(INT), by_key(TEXT)),
    (by_key(INT, key=INT), by_key(INT, key=LONG)),
    (by_key(INT), rec(x=INT)),
    (BinaryType(), TEXT),
    (FixedType(16), UUIDType()),
]


@pytest.mark.parametrize(("have", "got"), INCOMPATIBLE, ids=lambda kind: type_name(kind))
class TestIncompatible:
    def test_dead_letters(self, have, got):
        done = settled(rec(a=have), rec(a=got))
        assert shown(done.columns) == {"a": type_name(have)}
        assert done.conflicts == (Conflict("a", type_name(have), type_name(got), "schema id 1"),)

    def test_fail(self, have, got):
        done = run(rec(a=have), rec(a=got, b=INT), on_incompatible="fail")
        assert done.refused == (Change("a", "type changed", type_name(have), type_name(got)),)
        assert done.conflicts == ()

    def test_new_column(self, have, got):
        done = settled(rec(a=have), rec(a=got), on_incompatible="new_column")
        assert done.changes == (Change("a__v2", "added", "", type_name(got)),)
        assert done.sources == {"a__v2": "a"}
        assert done.conflicts == (Conflict("a", type_name(have), type_name(got), "schema id 1", "a__v2"),)


def test_incompatible_at_depth():
    have = rec(where=rec(zip=INT, city=TEXT), items=many(rec(price=LONG)))
    got = rec(where=rec(zip=TEXT, city=TEXT), items=many(rec(price=TEXT)))
    done = settled(have, got, on_incompatible="new_column")
    assert kinds(done.changes) == [("where.zip__v2", "added"), ("items.element.price__v2", "added")]
    assert done.sources == {"where.zip__v2": "zip", "items.element.price__v2": "price"}
    assert [c.column for c in settled(have, got).conflicts] == ["where.zip", "items.element.price"]


def test_a_third_type_gets_a_third_column():
    first = settled(rec(a=INT), rec(a=TEXT), on_incompatible="new_column")
    second = settled(first.columns, rec(a=FLAG), sources=first.sources, on_incompatible="new_column")
    assert shown(second.columns) == {"a": "int", "a__v2": "string", "a__v3": "boolean"}
    assert second.sources == {"a__v2": "a", "a__v3": "a"}
    all_at_once = settled(rec(a=INT), rec(a=TEXT), rec(a=FLAG), rec(a=TEXT), on_incompatible="new_column")
    assert (shown(all_at_once.columns), all_at_once.sources) == (shown(second.columns), second.sources)
    assert [c.new_column for c in all_at_once.conflicts] == ["a__v2", "a__v2", "a__v3"]


def test_a_second_column_is_used_again_and_widens():
    first = settled(rec(a=TEXT), rec(a=INT), on_incompatible="new_column")
    done = settled(first.columns, rec(a=LONG), sources=first.sources, on_incompatible="new_column")
    assert done.changes == (Change("a__v2", "widened", "int", "long"),)
    assert done.conflicts == (Conflict("a", "string", "long", "schema id 1", "a__v2"),)


@pytest.mark.parametrize("policy", ["dead_letter", "fail"])
def test_a_second_column_that_is_there_takes_its_values_whatever_the_policy(policy):
    have = rec(a=INT, a__v2=TEXT)
    done = settled(have, rec(a=TEXT), sources={"a__v2": "a"}, on_incompatible=policy)
    assert [c.new_column for c in done.conflicts] == ["a__v2"]
    assert done.refused == ()


def test_a_second_column_is_second_wherever_it_stands():
    done = settled(rec(a__v2=TEXT, a=INT), rec(a=LONG), sources={"a__v2": "a"})
    assert (kinds(done.changes), done.conflicts) == ([("a", "widened")], ())


def test_a_column_of_that_name_that_is_another_fields_is_left_alone():
    done = settled(rec(a=INT, a__v2=TEXT), rec(a=TEXT, a__v2=TEXT), on_incompatible="new_column")
    assert done.sources == {"a__v3": "a"}


def test_a_field_with_the_name_of_a_second_column_gets_its_own():
    done = settled(rec(a=INT, a__v2=TEXT), rec(a=INT, a__v2=FLAG), sources={"a__v2": "a"})
    assert done.sources == {"a__v2": "a", "a__v2__2": "a__v2"}


def test_in_a_new_table_the_second_column_comes_after_the_first():
    done = settled(None, rec(a=INT, b=INT), rec(a=TEXT), on_incompatible="new_column")
    assert list(shown(done.columns)) == ["a", "b", "a__v2"]


def test_values_that_go_elsewhere_leave_their_column_null():
    have, got = rec(a=Required(INT)), rec(a=Required(TEXT))
    assert run(have, got).changes == ()
    assert kinds(run(have, got, on_incompatible="new_column").changes) == [
        ("a", "made optional"),
        ("a__v2", "added"),
    ]
    assert kinds(run(have, rec(a=TEXT)).changes) == [("a", "made optional")], "its nulls fit"


# Policies


def test_freeze_refuses_every_change_and_makes_none():
    have = rec(a=INT, b=Required(INT), c=rec(d=INT))
    done = run(have, rec(a=LONG, c=rec(d=INT, e=TEXT), f=many(INT)), evolution="freeze")
    assert kinds(done.refused) == [("a", "widened"), ("b", "made optional"), ("c.e", "added"), ("f", "added")]
    assert (done.changes, done.columns, done.sources) == ((), have, {})
    assert run(have, have, evolution="freeze").refused == ()


def test_freeze_leaves_what_does_not_fit_to_the_other_policy():
    have, got = rec(a=INT), rec(a=TEXT)
    assert run(have, got, evolution="freeze").refused == ()
    assert [c.new_column for c in run(have, got, evolution="freeze").conflicts] == [None]
    done = run(have, got, evolution="freeze", on_incompatible="new_column")
    assert kinds(done.refused) == [("a__v2", "added")]


def test_ignore_new_leaves_columns_out_and_does_the_rest():
    have = rec(a=INT, c=rec(d=Required(INT)))
    done = settled(have, rec(a=LONG, c=rec(e=TEXT), f=rec(**{"g.h": INT})), evolution="ignore_new")
    assert kinds(done.ignored) == [("c.e", "added"), ("f", "added")]
    assert kinds(done.changes) == [("a", "widened"), ("c.d", "made optional")]
    assert shown(done.columns) == {"a": "long", "c": "struct<d: int>"}
    assert done.sources == {}, "not of what is left out"


def test_ignore_new_adds_no_second_column_either():
    done = settled(rec(a=INT), rec(a=TEXT), evolution="ignore_new", on_incompatible="new_column")
    assert kinds(done.ignored) == [("a__v2", "added")]
    assert [c.new_column for c in done.conflicts] == [None]
    assert shown(done.columns) == {"a": "int"}


# Names


def test_fields_that_differ_in_case_only_each_have_a_column():
    done = settled(None, rec(id=INT, ID=TEXT, Id=FLAG))
    assert shown(done.columns) == {"id": "int", "ID__2": "string", "Id__3": "boolean"}
    assert done.sources == {"ID__2": "ID", "Id__3": "Id"}


@pytest.mark.parametrize("order", [("id", "ID"), ("ID", "id")])
def test_a_field_in_another_case_has_a_column_of_its_own_whatever_comes_first(order: tuple[str, str]):
    columns, sources = rec(id=INT), {}
    for names in ((order[0],), (order[1],), order, ("id",)):
        done = settled(columns, rec(dict.fromkeys(names, INT)), sources=sources)
        columns, sources = done.columns, done.sources
    assert shown(columns) == {"id": "int", "ID__2": "int"}
    assert sources == {"ID__2": "ID"}


def test_a_column_of_others_is_fed_by_the_field_that_came_first_in_whatever_case():
    done = settled(rec(id=INT, where=rec(city=TEXT)), rec(ID=LONG, Where=rec(CITY=TEXT)), adopted=True)
    assert done.sources == {"id": "ID", "where": "Where", "where.city": "CITY"}
    assert kinds(done.changes) == [("id", "widened")]
    both = settled(rec(id=INT), rec(ID=TEXT), rec(id=INT), adopted=True)
    assert shown(both.columns) == {"id": "int", "ID__2": "string"}
    assert both.conflicts == ()
    own = settled(rec(id=INT), rec(id=INT), adopted=True)
    assert own.sources == {"id": "id"}
    later = settled(own.columns, rec(ID=INT), sources=own.sources, adopted=True)
    assert later.sources == {"id": "id", "ID__2": "ID"}


def test_a_recorded_source_is_never_exchanged():
    done = settled(rec(id=INT), rec(id=INT), sources={"id": "ID"})
    assert shown(done.columns) == {"id": "int", "id__2": "int"}
    assert done.sources == {"id": "ID", "id__2": "id"}


def test_a_field_that_has_a_column_feeds_no_other_in_another_case():
    done = settled(rec(id=INT, ID__2=TEXT), rec(ID=TEXT), sources={"ID__2": "ID"})
    assert (done.sources, done.conflicts) == ({"ID__2": "ID"}, ())


def test_sources_stay_while_their_column_does():
    assert run(rec(a=INT), sources={"a": "A!", "b": "B!"}).sources == {"a": "A!"}
    assert run(rec(a=INT), rec(c=INT), sources={"a": "A!"}).sources == {"a": "A!"}


def test_names_that_no_column_can_have():
    strange = {"shop.id": INT, "shop_id": INT, "": INT, "a`b": INT, "_kafka": TEXT, "_FILE": TEXT, "x" * 300: INT}
    done = settled(None, rec({**strange, "in": rec({"_pos": INT, "a.b": many(rec({"c.d": INT}))})}))
    names = [f.name for f in done.columns.fields]
    assert names[:6] == ["shop_id", "shop_id__2", "_", "a_b", "_kafka__2", "_FILE__2"]
    assert len(names[6]) == 255
    assert done.sources == {
        "shop_id": "shop.id",
        "shop_id__2": "shop_id",
        "_": "",
        "a_b": "a`b",
        "_kafka__2": "_kafka",
        "_FILE__2": "_FILE",
        names[6]: "x" * 300,
        "in.a_b": "a.b",
        "in.a_b.element.c_d": "c.d",
    }


# Renames


def test_a_rename_keeps_the_column_where_it_is():
    have = rec(a=INT, old=INT, b=INT)
    done = settled(have, rec(new=LONG, c=INT), renames={"old": "new"})
    assert done.changes == (
        Change("old", "renamed", "old", "new"),
        Change("new", "widened", "int", "long"),
        Change("c", "added", "", "int"),
    )
    assert list(shown(done.columns)) == ["a", "new", "b", "c"]
    assert done.columns.fields[1].field_id == have.fields[1].field_id
    assert done.also == {"new": ("old",)}


@pytest.mark.parametrize("name", ["old", "new"])
def test_fields_of_either_name_feed_a_renamed_column(name):
    for have in (rec(old=INT), rec(new=INT), None):
        done = settled(have, rec({name: LONG}), renames={"old": "new"})
        assert shown(done.columns) == {"new": "long"}
        assert (done.also, done.sources) == ({"new": ("old",)}, {})
    done = settled(None, rec(old=INT), rec(new=LONG), renames={"old": "new"})
    assert shown(done.columns) == {"new": "long"}


def test_a_renamed_column_keeps_its_source():
    done = settled(
        rec(o_l_d=INT), rec({"o.l.d": INT, "new": INT}), sources={"o_l_d": "o.l.d"}, renames={"o_l_d": "new"}
    )
    assert shown(done.columns) == {"new": "int"}
    assert done.sources == {"new": "o.l.d"}
    assert done.also == {"new": ("o_l_d", "new")}


@pytest.mark.parametrize("path", ["where.zip", "place.zip"])
def test_a_nested_rename_speaks_of_either_name_of_the_parent(path):
    have = rec(where=rec(zip=INT, city=TEXT), items=many(rec(x=INT)))
    done = settled(
        have,
        rec(place=rec(code=INT), items=many(rec(y=LONG))),
        renames={"where": "place", path: "code", "items.element.x": "y"},
    )
    assert done.changes == (
        Change("where", "renamed", "where", "place"),
        Change("where.zip", "renamed", "zip", "code"),
        Change("items.element.x", "renamed", "x", "y"),
        Change("items.element.y", "widened", "int", "long"),
    )
    assert done.also == {"place": ("where",), "place.code": ("zip",), "items.element.y": ("x",)}


def test_a_rename_means_the_name_in_its_own_case():
    done = settled(rec(old=INT), rec(Old=TEXT), renames={"Old": "new"})
    assert shown(done.columns) == {"old": "int", "new": "string"}


def test_a_rename_of_a_rename():
    renames = {"a": "b", "b": "c"}
    for name in ("a", "b", "c"):
        done = settled(rec({name: INT}), rec(a=INT), renames=renames)
        assert shown(done.columns) == {"c": "int"}
        assert done.also == {"c": ("a", "b")}


def test_a_rename_is_done_though_all_is_frozen():
    done = run(rec(old=INT), rec(new=INT), evolution="freeze", renames={"old": "new"})
    assert (kinds(done.changes), done.refused) == ([("old", "renamed")], ())


def test_a_rename_in_case_only():
    done = settled(rec(id=INT), rec(ID=INT), renames={"id": "ID"})
    assert done.changes == (Change("id", "renamed", "id", "ID"),)


def test_new_column_is_named_alike_before_and_after_a_rename():
    records, renames = rec(OLD=TEXT), {"old": "new"}
    done = settled(rec(old=INT), records, renames=renames)
    assert shown(done.columns) == {"new": "int", "OLD": "string"}
    assert shown(run(rec(new=INT), records, renames=renames).columns) == shown(done.columns)


@pytest.mark.parametrize(
    ("renames", "message"),
    [
        ({"nowhere": "new"}, r"renames: there is no column nowhere.* new; the columns at this level are a, where"),
        ({"where.b": "c"}, r"no column where\.b.*the columns at this level are x"),
        ({"no.where": "c"}, r"no column no\.where.*the columns at this level are a, where"),
        ({"a": "Where"}, r"renames: a can't become Where: that name is taken.*a, where"),
        ({"a": "_kafka"}, "that name is taken"),
        ({"a": "_pos"}, "isn't a valid column name"),
        ({"a": "b.c"}, "isn't a valid column name"),
        ({"a": ""}, "isn't a valid column name"),
        ({"a": "b", "b": "a"}, "a → b → a is a cycle"),
        ({"a": "b", "where": "b"}, "that name is taken"),
    ],
)
def test_renames_that_cannot_be(renames, message):
    with pytest.raises(ConfigurationError, match=message):
        run(rec(a=INT, where=rec(x=INT)), rec(a=INT), renames=renames)


def test_a_renamed_field_that_only_records_have_makes_its_column():
    done = settled(rec(a=INT), rec(old=INT), renames={"old": "new"})
    assert done.changes == (Change("new", "added", "", "int"),)
    with pytest.raises(ConfigurationError, match="that name is taken"):
        run(rec(NEW=INT), rec(old=INT), renames={"old": "new"})


def test_a_new_table_accepts_renames_of_columns_it_lacks():
    assert run(None, rec(a=INT), renames={"old": "new"}).also == {}


# Any schema

NAMES = st.sampled_from(["a", "A", "b", "a.b", "a_b", "", "_pos", "_kafka", "a__v2", "a__2", "é", "x" * 300])
PRIMITIVES = st.sampled_from(
    [
        *(INT, LONG, FLOAT, DOUBLE, DecimalType(9, 2), DecimalType(12, 2), DecimalType(9, 3), TEXT, FLAG, DATE),
        *(TIMESTAMP, TIMESTAMPTZ, UUIDType(), FixedType(4), BinaryType(), TimeType(), UNKNOWN),
    ]
)


def _nested(kind):
    fields = st.dictionaries(NAMES, st.tuples(kind, st.booleans()), max_size=3)
    return st.one_of(
        fields.map(lambda found: rec({n: Required(k) if r else k for n, (k, r) in found.items()})),
        st.builds(many, kind, st.booleans()),
        st.builds(by_key, kind, st.sampled_from([TEXT, INT, LONG])),
    )


KINDS = st.recursive(PRIMITIVES, _nested, max_leaves=5)
SHAPES = st.dictionaries(NAMES, st.tuples(KINDS, st.booleans()), max_size=5).map(
    lambda found: rec({n: Required(k) if r else k for n, (k, r) in found.items()})
)
POLICIES = st.builds(
    Policy,
    st.sampled_from(["evolve", "freeze", "ignore_new"]),
    st.sampled_from(["dead_letter", "fail", "new_column"]),
)


def levels(kind, path=""):
    """Every struct within a type, with its path."""
    if isinstance(kind, StructType):
        yield path, kind
        for field in kind.fields:
            yield from levels(field.field_type, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ListType):
        yield from levels(kind.element_type, f"{path}.element")
    elif isinstance(kind, MapType):
        yield from levels(kind.value_type, f"{path}.value")


def nothing(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return all(nothing(f.field_type) for f in kind.fields)
    if isinstance(kind, ListType):
        return nothing(kind.element_type)
    if isinstance(kind, MapType):
        return nothing(kind.value_type)
    return kind == UNKNOWN


def holds(have, got):
    """Whether every value of a type is one of another, structs left to their fields."""
    if isinstance(got, StructType) or isinstance(have, StructType):
        return type(have) is type(got)
    if isinstance(got, ListType) and isinstance(have, ListType):
        return holds(have.element_type, got.element_type)
    if isinstance(got, MapType) and isinstance(have, MapType):
        return holds(have.key_type, got.key_type) and holds(have.value_type, got.value_type)
    if isinstance(got, DecimalType) and isinstance(have, DecimalType):
        return have.scale == got.scale and have.precision >= got.precision
    return have == got or (have, got) in [(LONG, INT), (DOUBLE, FLOAT)]


def lost(done, kind, got, path, label, excused):
    """Paths of incoming fields that reach no column and aren't spoken of."""
    if isinstance(got, ListType):
        yield from lost(done, kind.element_type, got.element_type, f"{path}.element", label, excused)
    elif isinstance(got, MapType):
        yield from lost(done, kind.value_type, got.value_type, f"{path}.value", label, excused)
    if not isinstance(got, StructType):
        return
    for field in got.fields:
        if nothing(field.field_type):
            continue
        fed = [
            (c, where)
            for c in kind.fields
            for where in [f"{path}.{c.name}" if path else c.name]
            if field.name == done.sources.get(where, c.name)
        ]
        taker = next(((c, where) for c, where in fed if holds(c.field_type, field.field_type)), None)
        if taker:
            yield from lost(done, taker[0].field_type, field.field_type, taker[1], label, excused)
        elif not excused(path, [where for _, where in fed], label):
            yield path, field.name


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.none(), SHAPES), st.lists(SHAPES, max_size=3), POLICIES)
def test_whatever_comes(before, shapes, policy):
    # The table is what some other records made of it.
    made = None if before is None else run(None, before)
    current, sources = (made.columns, made.sources) if made else (None, {})
    incoming = records(*shapes)
    done = evolve(current, sources, incoming, policy, ("_kafka",))

    # Names are unique in any case, and none is reserved.
    for path, level in levels(done.columns):
        names = [f.name.lower() for f in level.fields]
        assert len(set(names)) == len(names), path
    assert not {"_kafka", "_pos", ""} & {f.name for f in done.columns.fields}

    # Only safe changes are made, and none but what the policy lets.
    assert all(c.safe for c in done.changes)
    if policy.evolution == "freeze" or current is None:
        assert done.changes == ()
    if policy.evolution != "ignore_new":
        assert done.ignored == ()

    # Columns of the table stay, in their order.
    if current is not None:
        kept = done.columns.fields[: len(current.fields)]
        assert [(f.field_id, f.name) for f in kept] == [(f.field_id, f.name) for f in current.fields]

    # Nothing is lost in silence.
    spoken = defaultdict(set)
    for conflict in done.conflicts:
        if conflict.new_column is None:
            spoken[conflict.label].add(conflict.column)
    refused = {c.column for c in (*done.refused, *done.ignored)}
    parents = {c.rpartition(".")[0] for c in refused}

    def excused(path, columns, label):
        return path in parents or any(c in spoken[label] or c in refused for c in columns) or bool(
            refused and any(c.startswith(r) for c in columns for r in refused)
        )  # fmt: skip

    for schema in incoming:
        assert list(lost(done, done.columns, schema.columns, "", schema.label, excused)) == []

    # Once is enough.
    if not done.refused:
        again = evolve(done.columns, done.sources, incoming, policy, ("_kafka",))
        assert (again.changes, again.refused, again.columns) == ((), (), done.columns)
        assert (again.sources, again.also) == (done.sources, done.also)
        assert set(again.conflicts) == set(done.conflicts)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(SHAPES, st.lists(SHAPES, min_size=2, max_size=3))
def test_the_order_of_schemas_changes_no_type_of_the_table(before, shapes):
    made = run(None, before)

    paths = set(Schema(*made.columns.fields).column_names)

    def of_the_table(order):
        done = run(made.columns, *order, sources=made.sources)
        changed = {c for c in done.changes if c.kind != "added"}
        return changed, {(c.column, c.got) for c in done.conflicts if c.column in paths}

    assert of_the_table(shapes) == of_the_table(shapes[::-1])
