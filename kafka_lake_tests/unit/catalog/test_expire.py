"""How many snapshots expired, beside writers that go on. A real table; Spark is a stand-in."""

from types import SimpleNamespace

import pyarrow as pa

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.maintenance.policy import Limits
from kafka_lake.maintenance.procedures import expire

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
ORDERS = ("pizza", "orders")


def test_new_snapshots_are_not_taken_off_those_that_expired(catalog: LakeCatalog) -> None:
    catalog.ensure_namespace("pizza")
    table = ensure_table(catalog, ORDERS, schema_of(ROWS.schema))
    table.append(ROWS, snapshot_properties={POSITION: "{}"})
    oldest, newest = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)

    def sql(_: str) -> SimpleNamespace:
        for _number in range(3):
            table.append(ROWS)
        table.maintenance.expire_snapshots().by_id(oldest).commit()
        return SimpleNamespace(collect=list)

    later = max(snapshot.timestamp_ms for snapshot in table.metadata.snapshots) + 1
    assert expire(SimpleNamespace(sql=sql), catalog, ORDERS, Limits(later, 1, None)) == 1
    left = catalog.pyiceberg.load_table(ORDERS).metadata.snapshots
    assert left[0].snapshot_id == newest
    assert len(left) == 4
