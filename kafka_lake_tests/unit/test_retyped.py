"""A table's schema with another type for a column: what stays, and which columns can't be changed."""

from collections.abc import Sequence

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, IcebergType, ListType, LongType, NestedField, StringType, StructType

from kafka_lake.common.errors import TableError
from kafka_lake.lake.tables.retyped import column_at, refuse_layout_column, retyped


def field(number: int, name: str, kind: IcebergType, required: bool = False, doc: str | None = None) -> NestedField:
    return NestedField(number, name, kind, required=required, doc=doc)


WHO = StructType(field(5, "name", StringType()), field(6, "a.ge", LongType(), doc="In years."))
ITEMS = ListType(7, StructType(field(8, "n", LongType())), element_required=False)


@pytest.fixture
def table(tmp_path: object) -> Table:
    """Return a table of four columns, partitioned by one and sorted by another."""
    catalog = InMemoryCatalog("lake", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    columns = field(1, "id", LongType(), required=True), field(2, "at", LongType())
    schema = Schema(*columns, field(3, "who", WHO), field(4, "items", ITEMS))
    partitioned = PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket"))
    ordered = SortOrder(SortField(2, IdentityTransform()))
    return catalog.create_table("shop.orders", schema, partition_spec=partitioned, sort_order=ordered)


def ids(fields: Sequence[NestedField]) -> dict[str, int]:
    return {each.name: each.field_id for each in fields}


def test_nested_column_gets_new_id_and_keeps_the_rest(table: Table) -> None:
    before = table.schema()
    changed = retyped(table, column_at(table, "who.a.ge"), ListType(0, DoubleType(), element_required=False))
    assert ids(changed.fields) == ids(before.fields)
    who, was = changed.find_type("who"), before.find_type("who")
    assert isinstance(who, StructType)
    assert isinstance(was, StructType)
    assert who.fields[0] == was.fields[0]
    assert (who.fields[1].name, who.fields[1].doc, who.fields[1].required) == ("a.ge", "In years.", False)
    last = table.metadata.last_column_id
    assert who.fields[1].field_id == last + 1
    assert who.fields[1].field_type == ListType(last + 2, DoubleType(), element_required=False)
    assert changed.schema_id == before.schema_id + 1


def test_required_column_stays_required_and_in_place(table: Table) -> None:
    changed = retyped(table, column_at(table, "id"), StringType())
    assert [each.name for each in changed.fields] == ["id", "at", "who", "items"]
    assert changed.fields[0].required


@pytest.mark.parametrize(
    ("path", "said"),
    [("items.element.n", "within a list or a map"), ("nothing", "has no column nothing"), ("who.x", "has no column")],
)
def test_column_that_is_no_column_is_refused(table: Table, path: str, said: str) -> None:
    with pytest.raises(TableError, match=said):
        column_at(table, path)


@pytest.mark.parametrize(("path", "how"), [("id", "partitioned"), ("at", "sorted")])
def test_column_that_places_rows_is_refused(table: Table, path: str, how: str) -> None:
    with pytest.raises(TableError, match=f"is {how} by column {path}"):
        refuse_layout_column(table, path, column_at(table, path)[-1])
    refuse_layout_column(table, "who", column_at(table, "who")[-1])
