"""Clean: what dead runs left behind, branches and files, and never what a live run needs.

A staging branch from which ``main`` has moved away can't be published any more, whoever made it: it is dropped at
once, except one that an expiry of rows or a change of a column's type has just made. One that could still be
published may be a live run's, and so may files that no snapshot knows yet: only their age tells.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from kafka_lake.errors import TableError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch, staging_branches
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import ancestors, head_of

DEFAULT_AGE_SECONDS = 24 * 3600.0

# Where a table's files may be beside its location (https://iceberg.apache.org/docs/latest/configuration/).
_PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")

# What the branches are for that a side table has without one of the topic's table: to reconcile, and to expire rows.
_FOLLOWS = ("_expire", "_retype")
_ALONE = ("_settle", *_FOLLOWS)
# Rows that expire, and files that are written again, may follow a head that main has moved to: what was written
# serves so long.
_FOLLOWS_SECONDS = 600.0


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Args:
        branches: Names of branches, with their tables in front; what was staged on them goes with them.
        files: Paths of files that no snapshot knows.
    """

    branches: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class HasTables(Protocol):
    """Whose staging branches are swept: the tables that one kind of run writes."""

    @property
    def identifier(self) -> tuple[str, str]:
        """Return the table that is published last."""

    @property
    def identifiers(self) -> tuple[tuple[str, str], ...]:
        """Return all of them, that one first."""


class HasEngine(Protocol):
    """What sweeping works with."""

    @property
    def catalog(self) -> LakeCatalog:
        """Return where the tables are."""

    @property
    def spark(self) -> Callable[[], Any]:
        """Return what gives the session."""


def sweep(
    spec: HasTables, connections: HasEngine, older_than_seconds: float | None = None, dry_run: bool = False
) -> tuple[str, ...]:
    """Drop the staging branches of tables that can't be published any more, with what was staged on them.

    Args:
        spec: The settings of a topic, or of a derived table.
        connections: Spark is touched only if there is something to drop.
        older_than_seconds: Drop others too if they are older than this; None spares them.

    Returns:
        What was dropped, or would be, as ``namespace.table.branch``.
    """
    dropped: list[str] = []
    spared: set[str] = set()
    for identifier in spec.identifiers:
        table = connections.catalog.table(identifier)
        if table is None:
            continue
        side = identifier != spec.identifier
        for name, (created, head) in staging_branches(table).items():
            # Dead letters are staged and dropped together with the rows of the same attempt.
            alive = _publishable(table, name) and (not side or name in spared or name.endswith(_ALONE))
            alive = alive or (name.endswith(_FOLLOWS) and time.time() - created < _FOLLOWS_SECONDS)
            if alive and (older_than_seconds is None or time.time() - created < older_than_seconds):
                spared.add(name)
                continue
            if not dry_run:
                StagingBranch(
                    spark=connections.spark(), catalog=connections.catalog, identifier=identifier, name=name, head=head
                ).discard()
            dropped.append(".".join((*identifier, name)))
    return tuple(dropped)


def _publishable(table: Table, branch: str) -> bool:
    main = head_of(table)
    return any(s.snapshot_id == main for s in ancestors(table, head_of(table, branch)))


def clean(
    spec: TopicTable, connections: Connections, older_than_seconds: float = DEFAULT_AGE_SECONDS, dry_run: bool = False
) -> Cleaned:
    """Remove branches and files that dead runs left in the topic's tables, and nothing that another table refers to.

    Args:
        connections: The storage is listed through the catalog's own file access.
        older_than_seconds: Spare younger branches that could still be published, and younger files. Writers of
            others, a compaction for instance, have files too that no snapshot knows yet: less than what their longest
            job takes is safe only while there is none.
        dry_run: Remove nothing, and tell what would be.

    Returns:
        What was removed, or would be.
    """
    branches = sweep(spec, connections, older_than_seconds, dry_run)
    files: list[str] = []
    for identifier in spec.identifiers:
        if (table := connections.catalog.table(identifier)) is not None:
            orphans = orphan_files(table, connections.catalog, older_than_seconds)
            if not dry_run:
                remove(table, orphans)
            files += orphans
    return Cleaned(branches, tuple(files))


def remove(table: Table, paths: Iterable[str]) -> None:
    """Delete files of a table that `orphan_files` has found."""
    for path in paths:
        _filesystem(table).delete_file(path)


def orphan_files(table: Table, catalog: LakeCatalog, older_than_seconds: float) -> list[str]:
    """Return the paths of the files in a table's folders that no snapshot, of whatever branch or table, refers to.

    Args:
        catalog: Its other tables are asked, too, as far as there is need to.
        older_than_seconds: Younger files aren't looked at, nor those that a run may be writing.

    Raises:
        TableError: If the storage lists files by other names than the table does, or can't be listed.
    """
    limit = min([time.time() - older_than_seconds, *_live(table)])
    listed = list(_listed(table))
    _refuse_other_names(table, {each.path for each in listed})
    found = {each.path: each for each in listed if each.mtime is not None and each.mtime.timestamp() < limit}
    if not found:
        return []
    # Whoever was renamed has left its files where it was, and a table by its old name may lie there by now.
    near, far = list[Table](), list[Table]()
    for each in catalog.tables():
        if each.name() != table.name():
            (near if _overlap(each, table) else far).append(each)
    limit = min([limit, *(created for each in near for created in _live(each))])
    left = {path for path in found if found[path].mtime.timestamp() < limit}
    seen = set[str]()
    # A copy of a table lies elsewhere and refers to the files here: so all others are asked, once there is need to.
    for each in (table, *near, *far):
        if not left:
            break
        # Loaded again after the listing: what was committed meanwhile is known too.
        for state in (each, each.refresh()):
            known = {_path(path) for path in _referenced(state, seen)}
            left = {path for path in left if _checked(path) not in known}
    return sorted(left)


def _refuse_other_names(table: Table, listed: set[str]) -> None:
    """Refuse to take every file for an orphan, as names that never match would have it."""
    own = _path(table.metadata_location)
    if own.startswith(f"{_path(table.location())}/metadata/") and own not in listed:
        raise TableError(
            f"Table {'.'.join(table.name())}: the storage doesn't list the table's own metadata file {own}, so it "
            "names files in another way, and which ones are orphans can't be told. No file was removed.",
            "Compare the table's location with what the storage lists, and set the catalog's properties accordingly.",
        )


def _live(table: Table) -> list[float]:
    """Return when the staging branches were made: a live run's branch is older than any of its files."""
    return [created for created, _ in staging_branches(table).values()]


def _overlap(other: Table, table: Table) -> bool:
    """Return whether a table may have files in the folders of another."""
    own = f"{_path(table.location())}/"
    places = [other.location(), other.metadata_location, *(each.manifest_list for each in other.metadata.snapshots)]
    places += [value for key, value in other.properties.items() if key in _PATHS]
    return any(path.startswith(own) or own.startswith(path) for path in (f"{_path(place)}/" for place in places))


def _checked(path: str) -> str:
    """Return the file that a checksum file of Hadoop's is about (``.name.crc`` beside ``name``), else the path."""
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
    """Return a location as pyarrow's file systems know it: without scheme."""
    return PyArrowFileIO.parse_location(location)[2]


def _listed(table: Table) -> Iterator[Any]:
    for folder in ("data", "metadata"):
        selector = fs.FileSelector(f"{_path(table.location())}/{folder}", allow_not_found=True, recursive=True)
        found = _filesystem(table).get_file_info(selector)
        yield from (each for each in found if each.type == fs.FileType.File)


def _referenced(table: Table, seen: set[str]) -> Iterator[str]:
    """Yield every file that a snapshot, old metadata or statistics refer to, each once."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    yield from (each.statistics_path for each in table.metadata.statistics)
    yield from (each.statistics_path for each in table.metadata.partition_statistics)
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
