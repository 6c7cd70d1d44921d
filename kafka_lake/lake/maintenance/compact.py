"""Compact: many small files become few; rows, and the position that the table's history carries, stay as they are."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortDirection

from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.lake.catalog import LakeCatalog, literal, quoted_path
from kafka_lake.lake.layout import parse_sort_field
from kafka_lake.lake.maintenance.health import COMPACTED
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.positions import summary_of
from kafka_lake.lake.pyiceberg_compat.unsorted import list_unsorted

# What a compaction has made is beyond this size soon, and no later one writes it again.
_SMALL_FILE_BYTES = 32 << 20
_OPTIONS = {
    "min-input-files": "2",
    # Below the share at which the policy asks for it: else it would ask, and nothing would be done.
    "delete-ratio-threshold": "0.1",
    # Groups are sorted and written one after the other, and each few of them are a commit: what is done by the time a
    # process dies, or another writer interferes, stays done.
    "max-file-group-size-bytes": str(512 << 20),
    "max-concurrent-file-group-rewrites": "1",
    "partial-progress.enabled": "true",
    # Deletes whose data files are gone would stay for ever: https://github.com/apache/iceberg/issues/12838.
    "remove-dangling-deletes": "true",
}

# A file that has the right size in any case is written again for its deletes.


@dataclass(frozen=True)
class Compacted:
    """What a compaction did.

    Args:
        before: How many data files were rewritten.
        size: Bytes that were read for it.
        deletes: How many delete files went.
    """

    before: int
    after: int
    size: int
    deletes: int


def compact(
    spark: Any, catalog: LakeCatalog, identifier: tuple[str, str], policy: Maintenance | None = None
) -> Compacted:
    """Rewrite small files, and files of which many rows are deleted, by Iceberg's own procedures.

    Position deletes that are left are put together, too: a table whose rows are updated gets some with each commit.

    Args:
        identifier: Namespace and name of the table.
        policy: Tells in which order rows are written; by default in that of the table.

    Raises:
        ConfigurationError: If that order names a column that the table lacks.
        TableError: If another writer has deleted rows of the files meanwhile, so that they can't be replaced.
        CommitFailedException: If other writers changed a table with another order at each of four attempts to begin.
        Exception: Whatever else Spark raises. The rows are as they were in any case.
    """
    table = catalog.table(identifier)
    ordered = table is not None and bool(table.sort_order().fields)
    order = rewrite_arguments(table.schema() if table else Schema(), policy, ordered, ".".join(identifier))
    if "sort_order" in order:
        _list_unsorted(catalog, identifier)
    told = {**_OPTIONS, "min-file-size-bytes": str(_small(table))}
    deletes = _delete_files(table)
    rewritten = _rewrite(spark, catalog, identifier, {"options": _map(told), **order})
    table = catalog.table(identifier)
    if _delete_files(table) > 1:
        spark.sql(
            catalog.call("rewrite_position_delete_files", identifier, options="map('min-input-files', '2')")
        ).collect()
    _remember(catalog, identifier)
    return Compacted(
        before=rewritten["rewritten_data_files_count"],
        after=rewritten["added_data_files_count"],
        size=rewritten["rewritten_bytes_count"],
        deletes=max(0, deletes - _delete_files(catalog.table(identifier))),
    )


def rewrite_arguments(schema: Schema, policy: Maintenance | None, ordered: bool, name: str) -> dict[str, str]:
    """Return the arguments of ``rewrite_data_files`` that tell the order, as SQL. Pure.

    Args:
        policy: What is asked for; None for the table's own order.
        ordered: Whether the table has an order of its own.
        name: Of the table, for messages.

    Raises:
        ConfigurationError: If a column isn't there.
    """
    if policy is not None and policy.compact_sort:
        return {"strategy": "'sort'", "sort_order": literal(_sorted_by(schema, policy.compact_sort, name))}
    return {"strategy": "'sort'" if ordered else "'binpack'"}


def _sorted_by(schema: Schema, texts: Sequence[str], name: str) -> str:
    parts = []
    for column, direction in map(parse_sort_field, texts):
        path = quoted_path(_known(schema, column, name), [field.name for field in schema.fields])
        parts.append(f"{path} {'DESC NULLS LAST' if direction is SortDirection.DESC else 'ASC NULLS FIRST'}")
    return ", ".join(parts)


def _known(schema: Schema, column: str, name: str) -> str:
    try:
        schema.find_field(column)
    except ValueError as error:
        raise ConfigurationError(
            f"Table {name}: maintenance: compact_sort: {column} is no column of the table.",
            f"Its columns are {', '.join(each.name for each in schema.fields)}.",
        ) from error
    return column


def _list_unsorted(catalog: LakeCatalog, identifier: tuple[str, str]) -> None:
    """Have the table list the unsorted order.

    Iceberg writes files in an order that isn't one of the table's with the id of the unsorted one, and fails if the
    table doesn't list it: https://iceberg.apache.org/spec/#sorting.
    """
    for is_last in (False, False, False, True):
        table = catalog.table(identifier)
        try:
            if table is not None:
                list_unsorted(table)
        except CommitFailedException:
            if is_last:
                raise
        else:
            return


def _rewrite(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str], arguments: Mapping[str, str]) -> Any:
    result = spark.sql(catalog.call("rewrite_data_files", identifier, **arguments)).collect()[0]
    if failed := result["failed_data_files_count"]:
        raise TableError(
            f"Table {'.'.join(identifier)}: {failed} files could not be replaced by compacted ones: another writer has "
            "deleted some of their rows meanwhile, or one of them can't be read. The rows are as they were.",
            "Let only one writer at a time change rows; the next compaction takes the files. If it fails as well, the "
            "log of Spark has the reason.",
        )
    return result


def _map(options: Mapping[str, str]) -> str:
    told = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    return f"map({told})"


def _small(table: Table | None) -> int:
    """Return below which size a file is small, in bytes; Iceberg takes none that isn't below the size of new files."""
    target = table.properties.get("write.target-file-size-bytes", "") if table else ""
    return min(_SMALL_FILE_BYTES, int(target) * 3 // 4) if target.isdigit() else _SMALL_FILE_BYTES


def _remember(catalog: LakeCatalog, identifier: tuple[str, str]) -> None:
    table = catalog.table(identifier)
    head = table.current_snapshot() if table else None
    if table is None or head is None or not head.sequence_number:
        return
    # Somebody else's commit in this very moment: then the compaction's own snapshot tells, if it has made one.
    with suppress(CommitFailedException), table.transaction() as transaction:
        transaction.set_properties({COMPACTED: str(head.sequence_number)})


def _delete_files(table: Table | None) -> int:
    head = table.current_snapshot() if table else None
    return int(summary_of(head).get("total-delete-files", 0)) if head else 0
