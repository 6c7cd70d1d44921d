"""Files that were written for several tables at once."""

from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import read_state
from kafka_lake.errors import TableError
from kafka_lake.writers.append import check_writable
from kafka_lake.writers.append_tables import TableToWrite, prewritten


def test_files_that_a_stage_took_are_not_used_again(catalog: LakeCatalog) -> None:
    catalog.ensure_namespace("shop")
    table = catalog.pyiceberg.create_table(("shop", "orders"), Schema(NestedField(1, "id", LongType())))
    state, unused, target = read_state(table), Any, ("id",)
    files = prewritten(unused, TableToWrite(unused, unused, target, state, rules=unused), again=unused)
    assert files.fits(target, state)
    # The stage may have failed and deleted them.
    assert files.take() is unused
    assert not files.fits(target, state)
    assert files.take() is None


def test_table_with_partitions_of_floats_is_refused(catalog: LakeCatalog) -> None:
    catalog.ensure_namespace("shop")
    by = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="price"))
    schema = Schema(NestedField(1, "price", DoubleType(), required=False))
    with pytest.raises(TableError, match="rows can't be assigned to its partition field price"):
        check_writable(catalog.pyiceberg.create_table(("shop", "orders"), schema, partition_spec=by))
