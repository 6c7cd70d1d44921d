"""Keeps what PyIceberg does with a table's metadata from growing with the table's age.

A table that is committed to every few seconds has thousands of snapshots within hours. PyIceberg parses the whole
metadata file at every look at a table, and copies all of it, snapshot by snapshot, more than a dozen times a commit:
six seconds at five thousand snapshots.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

T = TypeVar("T")

_TABLES = 1_000
_SNAPSHOTS = 20_000


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


def spare_pyiceberg() -> None:
    """Make PyIceberg parse each metadata file once, and share between copies what never changes; done once."""
    if getattr(FromInputFile.table_metadata, "spared", False):
        return
    for kind in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
        # All three are frozen models.
        kind.__deepcopy__ = _itself  # type: ignore[method-assign, assignment]
    parsed, parse = ParsedFiles(_TABLES, _SNAPSHOTS), FromInputFile.table_metadata

    @wraps(parse)
    def table_metadata(input_file: Any, *args: Any, **options: Any) -> TableMetadata:
        return parsed.get(input_file.location, lambda: parse(input_file, *args, **options))

    table_metadata.spared = True  # type: ignore[attr-defined]
    FromInputFile.table_metadata = staticmethod(table_metadata)  # type: ignore[method-assign]


def _itself(model: T, _memo: dict[int, Any] | None = None) -> T:
    return model
