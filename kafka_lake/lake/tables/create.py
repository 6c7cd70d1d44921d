"""Tables that are made as a topic's settings ask, and dropped if nobody has used them."""

from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder

from kafka_lake.lake.arrow_types import iceberg_field
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import RESUMED_FROM, follows_another, row_count, summary_of
from kafka_lake.lake.tables.layout import Layout, distribution_of, layout_property, partition_spec_of
from kafka_lake.lake.tables.properties import LAYOUT, SOURCES, to_json

LOCATION = "location"

DEFAULTS = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    "write.target-file-size-bytes": str(128 << 20),
    # Old metadata files would grow without bound with a commit every few seconds.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Iceberg's default, and not PyIceberg's: there would be a manifest more with each commit.
    "commit.manifest-merge.enabled": "true",
}


def schema_of(columns: pa.Schema) -> Schema:
    """Return the Iceberg schema of Arrow columns, with fresh field ids."""
    return assign_fresh_schema_ids(Schema(*map(iceberg_field, columns)))


def ensure_table(
    catalog: LakeCatalog,
    identifier: tuple[str, str],
    schema: Schema,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    renames: Mapping[str, str] | None = None,
    begin: Callable[[], object] | None = None,
) -> Table:
    """Return the table, created if there is none, with a snapshot on ``main`` for branches to start from.

    Args:
        schema: Its columns, if it must be created; their docs come along.
        partition_by: Iceberg transforms, if it must be created.
        sort_by: Columns, if it must be created.
        properties: Table properties that win over ours, if it must be created.
        sources: Which fields feed its columns, if it must be created; `apply_changes` says more.
        renames: The topic's, by which ``partition_by`` and ``sort_by`` may name columns as they were.
        begin: Appends nothing to a table of format version 3, of which PyIceberg can't write snapshots.

    Raises:
        ConfigurationError: If a transform or sort names a column that the schema lacks, or doesn't go with its type.
            Nothing is created then.
    """
    table = catalog.table(identifier)
    if table is None:
        catalog.ensure_namespace(identifier[0])
        layout = Layout.asked(schema, partition_by, sort_by, renames or {})
        given, mode = properties or {}, distribution_of(partition_by)
        ours = {"write.distribution-mode": mode} | ({SOURCES: to_json(sources)} if sources else {})
        ours[LAYOUT] = layout_property(partition_by, sort_by, None if "write.distribution-mode" in given else mode)
        try:
            table = catalog.pyiceberg.create_table(
                identifier,
                schema,
                location=location_of(catalog, identifier, given),
                partition_spec=partition_spec_of(schema, layout),
                sort_order=SortOrder(*layout.sort_fields()),
                properties=table_properties(ours, given),
            )
        except TableAlreadyExistsError:
            table = catalog.pyiceberg.load_table(identifier)
    if table.current_snapshot() is not None:
        return table
    try:
        # Two runs may both do this: an empty append changes nothing and carries no position.
        if table.format_version > 2 and begin is not None:
            begin()
        else:
            table.append(table.schema().as_arrow().empty_table())
        return table.refresh()
    except Exception:
        # Catalogs that don't create in one step let two runs create a table of one name; the last one is the table.
        now = catalog.table(identifier)
        if now is None or now.metadata.table_uuid == table.metadata.table_uuid:
            raise
    return ensure_table(
        catalog,
        identifier,
        schema=schema,
        partition_by=partition_by,
        sort_by=sort_by,
        properties=properties,
        sources=sources,
        renames=renames,
        begin=begin,
    )


def drop_if_unused(catalog: LakeCatalog, identifier: tuple[str, str]) -> bool:
    """Drop a table that nobody has committed anything to since `ensure_table` created it, and that nobody is about to.

    One that `ensure_table` has not created is somebody's, and stays.

    It gets another name first, at which nobody finds it: so a commit in the same moment either shows, and the table
    gets its name back, or finds no table and is planned again.

    Returns:
        Whether it is gone.
    """
    table = catalog.table(identifier)
    if table is None or not _is_unused(table):
        return False
    aside = (identifier[0], f"unused_{uuid4().hex}")
    catalog.pyiceberg.rename_table(identifier, aside)
    if not _is_unused(catalog.pyiceberg.load_table(aside)):
        catalog.pyiceberg.rename_table(aside, identifier)
        return False
    # With its files: no other table comes to lie where they are.
    catalog.purge(aside)
    return True


def _is_unused(table: Table) -> bool:
    metadata = table.metadata
    ours = LAYOUT in metadata.properties and not any(
        summary_of(each).keys() & RESUMED_FROM or follows_another(each) for each in metadata.snapshots
    )
    return ours and set(metadata.refs) <= {"main"} and len(metadata.snapshots) <= 1 and not row_count(table)


def location_of(catalog: LakeCatalog, identifier: tuple[str, str], given: Mapping[str, str]) -> str | None:
    """Return where a new table's files shall be: where its properties say, or where no other table's have been.

    Args:
        given: The topic's table properties, of which ``location`` counts.
    """
    return given.get(LOCATION) or catalog.new_location(identifier)


def table_properties(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table: the defaults, over them ours for this table, and over all those given.

    The location isn't among them: it is no property of a table in Iceberg.
    """
    properties = {**DEFAULTS, **ours, **{key: value for key, value in given.items() if key != LOCATION}}
    level = "write.parquet.compression-level"
    if given.get("write.parquet.compression-codec", "zstd") != "zstd" and level not in given:
        # The level is zstd's; others know other levels, and gzip's writer fails on ours.
        del properties[level]
    return properties
