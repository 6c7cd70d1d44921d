"""Keeps what PyIceberg does with a table's metadata from growing with the table's age.

A table that is committed to every few seconds has thousands of snapshots within hours. PyIceberg parses the whole
metadata file at every look at a table, and copies all of it, snapshot by snapshot, more than a dozen times a commit:
six seconds at five thousand snapshots.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

T = TypeVar("T")

_TABLES = 1_000
_SNAPSHOTS = 20_000

_UUID = re.compile(r'"table-uuid"\s*:\s*"([^"]+)"')


class ParsedFiles:
    """The metadata files read last. None ever changes: a commit writes another, whose name has a UUID of its own.

    Args:
        files: How many are kept at most.
        snapshots: How many snapshots they may have in all.
    """

    def __init__(self, files: int, snapshots: int) -> None:
        self._most_files, self._most_snapshots = files, snapshots
        self._kept: OrderedDict[str, TableMetadata] = OrderedDict()
        self._snapshots = 0
        self._lock = threading.Lock()

    def get(self, location: str, parse: Callable[[], TableMetadata]) -> TableMetadata:
        """Return what is in the file at a location, parsed unless it is among those kept."""
        with self._lock:
            if (known := self._kept.get(location)) is not None:
                self._kept.move_to_end(location)
                return known
        # Other tables needn't wait for this one; two threads may do the same work once.
        found = parse()
        with self._lock:
            if location not in self._kept:
                self._kept[location] = found
                self._snapshots += len(found.snapshots)
            while len(self._kept) > self._most_files or self._snapshots > self._most_snapshots:
                self._snapshots -= len(self._kept.popitem(last=False)[1].snapshots)
        return found

    def newest(self, table_uuid: str) -> TableMetadata | None:
        """Return what is kept of a table that was asked for last; None if nothing is."""
        with self._lock:
            return next((each for each in reversed(self._kept.values()) if str(each.table_uuid) == table_uuid), None)


def parse_by(known: TableMetadata, text: str) -> TableMetadata:
    """Return what a metadata file says, by what is known of the same table from another one.

    Snapshots never change, and nearly all are in both: to make them anew is most of what parsing takes.

    Args:
        known: Another version of the same table.
        text: The file's content.
    """
    document = json.loads(text)
    snapshots = {each.snapshot_id: each for each in known.snapshots}
    log = {(each.snapshot_id, each.timestamp_ms): each for each in known.snapshot_log}
    document["snapshots"] = [_same(snapshots.get(each["snapshot-id"]), each) for each in document.get("snapshots", ())]
    document["snapshot-log"] = [
        log.get((each["snapshot-id"], each["timestamp-ms"]), each) for each in document.get("snapshot-log", ())
    ]
    return TableMetadataUtil.parse_obj(document)


def _same(known: Snapshot | None, written: dict[str, Any]) -> Snapshot | dict[str, Any]:
    return known if known is not None and known.manifest_list == written.get("manifest-list") else written


def spare_pyiceberg() -> None:
    """Make PyIceberg parse each metadata file once, and share between copies what never changes; done once."""
    if getattr(FromInputFile.table_metadata, "spared", False):
        return
    for kind in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
        # All three are frozen models.
        kind.__deepcopy__ = _itself  # type: ignore[method-assign, assignment]
    parsed = ParsedFiles(_TABLES, _SNAPSHOTS)
    parse, parse_raw = FromInputFile.table_metadata, TableMetadataUtil.parse_raw

    @wraps(parse)
    def table_metadata(input_file: Any, *args: Any, **options: Any) -> TableMetadata:
        return parsed.get(input_file.location, lambda: parse(input_file, *args, **options))

    @wraps(parse_raw)
    def parse_text(data: str) -> TableMetadata:
        uuid = _UUID.search(data)
        known = parsed.newest(uuid[1]) if uuid else None
        return parse_by(known, data) if known else parse_raw(data)

    table_metadata.spared = True  # type: ignore[attr-defined]
    FromInputFile.table_metadata = staticmethod(table_metadata)  # type: ignore[method-assign]
    TableMetadataUtil.parse_raw = staticmethod(parse_text)  # type: ignore[method-assign]


def _itself(model: T, _memo: dict[int, Any] | None = None) -> T:
    return model
