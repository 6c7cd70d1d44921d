"""Metadata files of format version 3, which PyIceberg 0.12 reads and can't write.

All catalogs but REST write metadata files. A change starts from the
previous file: unchanged parts stay byte for byte, even those that PyIceberg doesn't know. The new metadata are parsed
once before they are written, and must equal the requested ones.
"""

import json
from collections.abc import Mapping
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV3
from pyiceberg.typedef import IcebergBaseModel

from kafka_lake.errors import CatalogError, TableError

# Iceberg's Java allows as much, "commits can happen concurrently from different machines" (TableMetadata).
_SKEW_MS = 60_000


def take_over_writing(catalog: Catalog) -> None:
    """Let a catalog write its metadata files by `write_metadata`. Only this object is changed.

    Private: ``MetastoreCatalog._write_metadata``. Without it, PyIceberg writes:
    version 3 as far as it can, and without a check of this machine's clock.
    """
    if isinstance(catalog, MetastoreCatalog) and hasattr(catalog, "_write_metadata"):
        # Looked up there by PyIceberg at the time of a commit. It is a static method, so no self comes along.
        catalog._write_metadata = write_metadata  # type: ignore[method-assign]


def put_at_once(catalog: Catalog) -> None:
    """Let files of a catalog's tables be written to S3 by one request each. Only this object is changed.

    Private: ``Catalog._load_file_io``, and ``PyArrowFileIO.fs_by_scheme``. Without them, each small file takes the
    three requests of a multipart upload.
    """
    target: Any = catalog
    if (load := getattr(target, "_load_file_io", None)) is None:
        return

    @wraps(load)
    def loaded(*args: Any, **named: Any) -> Any:
        io = load(*args, **named)
        by_scheme = getattr(io, "fs_by_scheme", None)
        # PyArrow's copy of a file system loses this one.
        if by_scheme is not None and "s3.retry-strategy-impl" not in io.properties:
            io.fs_by_scheme = lru_cache(lambda *place: _opened_late(by_scheme(*place)))
        return io

    target._load_file_io = loaded


def _opened_late(files: Any) -> Any:
    if getattr(files, "type_name", "") != "s3":
        return files
    make, (options,) = files.__reduce__()
    return make({**options, "allow_delayed_open": True})


def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
    """Write a metadata file, whose name is unique, so that no other can be there."""
    _refuse_early(metadata)
    text = metadata.model_dump_json() if metadata.format_version < 3 else _version_3(metadata, io)
    packed = Compressor.get_compressor(metadata_path).bytes_compressor()
    with io.new_output(metadata_path).create(overwrite=True) as stream:
        stream.write(packed(text.encode()))


def _version_3(metadata: TableMetadata, io: FileIO) -> str:
    if isinstance(metadata, TableMetadataV3) and metadata.next_row_id is None:
        # Of a new table: https://iceberg.apache.org/spec/#row-lineage
        metadata = metadata.model_copy(update={"next_row_id": 0})
    document = _document(metadata, io)
    if TableMetadataUtil.parse_obj(document) != metadata:
        raise TableError(
            f"The metadata of the table at {metadata.location} can't be written unchanged in format version 3.",
            "Change the table with Spark SQL, use a REST catalog, or use format version 2.",
        )
    return json.dumps(document)


def _refuse_early(metadata: TableMetadata) -> None:
    # PyIceberg doesn't look, and Java refuses to load such a table, for ever.
    moments = [entry.timestamp_ms for entry in metadata.snapshot_log[-2:]] + [metadata.last_updated_ms]
    if (behind := max(one - next_ for one, next_ in pairwise([0, *moments]))) > _SKEW_MS:
        raise CatalogError(
            f"The newest commit of the table at {metadata.location} is {behind / 1000:.0f} s in the future by this "
            "machine's clock: after another commit, Iceberg would refuse to load the table.",
            "Synchronize the clocks of all machines that write to the table. Commits work again when this clock has "
            "passed that time.",
        )


def _document(metadata: TableMetadata, io: FileIO) -> dict[str, Any]:
    now = _dumped(metadata)
    if not metadata.metadata_log:
        return now
    before = metadata.metadata_log[-1].metadata_file
    with Compressor.get_compressor(before).stream_decompressor(io.new_input(before).open()) as stream:
        written: dict[str, Any] = json.loads(stream.read())
    document: dict[str, Any] = _changed(written, _dumped(TableMetadataUtil.parse_obj(written)), now)
    return document


def _dumped(metadata: TableMetadata) -> dict[str, Any]:
    # The class's own method raises: version 3 isn't supported.
    text = IcebergBaseModel.model_dump_json(metadata, exclude_none=True, by_alias=True)
    dumped: dict[str, Any] = json.loads(text)
    return dumped


def _changed(written: Any, was: Any, now: Any) -> Any:
    """Return what the previous file has, where PyIceberg takes it for unchanged; else what it would write now."""
    if was == now:
        return written
    if isinstance(written, Mapping) and isinstance(was, Mapping) and isinstance(now, Mapping):
        unknown = {key: part for key, part in written.items() if key not in was and key not in now}
        return {key: _changed(written.get(key), was.get(key), part) for key, part in now.items()} | unknown
    if isinstance(written, list) and isinstance(was, list) and isinstance(now, list) and len(written) == len(was):
        unchanged = {json.dumps(part): kept for part, kept in zip(was, written, strict=True)}
        return [unchanged.get(json.dumps(part), part) for part in now]
    return now
