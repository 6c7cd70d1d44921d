"""Copies of data files in another location, byte by byte, and what a table tells of the files, for the copies."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kafka_lake.common.errors import PublishRefusedError, TableError
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.maintenance.cold_place import copy_path

_AT_ONCE, _CHUNK = 4, 8 << 20
_FILE_PATH = 1
"""Where a manifest's entry has a file's path, among its fields."""


@dataclass
class Copies:
    """Copies of files, by the path of the file.

    Args:
        failed: Why files can't be copied, by path; those that can't are added.
        made: The copies.
        tips: The staged snapshots that refer to them.
    """

    failed: dict[str, str] = field(default_factory=dict)
    made: dict[str, DataFile] = field(default_factory=dict)
    tips: list[int] = field(default_factory=list)

    def make(self, table: Table, batch: tuple[DataFile, ...], place: str) -> bool:
        """Copy those of some files that haven't been, and return whether there were any.

        Args:
            table: Has the files.
            batch: The files.
            place: Where the copies go.

        Raises:
            TableError: If none can be copied, though some can be read. One of many that can't, or that can't be read,
                is remembered as failed, and goes nowhere.
        """
        attempt, io = uuid4().hex[:8], table.io
        paths = {
            # Files of others may have the same name in several folders.
            each: copy_path(table, each.file_path, place, attempt=f"{attempt}-{number}")
            for number, each in enumerate(batch)
            if each.file_path not in self.made
        }
        if not paths:
            return False
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(paths, pool.map(lambda each: _tried(io, each, paths[each]), paths), strict=True))
        errors = {each: error for each, error in found.items() if isinstance(error, Exception)}
        if len(errors) == len(paths) and any(_can_be_read(io, each) for each in paths):
            error = next(iter(errors.values()))
            raise TableError(
                f"Table {'.'.join(table.name())}: its files can't be copied to {place}: {_said(error)}. What was moved "
                "before stays moved; of these files, none was.",
                "Check that the bucket or folder exists, and that the catalog's credentials may read and write there: "
                "the catalog's properties count for all buckets.",
            ) from error
        self.failed |= {each.file_path: _said(error) for each, error in errors.items()}
        self.made |= {each.file_path: copy for each, copy in found.items() if not isinstance(copy, Exception)}
        return True

    def stage(self, branch: StagingBranch, batch: tuple[DataFile, ...], summary: dict[str, str]) -> None:
        """Have a branch refer to the copies of some files."""
        try:
            branch.replace_by_copies({each: self.made[each.file_path] for each in batch}, summary)
        except Exception:
            # It may have happened all the same. Whoever takes that branch away takes these copies along.
            self.made.clear()
            raise

    def refuse_if_gone(self, branch: StagingBranch, tip: int) -> None:
        """Raise `PublishRefusedError` if copies of an earlier attempt may have been taken away meanwhile.

        Who expires a snapshot deletes its files after that, unless another one has them by then.
        """
        staged = branch.staged.refresh() if branch.staged else None
        # Until they were staged, nobody knew them: who looks for young orphans may have taken them away.
        if (
            staged is None
            or not self._are_there(staged.io)
            or any(staged.metadata.snapshot_by_id(each) is None for each in (*self.tips, tip))
        ):
            self.made.clear()
            self.tips.clear()
            raise PublishRefusedError(
                f"Table {'.'.join(branch.identifier)}: its copies or branches were taken away meanwhile."
            )
        self.tips.append(tip)

    def _are_there(self, io: FileIO) -> bool:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return all(pool.map(lambda each: io.new_input(each.file_path).exists(), self.made.values()))


def _tried(io: FileIO, file: DataFile, path: str) -> DataFile | Exception:
    """Return the copy of a file, or why there is none; nothing of it is left then."""
    try:
        return _copy(io, file, path)
    except Exception as error:
        # No snapshot knows it, so it is an orphan otherwise.
        with suppress(Exception):
            io.delete(path)
        return error


def _can_be_read(io: FileIO, file: DataFile) -> bool:
    try:
        with io.new_input(file.file_path).open(seekable=False) as source:
            return bool(source.read(1))
    except Exception:
        return False


def _said(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _copy(io: FileIO, file: DataFile, path: str) -> DataFile:
    with io.new_input(file.file_path).open(seekable=False) as source, io.new_output(path).create() as target:
        shutil.copyfileobj(source, target, _CHUNK)
    if (size := len(io.new_input(path))) != file.file_size_in_bytes:
        raise OSError(f"{path} has {size} bytes, and {file.file_path} is meant to have {file.file_size_in_bytes}")
    copy = DataFile(*(file[position] for position in range(len(file))))
    copy[_FILE_PATH] = path
    copy.spec_id = file.spec_id
    return copy
