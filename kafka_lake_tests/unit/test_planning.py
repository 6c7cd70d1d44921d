"""What it takes to plan a query, and when a table has too many manifests. Real tables, no Spark."""

import pyarrow as pa
import pytest

from kafka_lake.lake.maintenance.manifests import Planning, planning_of
from kafka_lake.lake.tables import ensure_table, schema_of

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


def test_manifests_are_counted_and_planning_is_timed(catalog):
    catalog.ensure_namespace("pizza")
    table = ensure_table(catalog, ("pizza", "orders"), schema_of(ROWS.schema))
    # A new table has a snapshot without rows.
    assert planning_of(table).manifests == 0
    with table.transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "false"})
    for _ in range(3):
        table.append(ROWS)
    found = planning_of(table)
    assert found.manifests == 3
    assert found.size == sum(each.manifest_length for each in table.current_snapshot().manifests(table.io))
    assert found.seconds is not None
    assert 0 < found.seconds < 60


@pytest.mark.parametrize(
    ("manifests", "mebibytes", "too_many"),
    [(0, 0, False), (30, 0, False), (31, 0, True), (100, 8, True), (100, 200, False), (1000, 200, True)],
)
def test_there_are_too_many_if_a_fourth_would_do(manifests: int, mebibytes: int, too_many: bool) -> None:
    assert Planning(manifests, mebibytes << 20).has_too_many is too_many
