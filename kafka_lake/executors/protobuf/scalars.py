"""Fields that hold one value of a primitive type or of an enum."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Files, Values, Wire

_SCALARS = {
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
}


def scalar_values(files: Files, field: FieldDescriptor, path: str) -> Values:
    """Return how values of a field that is no message become an array; an enum's are the names of its numbers."""
    if names := files.enums.get(field.full_name):
        return _enum(names)
    kind = _SCALARS[field.type]
    if pa.types.is_decimal(kind):
        wire = Wire(field.type, lambda numbers: ([unsigned(numbers, kind)], None))
        return Values({"": kind}, lambda values: [pa.array(values, pa.uint64()).cast(kind)], wire)
    wire = Wire(field.type, lambda values: ([values.cast(kind)], None))
    if not pa.types.is_string(kind):
        return Values({"": kind}, lambda values: [pa.array(values, kind)], wire)

    def strings(values: list[Any]) -> list[pa.Array]:
        try:
            return [pa.array(values, kind)]
        except pa.ArrowInvalid:
            # The protobuf package gives bytes where a proto2 string isn't what it should be.
            raise ValueError(f"Field {path} is not UTF-8") from None

    return Values({"": kind}, strings, wire)


def _enum(names: Mapping[int, str]) -> Values:
    numbers, texts = pa.array(list(names), pa.int32()), pa.array(names.values(), pa.string())

    def named(values: pa.Array) -> pa.Array:
        found = texts.take(pc.index_in(values, numbers))
        return found if found.null_count == values.null_count else pc.coalesce(found, values.cast(pa.string()))

    def arrays(values: list[Any]) -> list[pa.Array]:
        return [named(pa.array(values, pa.int32()))]

    return Values({"": pa.string()}, arrays, Wire(FieldDescriptor.TYPE_INT32, lambda values: ([named(values)], None)))


def unsigned(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return 64 bits without a sign as decimals without a fraction, faster than Arrow's cast."""
    low = np.asarray(numbers.fill_null(0)).astype(np.uint64)
    return decimals(low.view(np.int64), np.zeros(len(low), dtype=np.int64), numbers, kind)


def decimals(low: np.ndarray, high: np.ndarray, nulls: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals of 128 bits.

    Args:
        low: The lower halves of the unscaled numbers.
        nulls: An array that is null where the result is.
    """
    words = pa.py_buffer(np.column_stack([low, high]).astype("<i8"))
    valid = pc.is_valid(nulls).buffers()[1] if nulls.null_count else None
    return pa.Array.from_buffers(kind, len(low), [valid, words])
