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
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import ManageSnapshots

from kafka_lake.errors import PublishRefusedError, TableError
from kafka_lake.lake.append import append_files
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import ancestors, head_of

log = logging.getLogger(__name__)

PREFIX = "kafka_lake_"
_TRIES = 5
_NEVER = "TIMESTAMP '1970-01-01 00:00:00'"
SEQUENCE_TAKEN = r"(?is).*can(not|'t) add (a )?snapshot.*(sequence number|first.row.id)"
"""What says so: PyIceberg itself, and servers that check it as SeaweedFS does."""
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
    """Change a table's refs, again if it fails: who changes another ref at that moment makes a catalog refuse it."""
    _again(change, tenacity.retry_if_not_exception_type(PublishRefusedError))


def _in_sequence(append: Callable[[], object]) -> None:
    """Append a snapshot, again if one of another branch has got its sequence number at that moment.

    Nothing has happened then. PyIceberg retries automatically where catalogs tell of a conflict, but takes this for the
    caller's mistake.
    """
    _again(append, tenacity.retry_if_exception_message(match=SEQUENCE_TAKEN))


def branch_name(run_id: str, head: int, purpose: str = "stage") -> str:
    """Return a name that no other attempt has: it tells when the branch was made, from which head, and by which run.

    Args:
        head: The snapshot of ``main`` that the branch starts at.
    """
    run = re.sub(r"\W", "_", run_id)[:40]
    return f"{PREFIX}{int(time.time())}_{head}_{run}_{uuid4().hex[:8]}_{purpose}"


def staging_branches(table: Table) -> dict[str, tuple[float, int]]:
    """Return the table's staging branches: when each was made (seconds since the epoch) and from which head."""
    found = {name: _NAME.fullmatch(name) for name in table.metadata.refs}
    return {name: (float(match["created"]), int(match["head"])) for name, match in found.items() if match}


class StagingBranch:
    """A branch of a table that starts at a known head of ``main`` and is published or discarded, never both.

    Args:
        spark: Runs Iceberg's SQL extensions and procedures.
        identifier: Namespace and name of the table.
        name: The branch's name, unique to this run and commit.
        head: The snapshot of ``main`` that the position was read from.
        table: The table as it was seen then, so that it needn't be loaded to make the branch.
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
        """The table as it was when what was written last was found in it; None before, and after a publication."""
        self.published: Table | None = None
        """The table as the publication left it; None before, and where the catalog's answer was lost."""
        # What others changed since, the next commit finds.
        self._planned = copy(table)
        self._appended: Table | None = None

    @property
    def write_name(self) -> str:
        """Return the name that Spark writes to the branch by."""
        return self._catalog.spark_name(self.identifier, self.name)

    def create(self) -> None:
        """Create the branch at the head. A branch of that name must not exist.

        Raises:
            PublishRefusedError: If the table is gone.
        """
        _patiently(self._create)

    def _create(self) -> None:
        seen, self._planned = self._planned, None
        table = seen or self._catalog.table(self.identifier)
        if table is None:
            raise PublishRefusedError(f"Table {'.'.join(self.identifier)} is gone.")
        if head_of(table, self.name) == self.head:
            # An attempt before this one got no answer.
            return
        table.manage_snapshots().create_branch(self.head, self.name).commit()

    def staged_snapshot(self) -> int | None:
        """Return the snapshot that the branch points to, None if the branch or the table is gone."""
        table = self._catalog.table(self.identifier)
        return head_of(table, self.name) if table else None

    def delete(self, condition: str) -> int | None:
        """Delete rows from the branch by Spark.

        Args:
            condition: Of the rows, as SQL.

        Returns:
            The snapshot that deletes them; None if there are none, and so no snapshot.

        Raises:
            PublishRefusedError: If the table or the branch is gone.
        """
        before = self.staged_snapshot()
        self._spark.sql(f"DELETE FROM {self.write_name} WHERE {condition}").collect()
        # The snapshot before isn't of this commit: what others have deleted by it is nothing of this one's.
        return None if self.staged_snapshot() == before else self.written(before).snapshot_id

    def append(self, files: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        """Append data files to the branch as one snapshot; `written` tells whether it went where it should.

        Args:
            files: Written for this table's current schema and partition spec; none makes a snapshot without rows.

        Raises:
            PublishRefusedError: If the table or the branch is gone.
            TableError: If PyIceberg can't write the manifests: that is no record's fault, and the next would fail too.
        """
        try:
            _in_sequence(lambda: self._append(files, summary))
        except (TypeError, ValueError) as error:
            raise TableError(
                f"Table {'.'.join(self.identifier)}: PyIceberg can't append the data files that were written: {error}",
                "main is as it was. That is a defect of kafka_lake: please report it.",
            ) from error

    def _append(self, files: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        table = self._writable()
        append_files(table, self.name, files, summary)
        self._appended = table

    def replace_files(self, gone: Sequence[DataFile], new: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        """Drop data files from the branch, and add others, by one snapshot; `written` tells where that went.

        Args:
            gone: Of the branch's tip; they aren't read. There must be no delete files: they would stay.
            new: Of the table's current partition spec.

        Raises:
            PublishRefusedError: If the table or the branch is gone.
            ValidationException: If one of the files isn't there.
        """
        _in_sequence(lambda: self._replace_files(gone, new, summary))

    def _replace_files(self, gone: Sequence[DataFile], new: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        table = self._writable()
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties=dict(summary), branch=self.name)
            with update.overwrite() as overwrite:
                for each in gone:
                    overwrite.delete_data_file(each)
                for each in new:
                    overwrite.append_data_file(each)
        self._appended = table

    def _writable(self) -> Table:
        """Return the table as it is now: sequence numbers have gone on since the plan."""
        table = self._catalog.table(self.identifier)
        if table is None or self.name not in table.metadata.refs:
            raise PublishRefusedError(
                f"Table {'.'.join(self.identifier)}: branch {self.name} was removed before a write."
            )
        return table

    def written(self, after: int | None) -> Snapshot:
        """Return the snapshot that a write has just added to the branch.

        A write to a branch that is gone makes a new one, at whatever ``main`` is by then: that is found here.

        Args:
            after: What the branch pointed to before the write.

        Raises:
            PublishRefusedError: If the branch doesn't go on from there: it was taken away during the write.
        """
        seen, self._appended = self._appended, None
        table = seen or self._catalog.table(self.identifier)
        tip = head_of(table, self.name) if table else None
        snapshot = table.metadata.snapshot_by_id(tip) if table and tip else None
        if after is None or snapshot is None or snapshot.parent_snapshot_id != after:
            raise PublishRefusedError(
                f"Table {'.'.join(self.identifier)}: branch {self.name} was removed during a write."
            )
        self.staged = table
        return snapshot

    def publish(self, staged: int, properties: Properties = nothing, schema: tuple[int, int] | None = None) -> None:
        """Move ``main`` to the staged snapshot and drop the branch, in one commit.

        The commit asserts what both refs point to (``assert-ref-snapshot-id`` of Iceberg's REST specification, which
        PyIceberg holds itself to with all catalogs): ``main`` at the head that the branch began from, neither ahead of
        it nor rolled back, and the branch at what was audited. If the catalog's answer is lost, the table itself tells
        whether the commit happened.

        Args:
            staged: The audited snapshot; another one on the branch is never published.
            properties: Gives properties of the table that the same commit sets, by the table as it is before.
            schema: The id of the table's current schema, and of the one that the same commit makes current; None if it
                stays.

        Raises:
            PublishRefusedError: If ``main`` moved meanwhile, or the branch isn't what was audited, or the table has
                another schema.
        """
        _patiently(lambda: self._publish(staged, properties, schema))

    def _publish(self, staged: int, properties: Properties, schema: tuple[int, int] | None) -> None:
        try:
            self._move_main(staged, properties, schema)
        except Exception:
            # Refused, or unknown: the table tells. Another attempt asserts the same as this one.
            if not self._is_published(staged):
                raise
            log.warning("The catalog's answer was lost, but snapshot %s is published.", staged)

    def _move_main(self, staged: int, properties: Properties, schema: tuple[int, int] | None) -> None:
        seen, self.staged = self.staged, None
        name, table = ".".join(self.identifier), seen or self._catalog.table(self.identifier)
        main = table.metadata.refs.get("main") if table else None
        if table is None or main is None or main.snapshot_id != self.head:
            found = main.snapshot_id if main else None
            raise PublishRefusedError(f"Table {name}: main moved from snapshot {self.head} to {found} meanwhile.")
        if (found := head_of(table, self.name)) != staged:
            raise PublishRefusedError(
                f"Table {name}: branch {self.name} holds snapshot {found}, not the audited {staged}."
            )
        if schema is not None:
            self._move_main_and_schema(table, main, staged, properties(table), schema=schema)
            return
        retention = (main.max_ref_age_ms, main.max_snapshot_age_ms, main.min_snapshots_to_keep)
        # What was looked at is what PyIceberg asserts.
        with table.transaction() as transaction:
            if told := properties(table):
                transaction.set_properties(dict(told))
            ManageSnapshots(transaction).create_branch(staged, "main", *retention).remove_branch(self.name).commit()
        self.published = table

    def _move_main_and_schema(
        self, table: Table, main: SnapshotRef, staged: int, told: Mapping[str, str], schema: tuple[int, int]
    ) -> None:
        before, after = schema
        if table.metadata.current_schema_id != before:
            raise PublishRefusedError(f"Table {'.'.join(self.identifier)}: its columns have changed meanwhile.")
        # A transaction of PyIceberg's has no public way to make one of the table's schemas current.
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": before}),
            AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": self.head}),
            AssertRefSnapshotId.model_validate({"ref": self.name, "snapshot-id": staged}),
        )
        moved = {**main.model_dump(by_alias=True, exclude_none=True), "ref-name": "main", "snapshot-id": staged}
        updates: tuple[TableUpdate, ...] = (
            SetCurrentSchemaUpdate.model_validate({"schema-id": after}),
            SetSnapshotRefUpdate.model_validate(moved),
            RemoveSnapshotRefUpdate.model_validate({"ref-name": self.name}),
        )
        if told:
            updates = (SetPropertiesUpdate(updates=dict(told)), *updates)
        table.catalog.commit_table(table, requirements, updates)

    def _is_published(self, staged: int) -> bool:
        table = self._catalog.table(self.identifier)
        return table is not None and any(s.snapshot_id == staged for s in ancestors(table, head_of(table)))

    def drop(self) -> None:
        """Drop the branch, if it is there. What ``main`` has of what it pointed to stays."""
        table = self._catalog.table(self.identifier)
        if table is not None and self.name in table.metadata.refs:
            table.manage_snapshots().remove_branch(self.name).commit()

    def discard(self) -> None:
        """Drop the branch and expire what was staged on it, files included, unless that is part of ``main``.

        Never raises: what can't be removed is logged and left behind, invisible to readers.
        """
        try:
            _patiently(self._discard)
        except Exception as error:
            # The cause that led here must not be hidden by a clean-up that fails too; the branch can't publish itself.
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
            # Without a time, all that are older than the table's maximum age (five days by default) would go too.
            call = self._catalog.call("expire_snapshots", self.identifier, snapshot_ids=ids, older_than=_NEVER)
            self._spark.sql(call).collect()
