"""Tier: files of which all rows are old are moved to another location; rows are as they were, and are read as before.

Files are copied byte by byte, and a commit has the table refer to the copies. The files themselves stay as long as a
snapshot has them, and go when that expires. What was copied and not committed is an orphan of the other location.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import tenacity
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kafka_lake.common.errors import AuditFailedError, PublishRefusedError, TableError
from kafka_lake.lake.author import MOVE_FILES, author_summary
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.cold_copies import Copies
from kafka_lake.lake.maintenance.cold_files import ColdFiles, cold_files, size_of
from kafka_lake.lake.maintenance.cold_place import place_of, refuse_place
from kafka_lake.lake.maintenance.row_age import RowLimit, row_limit
from kafka_lake.lake.maintenance.staging import Later, refused_if_main_moved
from kafka_lake.lake.maintenance.tiered import TIERED, Tiered, tiered_of
from kafka_lake.lake.positions import carried_positions, head_of, summary_of

# Others commit every two seconds, and to stage takes one.
_ATTEMPTS = 12
# So much is lost at most if a process dies: what is committed stays moved.
_FILES_OF_A_COMMIT, _BYTES_OF_A_COMMIT = 500, 8 << 30
_SAME = ("total-records", "total-data-files", "total-files-size", "total-delete-files")


@dataclass(frozen=True)
class OldFilesGo:
    """Which files of a table shall be where.

    Args:
        by: The column that tells how old a row is.
        before_ms: Files of which all rows are before this moment go; milliseconds since 1970.
        location: Where they go.
    """

    by: str
    before_ms: int
    location: str


@dataclass(frozen=True)
class MovedFiles:
    """What was moved, or would be.

    Args:
        files: How many data files.
        size: Their bytes.
        place: Where they are by then.
        with_deletes: How many old files stay, since rows of them are deleted by files of their own.
        of_other_spec: How many old files stay since they are partitioned as the table was before.
    """

    files: int
    size: int
    place: str
    with_deletes: int = 0
    of_other_spec: int = 0


def would_move(table: Table, asked: OldFilesGo, own_properties: dict[str, str]) -> MovedFiles:
    """Return what `move_old_files` would do; nothing is changed, and raises what that raises before it begins."""
    place, found = _looked_at(table, asked, own_properties)[1:]
    return MovedFiles(len(found.going), found.size, place, **_staying(found))


def move_old_files(
    spark: Callable[[], Any], catalog: LakeCatalog, identifier: tuple[str, str], asked: OldFilesGo, run_id: str
) -> MovedFiles:
    """Move a table's old files to another location, and remember in a property of the table that it was done.

    Some hundred files are a commit. Each is published only if ``main`` hasn't moved since its files were looked at;
    otherwise it is staged once more, with the copies that are there.

    Args:
        spark: Returns the session; called only if a branch must be taken away.
        catalog: Where the table is.
        identifier: Namespace and name of the table.
        asked: Which files shall be where.
        run_id: Of the run, for the snapshots.

    Raises:
        TableError: If files can't be moved there; or if one can't be read or written. Earlier commits stay.
        PublishRefusedError: If others kept moving ``main``. Earlier commits stay.
        AuditFailedError: If a commit would change the number of rows or files. It isn't published.
    """
    return _Move(spark, catalog, identifier, asked, run_id=run_id).all()


def _looked_at(table: Table, asked: OldFilesGo, own_properties: dict[str, str]) -> tuple[RowLimit, str, ColdFiles]:
    """Return which rows are old, where their files go, and which ones they are; raises `TableError`."""
    name, known = ".".join(table.name()), tiered_of(table).places
    refuse_place(table, asked.location, own_properties)
    columns = table.schema().field_ids
    if table.format_version != 2 or any(each.source_id not in columns for each in table.spec().fields):
        raise TableError(
            f"Table {name}: its files can't be moved: PyIceberg writes manifests of format version 2 alone, and this "
            f"is version {table.format_version}; or it is partitioned by a column that was dropped.",
            "Take tier: out of the topic's maintenance:; the storage's own rules may move files to a cheaper class.",
        )
    limit = row_limit(table, asked.by, asked.before_ms)
    place = place_of(table, asked.location, known)
    return limit, place, cold_files(table, limit, {*known, place})


@dataclass(frozen=True)
class _Move:
    """One move of a table's files; its fields are the arguments of `move_old_files`."""

    spark: Callable[[], Any]
    catalog: LakeCatalog
    identifier: tuple[str, str]
    asked: OldFilesGo
    run_id: str

    @property
    def name(self) -> str:
        return ".".join(self.identifier)

    def all(self) -> MovedFiles:
        files = size = 0
        failed: dict[str, str] = {}
        while True:
            table = self._table()
            limit, place, found = _looked_at(table, self.asked, dict(self.catalog.pyiceberg.properties))
            if not {each.file_path for each in found.going} - failed.keys():
                if failed:
                    raise _unread(self.name, place, failed, moved=files)
                self._remember(partial(_counted, there=found.there, limit=limit, before_ms=self.asked.before_ms))
                return MovedFiles(files, size, place, **_staying(found))
            # Whoever looks for orphans knows the place before anything is there.
            self._remember(partial(_with, place=place))
            moved = self._commit(place, failed)
            files, size = files + len(moved), size + size_of(moved)

    def _table(self) -> Table:
        table = self.catalog.table(self.identifier)
        if table is None:
            raise TableError(f"Table {self.name} is gone.", "Nothing is left to be moved.")
        return table

    def _commit(self, place: str, failed: dict[str, str]) -> tuple[DataFile, ...]:
        """Move some files by one commit, and return them; those that can't be copied are added to the failed ones."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            wait=tenacity.wait_random_exponential(0.2, max=2),
            retry=tenacity.retry_if_exception_type(PublishRefusedError),
            reraise=True,
        )
        copies = Copies(failed)
        with ExitStack() as undo:
            return retrying(self._attempt, place, copies, undo)

    def _attempt(self, place: str, copies: Copies, undo: ExitStack) -> tuple[DataFile, ...]:
        table, limit, batch = self._batch(place, copies)
        head = head_of(table)
        if head is None or not batch:
            return ()
        branch = StagingBranch(
            spark=Later(self.spark),
            catalog=self.catalog,
            identifier=self.identifier,
            name=branch_name(self.run_id, head, "tier"),
            head=head,
            table=table,
        )
        with refused_if_main_moved(self.catalog, self.identifier, head):
            branch.create()
            # What was published is no branch any more. Until the end, the others keep the copies alive.
            undo.callback(branch.discard)
            copies.stage(branch, batch, {**author_summary(self.run_id, MOVE_FILES), **carried_positions(table)})
            tip = branch.written(head).snapshot_id
            copies.refuse_if_gone(branch, tip)
            self._audit(table, branch, tip)
            # The same commit has a compaction leave them alone. Another move may have told of its place meanwhile.
            branch.publish(tip, lambda _: {TIERED: self._told(tiered_of(self._table()), limit, batch).to_json()})
        return batch

    def _batch(self, place: str, copies: Copies) -> tuple[Table, RowLimit, tuple[DataFile, ...]]:
        """Return files that have been copied, and the table as it is after that: to copy takes long."""
        while True:
            table = self._table()
            limit, _, found = _looked_at(table, self.asked, dict(self.catalog.pyiceberg.properties))
            can_go = tuple(each for each in found.going if each.file_path not in copies.failed)
            batch = tuple(each for each in can_go if each.file_path in copies.made) or _some(can_go)
            if not copies.make(table, batch, place):
                return table, limit, batch

    def _told(self, known: Tiered, limit: RowLimit, batch: tuple[DataFile, ...]) -> Tiered:
        files, size = known.files + len(batch), known.size + size_of(batch)
        return replace(_until(known, limit, self.asked.before_ms), files=files, size=size)

    def _audit(self, table: Table, branch: StagingBranch, tip: int) -> None:
        staged = branch.staged.metadata.snapshot_by_id(tip) if branch.staged else None
        now, head = table.current_snapshot(), summary_of(staged) if staged else {}
        before = summary_of(now) if now else {}
        if differs := [each for each in _SAME if each in before and before[each] != head.get(each)]:
            told = ", ".join(f"{each} would be {head.get(each)} instead of {before[each]}" for each in differs)
            raise AuditFailedError(
                f"Table {self.name}: moving its files would change it: {told}.",
                "Nothing was published, and the table is as it was. That is a defect of kafka_lake: please report it.",
            )

    @tenacity.retry(
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(0.2, max=5),
        retry=tenacity.retry_if_exception_type(CommitFailedException),
        reraise=True,
    )
    def _remember(self, change: Callable[[Tiered], Tiered]) -> None:
        table = self._table()
        known = tiered_of(table)
        if (told := change(known)) != known:
            with table.transaction() as transaction:
                transaction.set_properties({TIERED: told.to_json()})


def _unread(name: str, place: str, failed: dict[str, str], moved: int) -> TableError:
    path, reason = next(iter(failed.items()))
    return TableError(
        f"Table {name}: {len(failed)} of its files can't be copied to {place}, and stay where they are; {moved} others "
        f"were moved. The first one is {path}: {reason}.",
        "Look whether it is there and can be read; queries of these rows fail, too, if it isn't.",
    )


def _some(files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
    """Return as many files as a commit moves."""
    total = accumulate(each.file_size_in_bytes for each in files)
    few = sum(1 for each in total if each <= _BYTES_OF_A_COMMIT)
    return files[: max(1, min(few, _FILES_OF_A_COMMIT))]


def _staying(found: ColdFiles) -> dict[str, int]:
    return {"with_deletes": found.with_deletes, "of_other_spec": found.of_other_spec}


def _with(known: Tiered, place: str) -> Tiered:
    return replace(known, places=(*(each for each in known.places if each != place), place))


def _counted(known: Tiered, there: tuple[DataFile, ...], limit: RowLimit, before_ms: int) -> Tiered:
    return replace(_until(known, limit, before_ms), files=len(there), size=size_of(there))


def _until(known: Tiered, limit: RowLimit, before_ms: int) -> Tiered:
    """Return that files which are older than a limit are moved; it never goes back, unless for another column."""
    before = max(known.before_ms, before_ms) if known.field == limit.field_id else before_ms
    return replace(known, before_ms=before, field=limit.field_id)
