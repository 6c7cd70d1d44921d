"""Tables made and evolved as a topic's settings ask, through PyIceberg: no engine needed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, parse_transform

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.schema import Change

_CALL = re.compile(r"^\s*(?P<transform>[A-Za-z]+)\s*\(\s*(?:(?P<width>\d+)\s*,\s*)?(?P<column>[^(),\s]+)\s*\)\s*$")
_COLUMN = re.compile(r"^\s*(?P<column>[^(),\s]+)\s*$")
_SORT = re.compile(r"^\s*(?P<column>[^(),\s]+)(?:\s+(?P<direction>asc|desc))?\s*$", re.IGNORECASE)
_SPELLINGS = {"days": "day", "hours": "hour", "months": "month", "years": "year", "date": "day"}
_WITH_WIDTH = {"bucket", "truncate"}
_KNOWN = {"identity", "year", "month", "day", "hour", "bucket", "truncate"}

DEFAULTS = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    "write.target-file-size-bytes": str(128 << 20),
    # Old metadata files would grow without bound with a commit every few seconds.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def parse_partition_field(text: str) -> tuple[str, Transform[Any, Any]]:
    """Return column and transform of one ``partition_by`` entry.

    Args:
        text: ``column``, ``day(column)`` or ``bucket(16, column)``.

    Raises:
        ConfigurationError: If Iceberg has no such transform.

    >>> parse_partition_field("bucket(16, store_id)")
    ('store_id', BucketTransform(num_buckets=16))
    """
    if plain := _COLUMN.match(text):
        return plain["column"], IdentityTransform()
    call = _CALL.match(text)
    written = call["transform"].lower() if call else ""
    name = _SPELLINGS.get(written, written)
    if not call or name not in _KNOWN or (name in _WITH_WIDTH) != bool(call["width"]):
        raise ConfigurationError(
            f"partition_by: {text!r} is no Iceberg transform.",
            "Write a column, or year(c), month(c), day(c), hour(c), bucket(16, c), truncate(4, c).",
        )
    return call["column"], parse_transform(f"{name}[{call['width']}]" if call["width"] else name)


def parse_sort_field(text: str) -> tuple[str, SortDirection]:
    """Return column and direction of one ``sort_by`` entry.

    Raises:
        ConfigurationError: If it is not ``column``, ``column asc`` or ``column desc``.
    """
    match = _SORT.match(text)
    if not match:
        raise ConfigurationError(f"sort_by: {text!r} is not understood.", "Write `column` or `column desc`.")
    return match["column"], SortDirection.DESC if (match["direction"] or "").lower() == "desc" else SortDirection.ASC


def schema_of(columns: pa.Schema) -> Schema:
    """Return the Iceberg schema of Arrow columns, with fresh field ids."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))


def ensure_table(
    catalog: LakeCatalog,
    identifier: tuple[str, str],
    schema: Schema,
    partition_by: Sequence[str] = (),
    sort_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Return the table, created if there is none, with a snapshot on ``main`` for branches to start from.

    Args:
        catalog: Where it shall be.
        identifier: Namespace and name.
        schema: Its columns, if it must be created.
        partition_by: Iceberg transforms, if it must be created.
        sort_by: Columns, if it must be created.
        properties: Table properties that win over ours, if it must be created.

    Raises:
        ConfigurationError: If a transform or sort names a column that the schema lacks. Nothing is created then.
    """
    table = catalog.table(identifier)
    if table is None:
        catalog.ensure_namespace(identifier[0])
        distribution = {"write.distribution-mode": "hash" if partition_by else "none"}
        try:
            table = catalog.pyiceberg.create_table(
                identifier,
                schema,
                partition_spec=_partition_spec(schema, partition_by),
                sort_order=_sort_order(schema, sort_by),
                properties=_table_properties(distribution, properties or {}),
            )
        except TableAlreadyExistsError:
            table = catalog.pyiceberg.load_table(identifier)
    if table.current_snapshot() is None:
        # Two runs may both do this: an empty append changes nothing and carries no position.
        table.append(table.schema().as_arrow().empty_table())
        table.refresh()
    return table


def _table_properties(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    properties = {**DEFAULTS, **ours, **given}
    level = "write.parquet.compression-level"
    if given.get("write.parquet.compression-codec", "zstd") != "zstd" and level not in given:
        # The level is zstd's; others know other levels, and gzip's writer fails on ours.
        del properties[level]
    return properties


def apply_changes(table: Table, wanted: Schema, changes: Sequence[Change]) -> None:
    """Evolve the table by safe changes, in one commit of its metadata; ``main`` stays where it is.

    Args:
        table: The table, freshly loaded.
        wanted: The schema that asks for the changes; matched by name.
        changes: What to do, safe changes only.

    Raises:
        CommitFailedException: If somebody else changed the schema meanwhile. Nothing is changed then.
    """
    if not changes:
        return
    with table.update_schema(case_sensitive=False) as update:
        update.union_by_name(wanted)
        for change in changes:
            if change.kind == "made optional":
                update.update_column(tuple(change.column.split(".")), required=False)


def _partition_spec(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    fields = []
    for index, text in enumerate(partition_by):
        column, transform = parse_partition_field(text)
        name = f"{column}_{str(transform).split('[')[0]}".replace(".", "_")
        fields.append(
            PartitionField(
                source_id=_field_id(schema, column, "partition_by"),
                field_id=1000 + index,
                transform=transform,
                name=column if isinstance(transform, IdentityTransform) else name,
            )
        )
    return PartitionSpec(*fields)


def _sort_order(schema: Schema, sort_by: Sequence[str]) -> SortOrder:
    fields = []
    for text in sort_by:
        column, direction = parse_sort_field(text)
        nulls = NullOrder.NULLS_FIRST if direction is SortDirection.ASC else NullOrder.NULLS_LAST
        source = _field_id(schema, column, "sort_by")
        fields.append(SortField(source, IdentityTransform(), direction=direction, null_order=nulls))
    return SortOrder(*fields)


def _field_id(schema: Schema, column: str, setting: str) -> int:
    try:
        return schema.find_field(column, case_sensitive=False).field_id
    except ValueError as error:
        raise ConfigurationError(
            f"{setting}: there is no column {column!r}; the columns are {', '.join(f.name for f in schema.fields)}.",
            f"Mend {setting} in the topic's YAML, or the schema.",
        ) from error
