"""Columns of any name in `partition_by` and `sort_by`: quoted, they mean themselves."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType

from kafka_lake.catalog.layout import Layout
from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.layout import parse_partition_field, parse_sort_field, written_name

HOSTILE = ["a key", "a.b", 'q"uote', "it's", "tick`ed", "br[0]{}", "sold (UTC), local", "größe", "数", "1st", "select",
           "order", "day", "bucket", "a desc", "a,b", "-", "\\", "%s", "{}", ";--"]  # fmt: skip
NAMES = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(
    lambda name: name == name.strip()
)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@given(NAMES)
@example("`")
def test_quoted_name_means_itself_whatever_it_is(name: str) -> None:
    for text in (quoted(name), written_name(name)):
        assert parse_partition_field(text)[0] == name
        assert parse_partition_field(f"day( {text} )")[0] == name
        assert parse_partition_field(f"bucket(16, {text})")[0] == name
        assert parse_sort_field(text) == (name, "asc")
        assert parse_sort_field(f"{text} desc") == (name, "desc")


@pytest.mark.parametrize("name", ["a key", 'q"uote', "it's", "it`s", "br[0]{}", "größe", "1st", "select", "who.id"])
def test_plain_name_needs_no_quotes(name: str) -> None:
    assert parse_partition_field(f" {name} ")[0] == name
    assert parse_partition_field(f"day({name})")[0] == name
    assert parse_sort_field(f"{name}  DESC") == (name, "desc")


@pytest.mark.parametrize("text", ["`a", "`a`b", "a (b)", "day(a, b)", "", "``", "day(`a)"])
def test_name_that_is_not_quoted_right_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not an Iceberg transform"):
        parse_partition_field(text)


@given(st.lists(NAMES, min_size=2, max_size=4, unique_by=str.lower))
def test_layout_is_told_as_it_can_be_written(names: list[str]) -> None:
    schema = Schema(*(NestedField(number, name, LongType()) for number, name in enumerate(names, 1)))
    layout = Layout.from_settings(schema, [f"bucket(4, {quoted(names[0])})"], [f"{quoted(names[1])} desc"], {})
    assert Layout.from_settings(schema, layout.partitions(schema), layout.order(schema), {}) == layout


def test_layout_names_columns_and_none_of_the_fields() -> None:
    schema = Schema(
        NestedField(1, "shop_id", LongType()), NestedField(2, "who", StructType(NestedField(3, "id", LongType())))
    )
    assert [i for i, _ in Layout.from_settings(schema, ["shop_id", "who.id"], [], {}).partition_by] == [1, 3]
    for name in ("who.name", "shop.id"):
        with pytest.raises(ConfigurationError, match=f"there is no column '{name}'; the columns are shop_id, who"):
            Layout.from_settings(schema, [name], [], {})
