"""Which snapshots, tags and branches hold old files of a table."""

import re

import pyarrow as pa
import pytest

from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.maintenance.policy import holders, table_health

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def table(catalog):
    catalog.ensure_namespace("pizza")
    return ensure_table(catalog, ("pizza", "orders"), schema_of(ROWS.schema))


def without_moments(text):
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "T", text)


def test_old_files_are_held_by_the_oldest_snapshot_and_by_what_others_point_to(table):
    assert holders(table) == "", "its one snapshot is what readers see"
    first = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "begin").commit()
    table.append(ROWS)
    table.append(ROWS)
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "same").commit()
    assert without_moments(holders(table.refresh())) == "main (its oldest of 3 snapshots is of T), tag begin (T)"
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    table.append(ROWS, branch="audit")
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[1].snapshot_id).commit()
    found = without_moments(holders(table.refresh()))
    assert "tag begin (T)" in found
    assert "branch audit (its oldest of 2 snapshots is of T)" in found
    assert "main" not in found, "of main, nothing but its head is left"
    assert table_health(table).held_by.startswith("tag begin"), "the oldest first"
