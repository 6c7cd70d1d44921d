"""A table's schema with another type for one of its columns: a new column of the same name in the same place. Pure."""

from collections.abc import Iterator, Sequence
from itertools import count

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from kafka_lake.common.errors import TableError


def column_at(table: Table, path: str) -> tuple[NestedField, ...]:
    """Return the columns that lead to a path, the top-level one first, and the one that it names last.

    Args:
        table: The table.
        path: Names joined by dots, through structs alone; names may have dots themselves.

    Raises:
        TableError: If there is no such column, or it is within a list or a map.
    """
    found = _led_to(table.schema().fields, path)
    if found is not None:
        return found
    name = ".".join(table.name())
    if path in table.schema().column_names:
        raise TableError(
            f"Table {name}: {path} is within a list or a map, and the type of that can't be changed alone.",
            f"Change the whole column: {path.split('.')[0]}.",
        )
    raise TableError(
        f"Table {name} has no column {path}.",
        f"Its columns are {', '.join(each.name for each in table.schema().fields)}.",
    )


def _led_to(fields: Sequence[NestedField], path: str) -> tuple[NestedField, ...] | None:
    for each in fields:
        if path == each.name:
            return (each,)
        if path.startswith(f"{each.name}.") and isinstance(each.field_type, StructType):
            inner = _led_to(each.field_type.fields, path.removeprefix(f"{each.name}."))
            if inner is not None:
                return (each, *inner)
    return None


def refuse_layout_column(table: Table, path: str, field: NestedField) -> None:
    """Refuse a column that tells where a row lies: by another type it would lie elsewhere.

    Raises:
        TableError: If the table is, or was, partitioned by it, is sorted by it, or names its rows by it.
    """
    ids = {field.field_id, *_ids_within(field.field_type)}
    metadata = table.metadata
    uses = {
        "partitioned": {f.source_id for spec in metadata.partition_specs for f in spec.fields},
        "sorted": {f.source_id for f in metadata.sort_order().fields},
        "identified": set(table.schema().identifier_field_ids),
    }
    if how := [use for use, sources in uses.items() if ids & sources]:
        raise TableError(
            f"Table {'.'.join(table.name())} is {' and '.join(how)} by column {path}, whose type can't be changed.",
            "Give the topic another table with table:, and let it be filled from the topic.",
        )


def _ids_within(kind: IcebergType) -> Iterator[int]:
    if isinstance(kind, StructType):
        inner: Sequence[NestedField] = kind.fields
    elif isinstance(kind, ListType):
        inner = (kind.element_field,)
    else:
        inner = (kind.key_field, kind.value_field) if isinstance(kind, MapType) else ()
    for each in inner:
        yield each.field_id
        yield from _ids_within(each.field_type)


def retyped(table: Table, column: Sequence[NestedField], kind: IcebergType) -> Schema:
    """Return the table's schema with another type for a column, which is a new one for Iceberg, by its field id.

    Name, place, doc, and whether null is allowed stay, and so does every other column.

    Args:
        table: The table.
        column: As `column_at` gave it.
        kind: The new type, any field ids.
    """
    ids = count(table.metadata.last_column_id + 1)
    fresh = assign_fresh_schema_ids(Schema(NestedField(0, "new", kind, required=False)), ids.__next__).fields[0]
    new = column[-1].model_copy(update={"field_id": fresh.field_id, "field_type": fresh.field_type})
    schema = table.schema()
    top = _replaced(schema.fields, [each.field_id for each in column], new)
    schema_id = 1 + max(each.schema_id for each in table.metadata.schemas)
    return Schema(*top, schema_id=schema_id, identifier_field_ids=schema.identifier_field_ids)


def _replaced(fields: Sequence[NestedField], path: Sequence[int], new: NestedField) -> list[NestedField]:
    made = []
    for each in fields:
        if each.field_id == path[0] and len(path) == 1:
            each = new
        elif each.field_id == path[0] and isinstance(each.field_type, StructType):
            inner = StructType(*_replaced(each.field_type.fields, path[1:], new))
            each = each.model_copy(update={"field_type": inner})
        made.append(each)
    return made
