"""Tables made and evolved as a topic's settings ask, through PyIceberg: no engine needed."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    UNSORTED_SORT_ORDER_ID,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.table.update import AddSortOrderUpdate, AssertDefaultSortOrderId, SetDefaultSortOrderUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform, parse_transform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.names import Names, column_name
from kafka_lake.lake.positions import POSITION, row_count, summary_of
from kafka_lake.lake.schema import Change

SOURCES = "kafka-lake.sources"
LAYOUT = "kafka-lake.layout"
LOCATION = "location"

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
    sources: Mapping[str, str] | None = None,
    renames: Mapping[str, str] | None = None,
    begin: Callable[[], object] | None = None,
) -> Table:
    """Return the table, created if there is none, with a snapshot on ``main`` for branches to start from.

    Args:
        catalog: Where it shall be.
        identifier: Namespace and name.
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
        layout = _Layout.asked(schema, partition_by, sort_by, renames or {})
        given, mode = properties or {}, _distribution(partition_by)
        ours = {"write.distribution-mode": mode} | ({SOURCES: _to_json(sources)} if sources else {})
        ours[LAYOUT] = _layout_property(partition_by, sort_by, None if "write.distribution-mode" in given else mode)
        try:
            table = catalog.pyiceberg.create_table(
                identifier,
                schema,
                location=location_of(catalog, identifier, given),
                partition_spec=_partition_spec(schema, layout),
                sort_order=SortOrder(*layout.sort_fields()),
                properties=table_properties(ours, given),
            )
        except TableAlreadyExistsError:
            table = catalog.pyiceberg.load_table(identifier)
    if table.current_snapshot() is None:
        # Two runs may both do this: an empty append changes nothing and carries no position.
        if table.format_version > 2 and begin is not None:
            begin()
        else:
            table.append(table.schema().as_arrow().empty_table())
        table.refresh()
    return table


def drop_if_unused(catalog: LakeCatalog, identifier: tuple[str, str]) -> bool:
    """Drop a table that nobody has committed anything to since `ensure_table` created it, and that nobody is about to.

    One that `ensure_table` has not created is somebody's, and stays.

    It gets another name first, at which nobody finds it: so a commit in the same moment either shows, and the table
    gets its name back, or finds no table and is planned again.

    Args:
        catalog: Where it is.
        identifier: Namespace and name.

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
    catalog.pyiceberg.purge_table(aside)
    return True


def _is_unused(table: Table) -> bool:
    metadata = table.metadata
    ours = LAYOUT in metadata.properties and not any(POSITION in summary_of(each) for each in metadata.snapshots)
    return ours and set(metadata.refs) <= {"main"} and len(metadata.snapshots) <= 1 and not row_count(table)


def location_of(catalog: LakeCatalog, identifier: tuple[str, str], given: Mapping[str, str]) -> str | None:
    """Return where a new table's files shall be: where its properties say, or where no other table's have been.

    Args:
        catalog: Where it shall be.
        identifier: Namespace and name.
        given: The topic's table properties, of which ``location`` counts.

    Returns:
        The location; None if the catalog's server chooses it.
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


def sources_of(table: Table) -> dict[str, str]:
    """Return which field feeds which column where their names differ, as `apply_changes` wrote it: path → field.

    Raises:
        TableError: If the table has that property and it can't be read.
    """
    found = _from_json(table, SOURCES) or {}
    return {str(path): str(name) for path, name in found.items()}


def partition_names(table: Table) -> frozenset[str]:
    """Return the names that no new column may have, since partition fields have them, in whatever spec."""
    schema = table.schema()
    fields = [field for spec in table.specs().values() for field in spec.fields]
    return frozenset(f.name for f in fields if f.name != schema.find_column_name(f.source_id))


def apply_changes(
    table: Table, wanted: Schema, changes: Sequence[Change], sources: Mapping[str, str] | None = None
) -> None:
    """Evolve the table by safe changes, in one commit of its metadata; ``main`` stays where it is.

    Args:
        table: The table, freshly loaded.
        wanted: The schema that asks for the changes, by the columns' names after any renames; in any case.
        changes: What to do, safe changes only. Columns that are renamed or widened keep their field ids and places.
        sources: Which field feeds which column where their names differ, column path → field; written to the table
            if it says otherwise. None leaves what it says.

    Raises:
        CommitFailedException: If somebody else changed the schema meanwhile. Nothing is changed then.
    """
    knows_sources = sources is None or dict(sources) == sources_of(table)
    if not changes and knows_sources:
        return
    with table.transaction() as transaction:
        if not knows_sources:
            transaction.set_properties({SOURCES: _to_json(sources or {})})
        if changes:
            with transaction.update_schema(case_sensitive=False) as update:
                _update(update, table.schema(), wanted, changes)


def _update(update: UpdateSchema, current: Schema, wanted: Schema, changes: Sequence[Change]) -> None:
    # PyIceberg finds columns by the names that they had at the beginning.
    renamed = {change.column: change.after for change in changes if change.kind == "renamed"}
    were = {_key(now): was for now, was in _columns(current.as_struct(), renamed, (), ())} | {(): ()}
    for change in changes:
        if change.kind == "renamed":
            update.rename_column(change.column, change.after)
            continue
        parents, field = _find(wanted.as_struct(), change.column)
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
    """Yield the path of every column within a type: as it will be, and as it is."""
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
                parents, found = _find(field.field_type, path.removeprefix(f"{field.name}."))
            except KeyError:
                continue
            return (field.name, *parents), found
    raise KeyError(path)


@dataclass(frozen=True)
class _Layout:
    """How a table is partitioned and sorted, by field ids: a rename changes nothing.

    Args:
        partition_by: Field id and transform, each.
        sort_by: Field id and direction, each.
    """

    partition_by: tuple[tuple[int, Transform[Any, Any]], ...]
    sort_by: tuple[tuple[int, SortDirection], ...]

    @classmethod
    def asked(
        cls, schema: Schema, partition_by: Sequence[str], sort_by: Sequence[str], renames: Mapping[str, str]
    ) -> "_Layout":
        """Return what settings ask for, in terms of a schema."""
        partitions = []
        for text in partition_by:
            column, transform = parse_partition_field(text)
            field = _field(schema, column, "partition_by", renames)
            if not transform.can_transform(field.field_type):
                raise ConfigurationError(
                    f"partition_by: {text!r} doesn't go with column {column}, which is {field.field_type}.",
                    "Choose another transform or another column in the topic's YAML.",
                )
            partitions.append((field.field_id, transform))
        sorts = [parse_sort_field(text) for text in sort_by]
        return cls(
            tuple(partitions),
            tuple((_field(schema, column, "sort_by", renames).field_id, direction) for column, direction in sorts),
        )

    @classmethod
    def of(cls, table: Table) -> "_Layout":
        """Return what a table has."""
        return cls(
            tuple(
                (f.source_id, f.transform) for f in table.spec().fields if not isinstance(f.transform, VoidTransform)
            ),
            tuple((f.source_id, f.direction) for f in table.sort_order().fields),
        )

    def same_partitions(self, other: "_Layout") -> bool:
        """Return whether both have the same partitions, in whatever order."""
        return {(i, str(t)) for i, t in self.partition_by} == {(i, str(t)) for i, t in other.partition_by}

    def same_as(self, other: "_Layout") -> bool:
        """Return whether nothing has to be done to get from one to the other."""
        return self.same_partitions(other) and self.sort_by == other.sort_by

    def sort_fields(self) -> list[SortField]:
        """Return the sort order's fields: nulls first where it ascends, last where it descends."""
        return [
            SortField(
                source_id,
                IdentityTransform(),
                direction=direction,
                null_order=NullOrder.NULLS_FIRST if direction is SortDirection.ASC else NullOrder.NULLS_LAST,
            )
            for source_id, direction in self.sort_by
        ]

    def partition_text(self, schema: Schema) -> str:
        """Return ``partition_by`` as a user would write it."""
        return ", ".join(_transform_text(str(t), _name(schema, i)) for i, t in self.partition_by) or "(none)"

    def sort_text(self, schema: Schema) -> str:
        """Return ``sort_by`` as a user would write it."""
        descends = {SortDirection.DESC: " desc", SortDirection.ASC: ""}
        return ", ".join(f"{_name(schema, i)}{descends[d]}" for i, d in self.sort_by) or "(none)"


def evolve_layout(
    table: Table, partition_by: Sequence[str], sort_by: Sequence[str], renames: Mapping[str, str] | None = None
) -> list[str]:
    """Give the table the partition spec and sort order that the settings ask for, in one commit of its metadata.

    Only if the layout is this program's own, which the property `LAYOUT` says, and only if the settings have changed
    since: what others did to the spec meanwhile stays. Files that are there keep their layout, as Iceberg does it.

    Args:
        table: The table, freshly loaded.
        partition_by: Iceberg transforms.
        sort_by: Columns.
        renames: The topic's, by which the two may name columns as they were.

    Returns:
        A line for each thing that changed; none if nothing did.

    Raises:
        ConfigurationError: If a transform or sort names a column that the table lacks, or doesn't go with its type.
            Nothing is changed then.
        CommitFailedException: If somebody else changed the table's layout meanwhile. Nothing is changed then.
    """
    schema, renames = table.schema(), renames or {}
    asked = _Layout.asked(schema, partition_by, sort_by, renames)
    recorded = _from_json(table, LAYOUT)
    if recorded is None or _was_asked(schema, recorded, asked, renames):
        return []
    has = _Layout.of(table)
    mode, ours = table.properties.get("write.distribution-mode"), recorded.get("distribution")
    wanted_mode = _distribution(partition_by) if ours is not None and mode == ours else None
    lines = []
    with table.transaction() as transaction:
        if not asked.same_partitions(has):
            lines.append(f"partition_by: {has.partition_text(schema)} → {asked.partition_text(schema)}")
            _repartition(transaction, table, asked)
        if asked.sort_by != has.sort_by:
            lines.append(f"sort_by: {has.sort_text(schema)} → {asked.sort_text(schema)}")
            _resort(transaction, table, asked)
        properties = {LAYOUT: _layout_property(partition_by, sort_by, wanted_mode)}
        if wanted_mode is not None and wanted_mode != mode:
            lines.append(f"write.distribution-mode: {mode} → {wanted_mode}")
            properties["write.distribution-mode"] = wanted_mode
        transaction.set_properties(properties)
    return lines


def _was_asked(schema: Schema, recorded: Mapping[str, Any], asked: _Layout, renames: Mapping[str, str]) -> bool:
    try:
        before = _Layout.asked(schema, recorded.get("partition_by", ()), recorded.get("sort_by", ()), renames)
    except ConfigurationError:
        # Its columns are called otherwise by now.
        return False
    return "partition_by" in recorded and asked.same_as(before)


def _repartition(transaction: Transaction, table: Table, asked: _Layout) -> None:
    schema, wanted = table.schema(), {(i, str(t)) for i, t in asked.partition_by}
    history = [field for spec in table.specs().values() for field in spec.fields]
    here = {(f.source_id, str(f.transform)): f for f in table.spec().fields}
    # A name that another field had, in whatever spec, would mix the two up in the partitions of old files.
    used = Names(field.name for field in history)
    try:
        with transaction.update_spec() as update:
            for key, field in here.items():
                if key not in wanted and not isinstance(field.transform, VoidTransform):
                    update.remove_field(field.name)
            for source_id, transform in asked.partition_by:
                if (source_id, str(transform)) in here:
                    continue
                known = [f.name for f in history if f.source_id == source_id and str(f.transform) == str(transform)]
                name = known[-1] if known else _partition_name(schema, source_id, transform, used)
                used.add(name)
                update.add_field(_name(schema, source_id), transform, name)
    except ValueError as error:
        raise ConfigurationError(
            f"partition_by: {asked.partition_text(schema)} is refused: {error}.", "Choose other transforms."
        ) from error


def _resort(transaction: Transaction, table: Table, asked: _Layout) -> None:
    if not asked.sort_by:
        # PyIceberg's `update_sort_order` takes the highest id for the one added last; unsorted is 0.
        known = UNSORTED_SORT_ORDER_ID in table.sort_orders()
        add = () if known else (AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER}),)
        transaction._apply(
            (*add, SetDefaultSortOrderUpdate.model_validate({"sort-order-id": UNSORTED_SORT_ORDER_ID})),
            (AssertDefaultSortOrderId.model_validate({"default-sort-order-id": table.sort_order().order_id}),),
        )
        return
    with transaction.update_sort_order() as update:
        for field in asked.sort_fields():
            add_field = update.asc if field.direction is SortDirection.ASC else update.desc
            add_field(_name(table.schema(), field.source_id), field.transform, field.null_order)


def _distribution(partition_by: Sequence[str]) -> str:
    return "hash" if partition_by else "none"


def _layout_property(partition_by: Sequence[str], sort_by: Sequence[str], distribution: str | None) -> str:
    layout: dict[str, Any] = {"partition_by": list(partition_by), "sort_by": list(sort_by)}
    return _to_json(layout if distribution is None else {**layout, "distribution": distribution})


def _to_json(content: Mapping[str, Any]) -> str:
    return json.dumps(dict(content), sort_keys=True)


def _from_json(table: Table, name: str) -> dict[str, Any] | None:
    text = table.properties.get(name)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TableError(
            f"Table {'.'.join(table.name())}: its property {name} is no JSON object.",
            "Mend or unset the property.",
        )
    return found


def _partition_spec(schema: Schema, layout: _Layout) -> PartitionSpec:
    used = Names()
    fields = []
    for index, (source_id, transform) in enumerate(layout.partition_by):
        name = _partition_name(schema, source_id, transform, used)
        used.add(name)
        fields.append(PartitionField(source_id=source_id, field_id=1000 + index, transform=transform, name=name))
    return PartitionSpec(*fields)


def _partition_name(schema: Schema, source_id: int, transform: Transform[Any, Any], used: Names) -> str:
    """Return a name that neither a column nor another partition field has; identity alone is called as its column."""
    column = _name(schema, source_id)
    if isinstance(transform, IdentityTransform) and column not in used:
        return column
    kind, _, width = str(transform).partition("[")
    plain, taken = f"{column}_{kind}".replace(".", "_"), Names([*schema.column_names, *used])
    return column_name(f"{plain}_{width.rstrip(']')}" if width and plain in taken else plain, taken)


def _transform_text(transform: str, column: str) -> str:
    kind, _, width = transform.partition("[")
    if kind == "identity":
        return column
    return f"{kind}({width.rstrip(']')}, {column})" if width else f"{kind}({column})"


def _name(schema: Schema, field_id: int) -> str:
    name = schema.find_column_name(field_id)
    return f"(field {field_id}, which is gone)" if name is None else name


def _field(schema: Schema, column: str, setting: str, renames: Mapping[str, str]) -> NestedField:
    try:
        return schema.find_field(column, case_sensitive=False)
    except ValueError as error:
        if column in renames:
            return _field(schema, ".".join([*column.split(".")[:-1], renames[column]]), setting, {})
        raise ConfigurationError(
            f"{setting}: there is no column {column!r}; the columns are {', '.join(f.name for f in schema.fields)}.",
            f"Mend {setting} in the topic's YAML, or the schema.",
        ) from error
