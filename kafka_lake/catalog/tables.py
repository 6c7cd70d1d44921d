"""Tables created and evolved as a topic's settings ask, through PyIceberg: no engine needed."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import PYARROW_FIELD_DOC_KEY, PYARROW_PARQUET_FIELD_ID_KEY, pyarrow_to_schema
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from kafka_lake.catalog.append import append_files
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.layout import Layout, partition_spec_of
from kafka_lake.catalog.positions import CREATED, RESUMED_FROM, follows_another, row_count, summary_of
from kafka_lake.errors import TableError
from kafka_lake.schema.rules import Change

SOURCES = "kafka-lake.sources"
"""A table property: path of a column → field that feeds it, where their names differ."""
_NO_ID = -1
_LOCATION = "location"
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
) -> Table:
    """Return the table, created if there is none, with a snapshot on ``main`` for branches to start from.

    All arguments but the first two are for creating it.
    """
    table = catalog.table(identifier)
    if table is None:
        catalog.ensure_namespace(identifier[0])
        layout = Layout.from_settings(schema, partition_by, sort_by, renames or {})
        given = properties or {}
        managed = {CREATED: "true", "write.distribution-mode": "hash" if partition_by else "none"}
        managed |= {SOURCES: to_json(sources)} if sources else {}
        try:
            table = catalog.pyiceberg.create_table(
                identifier,
                schema,
                location=given.get(_LOCATION) or catalog.new_location(identifier),
                partition_spec=partition_spec_of(schema, layout),
                sort_order=SortOrder(*layout.sort_fields()),
                properties=table_properties(managed, given),
            )
        except TableAlreadyExistsError:
            table = catalog.pyiceberg.load_table(identifier)
    if table.current_snapshot() is not None:
        return table
    try:
        # Two runs may both do this: an empty append changes nothing and carries no position.
        append_nothing(table)
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
    )


def drop_if_unused(catalog: LakeCatalog, identifier: tuple[str, str]) -> bool:
    """Drop a table without commits since `ensure_table` created it; return whether it was dropped.

    The table is renamed first. A commit at the same moment is either seen then, and the table gets its name back, or
    it finds no table and is planned again.
    """
    table = catalog.table(identifier)
    if table is None or not _is_unused(table):
        return False
    aside = (identifier[0], f"unused_{uuid4().hex}")
    catalog.pyiceberg.rename_table(identifier, aside)
    if not _is_unused(catalog.pyiceberg.load_table(aside)):
        catalog.pyiceberg.rename_table(aside, identifier)
        return False
    catalog.purge(aside)
    return True


def _is_unused(table: Table) -> bool:
    metadata = table.metadata
    managed = CREATED in metadata.properties and not any(
        summary_of(snapshot).keys() & RESUMED_FROM or follows_another(snapshot) for snapshot in metadata.snapshots
    )
    return managed and set(metadata.refs) <= {"main"} and len(metadata.snapshots) <= 1 and not row_count(table)


def table_properties(managed: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table: defaults, then managed ones, then the given ones without the location."""
    properties = {**DEFAULTS, **managed, **{key: value for key, value in given.items() if key != _LOCATION}}
    level = "write.parquet.compression-level"
    if given.get("write.parquet.compression-codec", "zstd") != "zstd" and level not in given:
        # Other codecs have other levels; gzip's writer fails on this one.
        del properties[level]
    return properties


def iceberg_field(field: pa.Field) -> NestedField:
    """Return an Arrow field as Iceberg's, with its doc, and -1 for all field ids.

    PyIceberg's own conversion of a schema takes no field ``a.b`` beside a field ``b`` of ``a``.

    >>> print(iceberg_field(pa.field("sizes", pa.list_(pa.int16()), nullable=False)).field_type)
    list<int>
    """
    doc = (field.metadata or {}).get(PYARROW_FIELD_DOC_KEY)
    return NestedField(
        _NO_ID, field.name, _type_of(field), required=not field.nullable, doc=doc.decode() if doc else None
    )


def _type_of(field: pa.Field) -> IcebergType:
    kind = field.type
    if pa.types.is_struct(kind):
        return StructType(*map(iceberg_field, kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = kind.value_field
        return ListType(_NO_ID, _type_of(element), element_required=not element.nullable)
    if pa.types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        return MapType(_NO_ID, _type_of(key), _NO_ID, _type_of(value), value_required=not value.nullable)
    # PyIceberg converts fields that have ids, as those of data files do.
    with_id = field.with_metadata({PYARROW_PARQUET_FIELD_ID_KEY: str(_NO_ID)})
    return pyarrow_to_schema(pa.schema([with_id])).fields[0].field_type


def to_json(content: Mapping[str, Any]) -> str:
    """Return the text of a table property that has JSON."""
    return json.dumps(dict(content), sort_keys=True)


def from_json(table: Table, name: str) -> dict[str, Any] | None:
    """Return what a property of a table holds; None if the table lacks it."""
    text = table.properties.get(name)
    if text is None:
        return None
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise TableError(
            f"Table {'.'.join(table.name())}: its property {name} is not a JSON object.",
            "Correct or unset the property.",
        )
    return content


def sources_of(table: Table) -> dict[str, str]:
    """Return path of a column → field that feeds it, where their names differ, as `apply_changes` wrote it."""
    sources = from_json(table, SOURCES) or {}
    return {str(path): str(name) for path, name in sources.items()}


def partition_names(table: Table) -> frozenset[str]:
    """Return the names of partition fields in all specs, which no new column may have."""
    schema = table.schema()
    fields = [field for spec in table.specs().values() for field in spec.fields]
    return frozenset(f.name for f in fields if f.name != schema.find_column_name(f.source_id))


def apply_changes(
    table: Table, target: Schema, changes: Sequence[Change], sources: Mapping[str, str] | None = None
) -> None:
    """Evolve the table by safe changes, in one commit of its metadata; ``main`` stays where it is."""
    knows_sources = sources is None or dict(sources) == sources_of(table)
    if not changes and knows_sources:
        return
    with table.transaction() as transaction:
        if not knows_sources:
            transaction.set_properties({SOURCES: to_json(sources or {})})
        if changes:
            with transaction.update_schema(case_sensitive=False) as update:
                _update(update, table.schema(), target, changes)


def _update(update: UpdateSchema, current: Schema, target: Schema, changes: Sequence[Change]) -> None:
    # PyIceberg finds columns by their names before the transaction.
    renamed = {change.column: change.after for change in changes if change.kind == "renamed"}
    were = {_key(now): was for now, was in _columns(current.as_struct(), renamed, (), ())} | {(): ()}
    for change in changes:
        if change.kind == "renamed":
            update.rename_column(change.column, change.after)
            continue
        parents, field = _find(target.as_struct(), change.column)
        if change.kind == "added":
            update.add_column((*were[_key(parents)], field.name), field.field_type, field.doc)
        elif change.kind == "widened":
            update.update_column(were[_key((*parents, field.name))], field.field_type)
        else:
            update.make_column_optional(were[_key((*parents, field.name))])


def _key(path: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in path)


def _columns(
    kind: IcebergType, renamed: Mapping[str, str], now: tuple[str, ...], was: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the path of every column within a type, after and before the renames."""
    for field in _inner_fields(kind):
        before = (*was, field.name)
        after = (*now, renamed.get(".".join(before), field.name))
        yield after, before
        yield from _columns(field.field_type, renamed, after, before)


def _inner_fields(kind: IcebergType) -> Sequence[NestedField]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return (kind.key_field, kind.value_field) if isinstance(kind, MapType) else ()


def _find(kind: IcebergType, path: str) -> tuple[tuple[str, ...], NestedField]:
    """Return the names that lead to a column, and the column; names may have dots themselves."""
    for field in _inner_fields(kind):
        if path == field.name:
            return (), field
        if path.startswith(f"{field.name}."):
            try:
                parents, inner = _find(field.field_type, path.removeprefix(f"{field.name}."))
            except KeyError:
                continue
            return (field.name, *parents), inner
    raise KeyError(path)


TOTALS = "kafka-lake.totals"
STEPS = ("plan", "stage", "audit")
"""Steps with a known duration when a commit is published; ``stage`` reads, decodes and writes."""


@dataclass(frozen=True)
class Totals:
    """Numbers of one commit, or of all commits of a table.

    Args:
        refused: Publications that were repeated because another commit came first.
        records: Read from Kafka, replays included.
        rows: In an upsert table, change events.
        moved: Dead letters that became rows.
        rewrites: Commits that did more than append new rows.
    """

    commits: int = 0
    refused: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    tombstones: int = 0
    bytes_read: int = 0
    moved: int = 0
    rewrites: int = 0
    expired: int = 0
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def plus(self, other: "Totals") -> "Totals":
        """Return both together."""
        left, right = asdict(self), asdict(other)
        seconds = {
            step: round(self.seconds.get(step, 0.0) + other.seconds.get(step, 0.0), 3)
            for step in sorted({*self.seconds, *other.seconds})
        }
        return Totals(**{name: left[name] + right[name] for name in left if name != "seconds"}, seconds=seconds)

    def to_json(self) -> str:
        """Return the text that the property has."""
        return json.dumps(asdict(self), separators=(",", ":"))


def added(table: Table, done: Totals) -> Mapping[str, str]:
    """Return the property with the numbers of a commit added; ``table`` is loaded before the commit."""
    return {TOTALS: (totals_of(table) or Totals()).plus(done).to_json()}


def totals_of(table: Table) -> Totals | None:
    """Return a table's totals; None if the property is missing or can't be read, so that they begin again."""
    text = table.properties.get(TOTALS)
    if text is None:
        return None
    try:
        content = json.loads(text)
        seconds = {str(step): float(value) for step, value in content.pop("seconds", {}).items()}
        counts = {name: int(content.get(name, 0)) for name in Totals.__dataclass_fields__ if name != "seconds"}
    except (ValueError, TypeError, AttributeError):
        return None
    return Totals(**counts, seconds=seconds)


def append_nothing(table: Table) -> None:
    """Give ``main`` a snapshot without rows, by the current schema. Two runs may do this at once."""
    try:
        append_files(table, "main", (), {})
    except CommitFailedException:
        if table.refresh().current_snapshot() is None:
            raise
