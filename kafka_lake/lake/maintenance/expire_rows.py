"""Expire rows: those that are older than a limit leave a table, by one commit that tells the table's position.

Files of which all rows are old are dropped by their statistics; nothing of them is read. Of the others, which are few
where rows come in the order of time, Spark writes again what stays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tenacity
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from kafka_lake.common.errors import AuditFailedError, PublishRefusedError, TableError
from kafka_lake.lake.author import EXPIRE_ROWS, author_summary
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.maintenance.expired import EXPIRED, Expired, expired_of
from kafka_lake.lake.maintenance.row_age import RowLimit, row_limit
from kafka_lake.lake.positions import POSITION, TableState, head_of, read_state, summary_of
from kafka_lake.lake.totals import TOTALS, Totals, totals_of

_ATTEMPTS = 6


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
class _Found:
    """The files of a table with rows that are old, and whether some of its rows are deleted by other files."""

    limit: RowLimit
    whole: tuple[DataFile, ...]
    partly: tuple[DataFile, ...]
    has_deletes: bool


def count_old_rows(table: Table, asked: OldRows) -> ExpiredRows:
    """Return what would go. Of files that also have rows that stay, the column is read, without Spark.

    Raises:
        TableError: If the column doesn't tell a time, or files have deletes that PyIceberg can't read.
    """
    found = _find(table, row_limit(table, asked.by, asked.before_ms))
    try:
        rows = table.scan(found.limit.expression).count() if found.whole or found.partly else 0
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its old rows can't be counted without Spark: {error}",
            "Nothing is wrong with the table: kafka-lake maintain --yes deletes them, and says how many they were.",
        ) from error
    return ExpiredRows(rows, len(found.whole), len(found.partly))


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
        catalog: Where the table is.
        identifier: Namespace and name of the table.
        asked: Which rows shall go.
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
    return retrying(_Expiry(spark, catalog, identifier, asked, run_id).attempt)


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
        if self.asked.needs_position and state.position is None:
            raise TableError(
                f"Table {self.name}: no snapshot tells its position, so no row may expire: rows may have to prove it.",
                "Run its topic once, which finds the position and writes it down; rows expire after that.",
            )
        found = _find(table, row_limit(table, self.asked.by, self.asked.before_ms))
        if not found.whole and not found.partly:
            self._remember(state)
            return ExpiredRows(0, 0, 0)
        branch = StagingBranch(
            # It is touched only where something is to be written, or to be taken away.
            spark=_Later(self.spark),
            catalog=self.catalog,
            identifier=self.identifier,
            name=branch_name(self.run_id, state.head, "expire"),
            head=state.head,
            table=table,
        )
        branch.create()
        try:
            rows, staged = self._stage(branch, state, found)
            if rows:
                branch.publish(staged, lambda before: self._told(before, state, staged, rows))
            else:
                self._remember(state)
        except PublishRefusedError:
            raise
        except Exception as error:
            # Who publishes takes the branches away that can't be published any more: that shows as any error.
            now = self.catalog.table(self.identifier)
            if (head := head_of(now) if now else None) == state.head:
                raise
            raise PublishRefusedError(
                f"Table {self.name}: main moved from snapshot {state.head} to {head} meanwhile."
            ) from error
        finally:
            # What was published is no branch any more.
            branch.discard()
        return ExpiredRows(rows, len(found.whole), len(found.partly))

    def _stage(self, branch: StagingBranch, state: TableState, found: _Found) -> tuple[int, int]:
        """Take the rows off a branch; return how many they were, and the branch's tip."""
        summary = author_summary(self.run_id, EXPIRE_ROWS)
        if state.position is not None:
            summary[POSITION] = state.position.to_json()
        assert state.head is not None, "the caller has looked"
        tip, rows = state.head, 0
        by_metadata = _can_drop_files(state.table, found)
        if by_metadata and found.whole:
            branch.drop_files(found.whole, summary)
            tip, rows = branch.written(tip).snapshot_id, sum(each.record_count for each in found.whole)
        if found.partly or not by_metadata:
            counted = self._count(f"{branch.write_name} WHERE {found.limit.sql}")
            if counted:
                tip, rows = self._delete(branch, tip, found, summary), rows + counted
        table = branch.staged or self.catalog.table(self.identifier)
        left, before = self._rows(table, tip), self._rows(state.table, state.head)
        if left != before - rows:
            raise AuditFailedError(
                f"Table {self.name}: {rows} of its {before} rows expire, but {left} would be left.",
                "Nothing was published, and the table is as it was. That is a defect of kafka_lake: please report it.",
            )
        return rows, tip

    def _delete(self, branch: StagingBranch, tip: int, found: _Found, summary: Mapping[str, str]) -> int:
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

    def _told(self, before: Table, state: TableState, staged: int, rows: int) -> dict[str, str]:
        snapshot = before.metadata.snapshot_by_id(staged)
        sequence = (snapshot.sequence_number or 0) if snapshot else 0
        told = Expired(self.asked.before_ms, self.asked.by, sequence, state.position)
        totals = totals_of(before)
        # Numbers are kept of the topic's table alone.
        counted = {TOTALS: totals.plus(Totals(expired=rows)).to_json()} if totals else {}
        return {EXPIRED: told.to_json(), **counted}

    def _remember(self, state: TableState) -> None:
        """Write down that all that is old has gone."""
        last = expired_of(state.table)
        told = Expired(
            self.asked.before_ms,
            self.asked.by,
            last.sequence if last else 0,
            last.position if last else None,
        )
        with state.table.transaction() as transaction:
            transaction.set_properties({EXPIRED: told.to_json()})


class _Later:
    """A session that is asked for when it is used."""

    def __init__(self, spark: Callable[[], Any]) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark(), name)


def _find(table: Table, limit: RowLimit) -> _Found:
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
    return _Found(limit, tuple(whole), tuple(partly), has_deletes)


def _can_drop_files(table: Table, found: _Found) -> bool:
    """Return whether PyIceberg can drop files of a table, and knows how many rows they have."""
    columns = table.schema().field_ids
    # It can't write format version 3, nor partitions of columns that have been dropped.
    plain = table.format_version == 2 and not found.has_deletes
    return plain and all(field.source_id in columns for spec in table.specs().values() for field in spec.fields)
