"""Arrow columns as a table's schema asks for them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def shaped(array: pa.Array, kind: Any) -> pa.Array:
    """Return an array as another type: fields of structs by name, those that it lacks as null, at every depth."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        have = {array.type.field(i).name for i in range(array.type.num_fields)}
        parts = [shaped(array.field(f.name), f.type) if f.name in have else pa.nulls(len(array), f.type) for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return list_like(array, shaped(array.flatten(), kind.value_type), kind)
    return array.cast(kind)


def list_like(array: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists of the same lengths as those of an array, null where it is null, with other items."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]), pa.int32())
    return pa.ListArray.from_arrays(offsets, items, kind, mask=array.is_null())


def column_of(rows: pa.Table, field: pa.Field) -> pa.Array:
    """Return the column of some rows as a table has it; nulls, if they lack it."""
    if field.name not in rows.column_names:
        return pa.nulls(len(rows), field.type)
    return shaped(rows.column(field.name).combine_chunks(), field.type)


def small_offsets(field: pa.Field) -> pa.Field:
    """Return a field as one of types with offsets of 32 bits, which is what Arrow's JSON and Spark give."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([small_offsets(f) for f in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(small_offsets(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(small_offsets(kind.key_field), small_offsets(kind.item_field))
    return field.with_type({pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind))
