"""Row expiry: delete old rows by one commit that carries the table's position.

Files with old rows only are dropped without being read. The others, which are few where rows come in the order of
time, are written again by Spark.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import tenacity
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import (
    EXPIRE_ROWS,
    POSITION,
    TableState,
    ancestors,
    author_summary,
    head_of,
    read_state,
    summary_of,
)
from kafka_lake.catalog.totals import TOTALS, Totals, totals_of
from kafka_lake.common.offsets import positions_to_json
from kafka_lake.errors import AuditFailedError, PublishRefusedError, TableError
from kafka_lake.maintenance.old_rows import (
    EXPIRED,
    Expired,
    ExpiredRows,
    OldFiles,
    OldRows,
    can_be_dropped,
    expired_of,
    old_files,
)

ATTEMPTS = 6
_FOLLOWED = 10


def expire_rows(
    spark: Callable[[], Any],
    catalog: LakeCatalog,
    identifier: tuple[str, str],
    asked: OldRows,
    run_id: str,
) -> ExpiredRows:
    """Delete a table's old rows, and record it in a table property.

    The delete is staged on a branch, which becomes ``main`` if that hasn't moved and as many rows are left as were
    counted; otherwise it is tried again, a few times.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(0.2, max=5),
        retry=tenacity.retry_if_exception_type(PublishRefusedError),
        reraise=True,
    )
    return retrying(_Expiry(spark, catalog, identifier, asked, run_id=run_id).attempt)


@dataclass(frozen=True)
class _Staged:
    """A staged expiry: its branch, the table before, the branch's tip, and how many rows it deletes."""

    branch: StagingBranch
    state: TableState
    tip: int
    rows: int


@dataclass(frozen=True)
class _Expiry:
    """The arguments of `expire_rows`."""

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
                f"Table {self.name}: no snapshot has its position, which may have to be recovered from its rows, so no "
                "row may expire.",
                "Run its topic once, which recovers the position; rows expire after that.",
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
        undo.callback(branch.discard)
        return branch

    def _stage(self, state: TableState, found: OldFiles, undo: ExitStack) -> "_Staged":
        """Delete the rows on a branch."""
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
        """Publish a staged expiry; if another commit came first, stage it again at the new head where possible."""
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
        """Stage the same change of files at the current head; None if it may not be the same there."""
        table = self.catalog.table(self.identifier)
        state = read_state(table) if table is not None else None
        change = _replaced_files(table, staged.branch.head, staged.tip) if table is not None else None
        if table is None or state is None or change is None or state.head in (None, staged.branch.head):
            return None
        if not _can_be_made_at(table, change, staged.branch.head):
            return None
        branch = self._branch(state, undo)
        tip = _stage_once_more(branch, change, self._summary(state), (staged.branch, staged.tip))
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
        # SQL statements take no snapshot properties, so an empty snapshot carries the position.
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
        return self._count(f"{self.catalog.spark_name(self.identifier)} VERSION AS OF {snapshot}")

    def _count(self, of: str) -> int:
        return int(self.spark().sql(f"SELECT count(*) AS found FROM {of}").collect()[0]["found"])

    def _told(self, before: Table, staged: "_Staged") -> dict[str, str]:
        snapshot = before.metadata.snapshot_by_id(staged.tip)
        sequence = (snapshot.sequence_number or 0) if snapshot else 0
        told = Expired(self.asked.before_ms, self.asked.by, sequence, staged.state.positions)
        totals = totals_of(before)
        # Only the topic's table has totals.
        counted = {TOTALS: totals.plus(Totals(expired=staged.rows)).to_json()} if totals else {}
        return {EXPIRED: told.to_json(), **counted}

    def _remember(self, state: TableState) -> None:
        """Record that no old rows are left."""
        last = expired_of(state.table)
        told = Expired(
            self.asked.before_ms,
            self.asked.by,
            last.sequence if last else 0,
            last.positions if last else {},
        )
        # If another commit comes first, the next run looks again.
        with suppress(CommitFailedException), state.table.transaction() as transaction:
            transaction.set_properties({EXPIRED: told.to_json()})


@contextmanager
def _refused_if_main_moved(catalog: LakeCatalog, identifier: tuple[str, str], head: int | None) -> Iterator[None]:
    """Turn any error of the block into a refusal if ``main`` has moved: its publisher drops other staging branches."""
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
    """A Spark session that is started at its first use."""

    def __init__(self, spark: Callable[[], Any]) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark(), name)


@dataclass(frozen=True)
class _Replaced:
    """Data files that are dropped, and those that replace them."""

    gone: tuple[DataFile, ...]
    new: tuple[DataFile, ...]


def _replaced_files(table: Table, head: int, tip: int) -> _Replaced | None:
    """Return how a staged snapshot differs from its head; None if other than data files differ."""
    before, after = _data_files(table, head), _data_files(table, tip)
    if before is None or after is None or table.format_version != 2:
        return None
    gone = tuple(file for path, file in before.items() if path not in after)
    return _Replaced(gone, tuple(file for path, file in after.items() if path not in before))


def _data_files(table: Table, snapshot: int) -> dict[str, DataFile] | None:
    """Return a snapshot's data files by path; None if it has delete files too, or has expired."""
    known = table.metadata.snapshot_by_id(snapshot)
    manifests = known.manifests(table.io) if known else []
    if known is None or any(each.content is not ManifestContent.DATA for each in manifests):
        return None
    entries = (entry for each in manifests for entry in each.fetch_manifest_entry(table.io, discard_deleted=True))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def _can_be_made_at(table: Table, change: _Replaced, before: int) -> bool:
    """Return whether a change that was staged at head ``before`` can be made at the current head of ``main``."""
    head = head_of(table)
    now = _data_files(table, head) if head is not None else None
    follows = any(each.snapshot_id == before for each in ancestors(table, head))
    same_spec = all(each.spec_id == table.metadata.default_spec_id for each in change.new)
    return follows and same_spec and now is not None and all(each.file_path in now for each in change.gone)


def _stage_once_more(
    branch: StagingBranch, change: _Replaced, summary: Mapping[str, str], staged: tuple[StagingBranch, int]
) -> int:
    """Make a change on a branch at the new head, and return the snapshot."""
    before, tip = staged
    name = ".".join(branch.identifier)
    try:
        branch.replace_files(change.gone, change.new, summary)
    except ValidationException as error:
        raise PublishRefusedError(f"Table {name}: its files were replaced meanwhile.") from error
    written = branch.written(branch.head).snapshot_id
    # Files of an expired snapshot are deleted, unless another snapshot has them.
    if branch.staged is None or branch.staged.refresh().metadata.snapshot_by_id(tip) is None:
        raise PublishRefusedError(f"Table {name}: branch {before.name} was taken away meanwhile.")
    return written
