"""Compact: many small files become few; rows, and the position that the table's history carries, stay as they are."""

from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import summary_of

_OPTIONS = {
    # What a compaction has made is beyond this size soon, and no later one writes it again.
    "min-file-size-bytes": str(32 << 20),
    "min-input-files": "2",
    # Groups are sorted and written one after the other, and each few of them are a commit: what is done by the time a
    # process dies, or another writer interferes, stays done.
    "max-file-group-size-bytes": str(512 << 20),
    "max-concurrent-file-group-rewrites": "1",
    "partial-progress.enabled": "true",
    # Deletes whose data files are gone would stay for ever: https://github.com/apache/iceberg/issues/12838.
    "remove-dangling-deletes": "true",
}


@dataclass(frozen=True)
class Compacted:
    """What a compaction did.

    Args:
        before: How many data files were rewritten.
        after: How many they became.
        size: Bytes that were read for it.
        deletes: How many delete files went.
    """

    before: int
    after: int
    size: int
    deletes: int


def compact(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str]) -> Compacted:
    """Rewrite small files, and files of which many rows are deleted, by Iceberg's own procedures.

    Position deletes that are left are put together, too: a table whose rows are updated gets some with each commit.

    Args:
        spark: Runs the procedures (https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_data_files).
        catalog: Where the table is.
        identifier: Namespace and name of the table.

    Raises:
        TableError: If another writer has deleted rows of the files meanwhile, so that they can't be replaced.
        Exception: Whatever else Spark raises. The rows are as they were in any case.
    """
    table = catalog.table(identifier)
    ordered = table is not None and bool(table.sort_order().fields)
    options = ", ".join(f"'{name}', '{value}'" for name, value in _OPTIONS.items())
    deletes = _delete_files(table)
    result = spark.sql(
        catalog.call(
            "rewrite_data_files",
            identifier,
            strategy="'sort'" if ordered else "'binpack'",
            options=f"map({options})",
        )
    ).collect()[0]
    if failed := result["failed_data_files_count"]:
        raise TableError(
            f"Table {'.'.join(identifier)}: {failed} files could not be replaced by compacted ones. Most often another "
            "writer has deleted some of their rows meanwhile. The rows are as they were.",
            "Nothing has to be done: the next compaction takes them. Let only one writer at a time change rows.",
        )
    table = catalog.table(identifier)
    if _delete_files(table) > 1:
        spark.sql(
            catalog.call("rewrite_position_delete_files", identifier, options="map('min-input-files', '2')")
        ).collect()
    return Compacted(
        before=result["rewritten_data_files_count"],
        after=result["added_data_files_count"],
        size=result["rewritten_bytes_count"],
        deletes=max(0, deletes - _delete_files(catalog.table(identifier))),
    )


def _delete_files(table: Table | None) -> int:
    head = table.current_snapshot() if table else None
    return int(summary_of(head).get("total-delete-files", 0)) if head else 0
