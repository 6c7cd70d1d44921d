"""Old files: which data files of a table have rows that are older than a limit, by their statistics."""

from dataclasses import dataclass

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.lake.maintenance.row_age import RowLimit, row_limit


@dataclass(frozen=True)
class OldRows:
    """Which rows of a table shall go.

    Args:
        by: The column that tells how old a row is.
        before_ms: Rows whose time is before this moment go; milliseconds since 1970.
        needs_position: Whether nothing may go as long as no snapshot tells the position: rows may have to prove it.
    """

    by: str
    before_ms: int
    needs_position: bool = True


@dataclass(frozen=True)
class ExpiredRows:
    """What went, or would go.

    Args:
        rows: How many rows.
        dropped: Data files of which all rows are old.
        partly: Data files that also have rows that stay; or whose statistics don't tell.
    """

    rows: int
    dropped: int
    partly: int


@dataclass(frozen=True)
class OldFiles:
    """The files of a table with rows that are old.

    Args:
        limit: Which rows are.
        whole: Files of which all rows are.
        partly: Files that also have others, or whose statistics don't tell.
        has_deletes: Whether rows of the table are deleted by files of their own.
    """

    limit: RowLimit
    whole: tuple[DataFile, ...]
    partly: tuple[DataFile, ...]
    has_deletes: bool


def count_old_rows(table: Table, asked: OldRows) -> ExpiredRows:
    """Return what would go. Of files that also have rows that stay, the column is read, without Spark.

    Raises:
        TableError: If the column doesn't tell a time, or files have deletes that PyIceberg can't read.
    """
    found = old_files(table, asked)
    try:
        # Of no other column anything is read.
        scan = table.scan(found.limit.expression, selected_fields=(found.limit.name,))
        rows = scan.count() if found.whole or found.partly else 0
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its old rows can't be counted without Spark: {error}",
            "Nothing is wrong with the table: kafka-lake maintain --yes deletes them, and says how many they were.",
        ) from error
    return ExpiredRows(rows, len(found.whole), len(found.partly))


def old_files(table: Table, asked: OldRows) -> OldFiles:
    """Return the files of a table with rows that are old; manifests are read, and no data.

    Args:
        table: As it was loaded.
        asked: Which rows are old.

    Raises:
        TableError: If the column doesn't tell a time.
    """
    limit = row_limit(table, asked.by, asked.before_ms)
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    whole, partly, has_deletes = list[DataFile](), list[DataFile](), False
    for manifest in manifests:
        if manifest.content is not ManifestContent.DATA:
            has_deletes = True
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            share = limit.share_of(entry.data_file)
            if share != "none":
                (whole if share == "all" else partly).append(entry.data_file)
    return OldFiles(limit, tuple(whole), tuple(partly), has_deletes)


def can_be_dropped(table: Table, found: OldFiles) -> bool:
    """Return whether PyIceberg can drop the files of which all rows are old, and knows how many rows they have."""
    columns = table.schema().field_ids
    # It can't write format version 3, nor partitions of columns that have been dropped.
    plain = table.format_version == 2 and not found.has_deletes
    return plain and all(field.source_id in columns for spec in table.specs().values() for field in spec.fields)
