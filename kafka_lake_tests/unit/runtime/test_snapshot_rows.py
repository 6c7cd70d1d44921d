"""Errors about a table's files: which are gone, which can't be read, and which aren't about files."""

import duckdb
import pytest

from kafka_lake.errors import SnapshotExpiredError, TableError
from kafka_lake.runtime.snapshot_rows import file_error, file_errors

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
