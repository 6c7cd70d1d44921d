"""Lets PyIceberg's catalogs parse each metadata file once and share snapshots between copies of a table's metadata.

A table with a commit every few seconds has thousands of snapshots within hours. PyIceberg parses the whole metadata
file at every load, and copies it a dozen times a commit: four seconds at 5,000 snapshots. Snapshots never change, so
here the newest metadata of each table are kept, and copies share the snapshots.
"""

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry
from pyiceberg.typedef import Identifier

from kafka_lake.common import environment

_MOST_SNAPSHOTS = 50_000
_Cache = dict[Identifier, tuple[str, TableMetadata]]
# The newest metadata file of each table, and its content.
_newest: _Cache = {}
_ANSWER = "_response_to_table"
_Row = tuple[Identifier, str | None]
# How each catalog makes a table of what it knows of one: its method, and the table's name and metadata file.
_LOADING: Mapping[str, tuple[str, Callable[[Any], _Row]]] = {
    "sql": (
        "_convert_orm_to_iceberg",
        lambda row: ((*Catalog.identifier_to_tuple(row.table_namespace), row.table_name), row.metadata_location),
    ),
    "glue": (
        "_convert_glue_to_iceberg",
        lambda row: ((row["DatabaseName"], row["Name"]), row.get("Parameters", {}).get("metadata_location")),
    ),
    "hive": (
        "_convert_hive_into_iceberg",
        lambda row: ((row.dbName, row.tableName), (row.parameters or {}).get("metadata_location")),
    ),
}


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


def share_snapshots(catalog: Catalog, kind: str) -> Catalog:
    """Return the catalog, which parses each metadata file once and gives tables that share their snapshots.

    Only this object is changed. Private: the methods in ``_LOADING``, and ``_response_to_table`` of a REST catalog,
    which sends the metadata with each answer. Without them, PyIceberg loads tables itself, slower.
    """
    if environment.METADATA_CACHE.value() == "off":
        return catalog
    target: Any = catalog
    if kind == "rest" and hasattr(target, _ANSWER):
        answer = getattr(target, _ANSWER)

        @wraps(answer)
        def loaded(*args: Any, **options: Any) -> Table:
            table: Table = answer(*args, **options)
            table.metadata = shared(table.metadata)
            return table

        setattr(target, _ANSWER, loaded)
    elif kind in _LOADING and hasattr(target, _LOADING[kind][0]):
        method, row_of = _LOADING[kind]
        setattr(target, method, _caching(target, getattr(target, method), row_of))
    return catalog


def shared(metadata: TableMetadata) -> TableMetadata:
    """Return metadata whose copies share its snapshots."""

    def made(kind: type[Any], model: Any) -> Any:
        return model if isinstance(model, kind) else kind.model_construct(model.model_fields_set, **model.__dict__)

    snapshots = [made(_SharedSnapshot, snapshot) for snapshot in metadata.snapshots]
    log = [made(_SharedEntry, entry) for entry in metadata.snapshot_log]
    return metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": log})


def parse_by(known: TableMetadata, text: str) -> TableMetadata:
    """Return the content of a metadata file, with the snapshots that another file of the same table has too."""
    document = json.loads(text)
    if document.get("table-uuid") != str(known.table_uuid):
        return TableMetadataUtil.parse_obj(document)
    snapshots = {(entry.snapshot_id, entry.manifest_list): entry for entry in known.snapshots}
    log = {(entry.snapshot_id, entry.timestamp_ms): entry for entry in known.snapshot_log}
    document["snapshots"] = [
        snapshots.get((entry["snapshot-id"], entry.get("manifest-list")), entry)
        for entry in document.get("snapshots", ())
    ]
    document["snapshot-log"] = [
        log.get((entry["snapshot-id"], entry["timestamp-ms"]), entry) for entry in document.get("snapshot-log", ())
    ]
    return TableMetadataUtil.parse_obj(document)


def keep(newest: _Cache, key: Identifier, location: str, metadata: TableMetadata) -> None:
    """Keep a table's newest metadata; a full cache (3 kB a snapshot) is emptied first."""
    if sum(len(table.snapshots) for _, table in list(newest.values())) > _MOST_SNAPSHOTS:
        newest.clear()
    newest[key] = location, metadata


def _caching(catalog: Any, load: Callable[..., Table], row_of: Callable[[Any], _Row]) -> Callable[..., Table]:
    place = (str(catalog.properties.get("uri")), str(catalog.properties.get("warehouse")), catalog.name)

    def files(location: str, metadata: TableMetadata) -> Any:
        return load_file_io({**catalog.properties, **metadata.properties}, location)

    @wraps(load)
    def loaded(*args: Any, **named: Any) -> Table:
        # PyIceberg passes one argument, by position or by a name of each catalog's own.
        (row,) = (*args, *named.values())
        name, location = row_of(row)
        if not location:
            return load(row)
        known = _newest.get((*place, *name))
        if known is None:
            metadata = shared(load(row).metadata)
            keep(_newest, (*place, *name), location, metadata)
        elif known[0] == location:
            metadata = known[1]
        else:
            metadata = shared(parse_by(known[1], _text(files(location, known[1]), location)))
            keep(_newest, (*place, *name), location, metadata)
        # All but the snapshots could be changed by the caller.
        copy = metadata.model_copy(deep=True)
        return Table(name, copy, location, io=files(location, copy), catalog=catalog)

    return loaded


def _text(files: Any, location: str) -> str:
    with files.new_input(location).open() as file, Compressor.get_compressor(location).stream_decompressor(file) as raw:
        return str(raw.read(), "utf-8")
