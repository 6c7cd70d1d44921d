"""Appends data files to a branch as one snapshot.

PyIceberg 0.12 can't write manifests of format version 3, so that is done here. Every row has an id: the first id of its
file, plus its position in the file. A snapshot takes ids from the table's ``next-row-id``, and its manifest list gives
each new manifest the first of its rows' ids (https://iceberg.apache.org/spec/#row-lineage).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    PartitionFieldSummary,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    ValidatableTableRequirement,
)

_LIST = MANIFEST_LIST_FILE_SCHEMAS[3]
_FIRST_ROW_ID = 15
"""Where an entry of a manifest list has the first id of the manifest's rows."""


class _ManifestWriter(ManifestWriterV2):
    @property
    def version(self) -> Literal[3]:
        return 3


class _NothingNewer(ValidatableTableRequirement):
    """The table must have no newer snapshot on any branch. REST catalogs check this themselves."""

    type: str = "kafka-lake-nothing-newer"
    sequence_number: int

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if isinstance(base_metadata, TableMetadataV3) and base_metadata.last_sequence_number >= self.sequence_number:
            raise ValueError(f"Can't add snapshot with sequence number {self.sequence_number}: another one has it.")


def append_files(table: Table, branch: str, files: Sequence[DataFile], summary: Mapping[str, str]) -> None:
    """Append data files to a branch as one snapshot; the table has it afterwards."""
    if isinstance(table.metadata, TableMetadataV3):
        _append_v3(table, table.metadata, branch, files=files, summary=summary)
        return
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=dict(summary), branch=branch)
        # PyIceberg merges manifests only with a table property, which managed tables have.
        with update.merge_append() if _can_merge(table) else update.fast_append() as append:
            for file in files:
                append.append_data_file(file)


def _can_merge(table: Table) -> bool:
    """Return whether PyIceberg can merge all manifests: it fails at partitions of columns that have been dropped."""
    columns = table.schema().field_ids
    return all(field.source_id in columns for spec in table.specs().values() for field in spec.fields)


def _append_v3(
    table: Table, metadata: TableMetadataV3, branch: str, files: Sequence[DataFile], summary: Mapping[str, str]
) -> None:
    parent = metadata.snapshot_by_name(branch)
    snapshot_id, first, commit = metadata.new_snapshot_id(), metadata.next_row_id or 0, uuid4()
    sequence_number, locations = metadata.next_sequence_number(), table.location_provider()
    manifests = [_manifest(table, files, snapshot_id, f"{commit}-m0.avro")] if files else []
    manifests += _manifests(table, parent) if parent else []
    place, after = locations.new_metadata_location(f"snap-{snapshot_id}-0-{commit}.avro"), first
    for manifest in manifests:
        if manifest.added_snapshot_id == snapshot_id:
            manifest.sequence_number = manifest.min_sequence_number = sequence_number
        # Manifests from before the table was of version 3 have no ids yet either.
        if manifest.content == ManifestContent.DATA and manifest[_FIRST_ROW_ID] is None:
            manifest[_FIRST_ROW_ID] = after
            after += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    before = parent.snapshot_id if parent else None
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if before is None else str(before),
        "sequence-number": str(sequence_number),
        "first-row-id": str(first),
        "format-version": "3",
    }
    with AvroOutputFile[ManifestFile](
        table.io.new_output(place), file_schema=_LIST, schema_name="manifest_file", metadata=header
    ) as written:
        if manifests:
            written.write_block(manifests)
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": before,
        "manifest-list": place,
        "sequence-number": sequence_number,
        "summary": _summary(metadata, parent, files, summary),
        "schema-id": metadata.current_schema_id,
        "first-row-id": first,
        "added-rows": after - first,
    }
    moved = {"ref-name": branch, "type": "branch", "snapshot-id": snapshot_id}
    updates = AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)), SetSnapshotRefUpdate.model_validate(moved)
    requirements: list[Any] = [
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": before}),
    ]
    if isinstance(table.catalog, MetastoreCatalog):
        requirements.append(_NothingNewer(sequence_number=sequence_number))
    done = table.catalog.commit_table(table, tuple(requirements), updates)
    table.metadata, table.metadata_location = done.metadata, done.metadata_location


def _manifest(table: Table, files: Sequence[DataFile], snapshot_id: int, name: str) -> ManifestFile:
    """Write a manifest of new files, and return its entry of the manifest list."""
    output = table.io.new_output(table.location_provider().new_metadata_location(name))
    with _ManifestWriter(
        table.spec(), table.schema(), output, snapshot_id=snapshot_id, avro_compression="deflate"
    ) as writer:
        for file in files:
            added = ManifestEntryStatus.ADDED
            writer.add_entry(ManifestEntry.from_args(status=added, snapshot_id=snapshot_id, data_file=file))
    entry = writer.to_manifest_file()
    return ManifestFile(*(entry[number] for number in range(len(entry))), None)


def _manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Return a snapshot's manifests with the ids of their rows, which PyIceberg leaves out."""
    with AvroFile[ManifestFile](
        table.io.new_input(snapshot.manifest_list),
        _LIST,
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as entries:
        return list(entries)


def _summary(
    metadata: TableMetadata, parent: Snapshot | None, files: Sequence[DataFile], properties: Mapping[str, str]
) -> Summary:
    collected = SnapshotSummaryCollector()
    for file in files:
        collected.add_file(file, metadata.schema(), metadata.spec())
    summary = Summary(operation=Operation.APPEND, **collected.build(), **properties)
    return update_snapshot_summaries(summary, parent.summary if parent else None)
