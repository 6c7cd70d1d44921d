"""A table's metadata that cost no more the older the table is: parsed once, with snapshots that copies share.

A table that is committed to every few seconds has thousands of snapshots within hours. PyIceberg parses the whole
metadata file at every load of a table, and copies all of it, snapshot by snapshot, more than a dozen times a commit:
four seconds at five thousand snapshots. Here the newest metadata of each table are kept, and copies of them share the
snapshots, which nobody can change. `kafka_lake.lake.pyiceberg_compat.loading` has PyIceberg load tables that way.
"""

import json
import random
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry, Summary
from pyiceberg.typedef import Identifier


class _SharedSummary(Summary):
    @property
    def additional_properties(self) -> Any:
        return MappingProxyType(super().additional_properties)

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise TypeError(f"{key} can't be set: a snapshot's summary never changes.")


class _SharedSnapshot(Snapshot):
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "_SharedSnapshot":
        return self

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Snapshot) and self.__dict__ == other.__dict__)

    __hash__ = Snapshot.__hash__


class _SharedEntry(SnapshotLogEntry):
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "_SharedEntry":
        return self

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SnapshotLogEntry) and self.__dict__ == other.__dict__)

    __hash__ = SnapshotLogEntry.__hash__


def shared(metadata: TableMetadata) -> TableMetadata:
    """Return metadata whose snapshots can't be changed, so that copies of it may share them."""
    snapshots = [_snapshot(each) for each in metadata.snapshots]
    log = [each if isinstance(each, _SharedEntry) else _entry(each) for each in metadata.snapshot_log]
    return metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": log})


def _snapshot(snapshot: Snapshot) -> Snapshot:
    if isinstance(snapshot, _SharedSnapshot):
        return snapshot
    parts = dict(snapshot.__dict__)
    if snapshot.summary is not None:
        parts["summary"] = _SharedSummary(
            operation=snapshot.summary.operation, **snapshot.summary.additional_properties
        )
    return _SharedSnapshot.model_construct(snapshot.model_fields_set, **parts)


def _entry(entry: SnapshotLogEntry) -> SnapshotLogEntry:
    return _SharedEntry.model_construct(entry.model_fields_set, **entry.__dict__)


def parse_by(known: TableMetadata, text: str) -> TableMetadata:
    """Return what a metadata file says, by what is known of the same table from another one.

    Snapshots never change, and nearly all are in both: to make them again is most of what parsing takes.

    Args:
        known: Another version of the same table, or of one that had its name.
        text: The file's content.
    """
    document = json.loads(text)
    if document.get("table-uuid") != str(known.table_uuid):
        return TableMetadataUtil.parse_obj(document)
    snapshots = {each.snapshot_id: each for each in known.snapshots}
    log = {(each.snapshot_id, each.timestamp_ms): each for each in known.snapshot_log}
    document["snapshots"] = [_same(snapshots.get(each["snapshot-id"]), each) for each in document.get("snapshots", ())]
    document["snapshot-log"] = [
        log.get((each["snapshot-id"], each["timestamp-ms"]), each) for each in document.get("snapshot-log", ())
    ]
    return TableMetadataUtil.parse_obj(document)


def _same(known: Snapshot | None, written: dict[str, Any]) -> Snapshot | dict[str, Any]:
    return known if known is not None and known.manifest_list == written.get("manifest-list") else written


class Kept(NamedTuple):
    """The newest metadata of a table, and the file that they are in. Its content never changes."""

    location: str
    metadata: TableMetadata


class NewestOfEach:
    """The newest metadata of each table.

    Where there is no room for all, some table makes room by chance: of tables that are asked for in turns, those that
    there is room for stay. The oldest one making room would drive out each just before it is asked for.

    No lock: each step is one of a dict's own, and runs that are forked in the midst of one can't wait for ever.

    Args:
        snapshots: How many snapshots they may have in all.
    """

    def __init__(self, snapshots: int) -> None:
        self._most = snapshots
        self._kept: dict[Identifier, Kept] = {}

    def get(self, key: Identifier) -> Kept | None:
        """Return what is kept of a table."""
        return self._kept.get(key)

    def put(self, key: Identifier, kept: Kept) -> None:
        """Keep the metadata of a table instead of older ones."""
        self._kept.pop(key, None)
        room = self._most - len(kept.metadata.snapshots)
        if room < 0:
            return
        held = {each: len(other.metadata.snapshots) for each, other in list(self._kept.items())}
        while sum(held.values()) > room:
            gone = random.choice(list(held))
            del held[gone]
            self._kept.pop(gone, None)
        self._kept[key] = kept
