"""Arrow's types as Iceberg's, of columns that have no field ids yet. Pure."""

import pyarrow as pa
from pyiceberg.io.pyarrow import PYARROW_FIELD_DOC_KEY, PYARROW_PARQUET_FIELD_ID_KEY, pyarrow_to_schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

NO_ID = -1
"""The field id of what `iceberg_field` returns, at every depth."""


def iceberg_field(field: pa.Field) -> NestedField:
    """Return an Arrow field as Iceberg's, with its doc; all its field ids are `NO_ID`.

    Not by way of a schema, which has no room for a field ``a.b`` beside a field ``b`` of ``a``.

    >>> print(iceberg_field(pa.field("sizes", pa.list_(pa.int16()), nullable=False)).field_type)
    list<int>
    """
    doc = (field.metadata or {}).get(PYARROW_FIELD_DOC_KEY)
    return NestedField(
        NO_ID, field.name, _type_of(field), required=not field.nullable, doc=doc.decode() if doc else None
    )


def _type_of(field: pa.Field) -> IcebergType:
    kind = field.type
    if pa.types.is_struct(kind):
        return StructType(*map(iceberg_field, kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = kind.value_field
        return ListType(NO_ID, _type_of(element), element_required=not element.nullable)
    if pa.types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        return MapType(NO_ID, _type_of(key), NO_ID, _type_of(value), value_required=not value.nullable)
    # PyIceberg converts fields that have ids, as those of data files do.
    with_id = field.with_metadata({PYARROW_PARQUET_FIELD_ID_KEY: str(NO_ID)})
    return pyarrow_to_schema(pa.schema([with_id])).fields[0].field_type
