"""Rows in a table's sort order."""

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder


def in_order(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """Return rows sorted as a table wants them (https://iceberg.apache.org/spec/#sorting); equal ones keep their order.

    Args:
        rows: With all columns of the table.
        schema: The table's, for the columns that the order names by id.
    """
    if order.is_unsorted or len(rows) < 2:
        return rows
    keys: dict[str, pa.Array] = {}
    directions: list[tuple[str, str]] = []
    for number, field in enumerate(order.fields):
        name, kind = schema.find_column_name(field.source_id), schema.find_type(field.source_id)
        assert name is not None, "Iceberg keeps the columns of a sort order"
        values = field.transform.pyarrow_transform(kind)(_column(rows, name))
        # Arrow places the nulls of all keys alike: whether a value is null is a key of its own.
        keys[f"null {number}"] = pc.is_null(values)
        keys[f"value {number}"] = values
        nulls = "descending" if field.null_order == NullOrder.NULLS_FIRST else "ascending"
        direction = "ascending" if field.direction == SortDirection.ASC else "descending"
        directions += [(f"null {number}", nulls), (f"value {number}", direction)]
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=directions))


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    first, *inner = name.split(".")
    column = rows.column(first)
    return pc.struct_field(column, inner) if inner else column
