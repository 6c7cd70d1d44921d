"""Fields that hold one value of a primitive type or of an enum."""

from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]

from kafka_lake.executors.protobuf.model import Files, Values, each_as, plain_values

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
        return each_as(pa.string(), lambda number: names.get(number) or str(number))
    kind = _SCALARS[field.type]
    if pa.types.is_decimal(kind):
        return Values({"": kind}, lambda values: [pa.array(values, pa.uint64()).cast(kind)])
    if not pa.types.is_string(kind):
        return plain_values(kind)

    def strings(values: list[Any]) -> list[pa.Array]:
        try:
            return [pa.array(values, kind)]
        except pa.ArrowInvalid:
            # The protobuf package gives bytes where a proto2 string isn't what it should be.
            raise ValueError(f"Field {path} is not UTF-8") from None

    return Values({"": kind}, strings)
