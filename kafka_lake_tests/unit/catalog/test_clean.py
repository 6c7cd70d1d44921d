"""Clean removes what no table of the catalog knows, and reads no more for it than it must. Real tables, no Spark."""

import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.statistics import StatisticsFile

from kafka_lake.catalog.tables import drop_if_unused, ensure_table, schema_of
from kafka_lake.errors import TableError
from kafka_lake.maintenance import clean as clean_module
from kafka_lake.maintenance.clean import clean
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

SPEC = TopicTable("pizzas", "pizza", "orders")
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def catalog(catalog):
    catalog.ensure_namespace("pizza")
    return catalog


def no_spark():
    raise AssertionError("nothing here needs Spark")


def cleaned(catalog, dry_run=False, older_than=-1):
    return clean(SPEC, Connections(None, {}, catalog, no_spark), older_than_seconds=older_than, dry_run=dry_run).files


def stray(table, name="stray.parquet"):
    path = Path(table.location().removeprefix("file://")) / "data" / name
    path.write_bytes(b"left by a run that was killed")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["", "/inner"])
def test_a_renamed_table_whose_files_lie_at_the_new_ones_location_keeps_them(catalog, inside):
    catalog.ensure_namespace("archive")
    old = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    for _ in range(3):
        old.append(ROWS)
    catalog.pyiceberg.rename_table(SPEC.identifier, ("archive", "orders_2025"))
    new = catalog.pyiceberg.create_table(SPEC.identifier, ROWS.schema, location=f"{old.location()}{inside}")
    new.append(ROWS)
    left = stray(new)
    assert cleaned(catalog) == (left,)
    assert not Path(left).exists()
    assert catalog.table(("archive", "orders_2025")).scan().to_arrow().num_rows == 6
    assert catalog.table(SPEC.identifier).scan().to_arrow().num_rows == 2


def test_a_dry_run_tells_and_removes_nothing(catalog):
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    table.append(ROWS)
    left = stray(table)
    assert cleaned(catalog, dry_run=True) == (left,)
    assert Path(left).exists()
    assert cleaned(catalog) == (left,)
    assert not Path(left).exists()


def test_only_old_files_that_no_snapshot_or_statistics_know_go(catalog):
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    table.append(ROWS)
    # A branch, and an earlier snapshot, have files that main doesn't.
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    table.append(ROWS, branch="audit")
    table.overwrite(ROWS)
    # Statistics are a file that no snapshot refers to.
    puffin = Path(stray(table, "of-ids.puffin"))
    reported = StatisticsFile(
        snapshot_id=table.current_snapshot().snapshot_id,
        statistics_path=f"file://{puffin}",
        file_size_in_bytes=9,
        file_footer_size_in_bytes=1,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(reported)
    old, young = stray(table), stray(table, "young.parquet")
    for path in Path(table.location().removeprefix("file://")).rglob("*"):
        if path.is_file() and path.name != "young.parquet":
            os.utime(path, (time.time() - 3.1 * 86_400,) * 2)
    assert cleaned(catalog, older_than=3 * 86_400) == (old,)
    assert (Path(old).exists(), Path(young).exists(), puffin.exists()) == (False, True, True)
    assert catalog.table(SPEC.identifier).scan().to_arrow().num_rows == 2
    for snapshot in catalog.table(SPEC.identifier).metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows in (0, 2, 4)


def test_where_the_storage_names_files_in_another_way_none_is_taken_for_an_orphan(catalog, monkeypatch):
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    table.append(ROWS)
    listed = clean_module._listed

    def under_another_name(of):
        for file in listed(of):
            yield SimpleNamespace(path=f"bucket{file.path}", mtime=file.mtime, type=file.type)

    monkeypatch.setattr(clean_module, "_listed", under_another_name)
    with pytest.raises(TableError, match=r"pizza\.orders: the storage doesn't list the table's own metadata"):
        cleaned(catalog)


def test_of_two_tables_made_at_once_the_one_that_stays_is_used(catalog, monkeypatch):
    """Catalogs that look first and create then, as SeaweedFS's, let a second run's table take the first one's name."""
    create, made = SqlCatalog.create_table, []

    def create_twice(self, identifier, *arguments, **named):
        made.append(create(self, identifier, *arguments, **named))
        if len(made) == 1:
            self.drop_table(identifier)
            made.append(create(self, identifier, *arguments, **named))
        return made[0]

    monkeypatch.setattr(SqlCatalog, "create_table", create_twice)
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    assert table.metadata.table_uuid == made[1].metadata.table_uuid
    assert table.current_snapshot() is not None


def test_no_new_table_lies_where_another_one_has_been(catalog):
    first = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    catalog.pyiceberg.rename_table(SPEC.identifier, ("pizza", "kept"))
    second = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    assert first.location() != second.location()
    assert all("/warehouse/pizza/orders-" in table.location() for table in (first, second))


def test_a_location_that_the_user_sets_is_taken(catalog, tmp_path):
    there = f"file://{tmp_path}/elsewhere"
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema), properties={"location": there})
    assert table.location() == there
    assert "location" not in table.properties


def test_a_table_that_is_dropped_since_nothing_came_leaves_no_files(catalog):
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    folder = Path(table.location().removeprefix("file://"))
    assert list(folder.rglob("*.json"))
    assert drop_if_unused(catalog, SPEC.identifier)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_each_manifest_is_read_once(catalog, monkeypatch):
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    for _ in range(12):
        table.append(ROWS)
    left, read = stray(table), Counter()
    fetch = ManifestFile.fetch_manifest_entry

    def counted(self, *args, **options):
        read[self.manifest_path] += 1
        return fetch(self, *args, **options)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    assert cleaned(catalog) == (left,)
    assert len(read) == 12
    assert set(read.values()) == {1}


def test_files_that_a_table_elsewhere_refers_to_stay(catalog):
    """A copy of a table has its metadata elsewhere, and the same data files."""
    table = ensure_table(catalog, SPEC.identifier, schema_of(ROWS.schema))
    table.append(ROWS)
    files = [task.file for task in table.scan().plan_files()]
    catalog.ensure_namespace("copies")
    copy = catalog.pyiceberg.create_table(("copies", "snapshot"), ROWS.schema)
    with copy.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)
    # The topic's table gives the files up, by a compaction and an expiry say.
    table.overwrite(ROWS)
    head = table.current_snapshot().snapshot_id
    for snapshot in list(table.metadata.snapshots):
        if snapshot.snapshot_id != head:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    cleaned(catalog)
    assert all(Path(file.file_path.removeprefix("file://")).exists() for file in files)
    assert catalog.table(("copies", "snapshot")).scan().to_arrow().num_rows == ROWS.num_rows
