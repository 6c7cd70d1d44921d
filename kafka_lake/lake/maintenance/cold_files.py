"""Cold files: which data files of a table are to be moved to another location, and which stay, and why."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.lake.maintenance.cold_place import within
from kafka_lake.lake.maintenance.row_age import RowLimit


@dataclass(frozen=True)
class ColdFiles:
    """The data files of a table of which all rows are old.

    Args:
        going: Those that are to be moved.
        there: Those that have been.
        with_deletes: How many stay where they are, since rows of them are deleted by files of their own.
        of_other_spec: How many stay since they are partitioned as the table was before.
    """

    going: tuple[DataFile, ...] = ()
    there: tuple[DataFile, ...] = ()
    with_deletes: int = 0
    of_other_spec: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of those that are to be moved."""
        return size_of(self.going)


def size_of(files: Iterable[DataFile]) -> int:
    """Return the bytes of files."""
    return sum(each.file_size_in_bytes for each in files)


def cold_files(table: Table, limit: RowLimit, places: Iterable[str]) -> ColdFiles:
    """Return the files of a table of which all rows are old, by their statistics; manifests are read, and no data.

    Args:
        table: As it was loaded.
        limit: Which rows are old.
        places: Where files that have been moved are.

    Raises:
        TableError: If it can't be told which files have deleted rows.
    """
    snapshot, places = table.current_snapshot(), tuple(places)
    manifests = snapshot.manifests(table.io) if snapshot else []
    deleted = _with_deletes(table) if _has_deletes(manifests) else set()
    going, there, with_deletes, of_other_spec = list[DataFile](), list[DataFile](), 0, 0
    for manifest in manifests:
        if manifest.content is not ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            if any(within(file.file_path, each) for each in places):
                there.append(file)
            elif limit.share_of(file) != "all":
                continue
            elif file.file_path in deleted:
                with_deletes += 1
            elif manifest.partition_spec_id != table.metadata.default_spec_id:
                of_other_spec += 1
            else:
                going.append(file)
    # PyIceberg takes both entries away of a file that the table has twice, and so half of the rows.
    times = Counter(each.file_path for each in going)
    going = [each for each in going if times[each.file_path] == 1]
    return ColdFiles(tuple(going), tuple(there), with_deletes, of_other_spec)


def _has_deletes(manifests: Iterable[ManifestFile]) -> bool:
    return any(each.content is not ManifestContent.DATA for each in manifests)


def _with_deletes(table: Table) -> set[str]:
    """Return the paths of the data files that have deleted rows: a delete names its file by its path."""
    try:
        return {each.file.file_path for each in table.scan().plan_files() if each.delete_files}
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its files can't be moved, since rows of it are deleted by their values: "
            f"{error}",
            "Compact the table with Spark's rewrite_data_files and delete-file-threshold 1, or take tier: out.",
        ) from error
