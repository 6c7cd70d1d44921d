"""Data files become snapshots of tables of format versions 2 and 3; Spark reads such tables in `test_format_v3.py`."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kafka_lake.catalog.append import _manifests, append_files
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import summary_of
from kafka_lake.catalog.tables import append_nothing, ensure_table, schema_of
from kafka_lake.writers.append import table_of_work
from kafka_lake.writers.task.files import Files

NAME = ("it", "orders")
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string())])


def made(catalog: LakeCatalog, version: str) -> Table:
    return ensure_table(
        catalog, NAME, schema_of(SCHEMA), partition_by=("city",), properties={"format-version": version}
    )


def files(table: Table, *ids: int) -> list[DataFile]:
    rows = pa.table({"id": ids, "city": ["Rome" if number % 2 else "Oslo" for number in ids]}, schema=SCHEMA)
    return list(_dataframe_to_data_files(table.metadata, rows, table.io))


def upgraded(catalog: LakeCatalog, table: Table) -> Table:
    """Return a table after an upgrade to version 3 as Spark does it; PyIceberg can't."""
    path = Path(urlsplit(table.metadata_location).path)
    after = path.with_name(path.name.replace("00001-", "00002-"))
    text = json.loads(path.read_text()) | {"format-version": 3, "next-row-id": 0}
    after.write_text(json.dumps(text))
    catalog.pyiceberg.drop_table(NAME)
    return catalog.pyiceberg.register_table(NAME, f"file://{after}")


def rows(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow().column("id").to_pylist())


def first_row_ids(table: Table) -> dict[int, int]:
    """Return the first row id of each manifest, by how many rows it has."""
    head = table.current_snapshot()
    assert head is not None
    return {
        manifest.added_rows_count + manifest.existing_rows_count: manifest[15] for manifest in _manifests(table, head)
    }  # type: ignore[operator]


@pytest.mark.parametrize("version", ["2", "3"])
def test_rows_and_position_of_both_versions_are_read_again(catalog: LakeCatalog, version: str) -> None:
    table = made(catalog, version)
    append_files(table, "main", files(table, 1, 2, 3), {"offset": "3"})
    append_files(table, "main", (), {"offset": "4"})
    append_files(table, "main", files(table, 4), {"offset": "5"})
    assert rows(table) == [1, 2, 3, 4]
    summaries = [summary_of(snapshot) for snapshot in table.snapshots()]
    assert [summary.get("offset") for summary in summaries] == [None, "3", "4", "5"]
    assert [summary["total-records"] for summary in summaries] == ["0", "3", "3", "4"]
    assert {task.file.partition[0] for task in table.scan().plan_files()} == {"Rome", "Oslo"}


def test_row_ids_of_version_3_follow_one_another_on_all_branches(catalog: LakeCatalog) -> None:
    table = made(catalog, "3")
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "stage").commit()
    append_files(table, "stage", files(table, 1, 2, 3), {})
    append_files(table, "main", files(table, 4, 5), {})
    taken = [(snapshot.first_row_id, snapshot.added_rows) for snapshot in table.refresh().snapshots()]
    assert taken == [(0, 0), (0, 3), (3, 2)]
    assert table.metadata.next_row_id == 5  # type: ignore[union-attr]
    append_files(table, "main", files(table, 6), {})
    assert first_row_ids(table) == {2: 3, 1: 5}


def test_manifests_from_before_version_3_get_row_ids(catalog: LakeCatalog) -> None:
    table = made(catalog, "2")
    append_files(table, "main", files(table, 1, 2, 3), {})
    table = upgraded(catalog, table)
    append_files(table, "main", files(table, 4), {})
    assert sorted(first_row_ids(table).items()) == [(1, 0), (3, 1)]
    assert table.metadata.next_row_id == 4  # type: ignore[union-attr]
    assert rows(table) == [1, 2, 3, 4]


def test_an_append_to_a_table_of_version_3_that_has_moved_is_refused(catalog: LakeCatalog) -> None:
    table = made(catalog, "3")
    stale, head = catalog.table(NAME), table.current_snapshot()
    assert stale is not None
    assert head is not None
    append_files(table, "main", (), {})
    with pytest.raises(CommitFailedException):
        append_files(stale, "main", files(stale, 1), {})
    # On another branch, where nothing but the sequence number is taken.
    table.manage_snapshots().create_branch(head.snapshot_id, "stage").commit()
    stale = catalog.table(NAME)
    assert stale is not None
    append_files(table, "main", (), {})
    with pytest.raises(ValueError, match="Can't add snapshot with sequence number 3"):
        append_files(stale, "stage", (), {})
    append_nothing(table.refresh())
    assert rows(table) == []


@pytest.mark.parametrize("version", ["2", "3"])
def test_columns_of_any_name_are_written_and_found(catalog: LakeCatalog, version: str) -> None:
    inner = pa.struct([("l i", pa.list_(pa.struct([("q?", pa.string())])))])
    schema = pa.schema([("order-id", pa.int64()), ("x.y", pa.int64()), ("1 ü", pa.string()), ("s t", inner)])
    table = ensure_table(
        catalog,
        NAME,
        schema_of(schema),
        partition_by=("1 ü",),
        sort_by=("x.y desc",),
        properties={"format-version": version},
    )
    nested = {"l i": [{"q?": "z"}]}
    work, given = table_of_work(table), [{"order-id": n, "x.y": n, "1 ü": "k", "s t": nested} for n in range(3)]
    files = Files(work["metadata"], work["io"])
    files.add(pa.Table.from_pylist(given, schema))
    (written,) = files.close()
    written.spec_id = table.spec().spec_id
    append_files(table, "main", [written], {})
    assert table.refresh().scan().to_arrow().to_pylist() == given[::-1]
    assert int.from_bytes(written.upper_bounds[1], "little") == 2
