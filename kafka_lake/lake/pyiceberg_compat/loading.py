"""Has PyIceberg's catalogs load tables with shared snapshots, in this project's own catalogs and no others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import Compressor
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from kafka_lake.common import environment
from kafka_lake.common.tested_versions import is_tested
from kafka_lake.lake.metadata import Kept, NewestOfEach, parse_by, shared

_SNAPSHOTS = 50_000
"""How many snapshots all tables that are kept may have, at 3 kB each."""


@dataclass(frozen=True)
class _Loading:
    """How a catalog of PyIceberg makes a table of what it knows of one.

    Args:
        method: The method's name.
        name: Namespace and name of the table.
        location: Where its metadata are.
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
        catalog: PyIceberg's.
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
