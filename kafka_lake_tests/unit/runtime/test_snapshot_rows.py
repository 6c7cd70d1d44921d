"""Tables that DuckDB can't read, and errors: of files that are gone, of other files, and of none."""

from pathlib import Path

import duckdb
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, StructType

from kafka_lake.errors import SnapshotExpiredError, TableError
from kafka_lake.runtime.snapshot_rows import SnapshotRows, file_error, file_errors, open_database

TRACEBACK = 'Traceback (most recent call last):\n  File "s3fs.py", line 1, in info\n'


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            duckdb.IOException("IO Error: Cannot open file"),
            SnapshotExpiredError,
            "any more: IO Error: Cannot open file.",
        ),
        (FileNotFoundError("gone"), SnapshotExpiredError, "can't be read any more: gone."),
        (
            duckdb.Error(f"{TRACEBACK}FileNotFoundError: gone"),
            SnapshotExpiredError,
            "any more: FileNotFoundError: gone",
        ),
        (
            duckdb.Error(f"{TRACEBACK}EndpointConnectionError: x"),
            TableError,
            "can't be read: EndpointConnectionError: x.",
        ),
        (OSError("AWS Error NETWORK_CONNECTION"), TableError, "Files of table a.b can't be read: AWS Error NETWORK"),
    ],
)
def test_error_about_files_names_table_and_reason(error: Exception, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text), file_errors("a.b"):
        raise error


def test_error_that_is_not_about_files_is_raised_as_it_is() -> None:
    error = duckdb.ConversionException("Conversion Error: x")
    assert file_error(error, "a.b") is None
    with pytest.raises(duckdb.ConversionException), file_errors("a.b"):
        raise error


def table_of(folder: Path, *names: str) -> Table:
    """Make a table with columns of numbers, and one of objects with a text."""
    who = StructType(NestedField(8, "b", StringType()))
    columns = [NestedField(number, name, LongType()) for number, name in enumerate(names, 1)]
    catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=folder.as_uri())
    catalog.create_namespace("a")
    return catalog.create_table("a.b", Schema(*columns, NestedField(7, "who", who)))


def test_field_that_was_dropped_and_added_again_is_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path, "id")
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column(("who", "b"))
        change.add_column(("who", "c"), StringType())
    with table.update_schema() as change:
        change.add_column(("who", "b"), StringType())
    with pytest.raises(TableError, match=r"a.b can't be read by DuckDB: its column who.b was dropped and added again"):
        SnapshotRows(open_database(), table, None)


def test_columns_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="names of its columns differ only in case"):
        SnapshotRows(open_database(), table_of(tmp_path, "id", "ID"), None)
