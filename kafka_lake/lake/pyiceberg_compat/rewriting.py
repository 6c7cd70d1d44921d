"""Has a branch refer to data files of another schema instead of all that it has, while the table keeps its schema."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
)

from kafka_lake.common.errors import TableError
from kafka_lake.common.tested_versions import is_tested

_DELETES = ("delete-files", "position-deletes", "equality-deletes")


def stage_rewritten(
    table: Table, branch: str, schema_id: int, files: Sequence[DataFile], summary: Mapping[str, str]
) -> None:
    """Put a snapshot on a branch that has other data files of another schema, and no delete files, in one commit.

    Private: ``_OverwriteFiles._existing_manifests`` and ``_summary``: PyIceberg keeps delete files, whose data files
    go, and counts them.

    Args:
        table: The table, freshly loaded.
        branch: Its tip has the files that go.
        schema_id: The schema of the new files, one of the table's.
        files: Instead of all that the branch has, of the table's current partition spec.
        summary: Properties of the snapshot.

    Raises:
        TableError: If PyIceberg is of a version that this wasn't tested with.
        CommitFailedException: If another commit came first. The branch is as it was.
    """
    refuse_untested()
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class _RewriteAll(_OverwriteFiles):
        def _existing_manifests(self) -> list[ManifestFile]:
            return []

        def _summary(self, *arguments: Any, **named: Any) -> Summary:
            told = super()._summary(*arguments, **named).additional_properties
            gone = {f"removed-{each}": n for each in _DELETES if (n := told.get(f"total-{each}", "0")) != "0"}
            rows = sum(each.record_count for each in files)
            left = {**{f"total-{each}": "0" for each in _DELETES}, "total-records": str(rows)}
            return Summary(operation=Operation.OVERWRITE, **{**told, **gone, **left})

    changed = table.metadata.model_copy(update={"current_schema_id": schema_id})
    transaction = Table(table.name(), changed, table.metadata_location, table.io, catalog=table.catalog).transaction()
    with _RewriteAll(
        operation=Operation.OVERWRITE, transaction=transaction, io=table.io, branch=branch,
        snapshot_properties=dict(summary),
    ) as update:  # fmt: skip
        for each in _data_files(table, branch):
            update.delete_data_file(each)
        for each in files:
            update.append_data_file(each)
    tip, made = table.metadata.refs[branch], transaction.table_metadata.snapshot_by_name(branch)
    assert made is not None, "it has just been put there"
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": tip.snapshot_id}),
    )
    ref = {"ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": made.snapshot_id}
    updates = (AddSnapshotUpdate(snapshot=made), SetSnapshotRefUpdate.model_validate(ref))
    table.catalog.commit_table(table, requirements, updates)


def refuse_untested() -> None:
    """Raise `TableError` if PyIceberg is of a version that this wasn't tested with."""
    if not is_tested("pyiceberg"):
        raise TableError(
            "The type of a column can't be changed: a snapshot that replaces all files is made by private parts of "
            "PyIceberg, and the version that is installed wasn't tested.",
            "Install a version of PyIceberg that kafka_lake was tested with.",
        )


def _data_files(table: Table, branch: str) -> list[DataFile]:
    snapshot = table.metadata.snapshot_by_name(branch)
    manifests = snapshot.manifests(table.io) if snapshot else []
    data = (each for each in manifests if each.content is ManifestContent.DATA)
    return [entry.data_file for each in data for entry in each.fetch_manifest_entry(table.io, discard_deleted=True)]
