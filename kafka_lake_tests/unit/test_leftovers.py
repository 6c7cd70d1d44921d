"""What a table keeps that no reader needs: which delete files have no data file, and who holds old files."""

import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestContent

from kafka_lake.lake.maintenance.health import dangling_deletes, holders, table_health
from kafka_lake.lake.tables import ensure_table, schema_of

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


def test_deletes_of_files_that_are_gone_are_counted():
    """As manifests and plans tell it: PyIceberg writes no delete files. Spark's are in `integration/`."""

    def entry(path):
        return SimpleNamespace(data_file=SimpleNamespace(file_path=path))

    deletes = SimpleNamespace(
        content=ManifestContent.DELETES, fetch_manifest_entry=lambda *_, **__: [entry("a"), entry("b"), entry("c")]
    )
    data = SimpleNamespace(content=ManifestContent.DATA)

    def plan():
        return [SimpleNamespace(delete_files=[SimpleNamespace(file_path=path) for path in each]) for each in wanted]

    def table_of(*manifests, version=2):
        return SimpleNamespace(
            current_snapshot=lambda: SimpleNamespace(manifests=lambda _: list(manifests)),
            io=None,
            format_version=version,
            scan=lambda: SimpleNamespace(plan_files=plan),
        )

    wanted = [["b"], ["b", "a"], []]
    assert dangling_deletes(table_of(data, deletes)) == 1
    assert dangling_deletes(table_of(data)) == 0
    assert dangling_deletes(table_of(data, deletes, version=3)) is None
    assert dangling_deletes(table_of(data, version=3)) == 0

    def unable():
        raise ValueError("PyIceberg does not yet support equality deletes")

    refused = table_of(data, deletes)
    refused.scan = lambda: SimpleNamespace(plan_files=unable)
    assert dangling_deletes(refused) is None
