"""Remove branches and files of dead runs, and never what a live run needs.

A staging branch that doesn't contain the head of ``main`` can't be published any more and is dropped at once, except
one that an expiry of rows or a change of a column's type has just made. Other branches, and files without a snapshot,
may belong to a live run: they are removed only when they are old.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from kafka_lake.catalog.branches import StagingBranch, staging_branches
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.errors import TableError
from kafka_lake.maintenance.maintain import HasEngine, HasTables

DEFAULT_AGE_SECONDS = 24 * 3600.0
# Branches of expired rows can follow a moved head for ten minutes.
_EXPIRE, FOLLOWS_SECONDS = "_expire", 600.0
# Branches that a dead-letter table has without one of the topic's table.
_ALONE = ("_settle", _EXPIRE)


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Args:
        branches: As ``namespace.table.branch``.
    """

    branches: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def sweep(
    spec: HasTables, connections: HasEngine, older_than_seconds: float | None = None, dry_run: bool = False
) -> tuple[str, ...]:
    """Drop staging branches that can't be published any more, with what was staged on them."""
    dropped: list[str] = []
    kept: set[str] = set()
    for identifier in spec.identifiers:
        table = connections.catalog.table(identifier)
        if table is None:
            continue
        is_dead_letters = identifier != spec.identifier
        for name, (created, head) in staging_branches(table).items():
            # Dead letters are staged and dropped together with the rows of the same attempt.
            is_live = _publishable(table, name) and (not is_dead_letters or name in kept or name.endswith(_ALONE))
            is_live = is_live or (name.endswith(_EXPIRE) and time.time() - created < FOLLOWS_SECONDS)
            if is_live and (older_than_seconds is None or time.time() - created < older_than_seconds):
                kept.add(name)
                continue
            if not dry_run:
                StagingBranch(connections.spark(), connections.catalog, identifier, name, head=head).discard()
            dropped.append(".".join((*identifier, name)))
    return tuple(dropped)


def _publishable(table: Table, branch: str) -> bool:
    main = head_of(table)
    return any(s.snapshot_id == main for s in ancestors(table, head_of(table, branch)))


def clean(
    spec: HasTables, connections: HasEngine, older_than_seconds: float = DEFAULT_AGE_SECONDS, dry_run: bool = False
) -> Cleaned:
    """Remove branches and files that dead runs left in the tables, unless another table refers to them."""
    branches = sweep(spec, connections, older_than_seconds, dry_run)
    files: list[str] = []
    for identifier in spec.identifiers:
        if (table := connections.catalog.table(identifier)) is not None:
            orphans = orphan_files(table, connections.catalog, older_than_seconds)
            for path in () if dry_run else orphans:
                _filesystem(table).delete_file(path)
            files += orphans
    return Cleaned(branches, tuple(files))


def orphan_files(table: Table, catalog: LakeCatalog, older_than_seconds: float) -> list[str]:
    """Return the files in a table's folders to which no snapshot of any branch or table refers."""
    limit = time.time() - older_than_seconds
    listed = list(_listed(table))
    _check_names(table, {file.path for file in listed})
    old = {file.path: file.mtime.timestamp() for file in listed if file.mtime and file.mtime.timestamp() < limit}
    if not old:
        return []
    # A renamed table leaves its files where they were, and a copy of a table refers to files here.
    tables = [table, *(other for other in catalog.tables() if other.name() != table.name())]
    # A live run's branch is older than the files that Spark writes. Arrow's come before it: their age protects them.
    limit = min([limit, *(created for one in tables for created, _ in staging_branches(one).values())])
    orphans, seen = {path for path, written in old.items() if written < limit}, set[str]()
    for one in tables:
        # Reloaded after the listing: commits meanwhile count too.
        for state in (one, one.refresh()) if orphans else ():
            referenced = {_path(path) for path in _referenced(state, seen)}
            orphans = {path for path in orphans if _checked(path) not in referenced}
    return sorted(orphans)


def _check_names(table: Table, listed: set[str]) -> None:
    """Refuse to take every file for an orphan because the storage lists them by other names."""
    own = _path(table.metadata_location)
    if own.startswith(f"{_path(table.location())}/metadata/") and own not in listed:
        raise TableError(
            f"Table {'.'.join(table.name())}: the storage doesn't list the table's own metadata file {own}, so file "
            "names differ, and unused files can't be recognized. No file was removed.",
            "Compare the table's location with what the storage lists, and set the catalog's properties accordingly.",
        )


def _checked(path: str) -> str:
    """Return the file of one of Hadoop's checksum files (``.name.crc``), else the path."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name[1:-4]}" if name.startswith(".") and name.endswith(".crc") else path


def _filesystem(table: Table) -> Any:
    if not isinstance(table.io, PyArrowFileIO):
        raise TableError(
            f"Table {'.'.join(table.name())}: files can't be listed by {type(table.io).__name__}.",
            "Set the catalog's py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO, or use Iceberg's remove_orphan_files.",
        )
    scheme, netloc, _ = PyArrowFileIO.parse_location(table.location(), table.io.properties)
    return table.io.fs_by_scheme(scheme, netloc)


def _path(location: str) -> str:
    """Return a location without its scheme, as pyarrow has it."""
    return PyArrowFileIO.parse_location(location)[2]


def _listed(table: Table) -> Iterator[Any]:
    for folder in ("data", "metadata"):
        selector = fs.FileSelector(f"{_path(table.location())}/{folder}", allow_not_found=True, recursive=True)
        files = _filesystem(table).get_file_info(selector)
        yield from (file for file in files if file.type == fs.FileType.File)


def _referenced(table: Table, seen: set[str]) -> Iterator[str]:
    """Yield every file that a snapshot, old metadata or statistics refer to."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    yield from (statistics.statistics_path for statistics in table.metadata.statistics)
    yield from (statistics.statistics_path for statistics in table.metadata.partition_statistics)
    for snapshot in table.metadata.snapshots:
        if snapshot.manifest_list in seen:
            continue
        seen.add(snapshot.manifest_list)
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, False))
