"""Tables that don't agree with the settings of their topic."""

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import TableError
from kafka_lake.formats.table_compatibility import refuse_other_keys
from kafka_lake.spec.topic_table import TopicTable


@pytest.mark.parametrize("write", ["upsert", "history"])
def test_keyed_table_of_format_version_1_is_refused(catalog: LakeCatalog, write: str) -> None:
    catalog.ensure_namespace("shop")
    schema = Schema(NestedField(1, "id", LongType()))
    table = catalog.pyiceberg.create_table(("shop", "orders"), schema, properties={"format-version": "1"})
    spec = TopicTable("orders", "shop", "orders", write=write, key=("id",))  # type: ignore[arg-type]
    with pytest.raises(
        TableError, match=r"no row-level deletes.* ALTER TABLE shop.orders SET .*'format-version' = '2'"
    ):
        refuse_other_keys(spec, table)
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    refuse_other_keys(spec, table)
