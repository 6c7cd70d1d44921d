"""Where the old files of a table are moved to, which of its files are there, and where they can't be."""

import os
import re
from collections.abc import Iterable

from pyiceberg.table import Table

from kafka_lake.common.errors import TableError

_SCHEME = re.compile(r"^([A-Za-z][\w+.-]*):")
_SAME = {"": "file", "s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
# Names that file systems understand in another way than they are written, or than other engines do: what the storage
# lists there has other names than the table's files, so that they would be taken for orphans.
_ODD = re.compile(r"[?#]|[^:/]//|/\.{1,2}(/|$)|^file://[^/]|^[^:/]*[A-Z][^:/]*:")
PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Where a table's files may be beside its location (https://iceberg.apache.org/docs/latest/configuration/)."""
# With which a catalog's server lets a client at one table's files alone.
_KEYS = ("s3.access-key-id", "s3.signer", "gcs.oauth2.token")


def place_of(table: Table, location: str, known: Iterable[str]) -> str:
    """Return the folder below a location that has a table's old files, and those of no other table.

    Args:
        table: As it was loaded.
        location: What the settings say.
        known: The places that the table has had: a renamed table keeps its own.
    """
    base, own = location.rstrip("/"), f"-{table.metadata.table_uuid}"
    name = re.sub(r"[^\w.-]", "_", ".".join(table.name()))
    before = (each for each in known if each.rpartition("/")[0] == base and each.endswith(own))
    return next(before, f"{base}/{name}{own}")


def within(path: str, place: str) -> bool:
    """Return whether a path is in a folder, however each of them is written.

    >>> within("s3a://cold/t/data/a.parquet", "s3://cold/t"), within("s3://cold/t2/a", "s3://cold/t")
    (True, False)
    >>> within("file:/lake/a", "file:///lake"), within("/lake", "file:///lake")
    (True, True)
    """
    return f"{_plain(path)}/".startswith(f"{_plain(place).rstrip('/')}/")


def copy_path(table: Table, file_path: str, place: str, attempt: str) -> str:
    """Return where the copy of a data file shall be: in the same folder below ``data``, by a name of its own.

    Args:
        table: The table.
        file_path: Of the file.
        place: As `place_of` returned it.
        attempt: What no other attempt has: a file that somebody may be removing as an orphan is never used.
    """
    _, inside, below = file_path.partition(f"{_plain(table.location())}/data/")
    folder, _, name = (below if inside else file_path.rpartition("/")[2]).rpartition("/")
    return "/".join(filter(None, (place, "data", folder, f"{attempt}-{name}")))


def refuse_place(table: Table, location: str, own_properties: dict[str, str]) -> None:
    """Refuse a location that files of a table can't be moved to.

    Args:
        table: As it was loaded.
        location: What the settings say.
        own_properties: The catalog's own, without what it gave for this table.

    Raises:
        TableError: If Spark couldn't read files there, or if they would be among the table's new files, or if the
            credentials are for the table's own files alone.
    """
    name, where = ".".join(table.name()), f"maintenance: tier: location: {location}"
    if odd := _ODD.search(location.rstrip("/")):
        raise TableError(
            f"Table {name}: {where} isn't plain, because of {odd[0]!r}. No file was moved.",
            "Write it as s3://cold/lake or file:///cold/lake, without empty parts, '.', '..', '?' and '#'.",
        )
    if (kind := _kind(location)) != (own := _kind(table.location())):
        raise TableError(
            f"Table {name}: {where} is on {kind}, and the table's files are on {own}: Spark reads all files of a "
            "catalog in one way. No file was moved.",
            f"Name a location on {own}, such as another bucket there.",
        )
    paths = [table.location(), *(value for key, value in table.properties.items() if key in PATHS)]
    if inside := next((each for each in paths if within(_linked(location), _linked(each))), None):
        raise TableError(
            f"Table {name}: {where} is inside {inside}, where the table's new files go. No file was moved.",
            "Name a location outside of it, such as another bucket.",
        )
    if vended := [key for key in _KEYS if table.io.properties.get(key) != own_properties.get(key)]:
        raise TableError(
            f"Table {name}: {where} can't be reached: the catalog's server gives credentials ({', '.join(vended)}) "
            "for the table's own location alone. No file was moved.",
            "Give the catalog credentials of its own for both buckets, and set its property "
            "header.X-Iceberg-Access-Delegation to none; or move files within the storage, by its own rules.",
        )


def _linked(location: str) -> str:
    """Return where a folder of this machine really is: what is listed there has another name than by a link."""
    return os.path.realpath(f"/{_plain(location)}") if _kind(location) == "file" else location


def _kind(location: str) -> str:
    match = _SCHEME.match(location)
    scheme = match[1].lower() if match else ""
    return _SAME.get(scheme, scheme)


def _plain(location: str) -> str:
    return _SCHEME.sub("", location).lstrip("/")
