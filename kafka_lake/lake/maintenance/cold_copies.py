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
    """Copies of files, by the path of the file, and the staged snapshots that refer to them."""

    made: dict[str, DataFile] = field(default_factory=dict)
    tips: list[int] = field(default_factory=list)

    def make(self, table: Table, batch: tuple[DataFile, ...], place: str) -> bool:
        """Copy those of some files that haven't been, and return whether there were any.

        Args:
            table: Has the files.
            batch: The files.
            place: Where the copies go.

        Raises:
            TableError: If one can't be copied. None of these copies is left then.
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
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                copies = list(pool.map(lambda each: _copy(io, each, paths[each]), paths))
        except Exception as error:
            for path in paths.values():
                # No snapshot knows them, so they are orphans otherwise.
                with suppress(Exception):
                    io.delete(path)
            reason = (str(error) or repr(error)).splitlines()[0]
            raise TableError(
                f"Table {'.'.join(table.name())}: its files can't be copied to {place}: {reason}. What was moved "
                "before stays moved; of these files, none was.",
                "Check that the bucket or folder exists, and that the catalog's credentials may read and write there: "
                "the catalog's properties count for all buckets.",
            ) from error
        self.made |= {file.file_path: copy for file, copy in zip(paths, copies, strict=True)}
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
        known = branch.staged.refresh().metadata if branch.staged else None
        if known is None or any(known.snapshot_by_id(each) is None for each in (*self.tips, tip)):
            self.made.clear()
            self.tips.clear()
            raise PublishRefusedError(f"Table {'.'.join(branch.identifier)}: its branches were taken away meanwhile.")
        self.tips.append(tip)


def _copy(io: FileIO, file: DataFile, path: str) -> DataFile:
    with io.new_input(file.file_path).open(seekable=False) as source, io.new_output(path).create() as target:
        shutil.copyfileobj(source, target, _CHUNK)
    if (size := len(io.new_input(path))) != file.file_size_in_bytes:
        raise OSError(f"{path} has {size} bytes, and {file.file_path} is meant to have {file.file_size_in_bytes}")
    copy = DataFile(*(file[position] for position in range(len(file))))
    copy[_FILE_PATH] = path
    copy.spec_id = file.spec_id
    return copy
