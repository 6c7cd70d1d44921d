"""Expire rows: those that are older than a limit leave a table, by one commit that tells the table's position.

Files of which all rows are old are dropped by their statistics; nothing of them is read. Of the others, which are few
where rows come in the order of time, Spark writes again what stays.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import tenacity
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from kafka_lake.common.offsets import positions_to_json
from kafka_lake.errors import AuditFailedError, PublishRefusedError, TableError
from kafka_lake.lake.author import EXPIRE_ROWS, author_summary
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.expired import EXPIRED, Expired, expired_of
from kafka_lake.lake.maintenance.old_files import ExpiredRows, OldFiles, OldRows, can_be_dropped, old_files
from kafka_lake.lake.positions import POSITION, TableState, ancestors, head_of, read_state, summary_of
from kafka_lake.lake.totals import TOTALS, Totals, totals_of

_ATTEMPTS = 6
_FOLLOWED = 10


def expire_rows(
    spark: Callable[[], Any],
    catalog: LakeCatalog,
    identifier: tuple[str, str],
    asked: OldRows,
    run_id: str,
) -> ExpiredRows:
    """Delete a table's old rows, and remember in a property of the table that it was done.

    Nothing is visible before all is: what is written to a branch becomes ``main`` if that hasn't moved meanwhile, and
    if as many rows are left as were counted. Otherwise it is done once more, a few times.

    Args:
        spark: Returns the session; called only if a file must be written again.
        identifier: Namespace and name of the table.
        run_id: Of the run, for the snapshot.

    Raises:
        TableError: If the column doesn't tell a time, or no snapshot tells the position of a table that needs one.
        PublishRefusedError: If others kept moving ``main``. The rows are all there.
        AuditFailedError: If other rows would be left than were counted. The rows are all there.
        Exception: Whatever Spark raises. The rows are all there.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(0.2, max=5),
        retry=tenacity.retry_if_exception_type(PublishRefusedError),
        reraise=True,
    )
    return retrying(_Expiry(spark, catalog, identifier, asked, run_id=run_id).attempt)


@dataclass(frozen=True)
class _Staged:
    """Rows that were taken off a branch: where it began, its tip, and how many they were."""

    branch: StagingBranch
    state: TableState
    tip: int
    rows: int


@dataclass(frozen=True)
class _Expiry:
    """One expiry of a table's rows; its fields are the arguments of `expire_rows`."""

    spark: Callable[[], Any]
    catalog: LakeCatalog
    identifier: tuple[str, str]
    asked: OldRows
    run_id: str

    @property
    def name(self) -> str:
        return ".".join(self.identifier)

    def attempt(self) -> ExpiredRows:
        table = self.catalog.table(self.identifier)
        state = read_state(table) if table is not None else None
        if table is None or state is None or state.head is None:
            return ExpiredRows(0, 0, 0)
        found = old_files(table, self.asked)
        if not found.whole and not found.partly:
            self._remember(state)
            return ExpiredRows(0, 0, 0)
        if self.asked.needs_position and not state.positions:
            raise TableError(
                f"Table {self.name}: no snapshot tells its position, so no row may expire: rows may have to prove it.",
                "Run its topic once, which finds the position and writes it down; rows expire after that.",
            )
        with ExitStack() as undo, _refused_if_main_moved(self.catalog, self.identifier, state.head):
            staged = self._stage(state, found, undo)
            if staged.rows:
                self._publish(staged, undo)
            else:
                self._remember(state)
        return ExpiredRows(staged.rows, len(found.whole), len(found.partly))

    def _branch(self, state: TableState, undo: ExitStack) -> StagingBranch:
        assert state.head is not None, "the caller has looked"
        branch = StagingBranch(
            spark=_Later(self.spark),
            catalog=self.catalog,
            identifier=self.identifier,
            name=branch_name(self.run_id, state.head, "expire"),
            head=state.head,
            table=state.table,
        )
        branch.create()
        # What was published is no branch any more.
        undo.callback(branch.discard)
        return branch

    def _stage(self, state: TableState, found: OldFiles, undo: ExitStack) -> "_Staged":
        """Take the rows off a branch."""
        branch, summary = self._branch(state, undo), self._summary(state)
        tip, rows, by_metadata = branch.head, 0, can_be_dropped(state.table, found)
        if by_metadata and found.whole:
            branch.replace_files(found.whole, (), summary)
            tip, rows = branch.written(tip).snapshot_id, sum(each.record_count for each in found.whole)
        if found.partly or not by_metadata:
            counted = self._count(f"{branch.write_name} WHERE {found.limit.sql}")
            if counted:
                tip, rows = self._delete(branch, tip, found, summary), rows + counted
        return self._audited(_Staged(branch, state, tip, rows))

    def _publish(self, staged: "_Staged", undo: ExitStack) -> None:
        """Publish what is staged; where others were faster, at the head that they have made, if it means the same."""
        for followed in range(_FOLLOWED + 1):
            known = staged
            try:
                known.branch.publish(known.tip, lambda before: self._told(before, known))  # noqa: B023  Called at once.
            except PublishRefusedError:
                following = self._followed(staged, undo) if followed < _FOLLOWED else None
                if following is None:
                    raise
                staged = following
            else:
                return

    def _followed(self, staged: "_Staged", undo: ExitStack) -> "_Staged | None":
        """Stage the same change of files at the head that ``main`` has by now; None if it may mean something else."""
        table = self.catalog.table(self.identifier)
        state = read_state(table) if table is not None else None
        change = replaced_files(table, staged.branch.head, staged.tip) if table is not None else None
        if table is None or state is None or change is None or state.head in (None, staged.branch.head):
            return None
        if not can_be_made_at(table, change, staged.branch.head):
            return None
        branch = self._branch(state, undo)
        tip = stage_once_more(branch, change, self._summary(state), (staged.branch, staged.tip))
        return self._audited(_Staged(branch, state, tip, staged.rows))

    def _summary(self, state: TableState) -> dict[str, str]:
        told = {POSITION: positions_to_json(state.positions.values())} if state.positions else {}
        return {**author_summary(self.run_id, EXPIRE_ROWS), **told}

    def _audited(self, staged: "_Staged") -> "_Staged":
        """Return what is staged, if as many rows are left as were counted; raises `AuditFailedError`."""
        assert staged.state.head is not None, "the caller has looked"
        left = self._rows(staged.branch.staged or self.catalog.table(self.identifier), staged.tip)
        before = self._rows(staged.state.table, staged.state.head)
        if left != before - staged.rows:
            raise AuditFailedError(
                f"Table {self.name}: {staged.rows} of its {before} rows expire, but {left} would be left.",
                "Nothing was published, and the table is as it was. That is a defect of kafka_lake: please report it.",
            )
        return staged

    def _delete(self, branch: StagingBranch, tip: int, found: OldFiles, summary: Mapping[str, str]) -> int:
        spark = self.spark()
        spark.sql(f"DELETE FROM {branch.write_name} WHERE {found.limit.sql}")
        deleted = branch.written(tip).snapshot_id
        # A statement takes no properties of the snapshot: one without rows tells the position.
        writer = spark.table(self.catalog.spark_name(self.identifier)).limit(0).writeTo(branch.write_name)
        for key, value in summary.items():
            writer = writer.option(f"snapshot-property.{key}", value)
        writer.append()
        return branch.written(deleted).snapshot_id

    def _rows(self, table: Table | None, snapshot: int) -> int:
        known = table.metadata.snapshot_by_id(snapshot) if table else None
        told = summary_of(known) if known else {}
        if "total-records" in told and told.get("total-delete-files", "0") == "0":
            return int(told["total-records"])
        # Rows may be deleted by files of their own.
        return self._count(f"{self.catalog.spark_name(self.identifier)} VERSION AS OF {snapshot}")

    def _count(self, of: str) -> int:
        return int(self.spark().sql(f"SELECT count(*) AS found FROM {of}").collect()[0]["found"])

    def _told(self, before: Table, staged: "_Staged") -> dict[str, str]:
        snapshot = before.metadata.snapshot_by_id(staged.tip)
        sequence = (snapshot.sequence_number or 0) if snapshot else 0
        told = Expired(self.asked.before_ms, self.asked.by, sequence, staged.state.positions)
        totals = totals_of(before)
        # Numbers are kept of the topic's table alone.
        counted = {TOTALS: totals.plus(Totals(expired=staged.rows)).to_json()} if totals else {}
        return {EXPIRED: told.to_json(), **counted}

    def _remember(self, state: TableState) -> None:
        """Write down that all that is old has gone."""
        last = expired_of(state.table)
        told = Expired(
            self.asked.before_ms,
            self.asked.by,
            last.sequence if last else 0,
            last.positions if last else {},
        )
        # Somebody else's commit in this very moment: then the next run looks once more.
        with suppress(CommitFailedException), state.table.transaction() as transaction:
            transaction.set_properties({EXPIRED: told.to_json()})


@contextmanager
def _refused_if_main_moved(catalog: LakeCatalog, identifier: tuple[str, str], head: int | None) -> Iterator[None]:
    """Make any error of the block a refusal, if others have moved ``main`` since.

    Who publishes takes the branches away that can't be published any more: that shows as any error.
    """
    try:
        yield
    except PublishRefusedError:
        raise
    except Exception as error:
        now = catalog.table(identifier)
        if (found := head_of(now) if now else None) == head:
            raise
        name = ".".join(identifier)
        raise PublishRefusedError(f"Table {name}: main moved from snapshot {head} to {found} meanwhile.") from error


class _Later:
    """A session that is asked for when it is used: only where something is to be written, or to be taken away."""

    def __init__(self, spark: Callable[[], Any]) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark(), name)


@dataclass(frozen=True)
class ReplacedFiles:
    """Data files that go, and those that come instead.

    Args:
        gone: Files of the head that the change was staged at.
        new: Files that were written for it.
    """

    gone: tuple[DataFile, ...]
    new: tuple[DataFile, ...]


def replaced_files(table: Table, head: int, tip: int) -> ReplacedFiles | None:
    """Return how a staged snapshot differs from the head that it was staged at; None if not by data files alone."""
    before, after = data_files(table, head), data_files(table, tip)
    if before is None or after is None or table.format_version != 2:
        return None
    gone = tuple(file for path, file in before.items() if path not in after)
    return ReplacedFiles(gone, tuple(file for path, file in after.items() if path not in before))


def data_files(table: Table, snapshot: int) -> dict[str, DataFile] | None:
    """Return a snapshot's data files by path; None if it has delete files too, or is gone."""
    known = table.metadata.snapshot_by_id(snapshot)
    manifests = known.manifests(table.io) if known else []
    if known is None or any(each.content is not ManifestContent.DATA for each in manifests):
        return None
    entries = (entry for each in manifests for entry in each.fetch_manifest_entry(table.io, discard_deleted=True))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def can_be_made_at(table: Table, change: ReplacedFiles, before: int) -> bool:
    """Return whether a change that was staged at one head of ``main`` means the same at the one that it has now.

    Args:
        before: The head that it was staged at: what came since has only added to it.
    """
    head = head_of(table)
    now = data_files(table, head) if head is not None else None
    follows = any(each.snapshot_id == before for each in ancestors(table, head))
    same_spec = all(each.spec_id == table.metadata.default_spec_id for each in change.new)
    return follows and same_spec and now is not None and all(each.file_path in now for each in change.gone)


def stage_once_more(
    branch: StagingBranch, change: ReplacedFiles, summary: Mapping[str, str], staged: tuple[StagingBranch, int]
) -> int:
    """Make a change on a branch at the new head, and return the snapshot.

    Args:
        branch: Was made at the new head.
        staged: The branch where it was, and the snapshot that keeps the new files alive.

    Raises:
        PublishRefusedError: If files of the change are gone.
    """
    before, tip = staged
    name = ".".join(branch.identifier)
    try:
        branch.replace_files(change.gone, change.new, summary)
    except ValidationException as error:
        raise PublishRefusedError(f"Table {name}: its files were replaced meanwhile.") from error
    written = branch.written(branch.head).snapshot_id
    # Who expires a snapshot deletes its files after that, unless another one has them by then.
    if branch.staged is None or branch.staged.refresh().metadata.snapshot_by_id(tip) is None:
        raise PublishRefusedError(f"Table {name}: branch {before.name} was taken away meanwhile.")
    return written
