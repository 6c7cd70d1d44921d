"""Write, audit, publish: the branch that a commit is staged on, and the compare-and-set that makes it `main`."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any
from uuid import uuid4

import tenacity
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots

from kafka_lake.catalog.append import append_files
from kafka_lake.catalog.lake_catalog import LakeCatalog, without_branches
from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.errors import CatalogRefusedError, PublishRefusedError, TableError

log = logging.getLogger(__name__)

PREFIX = "kafka_lake_"
_TRIES = 5
_NEVER = "TIMESTAMP '1970-01-01 00:00:00'"
SEQUENCE_TAKEN = r"(?is).*can(not|'t) add (a )?snapshot.*(sequence number|first.row.id)"
"""The message of PyIceberg, and of servers that check sequence numbers, SeaweedFS's for instance."""
Properties = Callable[[Table], Mapping[str, str]]
_NAME = re.compile(rf"{PREFIX}(?P<created>\d+)_(?P<head>\d+)_\w+")


def nothing(_: Table) -> Mapping[str, str]:
    """Return no properties."""
    return {}


def _again(change: Callable[[], object], retry: tenacity.retry_base) -> None:
    tenacity.Retrying(
        retry=retry,
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_random_exponential(0.05),
        reraise=True,
    )(change)


def _patiently(change: Callable[[], object]) -> None:
    """Change a table's refs, and retry: a catalog refuses it if another ref changes at that moment."""
    _again(change, tenacity.retry_if_not_exception_type((PublishRefusedError, CatalogRefusedError)))


def _in_sequence(append: Callable[[], object]) -> None:
    """Append a snapshot, and retry if one of another branch took its sequence number: PyIceberg doesn't."""
    _again(append, tenacity.retry_if_exception_message(match=SEQUENCE_TAKEN))


def branch_name(run_id: str, head: int, purpose: str = "stage") -> str:
    """Return a unique branch name with the time, the head of ``main`` where it starts, and the run."""
    run = re.sub(r"\W", "_", run_id)[:40]
    return f"{PREFIX}{int(time.time())}_{head}_{run}_{uuid4().hex[:8]}_{purpose}"


def staging_branches(table: Table) -> dict[str, tuple[float, int]]:
    """Return name → creation time (seconds since the epoch) and head, for the table's staging branches."""
    matches = {name: _NAME.fullmatch(name) for name in table.metadata.refs}
    return {name: (float(match["created"]), int(match["head"])) for name, match in matches.items() if match}


class StagingBranch:
    """A branch of a table that starts at a known head of ``main`` and is published or discarded, never both.

    Args:
        name: Unique to this run and commit, see `branch_name`.
        head: The snapshot of ``main`` that the position was read from.
        table: The table at that head, if it is loaded already.
    """

    def __init__(
        self,
        spark: Any,
        catalog: LakeCatalog,
        identifier: tuple[str, str],
        name: str,
        head: int,
        table: Table | None = None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self.identifier = identifier
        self.name = name
        self.head = head
        self.staged: Table | None = None
        """The table with the last write; None before it, and after a publication."""
        self.published: Table | None = None
        """The table after the publication; None before it, and if the catalog's answer was lost."""
        self._planned = copy(table)
        self._appended: Table | None = None

    @property
    def write_name(self) -> str:
        """Return the name that Spark writes to the branch by."""
        return self._catalog.spark_name(self.identifier, self.name)

    def create(self) -> None:
        """Create the branch at the head; raises `PublishRefusedError` if the table was dropped."""
        _patiently(self._create)

    def _create(self) -> None:
        planned, self._planned = self._planned, None
        table = planned or self._catalog.table(self.identifier)
        if table is None:
            raise PublishRefusedError(f"Table {'.'.join(self.identifier)} no longer exists.")
        if head_of(table, self.name) == self.head:
            # An attempt before this one got no answer.
            return
        table.manage_snapshots().create_branch(self.head, self.name).commit()
        if self.name not in table.metadata.refs:
            raise without_branches(self._catalog)

    def staged_snapshot(self) -> int | None:
        """Return the snapshot of the branch; None if the branch or the table was dropped."""
        table = self._catalog.table(self.identifier)
        return head_of(table, self.name) if table else None

    def delete(self, condition: str) -> int | None:
        """Delete the rows that match an SQL condition, by Spark."""
        before = self.staged_snapshot()
        self._spark.sql(f"DELETE FROM {self.write_name} WHERE {condition}").collect()
        # If nothing was deleted, the snapshot before belongs to another commit.
        return None if self.staged_snapshot() == before else self.written(before).snapshot_id

    def append(self, files: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        """Append data files to the branch as one snapshot; call `written` afterwards, which checks it."""
        try:
            _in_sequence(lambda: self._append(files, summary))
        except (TypeError, ValueError) as error:
            raise TableError(
                f"Table {'.'.join(self.identifier)}: PyIceberg can't append the data files that were written: {error}",
                "main is unchanged. This is a bug in kafka_lake: please report it.",
            ) from error

    def _append(self, files: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        table = self._writable()
        append_files(table, self.name, files, summary)
        self._appended = table

    def _writable(self) -> Table:
        """Return the current table: sequence numbers have advanced since the plan."""
        table = self._catalog.table(self.identifier)
        if table is None or self.name not in table.metadata.refs:
            raise PublishRefusedError(
                f"Table {'.'.join(self.identifier)}: branch {self.name} was removed before a write."
            )
        return table

    def written(self, after: int | None) -> Snapshot:
        """Return the snapshot that a write has just added to the branch."""
        appended, self._appended = self._appended, None
        table = appended or self._catalog.table(self.identifier)
        tip = head_of(table, self.name) if table else None
        snapshot = table.metadata.snapshot_by_id(tip) if table and tip else None
        if after is None or snapshot is None or snapshot.parent_snapshot_id != after:
            raise PublishRefusedError(
                f"Table {'.'.join(self.identifier)}: branch {self.name} was removed during a write."
            )
        self.staged = table
        return snapshot

    def publish(self, staged: int, properties: Properties = nothing) -> None:
        """Move ``main`` to the staged snapshot and drop the branch, in one commit.

        The commit asserts both refs (``assert-ref-snapshot-id`` of Iceberg's REST specification): ``main`` at the head
        where the branch began, and the branch at the audited snapshot. If the catalog's answer is lost, the table shows
        whether the commit happened.
        """
        _patiently(lambda: self._publish(staged, properties))

    def _publish(self, staged: int, properties: Properties) -> None:
        try:
            self._move_main(staged, properties)
        except Exception:
            # Refused, or unknown: the table shows which. Another attempt asserts the same.
            if not self._is_published(staged):
                raise
            log.warning("The catalog's response was lost, but snapshot %s is published.", staged)

    def _move_main(self, staged: int, properties: Properties) -> None:
        staged_table, self.staged = self.staged, None
        name, table = ".".join(self.identifier), staged_table or self._catalog.table(self.identifier)
        main = table.metadata.refs.get("main") if table else None
        if table is None or main is None or main.snapshot_id != self.head:
            current = main.snapshot_id if main else None
            raise PublishRefusedError(
                f"Table {name}: another commit moved main from snapshot {self.head} to {current}."
            )
        if (current := head_of(table, self.name)) != staged:
            raise PublishRefusedError(
                f"Table {name}: branch {self.name} has snapshot {current} instead of the audited snapshot {staged}."
            )
        retention = (main.max_ref_age_ms, main.max_snapshot_age_ms, main.min_snapshots_to_keep)
        # PyIceberg asserts the refs of this loaded table.
        with table.transaction() as transaction:
            if changed := properties(table):
                transaction.set_properties(dict(changed))
            ManageSnapshots(transaction).create_branch(staged, "main", *retention).remove_branch(self.name).commit()
        self.published = table

    def _is_published(self, staged: int) -> bool:
        table = self._catalog.table(self.identifier)
        return table is not None and any(s.snapshot_id == staged for s in ancestors(table, head_of(table)))

    def drop(self) -> None:
        """Drop the branch, if it exists."""
        table = self._catalog.table(self.identifier)
        if table is not None and self.name in table.metadata.refs:
            table.manage_snapshots().remove_branch(self.name).commit()

    def discard(self) -> None:
        """Drop the branch and expire its snapshots and files that aren't part of ``main``.

        Never raises: what can't be removed is logged, and stays invisible to readers.
        """
        try:
            _patiently(self._discard)
        except Exception as error:
            # A failing clean-up must not hide the original error.
            reason = (str(error) or repr(error)).splitlines()[0]
            log.warning("Branch %s of table %s is left behind: %s", self.name, ".".join(self.identifier), reason)

    def _discard(self) -> None:
        table = self._catalog.table(self.identifier)
        if table is None or (tip := head_of(table, self.name)) is None:
            return
        visible = {s.snapshot_id for s in ancestors(table, head_of(table))}
        staged = []
        for snapshot in ancestors(table, tip):
            if snapshot.snapshot_id == self.head or snapshot.snapshot_id in visible:
                break
            staged.append(str(snapshot.snapshot_id))
        self.drop()
        if staged:
            ids = f"ARRAY({', '.join(staged)})"
            # Without a time, snapshots older than the table's maximum age would expire too.
            call = self._catalog.call("expire_snapshots", self.identifier, snapshot_ids=ids, older_than=_NEVER)
            self._spark.sql(call).collect()
