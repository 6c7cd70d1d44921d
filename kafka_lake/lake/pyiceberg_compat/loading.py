"""Has PyIceberg's catalogs load tables with shared snapshots, in this project's own catalogs and no others.

A table that is committed to every few seconds has thousands of snapshots within hours. PyIceberg parses the whole
metadata file at every load of a table, and copies all of it, snapshot by snapshot, more than a dozen times a commit:
four seconds at five thousand snapshots. Here the newest metadata of each table are kept, and copies of them share the
snapshots, which can't change.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry, Summary
from pyiceberg.typedef import Identifier

from kafka_lake.common import environment
from kafka_lake.common.tested_versions import is_tested


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


_SNAPSHOTS = 50_000
"""How many snapshots all tables that are kept may have, at 3 kB each."""


@dataclass(frozen=True)
class _Loading:
    """How a catalog of PyIceberg makes a table of what it knows of one.

    Args:
        name: Namespace and name of the table.
    """

    method: str
    name: Callable[[Any], Identifier]
    location: Callable[[Any], str | None]


_LOADING: Mapping[str, _Loading] = {
    "sql": _Loading(
        "_convert_orm_to_iceberg",
        lambda row: (*Catalog.identifier_to_tuple(row.table_namespace), row.table_name),
        lambda row: row.metadata_location,
    ),
    "glue": _Loading(
        "_convert_glue_to_iceberg",
        lambda row: (row["DatabaseName"], row["Name"]),
        lambda row: row.get("Parameters", {}).get("metadata_location"),
    ),
    "hive": _Loading(
        "_convert_hive_into_iceberg",
        lambda row: (row.dbName, row.tableName),
        lambda row: (row.parameters or {}).get("metadata_location"),
    ),
}
_ANSWER = "_response_to_table"
_newest = NewestOfEach(_SNAPSHOTS)


def sparing(catalog: Catalog, kind: str, newest: NewestOfEach = _newest) -> Catalog:
    """Return the catalog, with loads that parse each metadata file once and tables that share their snapshots.

    Only this object is changed. Private: ``_convert_orm_to_iceberg`` (sql), ``_convert_glue_to_iceberg``,
    ``_convert_hive_into_iceberg`` and ``_response_to_table`` (rest), which are replaced on it. The public
    ``load_table`` begins with a request to the catalog, and parses the file before it returns. Without them, or with a
    version that wasn't tested, PyIceberg loads tables itself: slower, above all with many snapshots.

    Args:
        kind: ``sql``, ``rest``, ``glue`` or ``hive``. A REST catalog sends the metadata with each answer: they are
            parsed each time, and what is made of the table shares its snapshots.
        newest: Where the metadata are kept.
    """
    if environment.METADATA_CACHE.value() == "off" or not is_tested("pyiceberg"):
        return catalog
    own: Any = catalog
    if kind == "rest" and hasattr(own, _ANSWER):
        setattr(own, _ANSWER, _sharing(getattr(own, _ANSWER)))
    elif (loading := _LOADING.get(kind)) and hasattr(own, loading.method):
        setattr(own, loading.method, _kept(own, loading, getattr(own, loading.method), newest))
    return catalog


def _sharing(answer: Callable[..., Table]) -> Callable[..., Table]:
    @wraps(answer)
    def loaded(*args: Any, **options: Any) -> Table:
        table = answer(*args, **options)
        table.metadata = shared(table.metadata)
        return table

    return loaded


def _kept(catalog: Any, loading: _Loading, load: Callable[..., Table], newest: NewestOfEach) -> Callable[..., Table]:
    place = (str(catalog.properties.get("uri")), str(catalog.properties.get("warehouse")), catalog.name)

    def files(location: str, metadata: TableMetadata) -> Any:
        return load_file_io({**catalog.properties, **metadata.properties}, location)

    @wraps(load)
    def loaded(*args: Any, **named: Any) -> Table:
        # Called by position here, by a name of each catalog's own there.
        (row,) = (*args, *named.values())
        location = loading.location(row)
        if not location:
            return load(row)
        name = loading.name(row)
        known = newest.get((*place, *name))
        if known is None:
            table = load(row)
            known = Kept(location, shared(table.metadata))
            newest.put((*place, *name), known)
        elif known.location != location:
            found = parse_by(known.metadata, _text(files(location, known.metadata), location))
            known = Kept(location, shared(found))
            newest.put((*place, *name), known)
        # All but the snapshots could be changed by who gets it.
        metadata = known.metadata.model_copy(deep=True)
        return Table(name, metadata, location, io=files(location, metadata), catalog=catalog)

    return loaded


def _text(files: Any, location: str) -> str:
    with files.new_input(location).open() as file, Compressor.get_compressor(location).stream_decompressor(file) as raw:
        return str(raw.read(), "utf-8")
