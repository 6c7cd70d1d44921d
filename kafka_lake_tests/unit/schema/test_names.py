"""Any field gets a column's name: plain, short enough, and nobody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import make_compatible_name

from kafka_lake.schema.names import LIMIT, RESERVED, Names, column_name, is_plain, is_versioned, versioned_name


@pytest.mark.parametrize(
    ("source", "taken", "name"),
    [
        ("id", (), "id"),
        ("id", ("ID",), "id__2"),
        ("ID", ("id", "id__2"), "ID__3"),
        ("shop.id", (), "shop_id"),
        ("a`b\tc\x00d\x7f", (), "a_b_c_d_"),
        ("\ud800", (), "_"),
        ("", (), "_"),
        ("", ("_",), "___2"),
        ("größe", (), "größe"),
        ("a b-c", (), "a_b_c"),
        ("99th", (), "_99th"),
        ("m²", (), "m_"),
        ("日本", (), "日本"),
        ("\U0001d49c", (), "_"),
        ("_File", RESERVED, "_File__2"),
    ],
)
def test_names(source, taken, name):
    assert column_name(source, taken) == name


def test_long_names_are_cut_and_stay_apart():
    one, other = column_name("x" * 300 + "a", ()), column_name("x" * 300 + "b", ())
    assert len(one) == len(other) == LIMIT
    assert one != other
    assert one == column_name("x" * 300 + "a", ())
    assert column_name("x" * LIMIT, ()) == "x" * LIMIT
    assert column_name("x" * LIMIT, ("x" * LIMIT,)) == "x" * (LIMIT - 3) + "__2"
    assert versioned_name("x" * LIMIT, ()) == "x" * (LIMIT - 4) + "__v2"


@given(st.lists(st.text(max_size=6) | st.just("y" * 400), max_size=20))
def test_whatever_they_are_called(sources):
    taken = Names()
    for source in sources:
        name = column_name(source, taken)
        assert 0 < len(name) <= LIMIT
        assert name not in taken
        assert is_plain(name)
        assert make_compatible_name(name) == name, "PyIceberg writes it as it is"
        assert column_name(name, ()) == name, "a column's own name is one"
        taken.add(name)


@pytest.mark.parametrize(("name", "answer"), [("a__v2", True), ("a__v", False), ("__v2", False), ("a__v2b", False)])
def test_versions_are_told_by_their_names(name, answer):
    assert is_versioned(name) is answer


def test_versions_count_on():
    assert versioned_name("a", {"a", "A__V2", "a__v3"}) == "a__v4"


def test_a_set_of_names_knows_no_case():
    names = Names(["A", "b"])
    assert "a" in names
    assert 1 not in names
    names.discard("B")
    assert sorted(names) == ["a"]
    assert len(names) == 1
