"""Files that were written for several tables at once."""

from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import read_state
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
