"""Columns to decode into: as Spark, Iceberg and tasks know them, and which fields of records feed them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import PYARROW_FIELD_DOC_KEY, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType
from pyspark.sql import types as T

from kafka_lake.catalog.tables import iceberg_field
from kafka_lake.engine.interop import from_arrow_schema, from_arrow_type, to_arrow_schema
from kafka_lake.formats.json.task.types import Kind
from kafka_lake.formats.task.fit import SHOWN

_DOC: bytes = PYARROW_FIELD_DOC_KEY
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Target:
    """Columns to decode into.

    Args:
        columns: Name, type, and whether null is allowed.
        sources: Path of a column → name of the field that feeds it, where the two differ. ``element`` and ``value``
            step into lists and maps, as in Iceberg.
        also: Path of a column → further names of fields that feed it: what it was called before a rename.
        any_case: Whether a field may differ in case from the names that feed a column, if nothing else could be meant:
            for columns that records have not shown, but somebody declared or made.
    """

    columns: T.StructType
    sources: Mapping[str, str] = field(default_factory=lambda: _NONE)
    also: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    any_case: bool = False

    def feeds(self, path: str, column: str) -> Sequence[str]:
        """Return the names of the fields that feed a column, the first that is there counts."""
        return [self.sources.get(path, column), *self.also.get(path, ())]

    def part(self, column: str) -> "Target":
        """Return what one column, a struct, shall be made of."""
        kind = self.columns[column].dataType
        assert isinstance(kind, T.StructType)
        return Target(kind, _under(self.sources, column), _under(self.also, column), self.any_case)

    def without(self, column: str) -> "Target":
        """Return this target without one of its columns."""
        kept = [f for f in self.columns if f.name != column]
        return replace(self, columns=T.StructType(kept))


def _under(paths: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    start = f"{column}."
    return {path.removeprefix(start): value for path, value in paths.items() if path.startswith(start)}


def iceberg_columns(columns: T.StructType) -> StructType:
    """Return Spark columns as Iceberg's, whose field ids mean nothing; comments become docs."""
    return StructType(*map(iceberg_field, documented(to_arrow_schema(columns), columns)))


def spark_columns(columns: StructType) -> T.StructType:
    """Return Iceberg columns as Spark's; docs become comments."""
    arrow = schema_to_pyarrow(Schema(*columns.fields), include_field_ids=False)
    found: T.StructType = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    return T.StructType(
        [_commented(field, f.field_type, f.doc) for field, f in zip(found, columns.fields, strict=True)]
    )


def documented(arrow: pa.Schema, columns: T.StructType) -> pa.Schema:
    """Return an Arrow schema whose fields have the comments of Spark columns as docs, by name, at every depth."""
    return pa.schema([_documented(field, columns) for field in arrow])


def _documented(field: pa.Field, columns: T.StructType) -> pa.Field:
    twin = next((f for f in columns if f.name == field.name), None)
    if twin is None:
        return field
    comment = twin.metadata.get("comment")
    whole = field.with_type(_documented_type(field.type, twin.dataType))
    return whole.with_metadata({_DOC: comment.encode()}) if comment else whole


def _documented_type(kind: pa.DataType, spark: T.DataType) -> pa.DataType:
    if pa.types.is_struct(kind) and isinstance(spark, T.StructType):
        return pa.struct([_documented(kind.field(i), spark) for i in range(kind.num_fields)])
    if pa.types.is_list(kind) and isinstance(spark, T.ArrayType):
        return pa.list_(kind.value_field.with_type(_documented_type(kind.value_type, spark.elementType)))
    if pa.types.is_map(kind) and isinstance(spark, T.MapType):
        item = kind.item_field.with_type(_documented_type(kind.item_type, spark.valueType))
        return pa.map_(kind.key_field, item)
    return kind


def _commented(field: T.StructField, kind: IcebergType, doc: str | None) -> T.StructField:
    metadata = {**field.metadata, "comment": doc} if doc else field.metadata
    return T.StructField(field.name, _commented_type(field.dataType, kind), field.nullable, metadata)


def _commented_type(spark: T.DataType, kind: IcebergType) -> T.DataType:
    if isinstance(spark, T.StructType) and isinstance(kind, StructType):
        fields = zip(spark, kind.fields, strict=True)
        return T.StructType([_commented(field, f.field_type, f.doc) for field, f in fields])
    if isinstance(spark, T.ArrayType) and isinstance(kind, ListType):
        return T.ArrayType(_commented_type(spark.elementType, kind.element_type), spark.containsNull)
    if isinstance(spark, T.MapType) and isinstance(kind, MapType):
        value = _commented_type(spark.valueType, kind.value_type)
        return T.MapType(spark.keyType, value, spark.valueContainsNull)
    return spark


_WHOLE = {T.ByteType: "byte", T.ShortType: "short", T.IntegerType: "int", T.LongType: "long"}
_SCALARS = {
    **_WHOLE,
    T.BooleanType: "boolean",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.CharType: "string",
    T.VarcharType: "string",
    T.BinaryType: "binary",
    T.DateType: "date",
    T.TimestampType: "timestamp",
    T.TimestampNTZType: "timestamp_ntz",
}
_INFERRED: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "text": T.StringType(),
}


def columns_of(columns: T.StructType, target: Target, prefix: str = "") -> tuple[Any, ...]:
    """Return columns as tasks know them, see `kafka_lake.formats.task.columns`."""
    return tuple(
        (
            f.name,
            _kind(f.dataType, target, f"{prefix}{f.name}"),
            tuple(target.feeds(f"{prefix}{f.name}", f.name)),
            not f.nullable and not prefix,
            _short(f.dataType),
        )
        for f in columns
    )


def _short(kind: T.DataType) -> str:
    text: str = kind.simpleString()
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _kind(kind: T.DataType, target: Target, path: str) -> tuple[Any, ...]:
    if isinstance(kind, T.StructType):
        return ("struct", columns_of(kind, target, f"{path}."))
    if isinstance(kind, T.ArrayType):
        return ("list", _kind(kind.elementType, target, f"{path}.element"))
    if isinstance(kind, T.MapType):
        value = _kind(kind.valueType, target, f"{path}.value")
        key = (_SCALARS[type(kind.keyType)],)
        return ("map", value) if key == ("string",) else ("map", value, key)
    if isinstance(kind, T.DecimalType):
        return ("decimal", kind.precision, kind.scale)
    return (_SCALARS[type(kind)],)


def travelling(kind: T.DataType) -> T.DataType:
    """Return the type as workers give it: Spark's fixed-length text as text."""
    return _replaced(kind, lambda leaf: T.StringType() if isinstance(leaf, T.CharType) else leaf)


def nullable_all(kind: T.DataType) -> T.DataType:
    """Return the type with every nested field, element and value nullable: JSON promises nothing."""
    return _replaced(kind, lambda leaf: leaf)


def _replaced(kind: T.DataType, scalar: Callable[[T.DataType], T.DataType]) -> T.DataType:
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, _replaced(f.dataType, scalar)) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_replaced(kind.elementType, scalar))
    if isinstance(kind, T.MapType):
        return T.MapType(_replaced(kind.keyType, scalar), _replaced(kind.valueType, scalar))
    return scalar(kind)


def spark_type(kind: Kind) -> T.DataType:
    """Return the type of the column for a type that was inferred and settled.

    >>> spark_type(["struct", {"id": "long", "tags": ["list", "text"]}]).simpleString()
    'struct<id:bigint,tags:array<string>>'
    """
    if isinstance(kind, list) and kind[0] == "struct":
        return T.StructType([T.StructField(name, spark_type(shape)) for name, shape in kind[1].items()])
    if isinstance(kind, list):
        return T.ArrayType(spark_type(kind[1]))
    return _INFERRED[kind]


def described_type(kind: pa.DataType) -> T.DataType:
    """Return a type, all of it nullable; what fields have in their metadata, a comment, stays."""
    if pa.types.is_struct(kind):
        return T.StructType([_column(field) for field in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(described_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(described_type(kind.key_type), described_type(kind.item_type))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def _column(field: pa.Field) -> T.StructField:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    return T.StructField(field.name, described_type(field.type), metadata=metadata)
