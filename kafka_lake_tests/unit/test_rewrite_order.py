"""In which order a compaction writes rows."""

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, StructType, TimestamptzType

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.maintenance.compact import rewrite_arguments
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.pyiceberg_compat.unsorted import list_unsorted

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "it`s", StringType()),
    NestedField(3, "price", DecimalType(9, 2)),
    NestedField(4, "_kafka", StructType(NestedField(5, "timestamp", TimestamptzType()))),
)


@pytest.mark.parametrize(
    ("policy", "ordered", "said"),
    [
        (None, False, {"strategy": "'binpack'"}),
        (Maintenance(), True, {"strategy": "'sort'"}),
        (
            Maintenance(compact_sort=("_kafka.timestamp desc", "id")),
            False,
            {"strategy": "'sort'", "sort_order": "'`_kafka`.`timestamp` DESC NULLS LAST, `id` ASC NULLS FIRST'"},
        ),
    ],
)
def test_the_order_that_is_asked_for_is_told_to_iceberg(
    policy: Maintenance | None, ordered: bool, said: dict[str, str]
) -> None:
    assert rewrite_arguments(SCHEMA, policy, ordered, "shop.orders") == said


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Maintenance(compact_sort=("at",)), "shop.orders: maintenance: compact_sort: at is no column"),
    ],
)
def test_a_column_that_cannot_be_ordered_by_is_refused_by_name(policy: Maintenance, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        rewrite_arguments(SCHEMA, policy, ordered=False, name="shop.orders")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Maintenance(compact_sort=("a",), compact_every=None), "compact_sort has no effect"),
        (Maintenance(compact_sort=("a, b",)), "'a, b' is not understood"),
        (Maintenance(compact_sort=("a desc", "b.c")), ""),
    ],
)
def test_what_no_table_could_do_is_refused_at_load(policy: Maintenance, said: str) -> None:
    problem = policy.order_problem()
    assert said in problem
    assert bool(problem) == bool(said)


def test_sorted_table_lists_unsorted_order_and_keeps_its_own(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri="sqlite://", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    order = SortOrder(SortField(1, IdentityTransform()))
    table = catalog.create_table("shop.orders", Schema(NestedField(1, "id", LongType())), sort_order=order)
    assert UNSORTED_SORT_ORDER_ID not in table.sort_orders()
    for _ in range(2):
        list_unsorted(catalog.load_table("shop.orders"))
    found = catalog.load_table("shop.orders")
    assert set(found.sort_orders()) == {UNSORTED_SORT_ORDER_ID, table.sort_order().order_id}
    assert found.sort_order() == table.sort_order()
